//! The tables that retention keeps small.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::StoreError;

/// The age at which retention removes a row: older than `age` both by the clock of this process and by that
/// of the database. If either clock is wrong, nothing is removed too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutoff {
    /// The time before which a row is too old, by the clock of this process.
    pub at: Timestamp,
    /// The age beyond which a row is too old, for the database to count from its own clock.
    pub age: Duration,
}

impl Cutoff {
    /// The cutoff for rows older than `age` at `now`, by the clock of this process.
    pub fn new(now: Timestamp, age: Duration) -> Self {
        Self { at: now - age, age }
    }
}

/// A row that is too old, and the size of its removal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired<K> {
    /// The key of the row.
    pub key: K,
    /// The time from which its age is counted.
    pub at: Timestamp,
    /// The number of rows that its removal deletes, including the row itself.
    pub rows: u64,
    /// The bytes that its large values take in the table.
    pub bytes: u64,
    /// True if one of its routes is pending or failed. The row is kept then.
    pub live: bool,
}

/// The result of removing rows. Rows that no longer existed are not counted.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removal {
    /// The number of rows deleted, each with all dependent rows.
    pub removed: u64,
    /// The number of rows kept because one of their routes became live.
    pub live: u64,
    /// The number of rows kept for now, because another transaction has locked them or a row that is removed
    /// with them.
    pub locked: u64,
}

/// The idempotency keys of the HTTP API. Each key contains its expiry, so no age is configured.
pub trait KeySweep: Send + Sync {
    /// Deletes at most `limit` expired keys, the oldest first and together, and returns the number deleted.
    /// Keys locked by another transaction are left out.
    fn sweep_idempotency_keys(&self, limit: usize) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// A table that retention keeps small: records by [`NotificationId`](crate::record::NotificationId),
/// malformed intents by [`MalformedKey`](crate::malformed_intent::MalformedKey).
pub trait RetentionStore<K>: Send + Sync {
    /// Returns rows older than `cutoff`, oldest first, after the row `after`.
    fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<K>>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Expired<K>>, StoreError>> + Send;

    /// Removes the rows that are older than `cutoff`, have no live route, and are not locked by another
    /// transaction. Does not wait for locks. All rows are removed together.
    fn delete_expired(
        &self,
        keys: &[&K],
        cutoff: Cutoff,
    ) -> impl Future<Output = Result<Removal, StoreError>> + Send;
}
