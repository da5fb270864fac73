//! PostgreSQL's errors as errors of the ports.

use domain::ports::StoreError;
use pg::PgError;
use state::StateError;

pub(crate) fn store_error(error: PgError) -> StoreError {
    match error {
        PgError::Unavailable { operation, source } => StoreError::Unavailable { operation, source },
        PgError::TimedOut { operation, source } => StoreError::TimedOut { operation, source },
        PgError::Locked { operation, source } => StoreError::Locked { operation, source: source.into() },
        PgError::Refused { operation, source } => StoreError::Refused { operation, source: source.into() },
    }
}

/// An error of a table of documents. What is wrong with the table itself is reported as it is.
pub(crate) fn document_error(error: StateError) -> StoreError {
    match error {
        StateError::Postgres(error) => store_error(error),
        other => StoreError::Unavailable { operation: "check a table of documents", source: other.into() },
    }
}
