//! Errors of the outbox itself.

use pg::PgError;

/// The error of a failed operation on the outbox.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// PostgreSQL is unavailable, or rejected the statement.
    #[error("the outbox could not be used")]
    Postgres(#[from] PgError),
    /// A value cannot be read.
    #[error("the column {column} of a row of the outbox cannot be read")]
    Corrupt {
        /// The column.
        column: &'static str,
        /// The cause.
        #[source]
        source: pg::row::ColumnError,
    },
    /// The table does not exist.
    #[error("the outbox table {0} does not exist: create it with `notification outbox migrate`")]
    NoTable(String),
    /// The table lacks required columns.
    #[error("the outbox table {table} lacks {columns}")]
    NoColumns {
        /// The table.
        table: String,
        /// Their names, separated by commas.
        columns: String,
    },
    /// The role lacks rights that a relay needs.
    #[error("the role lacks rights on the outbox table {table}: {rights}")]
    NoRights {
        /// The table.
        table: String,
        /// The rights, separated by commas.
        rights: String,
    },
    /// A trigger or a rule of the table skips the change of a row, without an error.
    #[error("the table leaves the row unchanged: a trigger or a rule skips its update")]
    Unchanged,
    /// The role may not execute the function that returns the identity of the outbox.
    #[error("the role lacks the right EXECUTE on the function {0}")]
    NoFunctionRight(&'static str),
}

impl OutboxError {
    /// The cause of the failure, as far as the error shows it.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Postgres(PgError::Refused { .. }) | Self::Unchanged => Blame::Row,
            Self::Postgres(error) if error.may_concern_rows() => Blame::Unclear,
            _ => Blame::Server,
        }
    }
}

/// The largest number of rows that fail alone, for a cause that may be the server, before the others of an
/// operation are left.
pub(crate) const MAX_UNCLEAR: usize = 3;

/// The cause of a failed operation on several rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blame {
    /// A row that the table refuses.
    Row,
    /// A row, or the server: the operation on other rows shows it.
    Unclear,
    /// The server.
    Server,
}
