//! Outcomes of operations on locks.

use std::time::Duration;

use tokio::time::Instant;

use crate::LockId;

/// A granted lock.
#[derive(Clone, Debug)]
pub struct GrantedLock {
    /// The id of the grant, needed to extend and to release it.
    pub lock_id: LockId,
    /// The fence, higher than that of every earlier grant of this key.
    pub fence: u64,
    /// The end of the lease, in milliseconds since 1970 by the server's clock. Never compare it with a local
    /// clock.
    pub expires_at_ms: i64,
    /// The time of the request by this process's clock, a moment before the lease began.
    pub(crate) asked_at: Instant,
}

/// The outcome of an attempt to acquire a lock.
#[must_use]
#[derive(Clone, Debug)]
pub enum Acquisition {
    /// The caller holds the lock.
    Acquired(GrantedLock),
    /// Another client holds it, or the caller itself by an earlier grant. No fence was consumed.
    Locked,
}

/// The outcome of an attempt to extend a lock.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// The lease now ends at another time, which may be sooner than before.
    Extended {
        /// The new end, in milliseconds since 1970 by the server's clock.
        expires_at_ms: i64,
    },
    /// The lock is not, or no longer, held under this id. Nothing was changed.
    NotHeld,
}

/// The outcome of an attempt to release a lock.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The lock is free. Returned at most once for each grant.
    Released,
    /// The lock is not, or no longer, held under this id. Nothing was changed.
    NotHeld,
}

/// A held lock, without secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockInfo {
    /// [`crate::hash_key`] of the key.
    pub key_hash: String,
    /// [`crate::hash_key`] of the lock id.
    pub lock_id_hash: String,
    /// The end of the lease, in milliseconds since 1970 by the server's clock.
    pub expires_at_ms: i64,
    /// The time of the grant, by the same clock.
    pub acquired_at_ms: i64,
    /// The fence of the grant.
    pub fence: u64,
    /// The time until another caller can acquire the lock unless its holder renews it, by the server's clock.
    pub free_in: Duration,
}
