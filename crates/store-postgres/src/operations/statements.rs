//! The statements of operators' changes. All access routes and dead letters by their primary keys.

use ambient::Timestamp;
use domain::operations::{ReplayedRoute, Target};
use domain::route::{RouteKey, RouteStatus};
use pg::sql::{insert_rows, unnest};
use pg::{PgError, Session, bind};
use sea_query::{
    DeleteStatement, Expr, ExprTrait, InsertStatement, LockBehavior, LockType, Query, SelectStatement,
    UpdateStatement,
};

use crate::routes::{given_keys, next_version, on_key, versioned};
use crate::schema::{DeadLetters, Input, OperatorActions as A, Routes};

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&routes_named(&[])).await?;
    session.prepare(&lock(&[])).await?;
    session.prepare(&unchanged(&[])).await?;
    session.prepare(&replay_routes(&[], Timestamp::MIN)).await?;
    session.prepare(&delete(&[])).await?;
    session.prepare(&discard(&[], "", "", Timestamp::MIN)).await?;
    session.prepare(&touch(&[], Timestamp::MIN)).await?;
    session.prepare(&insert_action(("", ""), "", "{}", 0)).await?;
    Ok(())
}

/// The routes with these keys, dead or not.
pub(super) fn routes_named(keys: &[&RouteKey]) -> SelectStatement {
    let of_route = |column: Routes| (Routes::Table, column);
    Query::select()
        .columns(
            [Routes::NotificationId, Routes::RouteId, Routes::Channel, Routes::Status, Routes::UpdatedAt]
                .map(of_route),
        )
        .column((DeadLetters::Table, DeadLetters::FailureClassification))
        .expr_as(Expr::col((DeadLetters::Table, DeadLetters::DiscardedAt)).is_not_null(), Input::Discarded)
        .from_subquery(given_keys(keys.iter().copied()), Input::Table)
        .inner_join(Routes::Table, on_key())
        .left_join(DeadLetters::Table, letter_of_route())
        .take()
}

fn letter_of_route() -> Expr {
    Expr::col((DeadLetters::Table, DeadLetters::NotificationId))
        .equals((Routes::Table, Routes::NotificationId))
        .and(Expr::col((DeadLetters::Table, DeadLetters::RouteId)).equals((Routes::Table, Routes::RouteId)))
}

fn on_letter() -> Expr {
    Expr::col((DeadLetters::Table, DeadLetters::NotificationId))
        .equals((Input::Table, Input::NotificationId))
        .and(Expr::col((DeadLetters::Table, DeadLetters::RouteId)).equals((Input::Table, Input::RouteId)))
}

/// The targets that still have their version. A dead letter that was edited by hand without a higher version
/// is excluded.
pub(super) fn unchanged(chunk: &[Target]) -> SelectStatement {
    let as_read =
        Expr::col((Routes::Table, Routes::UpdatedAt)).equals((Input::Table, Input::ExpectedUpdatedAt));
    Query::select()
        .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)])
        .from_subquery(versioned(chunk.iter().map(|target| (&target.key, target.version))), Input::Table)
        .inner_join(Routes::Table, on_key())
        .inner_join(DeadLetters::Table, letter_of_route())
        .and_where(as_read)
        .and_where(is_dead())
        .take()
}

/// The rows of [`unchanged`] whose route and dead letter are not locked by another transaction; locks them.
pub(super) fn lock(chunk: &[Target]) -> SelectStatement {
    unchanged(chunk)
        .lock_with_tables_behavior(
            LockType::Update,
            [sea_query::TableRef::from(Routes::Table), sea_query::TableRef::from(DeadLetters::Table)],
            LockBehavior::SkipLocked,
        )
        .take()
}

fn is_dead() -> Expr {
    Expr::col((Routes::Table, Routes::Status)).eq(bind::text(RouteStatus::DeadLetter.as_str()))
}

fn keys(targets: &[Target]) -> SelectStatement {
    given_keys(targets.iter().map(|target| &target.key))
}

/// Gives locked routes their new budget. Columns that are not listed here are unchanged.
pub(super) fn replay_routes(routes: &[(&Target, ReplayedRoute)], now: Timestamp) -> UpdateStatement {
    let bigints = |value: fn(&ReplayedRoute) -> u32| {
        unnest(bind::bigints(routes.iter().map(|(_, replayed)| value(replayed).into())))
    };
    let statuses = unnest(bind::texts(routes.iter().map(|(_, replayed)| replayed.status.as_str())));
    let due = unnest(bind::instants(routes.iter().map(|(_, replayed)| replayed.next_attempt_at)));
    let given = given_keys(routes.iter().map(|(target, _)| &target.key))
        .expr_as(statuses, Input::Status)
        .expr_as(bigints(|replayed| replayed.attempt_count), Input::AttemptCount)
        .expr_as(bigints(|replayed| replayed.max_attempts), Input::Rows)
        .expr_as(due, Input::NextAttemptAt)
        .take();
    let of_given = |column: Input| Expr::col((Input::Table, column));
    change_dead(given, now)
        .value(Routes::Status, of_given(Input::Status))
        .value(Routes::AttemptCount, of_given(Input::AttemptCount))
        .value(Routes::MaxAttempts, of_given(Input::Rows))
        .value(Routes::NextAttemptAt, of_given(Input::NextAttemptAt))
        .value(Routes::DeadLetteredAt, Expr::cust("NULL"))
        .take()
}

/// Raises the versions of locked routes, so that a decision on the older version is a conflict.
pub(super) fn touch(targets: &[Target], now: Timestamp) -> UpdateStatement {
    change_dead(keys(targets), now)
}

fn change_dead(given: SelectStatement, now: Timestamp) -> UpdateStatement {
    Query::update()
        .table(Routes::Table)
        .value(Routes::UpdatedAt, next_version(now))
        .from(sea_query::TableRef::SubQuery(given.into(), sea_query::IntoIden::into_iden(Input::Table)))
        .and_where(on_key())
        .and_where(is_dead())
        .take()
}

/// Deletes the dead letters of locked routes.
pub(super) fn delete(targets: &[Target]) -> DeleteStatement {
    let key = [DeadLetters::NotificationId, DeadLetters::RouteId];
    Query::delete()
        .from_table(DeadLetters::Table)
        .and_where(Expr::tuple(key.map(Expr::col)).in_subquery(keys(targets)))
        .take()
}

/// Marks the dead letters of locked routes as discarded.
pub(super) fn discard(targets: &[Target], actor: &str, reason: &str, now: Timestamp) -> UpdateStatement {
    Query::update()
        .table(DeadLetters::Table)
        .value(DeadLetters::DiscardedAt, bind::instant(now))
        .value(DeadLetters::DiscardedBy, bind::text(actor))
        .value(DeadLetters::DiscardReason, bind::text(reason))
        .from(sea_query::TableRef::SubQuery(
            keys(targets).into(),
            sea_query::IntoIden::into_iden(Input::Table),
        ))
        .and_where(on_letter())
        .take()
}

/// Records a change by an actor with a request, at the time of the server.
pub(crate) fn insert_action(
    (actor, request_id): (&str, &str),
    name: &str,
    arguments: &str,
    affected: u64,
) -> InsertStatement {
    insert_rows(
        A::Table,
        [
            (A::At, Expr::cust("clock_timestamp()")),
            (A::Actor, bind::text(actor)),
            (A::Action, bind::text(name)),
            (A::Arguments, bind::text(arguments).cast_as("jsonb")),
            (A::Affected, bind::bigint(i64::try_from(affected).unwrap_or(i64::MAX))),
            (A::RequestId, bind::text(request_id)),
        ],
    )
}
