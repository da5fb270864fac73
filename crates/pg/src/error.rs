//! What a failure of PostgreSQL means for whoever asked.

use tokio_postgres::error::SqlState;

/// Why an operation on PostgreSQL failed.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// It cannot be reached, is too slow, or is in no state to serve. Whether a statement was carried out is unknown.
    #[error("could not {operation}")]
    Unavailable {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It is well and refuses the values that it was given: the same will fail again.
    #[error("{operation} was refused")]
    Refused {
        /// What was being done.
        operation: &'static str,
        /// Why it was refused.
        #[source]
        source: tokio_postgres::Error,
    },
}

impl PgError {
    /// Reads a driver's error: classes 22 (data), 23 (integrity) and 54 (limits) are refusals, all else is an outage.
    pub(crate) fn from_driver(operation: &'static str, source: tokio_postgres::Error) -> Self {
        let refused = source.code().is_some_and(|state| ["22", "23", "54"].contains(&&state.code()[..2]));
        if refused { Self::Refused { operation, source } } else { Self::unavailable(operation, source) }
    }

    /// An outage.
    pub fn unavailable(
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Unavailable { operation, source: source.into() }
    }

    /// The SQLSTATE, if the server sent one.
    pub fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Refused { source, .. } => source.code(),
            Self::Unavailable { source, .. } => source.downcast_ref::<tokio_postgres::Error>()?.code(),
        }
    }
}

/// A deadline passed.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub(crate) struct TimedOut(pub(crate) std::time::Duration);

/// Whether the connection can serve the next statement after this error.
pub(crate) fn leaves_connection_usable(error: &tokio_postgres::Error) -> bool {
    // 25006: the server became a standby; 57P…: it is shutting down or has just killed the session.
    error.code().is_some_and(|state| {
        *state != SqlState::READ_ONLY_SQL_TRANSACTION && !state.code().starts_with("57P")
    })
}
