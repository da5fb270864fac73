//! One operation on a borrowed connection, with a deadline.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use deadpool::managed::{Object, Pool};
use futures_util::{SinkExt, TryStreamExt};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{Row, SimpleQueryMessage};

use crate::PgError;
use crate::error::{DeadlinePassed, leaves_connection_usable};
use crate::pool::{Connections, PooledClient};
use crate::prepared::{PostgresBinderRef, Prepared, SharedText, untyped};

/// How much longer than the server the client waits, so that the server's own error arrives first.
const CLIENT_DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// The most statements of varying texts that a connection keeps prepared, and the longest of them, in bytes.
/// Each takes memory of the server, some sixty times its text.
pub const MAX_PREPARED: usize = 100;
const MAX_PREPARED_BYTES: usize = 8 * 1024;

/// How long a connection whose statement was given up may count against its pool, while the server runs the
/// statement.
pub const MAX_GIVEN_UP: Duration = Duration::from_secs(10);

/// A connection, borrowed for one operation.
///
/// It goes back to the pool only if its state is known: not after a broken connection or a timeout, nor when
/// it is dropped while a statement is on its way or a transaction is open.
///
/// A statement is given up when its caller stops waiting or its deadline passes. It is cancelled then,
/// because no caller needs its result. Until the server has ended it, for at most [`MAX_GIVEN_UP`], its
/// connection counts against the pool: otherwise any number of statements that cannot be interrupted would
/// run beside those of the connections that replace it. Two kinds of statements are not cancelled:
///
/// - COMMIT, because cancelling ends its wait for a synchronous standby, and the transaction would be visible
///   without being replicated. Such a COMMIT waits in the server for as long as the standby is unavailable,
///   whatever its client does.
/// - A statement without a deadline, such as the build of an index: it continues, and the next process finds
///   its result.
#[derive(Debug)]
pub struct Session {
    object: Option<Object<Connections>>,
    operation: &'static str,
    pub(crate) deadline: Option<Deadline>,
    in_flight: AtomicUsize,
    /// The deadline passed before the server responded.
    given_up: AtomicBool,
    committing: AtomicBool,
    broken: AtomicBool,
    /// The connection is not used again, whatever ends its transaction.
    discarded: AtomicBool,
    checks: bool,
}

/// Until when an operation may take, and how long that was when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Session {
    /// The deadline of the operation begins now.
    pub(crate) fn new(
        object: Object<Connections>,
        operation: &'static str,
        operation_timeout: Option<Duration>,
    ) -> Self {
        let deadline = |allowed| Deadline { at: Instant::now() + allowed + CLIENT_DEADLINE_MARGIN, allowed };
        Self {
            object: Some(object),
            operation,
            deadline: operation_timeout.map(deadline),
            in_flight: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            committing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
            checks: false,
        }
    }

    /// Lets [`Session::prepare`] check behind a pooler, too, whether the server accepts a statement. Each
    /// check costs a round trip.
    pub fn checking(mut self) -> Self {
        self.checks = true;
        self
    }

    /// Prepares `query` (once for each connection and text) and keeps its parameters with it.
    ///
    /// The text must not vary with the data: each text stays prepared for as long as the connection lives.
    /// Behind a pooler nothing is prepared: the server gets the text with each run.
    pub async fn prepare(&self, query: &impl PostgresBinderRef) -> Result<Prepared, PgError> {
        let (sql, values) = query.build_ref();
        let prepare = async |client: &PooledClient| match &client.behind_pooler {
            None => client.prepare_cached(&sql).await.map(Some),
            // In one message, so that no other client of the pooler can use the name.
            Some(_) if self.checks => {
                let check = format!("PREPARE pg_client_check AS {sql}; DEALLOCATE pg_client_check");
                client.batch_execute(&check).await.map(|()| None)
            }
            Some(_) => Ok(None),
        };
        let statement = self.guard(prepare).await?;
        let shared = query.shared().map(|(index, text)| (index, SharedText(text)));
        Ok(Prepared { sql, values, statement, shared })
    }

    /// Runs a statement that is not needed again, in one round trip: the server does not keep it. Its text
    /// may vary.
    pub async fn query_once(&self, query: &impl PostgresBinderRef) -> Result<Vec<Row>, PgError> {
        let (sql, values) = query.build_ref();
        self.guard(async |client| client.query_typed(&sql, &untyped(&values.as_params())).await).await
    }

    /// Prepares and runs a statement whose text may vary, and makes of each row what `read` says. No further
    /// row is read once `reads_on` says no. The connection is closed then, because the server would send the
    /// others.
    ///
    /// A connection on which it has prepared more than [`MAX_PREPARED`] statements forgets them all. A long
    /// text is prepared for this one time only.
    pub async fn query_while<T>(
        &self,
        query: &impl PostgresBinderRef,
        mut read: impl FnMut(Row) -> T,
        mut reads_on: impl FnMut(&T) -> bool,
    ) -> Result<Vec<T>, PgError> {
        let (sql, values) = query.build_ref();
        self.guard(async |client| {
            let rows = if client.behind_pooler.is_some() {
                client.query_typed_raw(&sql, untyped(&values.as_params())).await?
            } else {
                let statement = if sql.len() > MAX_PREPARED_BYTES {
                    client.prepare(&sql).await?
                } else {
                    client.prepare_cached(&sql).await?
                };
                if client.statement_cache.size() > MAX_PREPARED {
                    client.statement_cache.clear();
                }
                client.query_raw(&statement, values.as_params()).await?
            };
            let mut rows = std::pin::pin!(rows);
            let mut all = Vec::new();
            while let Some(row) = rows.try_next().await? {
                let element = read(row);
                let is_enough = !reads_on(&element);
                all.push(element);
                if is_enough {
                    self.broken.store(true, Ordering::SeqCst);
                    break;
                }
            }
            Ok(all)
        })
        .await
    }

    /// Whether a pooler is between this process and the server.
    pub fn is_behind_pooler(&self) -> bool {
        self.object.as_deref().is_some_and(|client| client.behind_pooler.is_some())
    }

    /// What the connection was borrowed for.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Runs a prepared statement. Several at once are sent one after the other, in the order of their first
    /// poll.
    pub async fn run(&self, prepared: &Prepared) -> Result<Vec<Row>, PgError> {
        let params = prepared.params();
        self.guard(async |client| match &prepared.statement {
            Some(statement) => client.query(statement, &params).await,
            None => client.query_typed(&prepared.sql, &untyped(&params)).await,
        })
        .await
    }

    /// Prepares and runs.
    pub async fn query(&self, query: &impl PostgresBinderRef) -> Result<Vec<Row>, PgError> {
        self.run(&self.prepare(query).await?).await
    }

    /// Runs a prepared statement for the number of rows that it changed. Several at once go like those of
    /// [`Session::run`].
    pub async fn change(&self, prepared: &Prepared) -> Result<u64, PgError> {
        let params = prepared.params();
        self.guard(async |client| match &prepared.statement {
            Some(statement) => client.execute(statement, &params).await,
            None => client.execute_typed(&prepared.sql, &untyped(&params)).await,
        })
        .await
    }

    /// Runs a `COPY … FROM STDIN` in an open transaction and sends its data piece by piece. For what is too
    /// large for a parameter, of which several copies are in memory at once.
    pub async fn copy_in(
        &self,
        sql: &str,
        pieces: impl Iterator<Item = Bytes> + Send,
    ) -> Result<u64, PgError> {
        self.guard(async |client| {
            // Prepared for this call only. The driver cannot copy without a name, and within the transaction
            // the name means this statement.
            let statement = client.prepare(sql).await?;
            let mut sink = std::pin::pin!(client.copy_in(&statement).await?);
            for piece in pieces {
                sink.feed(piece).await?;
            }
            sink.finish().await
        })
        .await
    }

    /// Gives the connection back to be closed, whatever its state.
    pub fn close(self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Closes the connection when it is given back: its buffers are as large as the largest message that went
    /// through them.
    pub fn retire(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Prepares and runs, for the number of rows that were changed.
    pub async fn execute(&self, query: &impl PostgresBinderRef) -> Result<u64, PgError> {
        self.change(&self.prepare(query).await?).await
    }

    /// Runs a text without parameters or rows.
    pub async fn execute_batch(&self, sql: &str) -> Result<(), PgError> {
        self.guard(async |client| client.batch_execute(sql).await).await
    }

    /// Runs a text without parameters and gives the first column of its rows, as text. For tools, not for
    /// data.
    pub async fn raw(&self, sql: &str) -> Result<Vec<String>, PgError> {
        let messages = self.guard(async |client| client.simple_query(sql).await).await?;
        let first = |message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(first).collect())
    }

    /// Opens a transaction. If the session is dropped before [`Session::commit`] or [`Session::rollback`],
    /// the connection is closed, and the server rolls back.
    pub async fn begin(&self) -> Result<(), PgError> {
        self.begin_with("BEGIN").await
    }

    /// Opens a transaction by a text that begins with `BEGIN`, such as one with an isolation level, or with
    /// further statements without rows. Otherwise like [`Session::begin`].
    pub async fn begin_with(&self, text: &str) -> Result<(), PgError> {
        self.broken.store(true, Ordering::SeqCst);
        self.execute_batch(text).await
    }

    /// Commits. An error leaves it unknown whether the transaction was committed.
    pub async fn commit(&self) -> Result<(), PgError> {
        self.committing.store(true, Ordering::SeqCst);
        self.execute_batch("COMMIT").await?;
        self.committing.store(false, Ordering::SeqCst);
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Takes everything back since [`Session::begin`].
    pub async fn rollback(&self) -> Result<(), PgError> {
        self.execute_batch("ROLLBACK").await?;
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Discards this connection and the idle ones, which probably lead to the same unreachable or demoted
    /// server: each of them would cost its next caller a whole timeout.
    fn discard(&self) {
        self.discarded.store(true, Ordering::SeqCst);
        if let Some(pool) = self.object.as_ref().and_then(Object::pool) {
            pool.retain(|_, _| false);
        }
    }

    async fn guard<T>(
        &self,
        call: impl AsyncFnOnce(&PooledClient) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, PgError> {
        let Some(client) = self.object.as_deref() else {
            return Err(PgError::unavailable(self.operation, "the connection was given back"));
        };
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let answer = match self.deadline {
            None => Ok(call(client).await),
            Some(Deadline { at, allowed }) => {
                timeout_at(at, call(client)).await.map_err(|_| DeadlinePassed(allowed))
            }
        };
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if !leaves_connection_usable(&error) {
                    self.discard();
                }
                Err(PgError::from_driver(self.operation, error))
            }
            Err(passed) => {
                self.given_up.store(true, Ordering::SeqCst);
                self.discard();
                Err(PgError::TimedOut { operation: self.operation, source: passed.into() })
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let given_up = self.in_flight.load(Ordering::SeqCst) > 0 || self.given_up.load(Ordering::SeqCst);
        let unknown = given_up || self.broken.load(Ordering::SeqCst) || self.discarded.load(Ordering::SeqCst);
        let Some(object) = self.object.take().filter(|_| unknown) else { return };
        // Without a runtime nothing can be sent: the process ends.
        match (Object::pool(&object), Handle::try_current()) {
            (Some(pool), Ok(runtime)) if given_up && self.deadline.is_some() => {
                let cancels = !self.committing.load(Ordering::SeqCst);
                runtime.spawn(end_given_up(pool, object, cancels));
            }
            _ => drop(Object::take(object)),
        }
    }
}

/// Keeps the connection's place in the pool until the server has ended what it ran, and closes it.
async fn end_given_up(pool: Pool<Connections>, object: Object<Connections>, cancels: bool) {
    let ended = async {
        if cancels {
            pool.manager().cancel(object.cancel_token()).await;
        }
        // The server responds to this after everything that was sent before it. A closed connection ends the
        // wait, too.
        drop(object.simple_query("").await);
    };
    // Without a response the bound ends the wait.
    drop(timeout(MAX_GIVEN_UP, ended).await);
    drop(Object::take(object));
}
