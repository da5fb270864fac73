//! The tables that retention keeps small.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::StoreError;

/// How old a row must be for retention to remove it: older than `age` by the clock of this process and by
/// that of the database. A clock that is wrong on either side removes nothing too early.
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

/// A row that is too old, with all that is removed together with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired<K> {
    /// Which row.
    pub key: K,
    /// What its age is counted from.
    pub at: Timestamp,
    /// How many rows are removed with it, itself included.
    pub rows: u64,
    /// The bytes that its large values take in the table.
    pub bytes: u64,
    /// Whether a route of it is pending or failed: then it stays.
    pub live: bool,
}

/// What became of rows that retention wanted to remove. Rows that it does not count did not exist any more.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removal {
    /// Deleted, with all dependent rows.
    pub removed: u64,
    /// Kept: one of their routes became live.
    pub live: u64,
    /// Kept for now: another transaction has locked them or a row that is removed with them.
    pub locked: u64,
}

/// The idempotency keys of the HTTP API. Each says itself when it expires, so that no age is configured.
pub trait KeySweep: Send + Sync {
    /// Deletes at most `limit` expired keys, the oldest first and together, and returns how many. Keys that
    /// another transaction holds are left out.
    fn sweep_idempotency_keys(&self, limit: usize) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// A table that retention keeps small: records by [`NotificationId`](crate::record::NotificationId),
/// malformed intents by [`MalformedKey`](crate::malformed::MalformedKey).
pub trait RetentionStore<K>: Send + Sync {
    /// Rows older than `cutoff`, oldest first, after the row `after`.
    fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<K>>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Expired<K>>, StoreError>> + Send;

    /// Removes those of the rows that are older than `cutoff`, have no live route, and are not locked by
    /// another transaction. It does not wait for locks, and all that it removes is removed together.
    fn delete_expired(
        &self,
        keys: &[&K],
        cutoff: Cutoff,
    ) -> impl Future<Output = Result<Removal, StoreError>> + Send;
}
