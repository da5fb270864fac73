//! Counts of an outbox.

use pg::parameter::{self, Parameters};
use pg::{BoundStatement, Statement};

use super::delivered::within;
use super::types_of;
use crate::{EventTypes, TableName};

/// Counts up to `limit` each, among the first `limit` events of each kind; same columns as [`stats`].
///
/// Plan: the queue in its order up to the limit, once from its beginning and once from now on; the indexes of
/// leases and of DEAD events up to the limit. Without the index of DEAD events their count is 0, and
/// [`count_dead_of_blocks`] counts them.
pub(crate) fn stats_capped(
    table: &TableName,
    types: &EventTypes,
    limit: u64,
    with_dead: bool,
) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let limit = parameters.add(parameter::bigint(i64::try_from(limit).unwrap_or(i64::MAX)));
    let pending = |condition: &str| {
        format!(
            "SELECT {ours} AS ours, e.attempts, e.created_at FROM {t} e
             WHERE e.status = 'PENDING' AND e.available_at {condition}
             ORDER BY e.available_at, e.created_at, e.event_id LIMIT {limit}"
        )
    };
    let first = |condition: &str, order: &str| {
        format!(
            "(SELECT count(*) FILTER (WHERE ours) FROM (
                SELECT {ours} AS ours FROM {t} e WHERE {condition} ORDER BY {order} LIMIT {limit}) f)"
        )
    };
    let delivering = first("e.status = 'DELIVERING'", "e.locked_at");
    let dead = if with_dead { first("e.status = 'DEAD'", "e.updated_at") } else { "0::bigint".to_owned() };
    let text = format!(
        "SELECT d.pending, least(d.retrying + l.retrying, {limit}) AS retrying, l.scheduled,
                {delivering} AS delivering, {dead} AS dead, d.oldest_age_us
         FROM (SELECT count(*) FILTER (WHERE ours AND attempts <= 0) AS pending,
                      count(*) FILTER (WHERE ours AND attempts > 0) AS retrying,
                      {OLDEST_AGE}
               FROM ({due}) due) d,
              (SELECT count(*) FILTER (WHERE ours AND attempts > 0) AS retrying,
                      count(*) FILTER (WHERE ours AND attempts <= 0) AS scheduled
               FROM ({later}) later) l",
        due = pending("<= now()"),
        later = pending("> now()"),
    );
    Statement::composed(
        "outbox.stats_capped",
        &["idx_openoutbox_processing_queue", "idx_openoutbox_stuck_leases"],
        text,
    )
    .bind(parameters)
}

/// Counts DEAD events in some blocks of the table.
///
/// Plan: these blocks.
pub(crate) fn count_dead_of_blocks(
    table: &TableName,
    types: &EventTypes,
    blocks: std::ops::Range<u32>,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, types);
    let within = within(&mut parameters, blocks);
    let text = format!(
        "SELECT count(*) AS dead FROM {} e WHERE {within} AND e.status || '' = 'DEAD' AND {ours}",
        table.quoted()
    );
    Statement::composed("outbox.count_dead_of_blocks", &["Tid Range Scan"], text).bind(parameters)
}

/// The oldest age of the finite times: ages of infinite times cannot be computed.
const OLDEST_AGE: &str = "coalesce(extract(epoch FROM now() - min(created_at) FILTER (
    WHERE ours AND isfinite(created_at))) * 1000000, 0)::bigint AS oldest_age_us";

/// Counts all events.
///
/// Plan: all entries of the indexes of the queue, of leases and of DEAD events.
pub(crate) fn stats(table: &TableName) -> BoundStatement {
    let t = table.quoted();
    let text = format!(
        "SELECT p.*,
                (SELECT count(*) FROM {t} e WHERE e.status = 'DELIVERING') AS delivering,
                (SELECT count(*) FROM {t} e WHERE e.status = 'DEAD') AS dead
         FROM (SELECT count(*) FILTER (WHERE ours AND attempts <= 0) AS pending,
                      count(*) FILTER (WHERE attempts > 0) AS retrying,
                      count(*) FILTER (WHERE NOT ours AND attempts <= 0) AS scheduled,
                      {OLDEST_AGE}
               FROM (SELECT e.available_at <= now() AS ours, e.attempts, e.created_at
                     FROM {t} e WHERE e.status = 'PENDING') e) p"
    );
    Statement::composed(
        "outbox.stats",
        &["idx_openoutbox_processing_queue", "idx_openoutbox_stuck_leases"],
        text,
    )
    .bind([])
}
