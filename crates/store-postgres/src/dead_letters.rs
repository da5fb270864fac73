//! Dead letters, written in the transaction in which the last attempt of a route failed.

use domain::dead_letter::recovery_hint;
use domain::ports::Failed;
use pg::bind;
use pg::sql::unnest;
use sea_query::{Expr, InsertStatement, OnConflict, Query};

use crate::routes::{given_keys, on_key};
use crate::schema::{DeadLetters, Input, Routes};

/// Inserts a dead letter for each of the routes, by their primary key. A route that an operator has retried
/// may become a dead letter again: its row is then replaced.
pub(crate) fn insert(routes: &[&Failed]) -> InsertStatement {
    let texts = |value: fn(&Failed) -> &str| unnest(bind::texts(routes.iter().copied().map(value)));
    let given = given_keys(routes.iter().map(|route| &route.key))
        .expr_as(texts(|route| recovery_hint(route.channel, route.classification)), Input::RecoveryHint)
        .take();
    let of_route = |column: Routes| Expr::col((Routes::Table, column));
    let pairs = [
        (DeadLetters::NotificationId, of_route(Routes::NotificationId)),
        (DeadLetters::RouteId, of_route(Routes::RouteId)),
        (DeadLetters::Channel, of_route(Routes::Channel)),
        (DeadLetters::RecipientRef, of_route(Routes::RecipientRef)),
        (DeadLetters::FinalAttemptCount, of_route(Routes::AttemptCount)),
        (DeadLetters::MaxAttempts, of_route(Routes::MaxAttempts)),
        (DeadLetters::FailureClassification, of_route(Routes::LastErrorClassification)),
        (DeadLetters::FailureMessage, of_route(Routes::LastErrorMessage)),
        (DeadLetters::RecoveryHint, Expr::col((Input::Table, Input::RecoveryHint))),
        (DeadLetters::CreatedAt, of_route(Routes::DeadLetteredAt)),
    ];
    let mut select = Query::select();
    select.from_subquery(given, Input::Table).inner_join(Routes::Table, on_key());
    let mut insert = Query::insert();
    insert.into_table(DeadLetters::Table).columns(pairs.iter().map(|(column, _)| *column)).on_conflict(
        OnConflict::columns([DeadLetters::NotificationId, DeadLetters::RouteId])
            .update_columns([
                DeadLetters::FinalAttemptCount,
                DeadLetters::FailureClassification,
                DeadLetters::FailureMessage,
                DeadLetters::RecoveryHint,
                DeadLetters::CreatedAt,
            ])
            // The dead letter needs attention again.
            .value(DeadLetters::DiscardedAt, Expr::cust("NULL"))
            .to_owned(),
    );
    select.exprs(pairs.into_iter().map(|(_, value)| value));
    // Cannot fail: columns and expressions come in pairs.
    insert.select_from(select).expect("as many expressions as columns");
    insert
}
