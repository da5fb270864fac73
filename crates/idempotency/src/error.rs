//! Errors of idempotency keys. A key that is in progress or belongs to another request is an outcome, not an
//! error.

use std::time::Duration;

use pg::PgError;

/// The error of an operation on idempotency keys. After [`IdempotencyError::Postgres`] and
/// [`IdempotencyError::TimedOut`] it is unknown whether the operation was carried out.
#[derive(Debug, thiserror::Error)]
pub enum IdempotencyError {
    /// An invalid owner, key, fingerprint, time or setting; nothing was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// The `MemoryStore` has reached its limit of keys, and none of them is expired. Nothing was
    /// claimed.
    #[error("the store is full: it holds {max_entries} keys")]
    Full {
        /// The limit of the store.
        max_entries: usize,
    },
    /// The limit of concurrent requests is reached. Nothing was claimed.
    #[error("{max_concurrent} requests with idempotency keys are being processed already")]
    TooManyRequests {
        /// The limit in the settings.
        max_concurrent: usize,
    },
    /// The process is stopping.
    #[error("the process is stopping")]
    Stopping,
    /// The store did not respond in time.
    #[error("the store did not respond within {0:?}")]
    TimedOut(Duration),
    /// The handler did not respond in time and was dropped. Its claim is abandoned.
    #[error("the handler did not respond within {0:?}")]
    HandlerTimedOut(Duration),
    /// The role lacks rights on the table.
    #[error("permission denied: the role lacks {0}")]
    NoRights(String),
    /// A row that this crate did not write.
    #[error("idempotency_keys.{0} has an impossible value")]
    Corrupt(&'static str),
    /// The database is unreachable, or rejected the statement.
    #[error(transparent)]
    Postgres(#[from] PgError),
}
