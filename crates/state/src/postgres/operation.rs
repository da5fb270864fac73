//! One operation: a connection, and a deadline for everything with it.

use std::time::Duration;

use pg::sql::Written;
use pg::{PgError, PgPool, Session};
use sea_query::SelectStatement;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::rows::read_document;
use crate::statements::SNAPSHOT_BEGIN;
use crate::{Document, MAX_ANSWER_BYTES, StateError, TableName};

/// How much longer than the pool's operation timeout an operation takes at most, with its wait for a connection.
const CONNECTION_MARGIN: Duration = Duration::from_millis(750);

/// Nothing answered in time.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
struct NoConnection(Duration);

/// A connection, and until when the operation may take.
pub(super) struct Operation<'a> {
    pub(super) session: Session,
    table: &'a TableName,
    deadline: Option<Instant>,
}

/// What a row of a page is read as.
pub(super) type Read = Result<Document, StateError>;

/// The documents of a page that were read, and whether those are all.
struct ReadPage {
    documents: Vec<Read>,
    is_whole: bool,
}

impl<'a> Operation<'a> {
    /// Borrows a connection; the time that this takes is part of the operation's.
    pub(super) async fn open(
        pool: &PgPool,
        table: &'a TableName,
        name: &'static str,
    ) -> Result<Self, StateError> {
        let allowed = pool.operation_timeout().map(|timeout| timeout + CONNECTION_MARGIN);
        let deadline = allowed.map(|allowed| Instant::now() + allowed);
        let session = match deadline.zip(allowed) {
            None => pool.session(name).await,
            Some((deadline, allowed)) => timeout_at(deadline, pool.session(name))
                .await
                .unwrap_or_else(|_| Err(PgError::unavailable(name, NoConnection(allowed)))),
        };
        let session = session.map_err(|error| StateError::of_table(table, error))?;
        Ok(Self { session, table, deadline })
    }

    /// What `work` on the session gives, if that is in time.
    pub(super) async fn run<T>(
        &self,
        work: impl Future<Output = Result<T, PgError>>,
    ) -> Result<T, StateError> {
        let done = match self.deadline {
            None => Ok(work.await),
            Some(deadline) => timeout_at(deadline, work).await,
        };
        let late = |_| StateError::TimedOut { operation: self.session.operation() };
        done.map_err(late)?.map_err(|error| StateError::of_table(self.table, error))
    }

    /// Prepares and runs a statement.
    pub(super) async fn query(&self, statement: &Written) -> Result<Vec<Row>, StateError> {
        self.run(self.session.query(statement)).await
    }

    /// Reads documents until their values have more bytes than an answer, and at least two: so a first one that is too large is seen to
    /// have a next one.
    async fn read_page(&self, page: &SelectStatement) -> Result<ReadPage, PgError> {
        let (mut rows, mut bytes, mut is_whole) = (0, 0, true);
        let reads_on = |document: &Read| {
            rows += 1;
            bytes += document.as_ref().map_or(0, |document| document.value.as_str().len());
            is_whole = rows < 2 || bytes <= MAX_ANSWER_BYTES;
            is_whole
        };
        let read = |row: Row| read_document(self.table, &row);
        let documents = self.session.query_while(page, read, reads_on).await?;
        Ok(ReadPage { documents, is_whole })
    }

    /// Runs the two statements of a query, either of which may be missing, on one snapshot. Of the page, rows are read until
    /// one does not fit into the answer.
    pub(super) async fn query_snapshot(
        &self,
        count: Option<&SelectStatement>,
        page: Option<&SelectStatement>,
    ) -> Result<(Vec<Row>, Vec<Read>), StateError> {
        let session = &self.session;
        let (count, page) = match (count, page) {
            (Some(count), Some(page)) => (count, page),
            // One statement has one snapshot.
            (Some(count), None) => {
                return Ok((self.run(session.query_while(count, |row| row, |_| true)).await?, Vec::new()));
            }
            (None, Some(page)) => return Ok((Vec::new(), self.run(self.read_page(page)).await?.documents)),
            (None, None) => return Ok((Vec::new(), Vec::new())),
        };
        let work = async {
            let (begun, counted, page) = tokio::join!(
                biased;
                session.begin_with(SNAPSHOT_BEGIN),
                session.query_while(count, |row| row, |_| true),
                self.read_page(page)
            );
            begun?;
            let (counted, page) = (counted?, page?);
            // The end of the transaction would wait for the rows that are not read.
            if page.is_whole {
                session.commit().await?;
            }
            Ok((counted, page.documents))
        };
        self.run(work).await
    }

    /// Begins a transaction and runs a statement in it. If that waits for a row for too long, the transaction is taken back.
    pub(super) async fn begin(&self, statement: &Written) -> Result<Vec<Row>, StateError> {
        let work = async {
            let prepared = self.session.prepare(statement).await?;
            let (begun, rows) = tokio::join!(biased; self.session.begin(), self.session.run(&prepared));
            begun?;
            if let Err(PgError::Locked { .. }) = rows {
                self.session.rollback().await?;
            }
            rows
        };
        self.run(work).await
    }

    /// Runs a statement and commits the transaction.
    pub(super) async fn commit(&self, statement: &Written) -> Result<Vec<Row>, StateError> {
        let work = async {
            let prepared = self.session.prepare(statement).await?;
            let (rows, committed) = tokio::join!(biased; self.session.run(&prepared), self.session.commit());
            let rows = rows?;
            committed?;
            Ok(rows)
        };
        self.run(work).await
    }

    /// Takes the transaction back.
    pub(super) async fn rollback(&self) -> Result<(), StateError> {
        self.run(self.session.rollback()).await
    }
}
