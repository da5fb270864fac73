//! Errors of PostgreSQL, classified for the caller and without the data that the server quotes.
//!
//! The server describes a rejected row in full: DETAIL contains the row or its key, and the message of a data
//! error quotes the value. Both may be personal data, so an error keeps the SQLSTATE and the names of
//! constraint, table and column, and the message only if it cannot quote a value ([`ServerError`]).

use std::error::Error;
use std::fmt;

use tokio_postgres::error::{DbError, SqlState};

use crate::open_error::{OpenError, OpenFailureCause};

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
    /// A statement exceeded its deadline. It may or may not have been executed; with fewer rows it may
    /// succeed.
    #[error("could not {operation} in time")]
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
    /// (raised by a trigger) become `Refused`, 57014 (cancelled) `TimedOut`, 55P03 (lock not available)
    /// `Locked`, all others `Unavailable`.
    pub(crate) fn from_driver(
        operation: &'static str,
        statement: &'static str,
        source: tokio_postgres::Error,
    ) -> Self {
        let Some(error) = source.as_db_error() else { return Self::unavailable(operation, source) };
        let server = ServerError::of_statement(statement, error);
        match server.code() {
            "57014" => Self::TimedOut { operation, source: server.into() },
            "55P03" => Self::Locked { operation, source: server },
            _ if server.is_about_data() && !is_dead_plan(&source) => {
                Self::Refused { operation, source: server }
            }
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
            Self::Refused { source, .. } => source.0.constraint.as_deref(),
            Self::Unavailable { .. } | Self::TimedOut { .. } | Self::Locked { .. } => None,
        }
    }

    /// True if all connections of the pool were in use for too long, so that nothing was sent.
    pub fn is_for_want_of_a_connection(&self) -> bool {
        matches!(self, Self::Unavailable { source, .. } if source.is::<NoneFree>())
    }

    /// The SQLSTATE, if the server sent one.
    pub fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Refused { source, .. } | Self::Locked { source, .. } => Some(&source.0.state),
            Self::Unavailable { source, .. } | Self::TimedOut { source, .. } => {
                let server = source.downcast_ref::<ServerError>();
                let refused = || source.downcast_ref::<OpenError>().and_then(OpenError::server);
                server.or_else(refused).map(|error| &error.0.state)
            }
        }
    }
}

/// The error of the server without values: SQLSTATE, constraint, table and column, and the message if it can
/// contain only names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerError(Box<ServerMessage>);

/// Boxed, so that results stay small.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ServerMessage {
    state: SqlState,
    message: Option<String>,
    constraint: Option<String>,
    table: Option<String>,
    column: Option<String>,
    /// The name of the statement, or empty.
    statement: &'static str,
}

/// The classes whose message may quote a value: data, integrity, check option, limits, raised by a trigger or
/// function, configuration of a custom function, internal error.
const QUOTES_VALUES: [&str; 7] = ["22", "23", "44", "54", "P0", "38", "XX"];
/// The classes that concern the values of a statement, so that the same values fail again. `0A`, a feature
/// that is not supported, is one of them unless it is a dead plan: a trigger may raise it.
const ABOUT_DATA: [&str; 6] = ["0A", "22", "23", "44", "54", "P0"];

impl ServerError {
    pub(crate) fn new(error: &DbError) -> Self {
        Self::of_statement("", error)
    }

    fn of_statement(statement: &'static str, error: &DbError) -> Self {
        // A function can raise any text under any code; only the context shows that a function raised it.
        let quotes = error.where_().is_some()
            || QUOTES_VALUES.contains(&error.code().code().get(..2).unwrap_or_default());
        Self(Box::new(ServerMessage {
            state: error.code().clone(),
            message: (!quotes).then(|| error.message().to_owned()),
            constraint: error.constraint().map(str::to_owned),
            table: error.table().map(str::to_owned),
            column: error.column().map(str::to_owned),
            statement,
        }))
    }

    fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(driver) = error.downcast_ref::<tokio_postgres::Error>() {
                return driver.as_db_error().map(Self::new);
            }
            cause = error.source();
        }
        None
    }

    fn code(&self) -> &str {
        self.0.state.code()
    }

    fn is_about_data(&self) -> bool {
        ABOUT_DATA.contains(&self.code().get(..2).unwrap_or_default())
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerMessage { message, constraint, table, column, .. } = &*self.0;
        if let Some(message) = message {
            write!(f, "{message} ")?;
        }
        write!(f, "(SQLSTATE {}", self.code())?;
        for (what, name) in [("constraint", constraint), ("table", table), ("column", column)] {
            if let Some(name) = name {
                write!(f, ", {what} {name}")?;
            }
        }
        write!(f, "{})", OfStatement(self.0.statement))
    }
}

/// The name of a statement as the last part of a list, or nothing.
struct OfStatement(&'static str);

impl fmt::Display for OfStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", statement {}", self.0) }
    }
}

impl Error for ServerError {}

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
        let cancelled = |error: &ServerError| slow.contains(&error.0.state);
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

/// A deadline passed.
#[derive(Debug, thiserror::Error)]
#[error("no response within {allowed:?}{}", OfStatement(.statement))]
pub(crate) struct DeadlinePassed {
    pub(crate) allowed: std::time::Duration,
    /// The name of the statement, or empty.
    pub(crate) statement: &'static str,
}

impl DeadlinePassed {
    pub(crate) fn new(allowed: std::time::Duration) -> Self {
        Self { allowed, statement: "" }
    }
}

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
