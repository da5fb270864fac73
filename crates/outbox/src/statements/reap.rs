//! Reaping of expired leases.

use std::time::Duration;

use pg::parameter::{self, Parameters};
use pg::{BoundStatement, Statement};
use uuid::Uuid;

use super::mark::{column, delay_ms, outcome};
use super::types_of;
use crate::{FailureKind, REAPED, ReapRequest, TableName};

/// The tolerance for leases that begin in the future. One that begins later was written by another clock.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// A century: the server's range of times begins some time before it.
const MAX_LEASE_MS: i64 = 3_155_760_000_000;

fn lease(parameters: &mut Parameters, request: &ReapRequest) -> String {
    let lease = i64::try_from(request.lease_timeout.as_millis()).unwrap_or(i64::MAX).min(MAX_LEASE_MS);
    format!("{} * interval '1 millisecond'", parameters.add(parameter::bigint(lease)))
}

/// Returns the events whose lease has expired, the oldest first and those without a time last.
///
/// Plan: the index of leases in its order. It skips leases that have not expired, which are as many as relays
/// hold now.
pub(crate) fn expired_leases(table: &TableName, request: &ReapRequest) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, &request.types);
    let lease = lease(&mut parameters, request);
    let except = parameters.add(parameter::uuids(request.except.iter().map(|id| id.into_bytes())));
    let limit = parameters.add(parameter::bigint(request.limit.into()));
    let text = format!(
        "SELECT e.event_id, e.attempts FROM {} e
         WHERE e.status = 'DELIVERING' AND {ours} AND e.event_id <> ALL ({except})
           AND (e.locked_at IS NULL OR e.locked_at < now() - {lease})
         ORDER BY e.locked_at
         LIMIT {limit}
         FOR UPDATE SKIP LOCKED",
        table.quoted()
    );
    Statement::composed("outbox.expired_leases", &["idx_openoutbox_stuck_leases"], text).bind(parameters)
}

/// Changes those of these events whose lease has expired, whose attempts are as read, and that no other
/// transaction has locked.
pub(crate) fn reap(
    table: &TableName,
    request: &ReapRequest,
    expired: &[(Uuid, u32, FailureKind)],
) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    // The places that `outcome` names.
    parameters.add(parameter::uuids(expired.iter().map(|(id, ..)| id.into_bytes())));
    parameters.add(parameter::bigints(expired.iter().map(|(_, attempts, _)| column(*attempts))));
    parameters.add(parameter::bigints(expired.iter().map(|(.., kind)| delay_ms(*kind))));
    parameters.add(parameter::texts(expired.iter().map(|_| REAPED)));
    let lease = lease(&mut parameters, request);
    let condition = format!(
        "e.event_id = ANY ($1::uuid[]) AND (e.locked_at IS NULL OR e.locked_at < now() - {lease})
         AND least(greatest(e.attempts, 0), {}) < ($2::bigint[])[array_position($1::uuid[], e.event_id)]",
        // One below the largest number, so that no failure can exceed it.
        i32::MAX - 1,
    );
    let set = format!("{}, locked_by = NULL, locked_at = NULL, updated_at = now()", outcome("NULL::text"));
    let text = change_unlocked(&t, &condition, &set);
    Statement::composed("outbox.reap", &["openoutbox_events_pkey"], text).bind(parameters)
}

/// Returns the events whose lease begins in the future, because a clock was ahead or a person wrote them.
///
/// Plan: the index of leases, from its end.
pub(crate) fn early_leases(table: &TableName, request: &ReapRequest) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ours = types_of(&mut parameters, &request.types);
    let except = parameters.add(parameter::uuids(request.except.iter().map(|id| id.into_bytes())));
    let limit = parameters.add(parameter::bigint(request.limit.into()));
    let text = format!(
        "SELECT e.event_id FROM {} e
         WHERE e.status = 'DELIVERING' AND {ours} AND e.event_id <> ALL ({except})
           AND e.locked_at > now() + interval '{} seconds'
         ORDER BY e.locked_at DESC
         LIMIT {limit}
         FOR UPDATE SKIP LOCKED",
        table.quoted(),
        CLOCK_TOLERANCE.as_secs(),
    );
    Statement::composed("outbox.early_leases", &["idx_openoutbox_stuck_leases"], text).bind(parameters)
}

/// Restarts those of these leases that begin in the future and are not locked: they begin now.
pub(crate) fn begin_again(table: &TableName, event_ids: &[Uuid]) -> BoundStatement {
    let t = table.quoted();
    let mut parameters = Parameters::default();
    let event_ids = parameters.add(parameter::uuids(event_ids.iter().map(|id| id.into_bytes())));
    let condition = format!(
        "e.event_id = ANY ({event_ids}) AND e.locked_at > now() + interval '{} seconds'",
        CLOCK_TOLERANCE.as_secs(),
    );
    let text = change_unlocked(&t, &condition, "locked_at = now()");
    Statement::composed("outbox.begin_again", &["openoutbox_events_pkey"], text).bind(parameters)
}

/// Builds a change of claimed events. Returns one row: the events that were changed, and those that no other
/// transaction had locked. A trigger keeps the others of these as they are.
///
/// Plan: the primary key, to lock and to change.
fn change_unlocked(table: &str, condition: &str, set: &str) -> String {
    format!(
        "WITH locked AS MATERIALIZED (
            SELECT e.event_id FROM {table} e WHERE {condition} AND e.status || '' = 'DELIVERING'
            FOR UPDATE SKIP LOCKED),
        changed AS (
            UPDATE {table} e SET {set} WHERE e.event_id = ANY (ARRAY(SELECT event_id FROM locked))
            RETURNING e.event_id)
        SELECT ARRAY(SELECT event_id FROM changed) AS changed, ARRAY(SELECT event_id FROM locked) AS locked"
    )
}
