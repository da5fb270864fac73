//! The completions of routes, each guarded by the version it was decided on.
//!
//! The lease lets one replica append, and the version lets one replica write. If a statement changes fewer
//! routes than it was given, another transaction has changed the rest, or they already have their new values.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;
use domain::ports::{Completion, Failed, Published, RowLocks, StoreError};
use domain::route::{RouteKey, RouteStatus, Version};
use pg::parameter::{bigints, instant, instants, optional_instants, texts};
use pg::{BoundStatement, PgError, Session, Statement};
use serde_json::json;
use tokio_postgres::Row;

use super::{keys, live_statuses};
use crate::codec::{column, loggable, route_key, route_keys};
use crate::error::store_error;
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
            RowLocks::Wait => {
                unless_locked(session.execute(published_at(&PUBLISH_IF_UNCHANGED, routes, now)).await)?
            }
        };
        let changed = match waiting {
            Some(changed) => changed,
            None => {
                session.execute(published_at(&PUBLISH_IF_UNLOCKED, routes, now)).await.map_err(store_error)?
            }
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
        for row in session.query(publications(routes)).await.map_err(store_error)? {
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
            RowLocks::Wait => unless_locked(
                write_failed(&session, routes, failed_at(&FAIL_IF_UNCHANGED, routes, now)).await,
            )?,
        };
        let rows = match waiting {
            Some(rows) => rows,
            None => write_failed(&session, routes, failed_at(&FAIL_IF_UNLOCKED, routes, now))
                .await
                .map_err(store_error)?,
        };
        let mut done = route_keys(&rows)?;
        if done.len() == routes.len() {
            return Ok(vec![Completion::Applied; routes.len()]);
        }
        for row in session.query(failures(routes)).await.map_err(store_error)? {
            done.insert(route_key(&row)?);
        }
        let expected = routes.iter().map(|route| (&route.key, route.version));
        let locked = still_as_read(&session, expected.clone()).await?;
        Ok(expected.map(|(key, _)| completion(key, &done, &locked)).collect())
    }
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
    update: BoundStatement,
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
            session.execute(dead_letters::insert(&dead)).await?;
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
    let rows = session.query(unchanged_routes(expected)).await.map_err(store_error)?;
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

/// The new values of a failed route `r`, given as `g`. It keeps its newest attempts: as many as its budget
/// has, and at most 100, the highest configurable budget, since each resend adds to `max_attempts`.
macro_rules! fail {
    () => {
        "SET updated_at = greatest($10::timestamptz, r.updated_at + interval '1 microsecond'), status = g.status,
            attempt_count = g.attempt_count, next_attempt_at = g.next_attempt_at,
            last_error_classification = g.classification, last_error_message = g.message,
            last_error_at = $10::timestamptz,
            failed_attempts = CASE WHEN jsonb_array_length(r.failed_attempts) >= least(r.max_attempts, 100)
                THEN r.failed_attempts - 0 ELSE coalesce(r.failed_attempts, '[]'::jsonb) END || g.attempt::jsonb,
            dead_lettered_at = CASE WHEN g.next_attempt_at IS NULL THEN $10::timestamptz END"
    };
}

/// The parameters of failed routes as rows.
macro_rules! failed_routes {
    () => {
        "unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[],
                $8::text[], $9::text[])
            AS g (notification_id, route_id, expected, status, attempt_count, next_attempt_at, classification, message,
                attempt)"
    };
}

// MODEL-20
// Each change is `UPDATE routes … FROM given WHERE key AND updated_at = expected`. It raises `updated_at`
// even if the clock does not, and never changes a terminal route, not even one that was edited by hand
// without raising its version. A live route is one with a live status, not one with a time of the next
// attempt, and the statuses are a parameter: the planner, whose statistics show that nothing is due, would
// otherwise read a whole index for every element of the batch.
pg::statements! {
    /// Completes published routes; waits for locked rows.
    PUBLISH_IF_UNCHANGED = "routes.publish_if_unchanged", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($5::timestamptz, r.updated_at + interval '1 microsecond'), status = 'published',
            next_attempt_at = NULL, published_at = $5::timestamptz, published_entry_id = g.entry_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[])
            AS g (notification_id, route_id, expected, entry_id)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
            AND r.status = ANY ($6::text[])";

    /// Completes published routes; skips locked rows.
    PUBLISH_IF_UNLOCKED = "routes.publish_if_unlocked", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($5::timestamptz, r.updated_at + interval '1 microsecond'), status = 'published',
            next_attempt_at = NULL, published_at = $5::timestamptz, published_entry_id = g.entry_id
        FROM (
            SELECT g.*
            FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[])
                AS g (notification_id, route_id, expected, entry_id)
            JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
            WHERE r.updated_at = g.expected AND r.status = ANY ($6::text[])
            FOR NO KEY UPDATE OF r SKIP LOCKED
        ) AS g
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
            AND r.status = ANY ($6::text[])";

    /// The entry ids of the routes that are published.
    PUBLICATIONS = "routes.publications", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id, r.published_entry_id
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.status = 'published'";

    /// Completes failed routes; waits for locked rows.
    FAIL_IF_UNCHANGED = "routes.fail_if_unchanged", plan ["routes_pkey"], concat!("
        UPDATE routes r ", fail!(), "
        FROM ", failed_routes!(), "
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
            AND r.status = ANY ($11::text[])
        RETURNING r.notification_id, r.route_id");

    /// Completes failed routes; skips locked rows.
    FAIL_IF_UNLOCKED = "routes.fail_if_unlocked", plan ["routes_pkey"], concat!("
        UPDATE routes r ", fail!(), "
        FROM (
            SELECT g.*
            FROM ", failed_routes!(), "
            JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
            WHERE r.updated_at = g.expected AND r.status = ANY ($11::text[])
            FOR NO KEY UPDATE OF r SKIP LOCKED
        ) AS g
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
            AND r.status = ANY ($11::text[])
        RETURNING r.notification_id, r.route_id");

    /// The routes that already have their new values, from an earlier attempt whose response was lost. A dead
    /// letter has no next attempt, and its status is compared already.
    FAILURES = "routes.failures", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[], $6::text[])
            AS g (notification_id, route_id, status, attempt_count, next_attempt_at, classification)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.status = g.status AND r.attempt_count = g.attempt_count
            AND r.last_error_classification = g.classification
            AND (g.next_attempt_at IS NULL OR r.next_attempt_at = g.next_attempt_at)";

    /// The routes that are still live at the version that was read.
    UNCHANGED = "routes.unchanged", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.updated_at = g.expected AND r.status = ANY ($4::text[])";
}

/// [`PUBLISH_IF_UNCHANGED`] or [`PUBLISH_IF_UNLOCKED`].
pub(super) fn published_at(statement: &Statement, routes: &[Published], now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids] = keys(routes.iter().map(|done| &done.key));
    statement.bind([
        notification_ids,
        route_ids,
        instants(routes.iter().map(|done| done.version.updated_at())),
        texts(routes.iter().map(|done| done.entry.entry_id.as_str())),
        instant(now),
        live_statuses(),
    ])
}

pub(super) fn publications(routes: &[Published]) -> BoundStatement {
    PUBLICATIONS.bind(keys(routes.iter().map(|done| &done.key)))
}

/// [`FAIL_IF_UNCHANGED`] or [`FAIL_IF_UNLOCKED`].
pub(super) fn failed_at(statement: &Statement, routes: &[Failed], now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids] = keys(routes.iter().map(|route| &route.key));
    statement.bind([
        notification_ids,
        route_ids,
        instants(routes.iter().map(|route| route.version.updated_at())),
        texts(routes.iter().map(|route| status_after(route).as_str())),
        bigints(routes.iter().map(|route| route.attempt_count.into())),
        optional_instants(routes.iter().map(|route| route.retry_at)),
        texts(routes.iter().map(|route| route.classification)),
        texts(routes.iter().map(|route| route.message.as_str())),
        texts(routes.iter().map(|route| json!(route.attempt(now)).to_string())),
        instant(now),
        live_statuses(),
    ])
}

pub(super) fn failures(routes: &[Failed]) -> BoundStatement {
    let [notification_ids, route_ids] = keys(routes.iter().map(|route| &route.key));
    FAILURES.bind([
        notification_ids,
        route_ids,
        texts(routes.iter().map(|route| status_after(route).as_str())),
        bigints(routes.iter().map(|route| route.attempt_count.into())),
        optional_instants(routes.iter().map(|route| route.retry_at)),
        texts(routes.iter().map(|route| route.classification)),
    ])
}

fn status_after(route: &Failed) -> RouteStatus {
    if route.retry_at.is_some() { RouteStatus::Failed } else { RouteStatus::DeadLetter }
}

pub(super) fn unchanged_routes<'a>(
    expected: impl Iterator<Item = (&'a RouteKey, Version)> + Clone,
) -> BoundStatement {
    let [notification_ids, route_ids] = keys(expected.clone().map(|(key, _)| key));
    UNCHANGED.bind([
        notification_ids,
        route_ids,
        instants(expected.map(|(_, version)| version.updated_at())),
        live_statuses(),
    ])
}
