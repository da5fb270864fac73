//! Operators' statements: prune, list, requeue.

use std::ops::RangeInclusive;
use std::time::Duration;

use pg::parameter::{self, Parameters};
use pg::{BoundStatement, RawTimestamp, Statement};
use uuid::Uuid;

use crate::TableName;

/// The events that can be pruned, and the column that contains their age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prunable {
    Delivered,
    Dead,
}

impl Prunable {
    pub(super) fn columns(self) -> (&'static str, &'static str) {
        match self {
            Self::Delivered => ("DELIVERED", "delivered_at"),
            Self::Dead => ("DEAD", "updated_at"),
        }
    }

    /// The index of these events.
    fn plan(self) -> &'static [&'static str] {
        match self {
            Self::Delivered => &["idx_openoutbox_prune_delivered"],
            Self::Dead => &["idx_openoutbox_prune_dead"],
        }
    }
}

pub(super) const CUTOFF: Statement =
    Statement::new("outbox.cutoff", &[], "SELECT now() - $1::bigint * interval '1 second' AS cutoff");

/// The time that lies `age` in the past.
pub(crate) fn cutoff(age: Duration) -> BoundStatement {
    let seconds = parameter::bigint(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    CUTOFF.bind([seconds])
}

/// Counts the events that are strictly older.
///
/// Plan: the index of prunable events.
pub(crate) fn count_prunable(table: &TableName, which: Prunable, cutoff: RawTimestamp) -> BoundStatement {
    let (status, column) = which.columns();
    let text = format!(
        "SELECT count(*) AS events FROM {} e WHERE e.status = '{status}' AND e.{column} < $1::timestamptz",
        table.quoted()
    );
    Statement::composed("outbox.count_prunable", which.plan(), text).bind([parameter::raw_instant(cutoff)])
}

/// A chunk of DELIVERED or DEAD events, with times from `from` to the cutoff.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The end of the previous chunk, so that its events are not read again.
    pub(crate) from: RawTimestamp,
    pub(crate) cutoff: RawTimestamp,
    pub(crate) limit: u32,
}

/// Deletes some of the events that are strictly older, the oldest first; skips events that another
/// transaction has locked. Returns their number and the time of the last.
///
/// Plan: the index of prunable events up to the limit, then the primary key.
pub(crate) fn prune(table: &TableName, which: Prunable, chunk: Chunk) -> BoundStatement {
    let ((status, column), t) = (which.columns(), table.quoted());
    let text = format!(
        "WITH chosen AS MATERIALIZED (
            SELECT e.event_id, e.{column} AS at FROM {t} e
            WHERE e.status = '{status}' AND e.{column} >= $1::timestamptz AND e.{column} < $2::timestamptz
            ORDER BY e.{column} LIMIT $3::bigint FOR UPDATE SKIP LOCKED),
        deleted AS (DELETE FROM {t} WHERE event_id = ANY (ARRAY(SELECT event_id FROM chosen)))
        SELECT count(*) AS events, max(at) AS last FROM chosen"
    );
    let Chunk { from, cutoff, limit } = chunk;
    Statement::composed("outbox.prune", which.plan(), text).bind([
        parameter::raw_instant(from),
        parameter::raw_instant(cutoff),
        parameter::bigint(limit.into()),
    ])
}

/// The columns shown of an event; names are clipped.
const SHOWN: &str =
    "e.event_id, left(e.event_type, 255) AS event_type, left(e.partition_key, 255) AS partition_key,
    e.status, e.attempts, left(e.last_error, 2000) AS last_error, e.available_at, e.created_at, e.updated_at,
    octet_length(e.payload)::bigint AS payload_bytes";

/// Lists DEAD or DELIVERED events of these times, the latest first.
///
/// Plan: the index of these events, backwards up to the limit.
pub(crate) fn list_done(
    table: &TableName,
    which: Prunable,
    event_type: Option<&str>,
    times: &RangeInclusive<RawTimestamp>,
    limit: u32,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let done = done(&mut parameters, which, event_type, times);
    let limit = parameters.add(parameter::bigint(limit.into()));
    let text = format!(
        "SELECT {SHOWN} FROM {} e WHERE {done} ORDER BY e.{} DESC LIMIT {limit}",
        table.quoted(),
        which.columns().1
    );
    Statement::composed("outbox.list_done", which.plan(), text).bind(parameters)
}

/// Returns the condition that the row `e` is DEAD or DELIVERED, and has this type and a time in this range.
fn done(
    parameters: &mut Parameters,
    which: Prunable,
    event_type: Option<&str>,
    times: &RangeInclusive<RawTimestamp>,
) -> String {
    let (status, column) = which.columns();
    let of_type = of_type(parameters, event_type);
    let [from, to] = [times.start(), times.end()].map(|time| parameters.add(parameter::raw_instant(*time)));
    format!("e.status = '{status}' {of_type} AND e.{column} >= {from} AND e.{column} <= {to}")
}

fn of_type(parameters: &mut Parameters, event_type: Option<&str>) -> String {
    let Some(event_type) = event_type else { return String::new() };
    format!("AND e.event_type = {}", parameters.add(parameter::text(event_type)))
}

/// Reads one event, with its payload and headers if they are not larger than `max_bytes`.
///
/// Plan: the primary key.
pub(crate) fn get(table: &TableName, event_id: Uuid, max_bytes: i64) -> BoundStatement {
    let text = format!(
        "SELECT {SHOWN}, CASE WHEN octet_length(e.payload) <= $2::bigint THEN e.payload END AS payload,
                CASE WHEN pg_column_size(e.headers) <= $2::bigint THEN e.headers::text END AS headers
         FROM {} e WHERE e.event_id = $1::uuid",
        table.quoted()
    );
    Statement::composed("outbox.get", &["openoutbox_events_pkey"], text)
        .bind([parameter::uuid(event_id.into_bytes()), parameter::bigint(max_bytes)])
}

pub(super) const REQUEUED: &str = "status = 'PENDING', attempts = 0, available_at = now(), last_error = NULL, delivered_at = NULL, updated_at = now()";

/// Makes DEAD events PENDING as if new; returns the ids that were DEAD.
///
/// Plan: the primary key.
pub(crate) fn requeue(table: &TableName, event_ids: &[Uuid]) -> BoundStatement {
    let text = format!(
        "UPDATE {} e SET {REQUEUED} WHERE e.event_id = ANY ($1::uuid[]) AND e.status || '' = 'DEAD' RETURNING e.event_id",
        table.quoted()
    );
    Statement::composed("outbox.requeue", &["openoutbox_events_pkey"], text)
        .bind([parameter::uuids(event_ids.iter().map(|id| id.into_bytes()))])
}

/// Returns those of the ids that exist.
///
/// Plan: the primary key.
pub(crate) fn existing(table: &TableName, event_ids: &[Uuid]) -> BoundStatement {
    let text = format!("SELECT e.event_id FROM {} e WHERE e.event_id = ANY ($1::uuid[])", table.quoted());
    Statement::composed("outbox.existing", &["openoutbox_events_pkey"], text)
        .bind([parameter::uuids(event_ids.iter().map(|id| id.into_bytes()))])
}

/// Lists DEAD or DELIVERED events of these times that are not in `except`, the oldest first, each with the
/// time by which it is ordered.
///
/// Plan: the index of these events in its order up to the limit.
pub(crate) fn list_requeueable(
    table: &TableName,
    which: Prunable,
    event_type: Option<&str>,
    times: &RangeInclusive<RawTimestamp>,
    except: &[Uuid],
    limit: u32,
) -> BoundStatement {
    let column = which.columns().1;
    let mut parameters = Parameters::default();
    let done = done(&mut parameters, which, event_type, times);
    let except = parameters.add(parameter::uuids(except.iter().map(|id| id.into_bytes())));
    let limit = parameters.add(parameter::bigint(limit.into()));
    let text = format!(
        "SELECT e.event_id, e.{column} AS at FROM {} e WHERE {done} AND NOT e.event_id = ANY ({except})
         ORDER BY e.{column} LIMIT {limit}",
        table.quoted()
    );
    Statement::composed("outbox.list_requeueable", which.plan(), text).bind(parameters)
}

/// Counts DEAD or DELIVERED events of these times.
///
/// Plan: the index of these events.
pub(crate) fn count_done(
    table: &TableName,
    which: Prunable,
    event_type: Option<&str>,
    times: &RangeInclusive<RawTimestamp>,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let done = done(&mut parameters, which, event_type, times);
    let text = format!("SELECT count(*) AS events FROM {} e WHERE {done}", table.quoted());
    Statement::composed("outbox.count_done", which.plan(), text).bind(parameters)
}
