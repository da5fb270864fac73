//! The outcomes of operations on locks.

use std::time::Duration;

use tokio::time::Instant;

use crate::LockId;

/// A lock that was granted.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Names the grant; needed to extend and to release it.
    pub lock_id: LockId,
    /// Higher than that of every grant of this key before it.
    pub fence: u64,
    /// When the lease ends, in milliseconds since 1970 by the server's clock. Never compare it with a clock
    /// of yours.
    pub expires_at_ms: i64,
    /// By this process's clock, a moment before the lease began.
    pub(crate) asked_at: Instant,
}

/// What became of an attempt to acquire a lock.
#[must_use]
#[derive(Clone, Debug)]
pub enum Acquisition {
    /// It is the caller's.
    Acquired(Grant),
    /// Another client holds it, or the caller itself by an earlier grant. No fence was used up.
    Locked,
}

/// What became of an attempt to extend a lock.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// The lease now ends at another time, which may be sooner than before.
    Extended {
        /// When, in milliseconds since 1970 by the server's clock.
        expires_at_ms: i64,
    },
    /// The lock is not held under this id, or no longer. Nothing was changed.
    NotHeld,
}

/// What became of an attempt to release a lock.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The lock is free. Returned at most once for each grant.
    Released,
    /// The lock is not held under this id, or no longer. Nothing was changed.
    NotHeld,
}

/// What may be shown of a lock that is held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockInfo {
    /// [`crate::hash_key`] of the key.
    pub key_hash: String,
    /// [`crate::hash_key`] of the lock id.
    pub lock_id_hash: String,
    /// When the lease ends, in milliseconds since 1970 by the server's clock.
    pub expires_at_ms: i64,
    /// When it was granted, by the same clock.
    pub acquired_at_ms: i64,
    /// The fence of the grant.
    pub fence: u64,
    /// How long until another caller can acquire the lock unless its holder renews it, by the server's clock.
    pub free_in: Duration,
}
