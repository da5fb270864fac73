//! Errors of PostgreSQL, classified for the caller.

use std::error::Error;

use tokio_postgres::error::{DbError, SqlState};

use crate::ServerError;
use crate::open_error::{OpenError, OpenFailureCause};
use crate::server_error::DeadlinePassed;

type BoxError = Box<dyn Error + Send + Sync>;

/// The reason why an operation on PostgreSQL failed.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// PostgreSQL is unreachable or cannot serve at present. The statement may or may not have been executed.
    #[error("could not {operation}")]
    Unavailable {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// A statement exceeded its deadline, or a function that it calls failed. It may or may not have been
    /// executed; with fewer rows it may succeed.
    #[error("could not {operation}")]
    TimedOut {
        /// The operation that failed.
        operation: &'static str,
        /// The deadline that passed.
        #[source]
        source: BoxError,
    },
    /// Another transaction held a row or a key for longer than `lock_timeout`. The statement was not
    /// executed.
    #[error("could not {operation}: another transaction holds a lock")]
    Locked {
        /// The operation that failed.
        operation: &'static str,
        /// The server's error.
        #[source]
        source: ServerError,
    },
    /// PostgreSQL rejected the given values: the same input fails again.
    #[error("{operation} was refused")]
    Refused {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: ServerError,
    },
}

impl PgError {
    /// Classifies a driver's error. Classes 22 (data), 23 (integrity), 44 (check option), 54 (limits) and P0
    /// (raised by a trigger), and what a function's own RAISE refuses, become `Refused`; 57014 (cancelled),
    /// and whatever else happens within a function, `TimedOut`: other rows may not call it. 55P03 (lock not
    /// available) becomes `Locked`, all others `Unavailable`.
    pub(crate) fn from_driver(
        operation: &'static str,
        statement: &'static str,
        source: tokio_postgres::Error,
    ) -> Self {
        let Some(error) = source.as_db_error() else { return Self::unavailable(operation, source) };
        let server = ServerError::of_statement(statement, error);
        match server.code() {
            "57014" => Self::TimedOut { operation, source: server.into() },
            _ if is_dead_plan(&source) => Self::Unavailable { operation, source: server.into() },
            _ if server.is_about_data() => Self::Refused { operation, source: server },
            _ if server.is_of_function() && !server.is_about_server() => {
                Self::TimedOut { operation, source: server.into() }
            }
            "55P03" => Self::Locked { operation, source: server },
            _ => Self::Unavailable { operation, source: server.into() },
        }
    }

    /// An outage. A server error anywhere in the chain of causes is reduced to a [`ServerError`].
    pub fn unavailable(operation: &'static str, source: impl Into<BoxError>) -> Self {
        let source = source.into();
        let source = ServerError::find(source.as_ref()).map_or(source, BoxError::from);
        Self::Unavailable { operation, source }
    }

    /// The constraint or unique index that was violated.
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Refused { source, .. } => source.constraint(),
            Self::Unavailable { .. } | Self::TimedOut { .. } | Self::Locked { .. } => None,
        }
    }

    /// True if the same statement may succeed with other rows: the server responded, and does not say that it
    /// serves nobody.
    pub fn may_concern_rows(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::TimedOut { .. } | Self::Locked { .. } => true,
            Self::Unavailable { source, .. } => {
                source.downcast_ref::<ServerError>().is_some_and(|server| !server.is_about_server())
            }
        }
    }

    /// True if all connections of the pool were in use for too long, so that nothing was sent.
    pub fn is_for_want_of_a_connection(&self) -> bool {
        matches!(self, Self::Unavailable { source, .. } if source.is::<NoneFree>())
    }

    /// The SQLSTATE, if the server sent one.
    pub fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Refused { source, .. } | Self::Locked { source, .. } => Some(source.state()),
            Self::Unavailable { source, .. } | Self::TimedOut { source, .. } => {
                let server = source.downcast_ref::<ServerError>();
                let refused = || source.downcast_ref::<OpenError>().and_then(OpenError::server);
                server.or_else(refused).map(ServerError::state)
            }
        }
    }
}

/// True if an error is, or was caused by, a pooler that cannot be used as it is configured: waiting does not
/// help.
pub fn is_unusable_pooler(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(OpenError(failures)) = error.downcast_ref() {
            return failures.iter().any(|failure| failure.cause.needs_a_person());
        }
        cause = error.source();
    }
    false
}

/// True if an error is, or was caused by, an exceeded deadline: of a statement, a lock, a connection, or the
/// wait for one.
pub fn is_late(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let slow = [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE];
        let cancelled = |error: &ServerError| slow.contains(error.state());
        let slow_to_open = |OpenError(failures): &OpenError| {
            use OpenFailureCause::{Late, NoSession, NotShown};
            failures.iter().any(|failure| matches!(failure.cause, Late(_) | NoSession(_) | NotShown(_)))
        };
        if error.is::<DeadlinePassed>()
            || error.is::<NoneFree>()
            || error.downcast_ref().is_some_and(cancelled)
            || error.downcast_ref().is_some_and(slow_to_open)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Every connection of a pool was in use for too long.
#[derive(Debug, thiserror::Error)]
#[error("no connection was free within {0:?}")]
pub(crate) struct NoneFree(pub(crate) std::time::Duration);

/// Codes after which a connection is no longer what it was: the server became a standby; a prepared statement
/// is missing, or another one has its name; the protocol is out of step.
const LEAVE_UNUSABLE: [SqlState; 4] = [
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::INVALID_SQL_STATEMENT_NAME,
    SqlState::DUPLICATE_PSTATEMENT,
    SqlState::PROTOCOL_VIOLATION,
];

/// The function of PostgreSQL that finds that a plan is out of date.
const DEAD_PLAN_ROUTINE: &str = "RevalidateCachedQuery";

/// True if a prepared statement of the connection is permanently out of date, because the type of a column
/// was changed.
pub(crate) fn is_dead_plan(error: &tokio_postgres::Error) -> bool {
    let is_reported = |error: &DbError| error.routine() == Some(DEAD_PLAN_ROUTINE);
    error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) && error.as_db_error().is_some_and(is_reported)
}

/// True if the connection can serve the next statement after this error.
pub(crate) fn leaves_connection_usable(error: &tokio_postgres::Error) -> bool {
    // 57P…: the server is shutting down or has just killed the session.
    let is_usable = |state: &SqlState| !LEAVE_UNUSABLE.contains(state) && !state.code().starts_with("57P");
    error.code().is_some_and(is_usable) && !is_dead_plan(error)
}
