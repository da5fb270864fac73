//! What can go wrong, by name. That a key is in progress or belongs to another request is an outcome, not an
//! error.

use std::time::Duration;

use pg::PgError;

/// Why an operation on idempotency keys failed. After [`IdempotencyError::Postgres`] and
/// [`IdempotencyError::TimedOut`] it is unknown whether the operation was carried out.
#[derive(Debug, thiserror::Error)]
pub enum IdempotencyError {
    /// A scope, key, fingerprint, time or setting that cannot be; nothing was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// A [`crate::MemoryStore`] holds as many keys as it may, and none of them is expired. Nothing was
    /// claimed.
    #[error("the store is full: it holds {max_entries} keys")]
    Full {
        /// The bound that was given to the store.
        max_entries: usize,
    },
    /// As many requests are being processed as may be. Nothing was claimed.
    #[error("{max_concurrent} requests with idempotency keys are being processed already")]
    TooManyRequests {
        /// The bound of the settings.
        max_concurrent: usize,
    },
    /// The process is stopping.
    #[error("the process is stopping")]
    Stopping,
    /// The store did not answer in time.
    #[error("the store did not answer within {0:?}")]
    TimedOut(Duration),
    /// The handler did not answer in time and was dropped. Its claim is abandoned.
    #[error("the handler did not answer within {0:?}")]
    HandlerTimedOut(Duration),
    /// The role lacks rights on the table.
    #[error(
        "permission denied: the role may not read, write and delete in: {0}; GRANT it or make the role the owner"
    )]
    NoRights(String),
    /// A row that this crate did not write.
    #[error("idempotency_keys.{0} has a value that cannot be")]
    Corrupt(&'static str),
    /// The database could not be reached, or refused.
    #[error(transparent)]
    Postgres(#[from] PgError),
}
