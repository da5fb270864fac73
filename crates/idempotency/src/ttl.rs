//! The two times to live, as types that cannot be confused.

use std::time::Duration;

use crate::IdempotencyError;

/// The default lock TTL.
pub const DEFAULT_LOCK_TTL: Duration = Duration::from_secs(60);
/// The default retention TTL.
pub const DEFAULT_RETENTION_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest lock TTL: after a crash the key is blocked for that time.
pub const MAX_LOCK_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest retention TTL.
pub const MAX_RETENTION_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The time for which a claim is held. It must be longer than the request takes: after it, a repeat runs the
/// request again. After a crash, repeats are rejected until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTtl(Duration);

/// The time for which a stored response is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetentionTtl(Duration);

impl LockTtl {
    /// Creates a TTL from 1 ms to [`MAX_LOCK_TTL`]; [`IdempotencyError::InvalidArgument`] otherwise.
    pub fn new(ttl: Duration) -> Result<Self, IdempotencyError> {
        checked("a lock TTL", ttl, MAX_LOCK_TTL).map(Self)
    }

    /// Returns the TTL as a duration.
    pub fn as_duration(self) -> Duration {
        self.0
    }

    pub(crate) fn as_millis(self) -> i64 {
        millis(self.0)
    }
}

impl Default for LockTtl {
    fn default() -> Self {
        Self(DEFAULT_LOCK_TTL)
    }
}

impl RetentionTtl {
    /// Creates a TTL from 1 ms to [`MAX_RETENTION_TTL`]; [`IdempotencyError::InvalidArgument`] otherwise.
    pub fn new(ttl: Duration) -> Result<Self, IdempotencyError> {
        checked("a retention TTL", ttl, MAX_RETENTION_TTL).map(Self)
    }

    /// Returns the TTL as a duration.
    pub fn as_duration(self) -> Duration {
        self.0
    }

    pub(crate) fn as_millis(self) -> i64 {
        millis(self.0)
    }
}

impl Default for RetentionTtl {
    fn default() -> Self {
        Self(DEFAULT_RETENTION_TTL)
    }
}

fn checked(what: &str, ttl: Duration, max: Duration) -> Result<Duration, IdempotencyError> {
    if ttl < Duration::from_millis(1) || ttl > max {
        return Err(IdempotencyError::InvalidArgument(format!(
            "{what} is from 1 ms to {max:?}, not {ttl:?}"
        )));
    }
    Ok(ttl)
}

fn millis(ttl: Duration) -> i64 {
    // Cannot fail: the longest is a year.
    i64::try_from(ttl.as_millis()).expect("a time to live within its bounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_within_its_bounds() {
        for ttl in [Duration::from_millis(1), MAX_LOCK_TTL] {
            assert_eq!(LockTtl::new(ttl).expect("valid").as_duration(), ttl);
        }
        assert_eq!(RetentionTtl::new(MAX_RETENTION_TTL).expect("valid").as_millis(), 31_622_400_000);
        for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            assert!(LockTtl::new(ttl).is_err() && RetentionTtl::new(ttl).is_err(), "{ttl:?}");
        }
    }
}
