//! Statements on claims that their caller still holds, each guarded by the token of the claim.

use std::collections::HashSet;

use pg::bind;
use pg::sql::unnest;
use sea_query::{
    Expr, ExprTrait, IntoIden, LockType, Order, Query, SelectStatement, TableRef, UpdateStatement, WithClause,
};

use super::{ClaimStep, Given, by_bytes, from_now, is_given, step, with_answers};
use crate::schema::{COMPLETED, IdempotencyKeys as Keys, PENDING};
use crate::{ClaimId, CompletionRequest, LockTtl};

/// Returns position, owner, key and token of each claim. If several are equal, only the first is included.
fn given_ids<'a>(ids: impl Iterator<Item = &'a ClaimId>) -> (SelectStatement, Vec<usize>) {
    let mut seen = HashSet::new();
    let distinct: Vec<(usize, &ClaimId)> = ids.enumerate().filter(|(_, id)| seen.insert(*id)).collect();
    let given = Query::select()
        .expr_as(
            unnest(bind::bigints(distinct.iter().map(|(position, _)| *position as i64))),
            Given::Position,
        )
        .expr_as(by_bytes(distinct.iter().map(|(_, id)| id.owner.as_str())), Given::Scope)
        .expr_as(by_bytes(distinct.iter().map(|(_, id)| id.key.as_str())), Given::Key)
        .expr_as(by_bytes(distinct.iter().map(|(_, id)| id.token.to_text())), Given::Token)
        .take();
    (given, distinct.into_iter().map(|(position, _)| position).collect())
}

/// Locks the given claims that are pending under their token until the transaction ends.
fn locked(given: SelectStatement) -> SelectStatement {
    Query::select()
        .column((Given::Table, sea_query::Asterisk))
        .from_subquery(given, Given::Table)
        .inner_join(Keys::Table, is_given())
        .and_where(Expr::col((Keys::Table, Keys::Token)).equals((Given::Table, Given::Token)))
        .and_where(Expr::col((Keys::Table, Keys::State)).eq(bind::text(PENDING)))
        .order_by((Keys::Table, Keys::Scope), Order::Asc)
        .order_by((Keys::Table, Keys::Key), Order::Asc)
        .lock_with_tables(LockType::Update, [Keys::Table])
        .take()
}

/// Changes the claims that `given` names and that are pending under their token; returns their positions.
fn update(given: SelectStatement) -> UpdateStatement {
    Query::update()
        .table(Keys::Table)
        .from(TableRef::SubQuery(locked(given).into(), Given::Table.into_iden()))
        .and_where(is_given())
        .returning(Query::returning().column((Given::Table, Given::Position)))
        .take()
}

/// Stores the responses of the claims that the caller still holds, by the primary key; returns the positions
/// in `completions` of those that were completed.
///
/// For a transaction of the caller, [`pg::Session::prepare`] it and run it with [`pg::Session::change`]:
/// unless it changes as many rows as there are completions, one of them is fenced. [`crate::complete_in`]
/// returns which.
pub fn complete(completions: &[CompletionRequest]) -> UpdateStatement {
    let (given, positions) = given_ids(completions.iter().map(|completion| &completion.id));
    let given = with_answers(given, || positions.iter().map(|position| &completions[*position]));
    let of_given = |column: Given| Expr::col((Given::Table, column));
    update(given)
        .value(Keys::State, bind::text(COMPLETED))
        .value(Keys::ResponseStatus, of_given(Given::Status).cast_as("int"))
        .value(Keys::ResponseHeaders, of_given(Given::Headers))
        .value(Keys::ResponseBody, of_given(Given::Body))
        .value(Keys::ExpiresAt, from_now(of_given(Given::TtlMs)))
        .take()
}

/// Sets the end of the claims that the caller still holds to `lock_ttl` from now; returns their positions.
pub(crate) fn extend(ids: &[&ClaimId], lock_ttl: LockTtl) -> UpdateStatement {
    update(given_ids(ids.iter().copied()).0)
        .value(Keys::ExpiresAt, from_now(bind::bigint(lock_ttl.as_millis())))
        .take()
}

/// Deletes the claims that the caller still holds; returns their positions.
pub(crate) fn abandon(ids: &[&ClaimId]) -> SelectStatement {
    let gone = Query::select().columns([Given::Scope, Given::Key]).from(ClaimStep::Locked).take();
    let delete = Query::delete()
        .from_table(Keys::Table)
        .and_where(Expr::tuple([Expr::col(Keys::Scope), Expr::col(Keys::Key)]).in_subquery(gone))
        .take();
    Query::select()
        .column(Given::Position)
        .from(ClaimStep::Locked)
        .with_cte(
            WithClause::new()
                .cte(step(ClaimStep::Locked, locked(given_ids(ids.iter().copied()).0)))
                .cte(step(ClaimStep::Deleted, delete))
                .to_owned(),
        )
        .take()
}
