//! PostgreSQL's errors as errors of the ports.

use domain::ports::StoreError;
use pg::PgError;

pub(crate) fn store_error(error: PgError) -> StoreError {
    match error {
        PgError::Unavailable { operation, source } => StoreError::Unavailable { operation, source },
        PgError::TimedOut { operation, source } => StoreError::TimedOut { operation, source },
        PgError::Locked { operation, source } => StoreError::Locked { operation, source: source.into() },
        PgError::Refused { operation, source } => StoreError::Refused { operation, source: source.into() },
    }
}
