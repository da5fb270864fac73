//! Reaping: leases that are over.

use pg::bind;
use pg::sql::Written;
use uuid::Uuid;

use super::Parameters;
use super::mark::{column, delay_ms, outcome};
use crate::{FailureKind, REAPED, ReapRequest, TableName};

/// The events whose lease is over, the oldest first and those without a time last, locked until the transaction ends.
///
/// Plan: the index of leases in its order. It reads past those that are not over, which are as many as relays hold now.
pub(crate) fn expired_leases(table: &TableName, request: &ReapRequest) -> Written {
    let mut parameters = Parameters::default();
    let ours = parameters.types(&request.types);
    let lease = i64::try_from(request.lease_timeout.as_millis()).unwrap_or(i64::MAX).min(MAX_LEASE_MS);
    let lease = parameters.add(bind::bigint(lease));
    let limit = parameters.add(bind::bigint(request.limit.into()));
    let text = format!(
        "SELECT e.event_id, e.attempts FROM {} e
         WHERE e.status = 'DELIVERING' AND {ours}
           AND (e.locked_at IS NULL OR e.locked_at < now() - {lease} * interval '1 millisecond')
         ORDER BY e.locked_at
         LIMIT {limit}
         FOR UPDATE SKIP LOCKED",
        table.quoted()
    );
    Written::new(text, parameters.0)
}

/// A century: the server's times begin some time before it.
const MAX_LEASE_MS: i64 = 3_155_760_000_000;

/// Changes events that [`expired_leases`] has locked.
///
/// Plan: the primary key.
pub(crate) fn reap(table: &TableName, expired: &[(Uuid, u32, FailureKind)]) -> Written {
    let text = format!(
        "UPDATE {} e SET {}, locked_by = NULL, locked_at = NULL, updated_at = now() WHERE e.event_id = ANY ($1)",
        table.quoted(),
        outcome("NULL::text"),
    );
    Written::new(
        text,
        [
            bind::uuids(expired.iter().map(|(id, ..)| id.into_bytes())),
            bind::bigints(expired.iter().map(|(_, attempts, _)| column(*attempts))),
            bind::bigints(expired.iter().map(|(.., kind)| delay_ms(*kind))),
            bind::texts(expired.iter().map(|_| REAPED)),
        ],
    )
}
