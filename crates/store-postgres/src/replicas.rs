//! The running replicas and their activity: the tables `replicas` and `activity`.
//!
//! Each replica writes its own rows and deletes all old rows; a row that another replica is deleting is
//! skipped. Times are the server's. No transaction spans the two tables: after a crash in between the replica
//! has reported itself without its counts.

use std::time::Duration;

use domain::ports::StoreError;
use domain::ports::{Activity, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};
use pg::{BoundStatement, Statement, parameter};
use serde_json::{Value, json};

use crate::PgStore;
use crate::error::store_error;

impl ReplicaStore for PgStore {
    async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
        let session = self.session("save the row of this replica").await?;
        session.execute(save(report)).await.map_err(store_error).map(drop)
    }

    async fn add_activity(&self, replica: &str, activity: &Activity) -> Result<(), StoreError> {
        let session = self.session("add to the activity of this replica").await?;
        session.execute(add(replica, activity)).await.map_err(store_error).map(drop)
    }

    async fn delete_replicas(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete the rows of former replicas").await?;
        session.execute(older_than(&DELETE, age, limit)).await.map_err(store_error)
    }

    async fn delete_activity(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete old activity").await?;
        session.execute(older_than(&DELETE_ACTIVITY, age, limit)).await.map_err(store_error)
    }
}

// A time is compared with `now()` and not with `clock_timestamp()`: it is constant during the statement, so
// that an index serves the condition.
pg::statements! {
    /// Saves a replica's report. `step_down_at` is unchanged: it belongs to the operators.
    SAVE = "replicas.save", plan [], "
        INSERT INTO replicas (replica, version, started_at, seen_at, leader_of, workers)
        VALUES ($1::text, $2::text, $3::timestamptz, clock_timestamp(), $4::text[], $5::text::jsonb)
        ON CONFLICT (replica) DO UPDATE
        SET version = excluded.version, started_at = excluded.started_at, seen_at = excluded.seen_at,
            leader_of = excluded.leader_of, workers = excluded.workers";

    /// Adds to the counts of the present minute.
    ADD_ACTIVITY = "activity.add", plan [], "
        INSERT INTO activity (minute, replica, accepted, duplicates, conflicts, malformed, published, failed,
            dead_lettered)
        VALUES (date_trunc('minute', clock_timestamp()), $1::text, $2::bigint, $3::bigint, $4::bigint, $5::bigint,
            $6::bigint, $7::bigint, $8::bigint)
        ON CONFLICT (minute, replica) DO UPDATE
        SET accepted = activity.accepted + excluded.accepted,
            duplicates = activity.duplicates + excluded.duplicates,
            conflicts = activity.conflicts + excluded.conflicts,
            malformed = activity.malformed + excluded.malformed,
            published = activity.published + excluded.published, failed = activity.failed + excluded.failed,
            dead_lettered = activity.dead_lettered + excluded.dead_lettered";

    /// Deletes old replicas. The table has a row for each replica of the last hour, so it needs no index.
    DELETE = "replicas.delete_old", plan ["Seq Scan on replicas"], "
        DELETE FROM replicas
        WHERE replica IN (
            SELECT replica FROM replicas
            WHERE seen_at < now() - $1::bigint * interval '1 second'
            ORDER BY seen_at
            LIMIT $2::bigint
            FOR UPDATE SKIP LOCKED
        )";

    /// Deletes old activity, from the first rows of the primary key.
    DELETE_ACTIVITY = "activity.delete_old", plan ["activity_pkey"], "
        DELETE FROM activity
        WHERE (minute, replica) IN (
            SELECT minute, replica FROM activity
            WHERE minute < now() - $1::bigint * interval '1 second'
            ORDER BY minute, replica
            LIMIT $2::bigint
            FOR UPDATE SKIP LOCKED
        )";
}

fn save(report: &ReplicaReport) -> BoundStatement {
    let workers: Value = report.workers.iter().map(worker).collect();
    SAVE.bind([
        parameter::text(&report.replica),
        parameter::text(&report.version),
        parameter::instant(report.started_at),
        parameter::texts(&report.leader_of),
        parameter::text(workers.to_string()),
    ])
}

fn add(replica: &str, activity: &Activity) -> BoundStatement {
    let count = |count: u64| parameter::bigint(i64::try_from(count).unwrap_or(i64::MAX));
    ADD_ACTIVITY.bind([
        parameter::text(replica),
        count(activity.accepted),
        count(activity.duplicates),
        count(activity.conflicts),
        count(activity.malformed),
        count(activity.published),
        count(activity.failed),
        count(activity.dead_lettered),
    ])
}

/// [`DELETE`] or [`DELETE_ACTIVITY`].
fn older_than(statement: &Statement, age: Duration, limit: usize) -> BoundStatement {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    statement.bind([parameter::bigint(seconds), parameter::rows(limit)])
}

fn worker(report: &WorkerReport) -> Value {
    json!({
        "worker": report.worker,
        "last_pass_at": report.last_pass_at.to_string(),
        "blocked": report.blocked.as_ref().map(blocked),
        "position": report.position.map(|position| position.to_string()),
        "deferred_completions": report.deferred,
    })
}

fn blocked(report: &BlockedReport) -> Value {
    json!({
        "entry_id": report.entry_id.map(|id| id.to_string()),
        // The only character that jsonb cannot store.
        "cause": report.cause.replace('\0', "\u{fffd}"),
        "since": report.since.to_string(),
    })
}
