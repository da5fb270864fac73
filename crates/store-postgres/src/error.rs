//! PostgreSQL's errors in the words of the ports.

use domain::ports::StoreError;
use pg::PgError;

pub(crate) fn store_error(error: PgError) -> StoreError {
    match error {
        PgError::Unavailable { operation, source } => StoreError::Unavailable { operation, source },
        PgError::Refused { operation, source } => StoreError::Refused { operation, source: source.into() },
    }
}
