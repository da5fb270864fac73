//! Claiming: the selection of the due events to publish next.

use std::time::Duration;

use pg::parameter::{self, Parameters};
use pg::{BoundStatement, Statement};

use super::types_of;
use crate::storage::REAPED_SHIFT;
use crate::{BatchClaim, EventTypes, Position, REAPED, TableName};

/// The class of the advisory locks that serialize claims of a table: "outb" in ASCII.
const CLAIM_LOCK_CLASS: i32 = 0x6f_75_74_62;
/// The time that a claim waits for those of other relays, and for a lock of the whole table.
const CLAIM_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest number of events that [`due_in`] examines.
const MAX_DUE_LOOK: i64 = 500;

/// The method of finding the earlier events of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claiming {
    /// The index of key order: reads a few rows for each key.
    ByKeyIndex,
    /// A scan: reads all events that are not DELIVERED or DEAD, once.
    ByScan,
}

/// The purpose of a claim's statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Claim the events: they are DELIVERING afterwards.
    Take,
    /// Read which events would be claimed. They are locked until the transaction ends.
    Look,
}

/// The settings of a transaction that claims by a scan.
const KEY_SCAN_PARAMETERS: &str = "SET LOCAL enable_hashjoin = on;";

/// The limits of the statement of a claim that gives up soon.
const HURRIED: &str = "SET LOCAL lock_timeout = 100; SET LOCAL statement_timeout = 250";

/// Opens a transaction that claims: one at a time for each table, so that the next statement sees the events
/// that all earlier claims have taken. The lock ends with the transaction. Without READ COMMITTED the
/// statement would see the state before the lock.
pub(crate) fn claim_begin(table: &TableName, claiming: Claiming, hurries: bool) -> String {
    let limits = if hurries { HURRIED } else { "" };
    let settings = match claiming {
        Claiming::ByKeyIndex => "",
        Claiming::ByScan => KEY_SCAN_PARAMETERS,
    };
    // An oid is an unsigned 32-bit number.
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; {settings}
         SELECT pg_advisory_xact_lock({CLAIM_LOCK_CLASS}, ('{}'::regclass::oid::bigint - 2147483648)::int); {limits}",
        CLAIM_LOCK_TIMEOUT.as_millis(),
        table.quoted()
    )
}

fn after(parameters: &mut Parameters, position: Option<&Position>) -> String {
    let Some(position) = position else { return String::new() };
    let [available_at, created_at, event_id] = [
        parameter::raw_instant(position.available_at),
        parameter::raw_instant(position.created_at),
        parameter::uuid(position.event_id.into_bytes()),
    ]
    .map(|value| parameters.add(value));
    format!("AND (e.available_at, e.created_at, e.event_id) > ({available_at}, {created_at}, {event_id})")
}

/// Claims events. The first row has the ids in the order of the claim, and the last position examined; then
/// follows one row for each event.
///
/// * `slot`: the next due events, claimable or not, by the index of the queue; each is a place in the claim.
/// * `wanted`: for each partition key that has slots, their places.
/// * `head`: for each key as many events as it has slots, in the order of the key. So a key gets its usual
///   share, and an earlier event is not overtaken by one that became due before it. A DELIVERING event comes
///   first and is not free; an event that waits for its next attempt is not free either.
/// * `locked`: the free events that no other transaction has locked.
/// * `usable`: the events before which no event of their key is missing.
/// * `cut`: the events of one kind, reaped or not, whichever the first event is; up to the limit in bytes
///   and, for reaped events, up to the smallest of their limits.
///
/// Plan: `slot` reads the queue in its order up to the limit; `head` reads the index of key order up to its
/// limit for each key; `locked` reaches rows by their place in the table, `changed` by the primary key.
pub(crate) fn claim(
    table: &TableName,
    claiming: Claiming,
    purpose: Purpose,
    request: &BatchClaim,
) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, &request.types);
    let after = after(&mut parameters, request.after.as_ref());
    let limit = parameters.add(parameter::bigint(request.limit.into()));
    let max_bytes = parameters.add(parameter::bigint(signed(request.max_bytes)));
    let max_event_bytes = parameters.add(parameter::bigint(signed(request.max_event_bytes)));
    let token = parameters.add(parameter::text(request.token.as_str()));
    let set_aside = parameters.add(parameter::uuids(request.set_aside.iter().map(|id| id.into_bytes())));
    let last_attempt = parameters.add(parameter::bigint(i64::from(request.max_attempts) - 1));
    let reaped = format!("coalesce(starts_with(e.last_error, '{REAPED}'), false)");
    let passed = if request.passes_reaped { format!("AND NOT {reaped}") } else { String::new() };
    let head = match claiming {
        Claiming::ByKeyIndex => head_by_index(&t, &ours),
        Claiming::ByScan => head_by_scan(&t, &ours),
    };
    // The size of a payload is known without reading it. Headers must be read: their stored size may be a
    // hundredth of their text.
    let rest = |row: &str| {
        format!(
            "coalesce(octet_length({row}.headers::text), 0) + octet_length({row}.event_type)
             + coalesce(octet_length({row}.partition_key), 0)"
        )
    };
    let returned = "e.event_id, e.attempts, e.created_at, octet_length(e.payload) AS payload_bytes,
                    e.event_type, e.partition_key, e.payload, e.headers::text AS headers";
    let taken = "e.event_id = ANY (ARRAY(SELECT event_id FROM cut WHERE fits))";
    let changed = match purpose {
        Purpose::Take => format!(
            "UPDATE {t} e SET status = 'DELIVERING', locked_by = {token}, locked_at = now(), updated_at = now()
             WHERE {taken} RETURNING {returned}"
        ),
        Purpose::Look => format!("SELECT {returned} FROM {t} e WHERE {taken} AND {token} <> ''"),
    };
    let text = format!(
        "WITH slot AS MATERIALIZED (
            SELECT row_number() OVER (ORDER BY available_at, created_at, event_id) AS place, due.*
            FROM (
                SELECT e.ctid AS place_in_table, e.event_id, e.available_at, e.created_at,
                       coalesce(e.partition_key, '') AS partition_key, {ours} AS ours
                FROM {t} e
                WHERE e.status = 'PENDING' AND e.available_at <= now() {after}
                ORDER BY e.available_at, e.created_at, e.event_id
                LIMIT {limit}) due),
        wanted AS MATERIALIZED (
            SELECT partition_key, hashtextextended(partition_key, 0) AS hash, array_agg(place ORDER BY place) AS places
            FROM slot WHERE ours AND partition_key <> '' GROUP BY partition_key),
        head AS ({head}),
        candidate AS (
            SELECT place AS line, place, place_in_table, event_id, true AS free
            FROM slot WHERE ours AND partition_key = ''
            UNION ALL SELECT line, place, place_in_table, event_id, free FROM head),
        locked AS MATERIALIZED (
            SELECT c.line, c.place, c.event_id, l.payload_bytes, l.rest, l.reaped, l.attempts
            FROM candidate c LEFT JOIN LATERAL (
                SELECT octet_length(e.payload) AS payload_bytes, {rest_of_row} AS rest, {reaped} AS reaped,
                       greatest(e.attempts, 0) AS attempts
                FROM {t} e
                WHERE e.ctid = c.place_in_table AND c.free AND e.status || '' = 'PENDING' AND e.available_at <= now()
                  AND e.event_id <> ALL ({set_aside}) {passed}
                FOR UPDATE SKIP LOCKED) l ON true),
        usable AS (
            SELECT line, place, event_id, reaped, first_value(reaped) OVER (ORDER BY place) AS of_reaped,
                   CASE WHEN payload_bytes > {max_event_bytes} OR rest > {max_event_bytes} THEN 0
                        ELSE payload_bytes + rest END AS bytes,
                   CASE WHEN NOT reaped THEN {limit}
                        WHEN attempts >= {last_attempt} THEN 1
                        ELSE greatest({limit} >> least(attempts * {REAPED_SHIFT}, 62), 1) END AS together
            FROM (SELECT *, bool_and(rest IS NOT NULL) OVER (PARTITION BY line ORDER BY place) AS usable FROM locked) l
            WHERE usable),
        cut AS MATERIALIZED (
            SELECT place, event_id,
                   alike AND (count(*) FILTER (WHERE alike) OVER up_to = 1
                              OR (sum(bytes) FILTER (WHERE alike) OVER up_to <= {max_bytes}
                                  AND count(*) FILTER (WHERE alike) OVER up_to
                                      <= min(together) FILTER (WHERE alike) OVER up_to)) AS fits
            FROM (SELECT *, bool_and(reaped = of_reaped) OVER (PARTITION BY line ORDER BY place) AS alike FROM usable) u
            WINDOW up_to AS (ORDER BY place ROWS UNBOUNDED PRECEDING)),
        changed AS ({changed}),
        reached AS (
            SELECT available_at, created_at, event_id FROM slot
            WHERE place = coalesce(
                (SELECT min(place) - 1 FROM cut WHERE NOT fits),
                (SELECT max(place) FROM slot HAVING count(*) >= {limit})))
        SELECT ARRAY(SELECT event_id FROM cut WHERE fits ORDER BY place) AS claimed,
               (SELECT of_reaped FROM usable LIMIT 1) AS of_reaped,
               r.event_id, r.available_at, r.created_at, NULL::text AS event_type, NULL::text AS partition_key,
               NULL::int AS attempts, NULL::bytea AS payload, NULL::text AS headers, NULL::bigint AS bytes
        FROM (SELECT) one LEFT JOIN reached r ON true
        UNION ALL
        SELECT NULL, NULL, event_id, NULL, created_at,
               CASE WHEN too_large THEN left(event_type, {CLIPPED}) ELSE event_type END,
               CASE WHEN too_large THEN left(partition_key, {CLIPPED}) ELSE partition_key END,
               attempts, CASE WHEN too_large THEN NULL ELSE payload END,
               CASE WHEN too_large THEN NULL ELSE coalesce(headers, '{{}}') END,
               greatest(payload_bytes, rest)::bigint
        FROM (SELECT *, payload_bytes > {max_event_bytes} OR rest > {max_event_bytes} AS too_large
              FROM (SELECT *, {rest_of_changed} AS rest FROM changed c) c) c",
        rest_of_row = rest("e"),
        rest_of_changed = rest("c"),
    );
    Statement::composed("outbox.claim", &["idx_openoutbox_processing_queue", "openoutbox_events_pkey"], text)
        .bind(parameters)
}

/// The number of characters kept of each name of an event that is not read.
const CLIPPED: usize = 200;

/// Returns `head` by the index: a DELIVERING event sorts before PENDING ones, so one lookup finds both.
fn head_by_index(t: &str, ours: &str) -> String {
    format!(
        "SELECT w.places[1] AS line, w.places[h.rank] AS place, h.place_in_table, h.event_id, h.free
        FROM wanted w CROSS JOIN LATERAL (
            SELECT first.*, row_number() OVER (ORDER BY status, created_at, event_id) AS rank
            FROM (
                SELECT e.ctid AS place_in_table, e.event_id, e.status, e.created_at,
                       e.status = 'PENDING' AND e.available_at <= now() AS free
                FROM {t} e
                WHERE hashtextextended(e.partition_key, 0) = w.hash AND e.partition_key = w.partition_key
                  AND e.partition_key <> '' AND e.status IN ('PENDING', 'DELIVERING') AND {ours}
                  AND (e.status = 'DELIVERING' OR e.attempts > 0 OR e.available_at <= now())
                ORDER BY e.status, e.created_at, e.event_id
                LIMIT cardinality(w.places)) first) h"
    )
}

/// Returns `head` by a scan: reads all events of all wanted keys once.
fn head_by_scan(t: &str, ours: &str) -> String {
    let of_status = |condition: &str| {
        format!(
            "SELECT e.ctid AS place_in_table, e.event_id, e.partition_key, e.status, e.created_at,
                    e.status = 'PENDING' AND e.available_at <= now() AS free
             FROM {t} e WHERE {condition} AND e.partition_key <> '' AND {ours}"
        )
    };
    let (pending, delivering) = (
        of_status("e.status = 'PENDING' AND (e.attempts > 0 OR e.available_at <= now())"),
        of_status("e.status = 'DELIVERING'"),
    );
    format!(
        "SELECT places[1] AS line, places[rank] AS place, place_in_table, event_id, free
        FROM (
            SELECT w.places, a.place_in_table, a.event_id, a.free,
                   row_number() OVER (PARTITION BY w.partition_key ORDER BY a.status, a.created_at, a.event_id) AS rank
            FROM wanted w JOIN ({pending} UNION ALL {delivering}) a ON a.partition_key = w.partition_key) h
        WHERE rank <= cardinality(places)"
    )
}

/// Returns the milliseconds until the next event is due, at most a day; no row, or NULL, if none waits.
///
/// Plan: the queue in its order, one event, or [`MAX_DUE_LOOK`] events if types are selected.
pub(crate) fn due_in(table: &TableName, types: &EventTypes, position: Option<&Position>) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let after = after(&mut parameters, position);
    let limit = match types {
        EventTypes::All => 1,
        EventTypes::Only(_) => MAX_DUE_LOOK,
    };
    let limit = parameters.add(parameter::bigint(limit));
    let text = format!(
        "SELECT ceil(extract(epoch FROM greatest(least(at, now() + interval '1 day'), now()) - now()) * 1000)::bigint AS due_in_ms
        FROM (
            SELECT coalesce(min(available_at) FILTER (WHERE ours),
                            CASE WHEN count(*) >= {limit} THEN max(available_at) END) AS at
            FROM (
                SELECT e.available_at, {ours} AS ours FROM {t} e
                WHERE e.status = 'PENDING' {after}
                ORDER BY e.available_at, e.created_at, e.event_id
                LIMIT {limit}) next) first
        WHERE at IS NOT NULL"
    );
    Statement::composed("outbox.due_in", &["idx_openoutbox_processing_queue"], text).bind(parameters)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
