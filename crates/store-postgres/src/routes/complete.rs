//! The completions of routes, each guarded by the version it was decided on.
//!
//! The lease lets one replica append, and the version lets one replica write. If a statement changes fewer
//! routes than it was given, another transaction has changed the rest, or they already have their new values.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;
use domain::ports::{Completion, Failed, Published, RowLocks, StoreError};
use domain::route::{RouteKey, RouteStatus, Version};
use pg::sql::unnest;
use pg::{PgError, Session, bind};
use sea_query::{
    CaseStatement, Expr, ExprTrait, LockBehavior, LockType, Query, SelectStatement, UpdateStatement,
};
use tokio_postgres::Row;

use super::{given_keys, is_live, next_version, on_key, versioned};
use crate::codec::{column, loggable, route_key, route_keys};
use crate::error::store_error;
use crate::schema::{Input, Routes};
use crate::{PgStore, dead_letters};

impl PgStore {
    pub(super) async fn complete_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        if routes.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.session("complete published routes").await?;
        let waiting = match locks {
            RowLocks::Skip => None,
            RowLocks::Wait => unless_locked(session.execute(&publish_if_unchanged(routes, now)).await)?,
        };
        let changed = match waiting {
            Some(changed) => changed,
            None => session.execute(&publish_if_unlocked(routes, now)).await.map_err(store_error)?,
        };
        // The changed routes are queried only if some were not changed: keys in the result cost as much as
        // they do as parameters.
        if changed == routes.len() as u64 {
            return Ok(vec![Completion::Applied; routes.len()]);
        }
        let mut done: HashSet<RouteKey> = HashSet::with_capacity(routes.len());
        // A row with the intended entry id was changed just now, or by an earlier attempt whose response was
        // lost.
        let intended: HashMap<&RouteKey, &str> =
            routes.iter().map(|done| (&done.key, done.entry.entry_id.as_str())).collect();
        for row in session.query(&publications(routes)).await.map_err(store_error)? {
            let key = route_key(&row)?;
            let entry_id: String = column(&row, "routes.published_entry_id", &loggable(&key))?;
            if intended.get(&key).is_some_and(|intended| **intended == entry_id) {
                done.insert(key);
            }
        }
        let expected = routes.iter().map(|route| (&route.key, route.version));
        let locked = still_as_read(&session, expected.clone()).await?;
        Ok(expected.map(|(key, _)| completion(key, &done, &locked)).collect())
    }

    pub(super) async fn complete_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        if routes.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.session("complete failed routes").await?;
        let waiting = match locks {
            RowLocks::Skip => None,
            RowLocks::Wait => {
                unless_locked(write_failed(&session, routes, &fail_if_unchanged(routes, now)).await)?
            }
        };
        let rows = match waiting {
            Some(rows) => rows,
            None => {
                write_failed(&session, routes, &fail_if_unlocked(routes, now)).await.map_err(store_error)?
            }
        };
        let mut done = route_keys(&rows)?;
        if done.len() == routes.len() {
            return Ok(vec![Completion::Applied; routes.len()]);
        }
        for row in session.query(&failures(routes)).await.map_err(store_error)? {
            done.insert(route_key(&row)?);
        }
        let expected = routes.iter().map(|route| (&route.key, route.version));
        let locked = still_as_read(&session, expected.clone()).await?;
        Ok(expected.map(|(key, _)| completion(key, &done, &locked)).collect())
    }
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&publish_if_unchanged(&[], Timestamp::MIN)).await?;
    session.prepare(&publish_if_unlocked(&[], Timestamp::MIN)).await?;
    session.prepare(&publications(&[])).await?;
    session.prepare(&fail_if_unchanged(&[], Timestamp::MIN)).await?;
    session.prepare(&fail_if_unlocked(&[], Timestamp::MIN)).await?;
    session.prepare(&unchanged_routes(std::iter::empty())).await?;
    session.prepare(&failures(&[])).await?;
    session.prepare(&dead_letters::insert(&[])).await?;
    Ok(())
}

/// The result, or `None` if a row was locked, so that the statement was not executed.
fn unless_locked<T>(done: Result<T, PgError>) -> Result<Option<T>, StoreError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(PgError::Locked { .. }) => Ok(None),
        Err(error) => Err(store_error(error)),
    }
}

/// Changes the routes and inserts a row for each of them that is now a dead letter, in one transaction.
async fn write_failed(
    session: &Session,
    routes: &[Failed],
    update: &UpdateStatement,
) -> Result<Vec<Row>, PgError> {
    let update = session.prepare(update).await?;
    session.begin().await?;
    let written = async {
        let rows = session.run(&update).await?;
        // If a key cannot be parsed, no dead letter is written for it here; the caller reports it.
        let changed: HashSet<RouteKey> = rows.iter().filter_map(|row| route_key(row).ok()).collect();
        let dead: Vec<&Failed> =
            routes.iter().filter(|route| route.retry_at.is_none() && changed.contains(&route.key)).collect();
        if !dead.is_empty() {
            session.execute(&dead_letters::insert(&dead)).await?;
        }
        session.commit().await?;
        Ok(rows)
    };
    let written = written.await;
    if written.is_err() {
        // If this fails too, the session closes its connection. Either way the first error is the one to
        // report.
        drop(session.rollback().await);
    }
    written
}

/// The routes that are live at the version that was read: they would have been changed if they had not been
/// locked.
async fn still_as_read<'a>(
    session: &Session,
    expected: impl Iterator<Item = (&'a RouteKey, Version)> + Clone,
) -> Result<HashSet<RouteKey>, StoreError> {
    let rows = session.query(&unchanged_routes(expected)).await.map_err(store_error)?;
    rows.iter().map(route_key).collect()
}

fn completion(key: &RouteKey, done: &HashSet<RouteKey>, locked: &HashSet<RouteKey>) -> Completion {
    if done.contains(key) {
        Completion::Applied
    } else if locked.contains(key) {
        Completion::Locked
    } else {
        Completion::Conflict
    }
}

/// The routes with the version that was published and the id of the entry.
fn entries(routes: &[Published]) -> SelectStatement {
    let mut given = versioned(routes.iter().map(|done| (&done.key, done.version)));
    given
        .expr_as(unnest(bind::texts(routes.iter().map(|done| done.entry.entry_id.as_str()))), Input::EntryId);
    given
}

/// Completes published routes, by the primary key; waits for locked rows.
pub(super) fn publish_if_unchanged(routes: &[Published], now: Timestamp) -> UpdateStatement {
    published(entries(routes), now)
}

/// Completes published routes, by the primary key; skips locked rows.
pub(super) fn publish_if_unlocked(routes: &[Published], now: Timestamp) -> UpdateStatement {
    published(unlocked(entries(routes)), now)
}

fn published(given: SelectStatement, now: Timestamp) -> UpdateStatement {
    change_if_unchanged(given, now)
        .value(Routes::Status, bind::text(RouteStatus::Published.as_str()))
        .value(Routes::NextAttemptAt, Expr::cust("NULL"))
        .value(Routes::PublishedAt, bind::instant(now))
        .value(Routes::PublishedEntryId, Expr::col((Input::Table, Input::EntryId)))
        .take()
}

/// The entry ids of the routes that are published, by the primary key.
pub(super) fn publications(routes: &[Published]) -> SelectStatement {
    Query::select()
        .columns([
            (Routes::Table, Routes::NotificationId),
            (Routes::Table, Routes::RouteId),
            (Routes::Table, Routes::PublishedEntryId),
        ])
        .from_subquery(given_keys(routes.iter().map(|done| &done.key)), Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(Expr::col((Routes::Table, Routes::Status)).eq(bind::text(RouteStatus::Published.as_str())))
        .take()
}

/// The routes with the version at which they failed, and their new values.
fn outcomes(routes: &[Failed]) -> SelectStatement {
    let texts = |value: fn(&Failed) -> &str| unnest(bind::texts(routes.iter().map(value)));
    let status =
        |route: &Failed| if route.retry_at.is_some() { RouteStatus::Failed } else { RouteStatus::DeadLetter };
    let mut given = versioned(routes.iter().map(|route| (&route.key, route.version)));
    given
        .expr_as(unnest(bind::texts(routes.iter().map(|route| status(route).as_str()))), Input::Status)
        .expr_as(
            unnest(bind::bigints(routes.iter().map(|route| route.attempt_count.into()))),
            Input::AttemptCount,
        )
        .expr_as(
            unnest(bind::optional_instants(routes.iter().map(|route| route.retry_at))),
            Input::NextAttemptAt,
        )
        .expr_as(texts(|route| route.classification), Input::Classification)
        .expr_as(texts(|route| &route.message), Input::Message)
        .take()
}

fn of_given(column: Input) -> Expr {
    Expr::col((Input::Table, column))
}

/// Completes failed routes, by the primary key; waits for locked rows.
pub(super) fn fail_if_unchanged(routes: &[Failed], now: Timestamp) -> UpdateStatement {
    failed(outcomes(routes), now)
}

/// Completes failed routes, by the primary key; skips locked rows.
pub(super) fn fail_if_unlocked(routes: &[Failed], now: Timestamp) -> UpdateStatement {
    failed(unlocked(outcomes(routes)), now)
}

fn failed(given: SelectStatement, now: Timestamp) -> UpdateStatement {
    let dead_since = CaseStatement::new().case(of_given(Input::NextAttemptAt).is_null(), bind::instant(now));
    change_if_unchanged(given, now)
        .value(Routes::Status, of_given(Input::Status))
        .value(Routes::AttemptCount, of_given(Input::AttemptCount))
        .value(Routes::NextAttemptAt, of_given(Input::NextAttemptAt))
        .value(Routes::LastErrorClassification, of_given(Input::Classification))
        .value(Routes::LastErrorMessage, of_given(Input::Message))
        .value(Routes::LastErrorAt, bind::instant(now))
        .value(Routes::DeadLetteredAt, dead_since)
        .returning(
            Query::returning()
                .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)]),
        )
        .take()
}

/// The routes that already have their new values, from an earlier attempt whose response was lost; by the
/// primary key.
pub(super) fn failures(routes: &[Failed]) -> SelectStatement {
    let of_route = |column: Routes| Expr::col((Routes::Table, column));
    let next_attempt_at = (Input::Table, Input::NextAttemptAt);
    Query::select()
        .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)])
        .from_subquery(outcomes(routes), Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(of_route(Routes::Status).equals((Input::Table, Input::Status)))
        .and_where(of_route(Routes::AttemptCount).equals((Input::Table, Input::AttemptCount)))
        .and_where(of_route(Routes::LastErrorClassification).equals((Input::Table, Input::Classification)))
        // A dead letter has no next attempt, and its status is compared already.
        .and_where(
            of_given(Input::NextAttemptAt)
                .is_null()
                .or(of_route(Routes::NextAttemptAt).equals(next_attempt_at)),
        )
        .take()
}

/// The given routes that can be changed now: unchanged since they were read, and not locked by another
/// transaction.
fn unlocked(given: SelectStatement) -> SelectStatement {
    Query::select()
        .column((Input::Table, sea_query::Asterisk))
        .from_subquery(given, Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(as_read())
        .and_where(is_live())
        .lock_with_tables_behavior(LockType::NoKeyUpdate, [Routes::Table], LockBehavior::SkipLocked)
        .take()
}

/// The routes that are still live at the version that was read, by the primary key.
pub(super) fn unchanged_routes<'a>(
    expected: impl Iterator<Item = (&'a RouteKey, Version)> + Clone,
) -> SelectStatement {
    Query::select()
        .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)])
        .from_subquery(versioned(expected), Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(as_read())
        .and_where(is_live())
        .take()
}

/// `UPDATE routes … FROM given WHERE key AND updated_at = expected`, which raises `updated_at` even if the
/// clock does not. A terminal route is never changed, not even one that was edited by hand without raising
/// its version.
fn change_if_unchanged(given: SelectStatement, now: Timestamp) -> UpdateStatement {
    Query::update()
        .table(Routes::Table)
        .value(Routes::UpdatedAt, next_version(now))
        .from(sea_query::TableRef::SubQuery(given.into(), sea_query::IntoIden::into_iden(Input::Table)))
        .and_where(on_key())
        .and_where(as_read())
        .and_where(is_live())
        .take()
}

fn as_read() -> Expr {
    Expr::col((Routes::Table, Routes::UpdatedAt)).equals((Input::Table, Input::ExpectedUpdatedAt))
}
