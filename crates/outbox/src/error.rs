//! What can go wrong with the outbox itself.

use pg::PgError;

/// An operation on the outbox failed.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// PostgreSQL could not be asked, or refused.
    #[error("the outbox could not be used")]
    Postgres(#[from] PgError),
    /// A value cannot be read.
    #[error("the column {column} of a row of the outbox cannot be read")]
    Corrupt {
        /// Which.
        column: &'static str,
        /// Why.
        #[source]
        source: pg::row::ColumnError,
    },
    /// There is no such table.
    #[error("the outbox table {0} does not exist: create it with `notification outbox migrate`")]
    NoTable(String),
    /// The table lacks columns that are needed.
    #[error("the outbox table {table} lacks {columns}")]
    NoColumns {
        /// Which table.
        table: String,
        /// Their names, separated by commas.
        columns: String,
    },
    /// The role may not do what a relay does.
    #[error("the role lacks rights on the outbox table {table}: {rights}")]
    NoRights {
        /// Which table.
        table: String,
        /// The rights, separated by commas.
        rights: String,
    },
    /// The role may not execute a function by which the outbox is told from others.
    #[error("the role lacks the right EXECUTE on the function {0}")]
    NoFunctionRight(&'static str),
}

impl OutboxError {
    /// Whether fewer rows may succeed: the table refuses one of them, or one of them takes too long.
    pub(crate) fn is_about_rows(&self) -> bool {
        matches!(self, Self::Postgres(PgError::Refused { .. } | PgError::TimedOut { .. }))
    }
}
