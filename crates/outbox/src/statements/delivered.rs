//! Listing of DELIVERED events for a comparison with the publisher, and their requeueing if the publisher has
//! lost them.

use pg::parameter::{self, Parameter, Parameters};
use pg::{BoundStatement, RawTimestamp, Statement};
use uuid::Uuid;

use super::admin::{Prunable, REQUEUED};
use super::types_of;
use crate::{EventTypes, TableName};

/// The length to which a type is cut, in characters.
const CLIPPED: usize = 255;

/// Reads the identity of the outbox: the cluster, the database and the table. It survives renaming the table.
pub(crate) fn identity(table: &TableName) -> BoundStatement {
    let text = format!(
        "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                (SELECT oid FROM pg_database WHERE datname = current_database()), '{}'::regclass::oid) AS identity",
        table.quoted()
    );
    Statement::composed("outbox.identity", &[], text).bind([])
}

/// Returns the newest time of delivery of events of these types in a page of DELIVERED events, read backwards
/// from the newest or from a given time; the number of events in the page, and the time of the last. All
/// events of that time are part of the page. Events with a time in the future, because the clock was ahead,
/// are ignored.
///
/// Plan: the index of DELIVERED events, backwards up to the limit, and then the events of the last time.
pub(crate) fn newest_delivered(
    table: &TableName,
    types: &EventTypes,
    before: Option<RawTimestamp>,
    limit: u32,
) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let before = before.map_or_else(String::new, |at| {
        format!("AND e.delivered_at < {}", parameters.add(parameter::raw_instant(at)))
    });
    let limit = parameters.add(parameter::bigint(limit.into()));
    let text = format!(
        "WITH page AS MATERIALIZED (
            SELECT e.delivered_at, {ours} AS ours FROM {t} e
            WHERE e.status = 'DELIVERED' AND e.delivered_at <= now() {before}
            ORDER BY e.delivered_at DESC LIMIT {limit}),
        page_end AS MATERIALIZED (SELECT count(*) AS events, min(delivered_at) AS last FROM page)
        SELECT coalesce(
            (SELECT max(delivered_at) FROM page WHERE ours),
            (SELECT e.delivered_at FROM {t} e
             WHERE e.status = 'DELIVERED' AND e.delivered_at = (SELECT last FROM page_end) AND {ours} LIMIT 1)
        ) AS newest, events, last FROM page_end"
    );
    Statement::composed("outbox.newest_delivered", &["idx_openoutbox_prune_delivered"], text).bind(parameters)
}

/// Returns the newest time of delivery of events of these types in a page of the table, in the order of the
/// primary key; the number of events in the page, and its last event.
///
/// Plan: the primary key in its order up to the limit.
pub(crate) fn newest_delivered_by_key(
    table: &TableName,
    types: &EventTypes,
    after: Option<Uuid>,
    limit: u32,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let page = page_by_key(&mut parameters, after, limit);
    let text = format!(
        "WITH page AS MATERIALIZED (
            SELECT e.event_id,
                CASE WHEN e.status || '' = 'DELIVERED' AND e.delivered_at <= now() AND {ours} THEN e.delivered_at END AS at
            FROM {} e {page})
        SELECT max(at) AS newest, count(*) AS events,
               (SELECT event_id FROM page ORDER BY event_id DESC LIMIT 1) AS last FROM page",
        table.quoted()
    );
    Statement::composed("outbox.newest_delivered_by_key", &["openoutbox_events_pkey"], text).bind(parameters)
}

const LISTED: &str = "e.event_id, e.delivered_at";

/// Lists DELIVERED events in the order of their delivery, from `since` or after the last event of the
/// previous page. An event of a type that the relay does not carry counts towards the limit, so that a page
/// is bounded however rare the types are, and has no type here.
///
/// Plan: the index of DELIVERED events in its order up to the limit; events that were delivered together are
/// sorted.
pub(crate) fn list_delivered(
    table: &TableName,
    types: &EventTypes,
    since: RawTimestamp,
    after: Option<(RawTimestamp, Uuid)>,
    limit: u32,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let from = parameters.add(parameter::raw_instant(after.map_or(since, |(at, _)| at.max(since))));
    let after = after.map_or_else(String::new, |(at, id)| {
        let [at, id] =
            [parameter::raw_instant(at), parameter::uuid(id.into_bytes())].map(|value| parameters.add(value));
        format!("AND (e.delivered_at, e.event_id) > ({at}, {id})")
    });
    let limit = parameters.add(parameter::bigint(limit.into()));
    let text = format!(
        "SELECT {LISTED}, CASE WHEN {ours} THEN left(e.event_type, {CLIPPED}) END AS event_type FROM {} e
         WHERE e.status = 'DELIVERED' AND e.delivered_at >= {from} {after}
         ORDER BY e.delivered_at, e.event_id LIMIT {limit}",
        table.quoted()
    );
    Statement::composed("outbox.list_delivered", &["idx_openoutbox_prune_delivered"], text).bind(parameters)
}

/// Reads a page of the table in the order of the primary key. An event that is not listed, because it is not
/// DELIVERED, was delivered earlier or has another type, has no type here. A row that is updated meanwhile
/// keeps its place in this order.
///
/// Plan: the primary key in its order up to the limit.
pub(crate) fn list_delivered_by_key(
    table: &TableName,
    types: &EventTypes,
    since: RawTimestamp,
    after: Option<Uuid>,
    limit: u32,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let since = parameters.add(parameter::raw_instant(since));
    let page = page_by_key(&mut parameters, after, limit);
    let text = format!(
        "SELECT {LISTED},
                CASE WHEN e.status || '' = 'DELIVERED' AND e.delivered_at >= {since} AND {ours}
                     THEN left(e.event_type, {CLIPPED}) END AS event_type
         FROM {} e {page}",
        table.quoted()
    );
    Statement::composed("outbox.list_delivered_by_key", &["openoutbox_events_pkey"], text).bind(parameters)
}

/// Returns the end of a statement that reads a page of the table in the order of the primary key.
fn page_by_key(parameters: &mut Parameters, after: Option<Uuid>, limit: u32) -> String {
    let after = after.map_or_else(String::new, |id| {
        format!("WHERE e.event_id > {}", parameters.add(parameter::uuid(id.into_bytes())))
    });
    let limit = parameters.add(parameter::bigint(limit.into()));
    format!("{after} ORDER BY e.event_id LIMIT {limit}")
}

/// Returns the condition that the row `e` lies in these blocks.
pub(super) fn within(parameters: &mut Parameters, blocks: std::ops::Range<u32>) -> String {
    let [from, to] =
        [blocks.start, blocks.end].map(|block| parameters.add(parameter::text(format!("({block},0)"))));
    format!("e.ctid >= {from}::tid AND e.ctid < {to}::tid")
}

/// Returns the number of blocks of the table.
pub(crate) fn blocks(table: &TableName) -> BoundStatement {
    let text = format!(
        "SELECT (pg_relation_size('{}'::regclass) / current_setting('block_size')::int)::bigint AS blocks",
        table.quoted()
    );
    Statement::composed("outbox.blocks", &[], text).bind([])
}

/// Makes events PENDING, as if new, if they still have the status and the time that were read and no other
/// transaction has locked them; returns their ids.
///
/// Plan: the primary key, to lock and to change.
pub(crate) fn requeue_as_read(
    table: &TableName,
    which: Prunable,
    events: &[(Uuid, RawTimestamp)],
) -> BoundStatement {
    let t = table.quoted();
    let text = format!(
        "UPDATE {t} e SET {REQUEUED}
         WHERE e.event_id = ANY (ARRAY(
            SELECT e.event_id FROM {t} e WHERE {} FOR UPDATE SKIP LOCKED))
         RETURNING e.event_id",
        as_read(which)
    );
    Statement::composed("outbox.requeue_as_read", &["openoutbox_events_pkey"], text).bind(read_times(events))
}

/// Returns the events that still have the status and the time that were read.
///
/// Plan: the primary key.
pub(crate) fn still_as_read(
    table: &TableName,
    which: Prunable,
    events: &[(Uuid, RawTimestamp)],
) -> BoundStatement {
    let text = format!("SELECT e.event_id FROM {} e WHERE {}", table.quoted(), as_read(which));
    Statement::composed("outbox.still_as_read", &["openoutbox_events_pkey"], text).bind(read_times(events))
}

fn as_read(which: Prunable) -> String {
    let (status, column) = which.columns();
    format!(
        "e.event_id = ANY ($1::uuid[]) AND e.status || '' = '{status}'
         AND e.{column} = ($2::timestamptz[])[array_position($1::uuid[], e.event_id)]"
    )
}

fn read_times(events: &[(Uuid, RawTimestamp)]) -> [Parameter; 2] {
    [
        parameter::uuids(events.iter().map(|(event_id, _)| event_id.into_bytes())),
        parameter::raw_instants(events.iter().map(|(_, at)| *at)),
    ]
}

/// Returns the time of the oldest claim that holds an event, if that time is at or before `time`.
///
/// Plan: the index of leases, one entry.
pub(crate) fn oldest_claim_until(table: &TableName, time: RawTimestamp) -> BoundStatement {
    let text = format!(
        "SELECT e.locked_at FROM {} e WHERE e.status = 'DELIVERING' AND e.locked_at <= $1::timestamptz
         ORDER BY e.locked_at LIMIT 1",
        table.quoted()
    );
    Statement::composed("outbox.oldest_claim_until", &["idx_openoutbox_stuck_leases"], text)
        .bind([parameter::raw_instant(time)])
}
