//! Marking: stores the outcome of claimed events. A mark is valid only under the token of its claim.

use std::time::Duration;

use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Statement};
use uuid::Uuid;

use crate::event::stored_error;
use crate::{ClaimToken, FailedEvent, FailureKind, REAPED, TableName};

/// The treatment of rows that another transaction has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockedRows {
    /// Wait for them, for the time set by [`mark_begin`].
    Wait,
    /// Skip them, and read each row twice.
    Skip,
}

/// Opens a transaction that waits for locked rows for no longer than `wait`.
pub(crate) fn mark_begin(wait: Duration) -> String {
    format!("BEGIN; SET LOCAL lock_timeout = {}", wait.as_millis())
}

/// Builds a mark: `$1` are the ids, `token` is the placeholder of the token.
///
/// Plan: the primary key, once to change and, if locked rows are skipped, once before to lock. No order of
/// rows is needed and so no sort: marks of different claims have no row in common.
fn mark(table: &TableName, set: &str, token: &str, locks: LockedRows) -> String {
    let t = table.quoted();
    let held =
        format!("e.event_id = ANY ($1::uuid[]) AND e.locked_by = {token} AND e.status || '' = 'DELIVERING'");
    let held = match locks {
        LockedRows::Wait => held,
        LockedRows::Skip => format!(
            "e.event_id = ANY (ARRAY(SELECT e.event_id FROM {t} e WHERE {held} FOR UPDATE SKIP LOCKED))"
        ),
    };
    format!(
        "UPDATE {t} e SET {set}, locked_by = NULL, locked_at = NULL, updated_at = now()
        WHERE {held} RETURNING e.event_id"
    )
}

fn ids(event_ids: &[Uuid]) -> Parameter {
    parameter::uuids(event_ids.iter().map(|id| id.into_bytes()))
}

/// Marks events as DELIVERED; returns the ids that were changed.
pub(crate) fn deliver(
    table: &TableName,
    token: &ClaimToken,
    event_ids: &[Uuid],
    locks: LockedRows,
) -> BoundStatement {
    let text = mark(table, "status = 'DELIVERED', delivered_at = now()", "$2::text", locks);
    Statement::composed("outbox.deliver", &["openoutbox_events_pkey"], text)
        .bind([ids(event_ids), parameter::text(token.as_str())])
}

/// Makes events PENDING as before; returns the ids that were changed.
pub(crate) fn release(
    table: &TableName,
    token: &ClaimToken,
    event_ids: &[Uuid],
    locks: LockedRows,
) -> BoundStatement {
    let text = mark(table, "status = 'PENDING'", "$2::text", locks);
    Statement::composed("outbox.release", &["openoutbox_events_pkey"], text)
        .bind([ids(event_ids), parameter::text(token.as_str())])
}

/// Marks events as PENDING with a later attempt, or as DEAD; returns the ids that were changed. A PENDING
/// event that was reaped keeps the beginning of its error, so that it is claimed apart from others.
pub(crate) fn fail(
    table: &TableName,
    token: &ClaimToken,
    failures: &[FailedEvent],
    locks: LockedRows,
) -> BoundStatement {
    let all = |failure: &FailedEvent| failure.event_id.into_bytes();
    let errors = failures.iter().map(|failure| stored_error(&failure.error));
    let text = mark(table, &outcome("e.last_error"), "$5::text", locks);
    Statement::composed("outbox.fail", &["openoutbox_events_pkey"], text).bind([
        parameter::uuids(failures.iter().map(all)),
        parameter::bigints(failures.iter().map(|failure| column(failure.attempts))),
        parameter::bigints(failures.iter().map(|failure| delay_ms(failure.kind))),
        parameter::texts(errors),
        parameter::text(token.as_str()),
    ])
}

/// Returns the columns of a failed attempt: `$1` are the ids, `$2` the attempts, `$3` the delays or -1 for
/// DEAD, `$4` the errors. Searches an array instead of joining, because the planner could change the order of
/// a join.
pub(super) fn outcome(last_error: &str) -> String {
    let of = |array: &str| format!("({array}[])[array_position($1::uuid[], e.event_id)]");
    let (attempts, delay, error) = (of("$2::bigint"), of("$3::bigint"), of("$4::text"));
    format!(
        "attempts = {attempts}::int,
         status = CASE WHEN {delay} < 0 THEN 'DEAD' ELSE 'PENDING' END,
         available_at = now() + greatest({delay}, 0) * interval '1 millisecond',
         last_error = CASE WHEN {delay} >= 0 AND starts_with({last_error}, '{REAPED}')
                           THEN left('{REAPED}; ' || {error}, {MAX_ERROR_CHARS}) ELSE {error} END",
        MAX_ERROR_CHARS = crate::MAX_ERROR_CHARS,
    )
}

pub(super) fn delay_ms(kind: FailureKind) -> i64 {
    /// A century: the server's range of times ends some time after it.
    const MAX_DELAY: Duration = Duration::from_secs(3_155_760_000);
    match kind {
        FailureKind::Dead => -1,
        FailureKind::Retry(delay) => i64::try_from(delay.min(MAX_DELAY).as_millis()).unwrap_or(i64::MAX),
    }
}

pub(super) fn column(attempts: u32) -> i64 {
    i64::from(attempts).min(i64::from(i32::MAX))
}

/// Returns the events that are still claimed under the token: another transaction has locked them.
pub(crate) fn still_held(table: &TableName, token: &ClaimToken, event_ids: &[Uuid]) -> BoundStatement {
    let text = format!(
        "SELECT e.event_id FROM {} e
         WHERE e.event_id = ANY ($1::uuid[]) AND e.locked_by = $2::text AND e.status || '' = 'DELIVERING'",
        table.quoted()
    );
    Statement::composed("outbox.still_held", &["openoutbox_events_pkey"], text)
        .bind([ids(event_ids), parameter::text(token.as_str())])
}
