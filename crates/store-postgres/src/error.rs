//! Converts PostgreSQL's errors into errors of the ports.

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

/// An error of a table of documents.
pub(crate) fn document_error(operation: &'static str, error: StateError) -> StoreError {
    match error {
        StateError::Postgres(error) => store_error(error),
        error @ StateError::TimedOut { .. } => StoreError::TimedOut { operation, source: error.into() },
        error @ (StateError::InvalidKey(_) | StateError::InvalidValue(_) | StateError::InvalidQuery(_)) => {
            StoreError::Refused { operation, source: error.into() }
        }
        error @ (StateError::NoRights(_)
        | StateError::TooLarge
        | StateError::DocumentTooLarge { .. }
        | StateError::NoRoom
        | StateError::ReadOnly
        | StateError::Busy(_)
        | StateError::Corrupt { .. }
        | StateError::NotATable { .. }
        | StateError::Index { .. }) => StoreError::Unavailable { operation, source: error.into() },
    }
}
