//! What can go wrong, by name. A condition that does not hold is an outcome, not an error.

use pg::PgError;

/// Why an operation failed. After [`StateError::Postgres`] it is unknown whether a write was carried out.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A key or a prefix that cannot be; nothing was sent.
    #[error("{0}")]
    InvalidKey(String),
    /// JSON that `jsonb` cannot hold or that is nested too deeply; nothing was stored.
    #[error("{0}")]
    InvalidValue(String),
    /// A query that is none, or a cursor of another one; nothing was sent.
    #[error("{0}")]
    InvalidQuery(String),
    /// The statement took longer than it may.
    #[error("could not {operation} within the statement time-out; narrow it or add an index")]
    TimedOut {
        /// What was tried.
        operation: &'static str,
    },
    /// The role lacks rights on the table.
    #[error(
        "permission denied: the role may not read, write and delete in: {0}; GRANT it or make the role the owner"
    )]
    NoRights(String),
    /// A row that this crate did not write and that is no document.
    #[error("a row of the table {table} has a {column} that cannot be")]
    Corrupt {
        /// The table.
        table: String,
        /// The column.
        column: &'static str,
    },
    /// The database could not be reached, or refused.
    #[error(transparent)]
    Postgres(#[from] PgError),
}
