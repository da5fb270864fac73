//! What can go wrong, by name. A condition that does not hold is an outcome, not an error.

use std::error::Error;

use pg::PgError;
use tokio_postgres::error::SqlState;

use crate::{Key, TableName};

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
    /// The documents that were asked for together have more bytes than [`crate::MAX_ANSWER_BYTES`].
    #[error("the documents have more than {} bytes together; ask for fewer", crate::MAX_ANSWER_BYTES)]
    TooLarge,
    /// A document that another program wrote, or that was written before there was this limit. It is in the
    /// table as it was.
    #[error(
        "the document {key} has {bytes} bytes as PostgreSQL writes it; at most {most} can be read, so replace or delete it"
    )]
    DocumentTooLarge {
        /// Its key.
        key: Key,
        /// Of its text.
        bytes: usize,
        /// The most that can be read.
        most: usize,
    },
    /// Other documents that are being read leave no room for these. Nothing was changed.
    #[error("there is no room in memory beside the documents that are being read")]
    NoRoom,
    /// The statement took longer than it may.
    #[error("could not {operation} within the statement timeout; narrow it or add an index")]
    TimedOut {
        /// What was tried.
        operation: &'static str,
        /// Which limit passed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL takes no writes, as a standby, or because the role or the database is set so. Nothing was
    /// changed.
    #[error("PostgreSQL is read-only; nothing was changed")]
    ReadOnly,
    /// All connections were in use for as long as an operation may take. Nothing was sent.
    #[error("no connection to PostgreSQL was free; nothing was changed")]
    Busy(#[source] PgError),
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
    /// What has the name of the table cannot be used as one.
    #[error("the table {table} cannot be used: {problem}")]
    NotATable {
        /// The table.
        table: String,
        /// What is wrong with it.
        problem: String,
    },
    /// PostgreSQL refused a declared index; nothing of it is left.
    #[error("the index {item} cannot be built")]
    Index {
        /// The index as it was declared.
        item: String,
        /// Why.
        #[source]
        source: PgError,
    },
    /// The database could not be reached, or refused.
    #[error(transparent)]
    Postgres(#[from] PgError),
}

impl StateError {
    /// An error of a statement on `table`, by what a caller can do about it. A value that PostgreSQL refuses
    /// is the caller's.
    pub(crate) fn of_table(table: &TableName, error: PgError) -> Self {
        match error {
            source @ PgError::TimedOut { operation, .. } => {
                Self::TimedOut { operation, source: source.into() }
            }
            PgError::Refused { source, .. } => Self::InvalidValue(format!("PostgreSQL refused it {source}")),
            error if error.sql_state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly,
            error if error.is_for_want_of_a_connection() => Self::Busy(error),
            error if error.sql_state() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                Self::NoRights(table.to_string())
            }
            error => Self::Postgres(error),
        }
    }

    /// An error of making the table ready, which no client's value has caused.
    pub(crate) fn of_setup(table: &TableName, error: PgError) -> Self {
        match error.sql_state() {
            Some(state) if *state == SqlState::INSUFFICIENT_PRIVILEGE => Self::NoRights(table.to_string()),
            _ => Self::Postgres(error),
        }
    }
}
