//! Errors of the outbox itself.

use std::time::Duration;

use pg::PgError;
use tokio::time::Instant;

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
    #[error("the role lacks rights on the outbox: {0}")]
    NoRights(String),
    /// A trigger or a rule of the table skips the change of a row, without an error.
    #[error("the table leaves the row unchanged: a trigger or a rule skips its update")]
    Unchanged,
    /// Claims of these events failed one by one, and that of no other event succeeded.
    #[error("no event can be claimed; those tried one by one are {events}")]
    NoneClaimed {
        /// The first of their ids.
        events: String,
        /// The error of the last one.
        #[source]
        source: Box<OutboxError>,
    },
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

/// The limits after which an operation skips its remaining rows: the number of rows that failed alone for a
/// cause that may be the server, and the time spent. Both must be reached.
const MAX_UNCLEAR: usize = 3;
const MAX_UNCLEAR_TIME: Duration = Duration::from_secs(2);

/// The rows of an operation that failed alone, for a cause that may be the server.
#[derive(Debug)]
pub(crate) struct UnclearRows {
    begun: Instant,
    count: usize,
}

impl UnclearRows {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), count: 0 }
    }

    /// Counts a row that failed alone.
    pub(crate) fn add(&mut self, blame: Blame) {
        self.count += usize::from(blame == Blame::Unclear);
    }

    /// True if the remaining rows of the operation are skipped, because they would probably take as long.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count >= MAX_UNCLEAR && self.begun.elapsed() >= MAX_UNCLEAR_TIME
    }
}

/// The cause of a failed operation on several rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blame {
    /// A row that the table refuses.
    Row,
    /// A row or the server; operations on other rows show which of the two.
    Unclear,
    /// The server.
    Server,
}
