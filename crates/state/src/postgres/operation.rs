//! One operation: a connection, and a deadline for all work on it.

use std::time::Duration;

use pg::{BoundStatement, PgError, PgPool, Session};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::rows::{FoundRow, read_found};
use crate::room::{MAX_UNCOUNTED_BYTES, ReservedRoom, Room};
use crate::statements::SNAPSHOT_BEGIN;
use crate::{MAX_ANSWER_BYTES, StateError, TableName};

/// The time that an operation may take beyond the pool's operation timeout, including its wait for a
/// connection.
const CONNECTION_MARGIN: Duration = Duration::from_millis(750);

/// The largest message after which a connection is kept, in bytes. The buffers of a connection keep the size
/// of their largest message.
const MAX_KEPT_MESSAGE: usize = 1024 * 1024;

/// The error if no connection was available in time.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
struct NoConnection(Duration);

/// A connection, and the deadline of the operation.
pub(super) struct StoreOperation<'a> {
    pub(super) session: Session,
    table: &'a TableName,
    deadline: Option<Instant>,
}

/// The outcome of reading several documents.
pub(super) enum ManyRead {
    /// The documents that fit into a response, and the next one. `is_whole` if there are no others.
    Read { found: Vec<FoundRow>, is_whole: bool },
    /// The documents need reserved room, and none is reserved yet.
    NeedsRoom,
}

/// The reserved room for a read.
pub(super) struct ReservedRead<'a> {
    pub(super) room: &'a Room,
    /// The bytes of room that a response reserves.
    pub(super) bytes: usize,
    /// The reserved part of the room.
    pub(super) held: Option<ReservedRoom>,
}

impl ReservedRead<'_> {
    /// Returns true if a read may continue after so many bytes.
    fn takes(&mut self, bytes: usize, is_larger: bool) -> bool {
        if self.held.is_none() && !is_larger && bytes > MAX_UNCOUNTED_BYTES {
            self.held = self.room.try_take(self.bytes);
        }
        self.held.is_some() || (bytes <= MAX_UNCOUNTED_BYTES && !is_larger)
    }
}

/// The deadline of an operation on the pool that begins now.
pub(super) fn deadline_of(pool: &PgPool) -> Option<Instant> {
    pool.operation_timeout().map(|timeout| Instant::now() + timeout + CONNECTION_MARGIN)
}

impl<'a> StoreOperation<'a> {
    /// Borrows a connection; the time for this counts towards the operation's.
    pub(super) async fn open(
        pool: &PgPool,
        table: &'a TableName,
        name: &'static str,
        deadline: Option<Instant>,
    ) -> Result<Self, StateError> {
        let allowed = pool.operation_timeout().map(|timeout| timeout + CONNECTION_MARGIN);
        let session = match deadline.zip(allowed) {
            None => pool.session(name).await,
            Some((deadline, allowed)) => timeout_at(deadline, pool.session(name))
                .await
                .unwrap_or_else(|_| Err(PgError::unavailable(name, NoConnection(allowed)))),
        };
        let session = session.map_err(|error| StateError::of_table(table, error))?;
        Ok(Self { session, table, deadline })
    }

    /// The result of `work` on the session, if it is in time.
    pub(super) async fn run<T>(
        &self,
        work: impl Future<Output = Result<T, PgError>>,
    ) -> Result<T, StateError> {
        self.in_time(work).await?.map_err(|error| StateError::of_table(self.table, error))
    }

    /// Prepares and runs a statement.
    pub(super) async fn query(&self, statement: BoundStatement) -> Result<Vec<Row>, StateError> {
        self.run(self.session.query(statement)).await
    }

    /// Waits for `work` until the deadline.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, StateError> {
        let done = match self.deadline {
            None => Ok(work.await),
            Some(deadline) => timeout_at(deadline, work).await,
        };
        let operation = self.session.operation();
        done.map_err(|passed| StateError::TimedOut { operation, source: passed.into() })
    }

    /// Discards the connection after the operation if a message of so many bytes has gone through it.
    pub(super) fn retire_after(&self, bytes: usize) {
        if bytes > MAX_KEPT_MESSAGE {
            self.session.retire();
        }
    }

    /// Reads documents until their values exceed a response, and at least two: so the existence of a next
    /// document is known even if the first one is too large.
    async fn read(
        &self,
        statement: BoundStatement,
        counted: &mut ReservedRead<'_>,
    ) -> Result<Result<ManyRead, StateError>, PgError> {
        let (mut rows, mut bytes, mut is_whole, mut has_room) = (0, 0_usize, true, true);
        let reads_on = |found: &Result<FoundRow, StateError>| {
            let Ok(found) = found else { return false };
            rows += 1;
            bytes = bytes.saturating_add(found.bytes());
            has_room = counted.takes(bytes, matches!(found, FoundRow::Larger { .. }));
            is_whole = rows < 2 || bytes <= MAX_ANSWER_BYTES;
            is_whole && has_room
        };
        let read = |row: Row| read_found(self.table, &row);
        let found = self.session.query_while(statement, read, reads_on).await?;
        self.retire_after(bytes);
        if !has_room {
            return Ok(Ok(ManyRead::NeedsRoom));
        }
        Ok(found.into_iter().collect::<Result<_, _>>().map(|found| ManyRead::Read { found, is_whole }))
    }

    /// Reads documents that are not part of a query.
    pub(super) async fn read_many(
        &self,
        statement: BoundStatement,
        counted: &mut ReservedRead<'_>,
    ) -> Result<ManyRead, StateError> {
        self.run(self.read(statement, counted)).await?
    }

    /// Runs the two statements of a query, either of which may be missing, on one snapshot. Reads rows of the
    /// page until one does not fit into the response.
    pub(super) async fn query_snapshot(
        &self,
        count: Option<BoundStatement>,
        page: Option<BoundStatement>,
        counted: &mut ReservedRead<'_>,
    ) -> Result<(Vec<Row>, ManyRead), StateError> {
        let session = &self.session;
        let nothing = || ManyRead::Read { found: Vec::new(), is_whole: true };
        let (count, page) = match (count, page) {
            (Some(count), Some(page)) => (count, page),
            // One statement has one snapshot.
            (Some(count), None) => {
                return Ok((self.run(session.query_while(count, |row| row, |_| true)).await?, nothing()));
            }
            (None, Some(page)) => return Ok((Vec::new(), self.read_many(page, counted).await?)),
            (None, None) => return Ok((Vec::new(), nothing())),
        };
        let work = async {
            let (begun, counts, reading) = tokio::join!(
                biased;
                session.begin_with(SNAPSHOT_BEGIN),
                session.query_while(count, |row| row, |_| true),
                self.read(page, counted)
            );
            begun?;
            let (counts, reading) = (counts?, reading?);
            // A commit would wait for the rows that are not read.
            if let Ok(ManyRead::Read { is_whole: true, found }) = &reading {
                session.commit().await?;
                self.retire_after(found.iter().map(FoundRow::bytes).sum());
            }
            Ok((counts, reading))
        };
        let (counts, reading) = self.run(work).await?;
        Ok((counts, reading?))
    }

    /// Begins a transaction and runs a statement in it. If the statement waits too long for a row, the
    /// transaction is rolled back.
    pub(super) async fn begin(&self, statement: BoundStatement) -> Result<Vec<Row>, StateError> {
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
    pub(super) async fn commit(&self, statement: BoundStatement) -> Result<Vec<Row>, StateError> {
        let work = async {
            let prepared = self.session.prepare(statement).await?;
            let (rows, committed) = tokio::join!(biased; self.session.run(&prepared), self.session.commit());
            let rows = rows?;
            committed?;
            Ok(rows)
        };
        self.run(work).await
    }

    /// Rolls back the transaction.
    pub(super) async fn rollback(&self) -> Result<(), StateError> {
        self.run(self.session.rollback()).await
    }
}
