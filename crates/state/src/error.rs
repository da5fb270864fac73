//! Errors of the store. A condition that does not hold is an outcome, not an error.

use std::error::Error;

use pg::PgError;
use tokio_postgres::error::SqlState;

use crate::{Key, TableName};

/// The reason why an operation failed. After [`StateError::Postgres`] it is unknown whether a write was
/// carried out.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// An invalid key or prefix; nothing was sent.
    #[error("{0}")]
    InvalidKey(String),
    /// JSON that `jsonb` cannot hold or that is nested too deeply; nothing was stored.
    #[error("{0}")]
    InvalidValue(String),
    /// An invalid query, or a cursor of another query; nothing was sent.
    #[error("{0}")]
    InvalidQuery(String),
    /// The requested documents together have more bytes than [`crate::MAX_ANSWER_BYTES`].
    #[error("the documents have more than {} bytes together; ask for fewer", crate::MAX_ANSWER_BYTES)]
    TooLarge,
    /// A document that another program wrote, or that was written before this limit existed. It remains
    /// unchanged in the table.
    #[error(
        "the document {key} has {bytes} bytes as PostgreSQL writes it; at most {most} can be read, so replace or delete it"
    )]
    DocumentTooLarge {
        /// The document's key.
        key: Key,
        /// The bytes of its text.
        bytes: usize,
        /// The most bytes that can be read.
        most: usize,
    },
    /// Other documents that are being read leave no room for these. Nothing was changed.
    #[error("no memory left beside the documents that are being read")]
    NoRoom,
    /// The statement exceeded its time limit.
    #[error("could not {operation} within the statement timeout; narrow it or add an index")]
    TimedOut {
        /// The attempted operation.
        operation: &'static str,
        /// The limit that passed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL accepts no writes: it is a standby, or the role or the database is read-only. Nothing was
    /// changed.
    #[error("PostgreSQL is read-only; nothing was changed")]
    ReadOnly,
    /// All connections were in use for the whole time limit of an operation. Nothing was sent.
    #[error("no connection to PostgreSQL was free; nothing was changed")]
    Busy(#[source] PgError),
    /// The role lacks rights on the table.
    #[error("permission denied: the role lacks {0}")]
    NoRights(String),
    /// A row that this crate did not write and that is not a valid document.
    #[error("a row of the table {table} has an impossible {column}")]
    Corrupt {
        /// The table.
        table: String,
        /// The column.
        column: &'static str,
    },
    /// The relation with the name of the table cannot be used as a table of documents.
    #[error("the table {table} cannot be used: {problem}")]
    NotATable {
        /// The table.
        table: String,
        /// The problem.
        problem: String,
    },
    /// PostgreSQL rejected a declared index; nothing of it remains.
    #[error("the index {item} cannot be built")]
    Index {
        /// The index as it was declared.
        item: String,
        /// PostgreSQL's error.
        #[source]
        source: PgError,
    },
    /// The database could not be reached, or returned an error.
    #[error(transparent)]
    Postgres(#[from] PgError),
}

impl StateError {
    /// Maps an error of a statement on `table` by what a caller can do about it. A value that PostgreSQL
    /// rejects is the caller's error.
    pub(crate) fn of_table(table: &TableName, error: PgError) -> Self {
        match error {
            source @ PgError::TimedOut { operation, .. } if pg::is_late(&source) => {
                Self::TimedOut { operation, source: source.into() }
            }
            PgError::Refused { source, .. } => Self::InvalidValue(format!("PostgreSQL refused it {source}")),
            error if error.sql_state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly,
            error if error.is_for_want_of_a_connection() => Self::Busy(error),
            error if error.sql_state() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                Self::NoRights(format!("a right on {table}"))
            }
            error => Self::Postgres(error),
        }
    }

    /// Maps an error of the table's setup, which no client's value can cause.
    pub(crate) fn of_setup(table: &TableName, error: PgError) -> Self {
        match error.sql_state() {
            Some(state) if *state == SqlState::INSUFFICIENT_PRIVILEGE => {
                Self::NoRights(format!("the rights to set up {table}, as its owner has them"))
            }
            _ => Self::Postgres(error),
        }
    }
}
