//! The running replicas and their activity: the tables `replicas`, `activity` and `activity_parts`.
//!
//! Each replica writes its own rows and deletes all old rows; a row that another replica is deleting is
//! skipped. Times are the server's. No transaction spans the two tables: after a crash in between the replica
//! has reported itself without its counts.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ports::StoreError;
use domain::ports::{Activity, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};
use domain::replica::{ActivityPart, AttemptsReport, DeferredReport, PartActivity};
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

    async fn add_part_activity(
        &self,
        replica: &str,
        parts: &BTreeMap<ActivityPart, PartActivity>,
    ) -> Result<(), StoreError> {
        let session = self.session("add to the activity of parts").await?;
        let rows: Value = parts.iter().map(part).collect();
        let add = ADD_PARTS.bind([parameter::text(replica), parameter::text(rows.to_string())]);
        session.execute(add).await.map_err(store_error).map(drop)
    }

    async fn delete_replicas(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete the rows of former replicas").await?;
        session.execute(older_than(&DELETE, age, limit)).await.map_err(store_error)
    }

    async fn delete_activity(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete old activity").await?;
        let rows = session.execute(older_than(&DELETE_ACTIVITY, age, limit)).await.map_err(store_error)?;
        let parts = session.execute(older_than(&DELETE_PARTS, age, limit)).await.map_err(store_error)?;
        Ok(rows + parts)
    }
}

// A time is compared with `now()` and not with `clock_timestamp()`: it is constant during the statement, so
// that an index serves the condition.
pg::statements! {
    /// Saves a replica's report. `step_down_at` is unchanged: it belongs to the operators.
    SAVE = "replicas.save", plan [], "
        INSERT INTO replicas (replica, version, started_at, seen_at, leader_of, workers, stopped_at)
        SELECT $1::text, $2::text, $3::timestamptz, at, $4::text[], $5::text::jsonb, CASE WHEN $6::boolean THEN at END
        FROM (SELECT clock_timestamp() AS at OFFSET 0) AS present
        ON CONFLICT (replica) DO UPDATE
        SET version = excluded.version, started_at = excluded.started_at, seen_at = excluded.seen_at,
            leader_of = excluded.leader_of, workers = excluded.workers, stopped_at = excluded.stopped_at";

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

    /// Adds to the counts of the present minute by part.
    ADD_PARTS = "activity.add_parts", plan [], "
        INSERT INTO activity_parts (minute, replica, scope, name, notification_type, accepted, duplicates, conflicts,
            malformed, published, failed, dead_lettered, delays)
        SELECT date_trunc('minute', now()), $1::text, part.scope, part.name, part.notification_type, part.accepted,
            part.duplicates, part.conflicts, part.malformed, part.published, part.failed, part.dead_lettered,
            part.delays
        FROM jsonb_to_recordset($2::text::jsonb) AS part (scope text, name text, notification_type text,
            accepted bigint, duplicates bigint, conflicts bigint, malformed bigint, published bigint, failed bigint,
            dead_lettered bigint, delays bigint[])
        ORDER BY part.scope, part.name, part.notification_type
        ON CONFLICT (minute, replica, scope, name, notification_type) DO UPDATE
        SET accepted = activity_parts.accepted + excluded.accepted,
            duplicates = activity_parts.duplicates + excluded.duplicates,
            conflicts = activity_parts.conflicts + excluded.conflicts,
            malformed = activity_parts.malformed + excluded.malformed,
            published = activity_parts.published + excluded.published,
            failed = activity_parts.failed + excluded.failed,
            dead_lettered = activity_parts.dead_lettered + excluded.dead_lettered,
            delays = ARRAY(
                SELECT coalesce(known, 0) + coalesce(added, 0)
                FROM unnest(activity_parts.delays, excluded.delays) AS counts (known, added)
            )";

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

    /// Deletes old activity of parts, from the first rows of the primary key.
    DELETE_PARTS = "activity.delete_old_parts", plan ["activity_parts_pkey"], "
        DELETE FROM activity_parts
        WHERE (minute, replica, scope, name, notification_type) IN (
            SELECT minute, replica, scope, name, notification_type FROM activity_parts
            WHERE minute < now() - $1::bigint * interval '1 second'
            ORDER BY minute, replica, scope, name, notification_type
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
        parameter::boolean(report.stopped),
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

/// [`DELETE`], [`DELETE_ACTIVITY`] or [`DELETE_PARTS`].
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
        // A former release reads the number under this name.
        "deferred_completions": report.deferred.as_ref().map_or(0, |deferred| deferred.completions),
        "deferred": report.deferred.as_ref().map(deferred),
        "attempts": report.attempts.as_ref().map(attempts),
    })
}

fn deferred(report: &DeferredReport) -> Value {
    json!({
        "since": report.since.to_string(),
        "notification_id": report.first.notification_id.as_str(),
        "route_id": report.first.route_id,
        "is_published": report.is_published,
        "cause": storable(&report.cause),
    })
}

fn attempts(report: &AttemptsReport) -> Value {
    json!({
        "succeeded": report.succeeded,
        "failed": report.failed,
        "failing_since": report.failing_since.map(|since| since.to_string()),
        "cause": storable(&report.cause),
    })
}

fn part((part, PartActivity { activity, delays }): (&ActivityPart, &PartActivity)) -> Value {
    let (scope, name, notification_type) = match part {
        ActivityPart::Routes { channel, notification_type } => {
            ("channel", channel.as_str(), notification_type.as_str())
        }
        ActivityPart::Producer(producer) => ("producer", producer.as_str(), ""),
    };
    json!({
        "scope": scope,
        "name": storable(name),
        "notification_type": storable(notification_type),
        "accepted": activity.accepted,
        "duplicates": activity.duplicates,
        "conflicts": activity.conflicts,
        "malformed": activity.malformed,
        "published": activity.published,
        "failed": activity.failed,
        "dead_lettered": activity.dead_lettered,
        "delays": delays.0,
    })
}

/// The text without the only character that jsonb cannot store.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn blocked(report: &BlockedReport) -> Value {
    json!({
        "entry_id": report.entry_id.map(|id| id.to_string()),
        "cause": storable(&report.cause),
        "since": report.since.to_string(),
    })
}
