//! What is DELIVERED: listed for a comparison with what the publisher holds, and PENDING again if that has lost it.

use std::time::Duration;

use pg::sql::Written;
use pg::{RawTimestamp, bind};
use uuid::Uuid;

use super::Parameters;
use super::admin::REQUEUED;
use crate::{DeliveredEvent, EventTypes, TableName};

/// What is kept of a type, in characters.
const CLIPPED: usize = 255;
/// A century: the server's times begin some time before it.
const MAX_WINDOW_MS: i64 = 3_155_760_000_000;

/// The cluster, the database and the table; a table that is renamed keeps it.
pub(crate) fn identity(table: &TableName) -> Written {
    let text = format!(
        "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                (SELECT oid FROM pg_database WHERE datname = current_database()), '{}'::regclass::oid) AS identity",
        table.quoted()
    );
    Written::new(text, [])
}

/// Now, and the window before the newest event that is DELIVERED, which a clock that was set back cannot put into the future. `newest`
/// is that event's time where there is no index of what is DELIVERED.
///
/// Plan: the index of what is DELIVERED, backwards, one entry.
pub(crate) fn comparison_start(table: &TableName, window: Duration, newest: Newest) -> Written {
    let mut parameters = Parameters::default();
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX).min(MAX_WINDOW_MS);
    let window = parameters.add(bind::bigint(window));
    let newest = match newest {
        Newest::ByIndex => format!(
            "(SELECT e.delivered_at FROM {} e WHERE e.status = 'DELIVERED' AND e.delivered_at <= now()
              ORDER BY e.delivered_at DESC LIMIT 1)",
            table.quoted()
        ),
        Newest::Known(None) => "NULL::timestamptz".to_owned(),
        Newest::Known(Some(newest)) => parameters.add(bind::raw_instant(newest)),
    };
    let text = format!(
        "SELECT now() AS now, coalesce({newest}, now()) - {window} * interval '1 millisecond' AS since"
    );
    Written::new(text, parameters.0)
}

/// How the newest event that is DELIVERED is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Newest {
    ByIndex,
    /// It was looked for, block by block.
    Known(Option<RawTimestamp>),
}

/// The newest time of delivery in some blocks of the table.
///
/// Plan: these blocks.
pub(crate) fn newest_delivered_of_blocks(table: &TableName, blocks: std::ops::Range<u32>) -> Written {
    let mut parameters = Parameters::default();
    let within = within(&mut parameters, blocks);
    let text = format!(
        "SELECT max(e.delivered_at) AS newest FROM {} e
         WHERE {within} AND e.status || '' = 'DELIVERED' AND e.delivered_at <= now()",
        table.quoted()
    );
    Written::new(text, parameters.0)
}

const LISTED: &str = "e.event_id, e.delivered_at";

/// Events in the order of their delivery, those at `since` and those after the last of the part before.
///
/// Plan: the index of what is DELIVERED in its order up to the limit; events that were delivered together are sorted.
pub(crate) fn list_delivered(
    table: &TableName,
    types: &EventTypes,
    since: RawTimestamp,
    after: Option<(RawTimestamp, Uuid)>,
    limit: u32,
) -> Written {
    let mut parameters = Parameters::default();
    let ours = parameters.types(types);
    let from = parameters.add(bind::raw_instant(after.map_or(since, |(at, _)| at.max(since))));
    let after = after.map_or_else(String::new, |(at, id)| {
        let [at, id] =
            [bind::raw_instant(at), bind::uuid(id.into_bytes())].map(|value| parameters.add(value));
        format!("AND (e.delivered_at, e.event_id) > ({at}, {id})")
    });
    let limit = parameters.add(bind::bigint(limit.into()));
    let text = format!(
        "SELECT {LISTED}, left(e.event_type, {CLIPPED}) AS event_type FROM {} e
         WHERE e.status = 'DELIVERED' AND e.delivered_at >= {from} {after} AND {ours}
         ORDER BY e.delivered_at, e.event_id LIMIT {limit}",
        table.quoted()
    );
    Written::new(text, parameters.0)
}

/// The same of some blocks of the table, in any order.
///
/// Plan: these blocks.
pub(crate) fn list_delivered_of_blocks(
    table: &TableName,
    types: &EventTypes,
    since: RawTimestamp,
    blocks: std::ops::Range<u32>,
) -> Written {
    let mut parameters = Parameters::default();
    let ours = parameters.types(types);
    let since = parameters.add(bind::raw_instant(since));
    let within = within(&mut parameters, blocks);
    let text = format!(
        "SELECT {LISTED}, left(e.event_type, {CLIPPED}) AS event_type FROM {} e
         WHERE {within} AND e.status || '' = 'DELIVERED' AND e.delivered_at >= {since} AND {ours}",
        table.quoted()
    );
    Written::new(text, parameters.0)
}

/// The condition that the row `e` lies in these blocks.
pub(super) fn within(parameters: &mut Parameters, blocks: std::ops::Range<u32>) -> String {
    let [from, to] =
        [blocks.start, blocks.end].map(|block| parameters.add(bind::text(format!("({block},0)"))));
    format!("e.ctid >= {from}::tid AND e.ctid < {to}::tid")
}

/// How many blocks the table has.
pub(crate) fn blocks(table: &TableName) -> Written {
    let text = format!(
        "SELECT (pg_relation_size('{}'::regclass) / current_setting('block_size')::int)::bigint AS blocks",
        table.quoted()
    );
    Written::new(text, [])
}

/// PENDING as new, those that are DELIVERED since the time that was read and that no other transaction has locked; returns their ids.
///
/// Plan: the primary key, to lock and to change.
pub(crate) fn requeue_delivered(table: &TableName, events: &[DeliveredEvent]) -> Written {
    let t = table.quoted();
    let text = format!(
        "UPDATE {t} e SET {REQUEUED}
         WHERE e.event_id = ANY (ARRAY(
            SELECT e.event_id FROM {t} e
            WHERE e.event_id = ANY ($1) AND e.status || '' = 'DELIVERED'
              AND e.delivered_at = ($2)[array_position($1, e.event_id)]
            FOR UPDATE SKIP LOCKED))
         RETURNING e.event_id"
    );
    Written::new(
        text,
        [
            bind::uuids(events.iter().map(|event| event.event_id.into_bytes())),
            bind::raw_instants(events.iter().map(|event| event.delivered_at)),
        ],
    )
}

/// Whether an event is held under a claim that was made at a time or before.
///
/// Plan: the index of leases, one entry.
pub(crate) fn has_claims_until(table: &TableName, time: RawTimestamp) -> Written {
    let text = format!(
        "SELECT EXISTS (SELECT FROM {} e WHERE e.status = 'DELIVERING' AND e.locked_at <= $1) AS found",
        table.quoted()
    );
    Written::new(text, [bind::raw_instant(time)])
}
