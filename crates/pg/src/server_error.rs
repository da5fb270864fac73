//! The error of the server and an exceeded deadline, without the data that the server quotes.
//!
//! The server describes a rejected row in full: DETAIL contains the row or its key, and the message of a data
//! error quotes the value. Both may be personal data, so an error keeps the SQLSTATE and the names of
//! constraint, table and column, and the message only if it cannot quote a value.

use std::error::Error;
use std::fmt;

use tokio_postgres::error::{DbError, Severity, SqlState};

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
    raised: Raised,
    /// True if the server ended the session.
    is_fatal: bool,
    /// The name of the statement, or empty.
    statement: &'static str,
}

/// The place where an error was raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Raised {
    /// The statement itself.
    ByStatement,
    /// Within a function, such as that of a trigger.
    InFunction,
    /// A function's own RAISE, under a code of its choice.
    ByRaise,
}

impl Raised {
    fn of(error: &DbError) -> Self {
        if error.routine() == Some(RAISE_ROUTINE) {
            Self::ByRaise
        } else if error.where_().is_some_and(|context| context.lines().any(names_function)) {
            Self::InFunction
        } else {
            Self::ByStatement
        }
    }
}

/// True if a line of an error's context names a function.
fn names_function(line: &str) -> bool {
    let is_of_sql = || line.contains(SQL_CONTEXT) && line.ends_with(|last: char| last.is_ascii_digit());
    line.contains(PROCEDURAL_CONTEXT) || is_of_sql()
}

/// The classes whose message may quote a value: data, integrity, check option, limits, raised by a trigger or
/// function, configuration of a custom function, internal error.
const QUOTES_VALUES: [&str; 7] = ["22", "23", "44", "54", "P0", "38", "XX"];
/// The classes that concern the values of a statement, so that the same values fail again. `0A`, a feature
/// that is not supported, is one of them unless it is a dead plan: a trigger may raise it.
const ABOUT_DATA: [&str; 6] = ["0A", "22", "23", "44", "54", "P0"];
/// The part of an error's context that names a function of a procedural language, such as PL/pgSQL. The
/// server translates the rest.
const PROCEDURAL_CONTEXT: &str = "PL/";
/// The part of an error's context that names the language SQL. For a function, a line with it ends with the
/// number of a statement; for a statement of the server itself, such as the check of a foreign key, with the
/// text of the statement.
const SQL_CONTEXT: &str = "SQL";
/// The function of PostgreSQL that executes RAISE.
const RAISE_ROUTINE: &str = "exec_stmt_raise";
/// The codes and classes of a server that serves no client at present, or not on this connection: too many
/// connections, no access, no such database, shutdown, a standby, a prepared statement that is missing or
/// exists already, a protocol violation, a dead plan.
const OF_SERVER: [&str; 9] = ["53300", "28", "3D", "57P", "25006", "26", "42P05", "08P01", "0A"];
/// The classes that concern the state of the server or of the transaction: connection, transaction, role,
/// rollback, resources, object in use, intervention, system.
const ABOUT_STATE: [&str; 8] = ["08", "25", "28", "40", "53", "55", "57", "58"];

impl ServerError {
    pub(crate) fn new(error: &DbError) -> Self {
        Self::of_statement("", error)
    }

    pub(crate) fn of_statement(statement: &'static str, error: &DbError) -> Self {
        // A function can raise any text under any code; only the context shows that a function raised it.
        let quotes = error.where_().is_some()
            || QUOTES_VALUES.contains(&error.code().code().get(..2).unwrap_or_default());
        Self(Box::new(ServerMessage {
            state: error.code().clone(),
            message: (!quotes).then(|| error.message().to_owned()),
            constraint: error.constraint().map(str::to_owned),
            table: error.table().map(str::to_owned),
            column: error.column().map(str::to_owned),
            raised: Raised::of(error),
            is_fatal: matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
            statement,
        }))
    }

    pub(crate) fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(driver) = error.downcast_ref::<tokio_postgres::Error>() {
                return driver.as_db_error().map(Self::new);
            }
            cause = error.source();
        }
        None
    }

    pub(crate) fn state(&self) -> &SqlState {
        &self.0.state
    }

    pub(crate) fn code(&self) -> &str {
        self.0.state.code()
    }

    pub(crate) fn constraint(&self) -> Option<&str> {
        self.0.constraint.as_deref()
    }

    /// True if it was raised within a function, such as that of a trigger.
    pub(crate) fn is_of_function(&self) -> bool {
        self.0.raised != Raised::ByStatement
    }

    /// True if a function's own RAISE chose its code, so that a code about the server's state says nothing
    /// about the server.
    pub(crate) fn is_of_raise(&self) -> bool {
        self.0.raised == Raised::ByRaise
    }

    /// True if the same values fail again: the error concerns them, or a function's own RAISE refuses them.
    pub(crate) fn is_about_data(&self) -> bool {
        let class = self.code().get(..2).unwrap_or_default();
        ABOUT_DATA.contains(&class) || self.is_of_raise() && !ABOUT_STATE.contains(&class)
    }

    /// True if the server serves no client at present, or not on this connection, so that other rows fail,
    /// too. Within a function, the code may be that of another server, which the function uses.
    pub(crate) fn is_about_server(&self) -> bool {
        let is_code = || OF_SERVER.iter().any(|start| self.code().starts_with(start));
        self.0.is_fatal || !self.is_of_function() && is_code()
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

/// An exceeded deadline.
#[derive(Debug, thiserror::Error)]
#[error("no response within {allowed:?}{}", OfStatement(.statement))]
pub struct DeadlinePassed {
    pub(crate) allowed: std::time::Duration,
    /// The name of the statement, or empty.
    pub(crate) statement: &'static str,
}

impl DeadlinePassed {
    /// An operation that did not end within `allowed`.
    pub fn new(allowed: std::time::Duration) -> Self {
        Self { allowed, statement: "" }
    }
}
