//! One operation on a borrowed connection, with a deadline.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use deadpool::managed::{Object, Pool};
use futures_util::SinkExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::SimpleQueryMessage;

use crate::PgError;
use crate::connections::{Connections, PooledClient};
use crate::error::{is_dead_plan, leaves_connection_usable};
use crate::server_error::DeadlinePassed;
use crate::slow;

/// The time that the client waits longer than the server, so that the server's own error arrives first.
const CLIENT_DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// The longest that a connection whose statement was given up counts against its pool while the server runs
/// the statement.
pub const MAX_GIVEN_UP: Duration = Duration::from_secs(10);

/// The interval at which [`Session::ended`] checks the connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A connection, borrowed for one operation.
///
/// It returns to the pool only if its state is known: not after a broken connection or a timeout, nor if it
/// is dropped during a statement or with an open transaction.
///
/// A statement is given up when its caller stops waiting or its deadline passes. It is then cancelled,
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
    /// True if the deadline passed before the server responded.
    given_up: AtomicBool,
    committing: AtomicBool,
    pub(crate) broken: AtomicBool,
    /// True if the connection must not be used again, however its transaction ends.
    discarded: AtomicBool,
    pub(crate) checks: bool,
}

/// The deadline of an operation, and the time it had at its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Session {
    /// A session whose deadline starts now.
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

    /// Makes [`Session::prepare`] check, behind a pooler too, that the server accepts a statement. Each check
    /// costs a round trip.
    pub fn checking(mut self) -> Self {
        self.checks = true;
        self
    }

    /// True if a pooler is between this process and the server.
    pub fn is_behind_pooler(&self) -> bool {
        self.object.as_deref().is_some_and(|client| client.behind_pooler.is_some())
    }

    /// The operation that the connection was borrowed for.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Runs a `COPY … FROM STDIN` in an open transaction and sends its data piece by piece. It serves data
    /// too large for a parameter, of which several copies are in memory at once.
    pub async fn copy_in(
        &self,
        sql: &str,
        pieces: impl Iterator<Item = Bytes> + Send,
    ) -> Result<u64, PgError> {
        self.guard("", async |client| {
            // Prepared for this call only. The driver cannot copy without a name, and within the transaction
            // the name refers to this statement.
            let statement = client.prepare(sql).await?;
            let mut sink = std::pin::pin!(client.copy_in(&statement).await?);
            for piece in pieces {
                sink.feed(piece).await?;
            }
            sink.finish().await
        })
        .await
    }

    /// Closes the connection instead of returning it to the pool, whatever its state.
    pub fn close(self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Waits until the connection has ended. Sends nothing.
    pub async fn ended(&self) {
        while self.object.as_deref().is_some_and(|client| !client.is_closed()) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Closes the connection when it is returned: its buffers are as large as the largest message that passed
    /// through them.
    pub fn retire(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Runs a text without parameters or rows.
    pub async fn execute_batch(&self, sql: &str) -> Result<(), PgError> {
        self.guard("", async |client| client.batch_execute(sql).await).await
    }

    /// Runs a text without parameters and returns the first column of its rows, as text. For tools, not for
    /// data.
    pub async fn raw(&self, sql: &str) -> Result<Vec<String>, PgError> {
        let messages = self.guard("", async |client| client.simple_query(sql).await).await?;
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

    /// Opens a transaction with a text that begins with `BEGIN`, such as one with an isolation level, or with
    /// further statements without rows. Otherwise like [`Session::begin`].
    pub async fn begin_with(&self, text: &str) -> Result<(), PgError> {
        self.broken.store(true, Ordering::SeqCst);
        self.execute_batch(text).await
    }

    /// Commits. After an error the transaction may or may not have been committed.
    pub async fn commit(&self) -> Result<(), PgError> {
        self.committing.store(true, Ordering::SeqCst);
        self.execute_batch("COMMIT").await?;
        self.committing.store(false, Ordering::SeqCst);
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Rolls back everything since [`Session::begin`].
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

    /// Makes all connections that are as old as this one unusable, those in use when they are returned.
    fn end_generation(&self) {
        let object = self.object.as_ref();
        if let Some((client, pool)) = object.and_then(|object| Some((object, Object::pool(object)?))) {
            pool.manager().end_generation(client);
        }
    }

    /// Runs a call within the deadline and classifies its error. `statement` is the name of the statement, or
    /// empty.
    pub(crate) async fn guard<T>(
        &self,
        statement: &'static str,
        call: impl AsyncFnOnce(&PooledClient) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, PgError> {
        let Some(client) = self.object.as_deref() else {
            return Err(PgError::unavailable(self.operation, "the connection was given back"));
        };
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let started = Instant::now();
        let answer = match self.deadline {
            None => Ok(call(client).await),
            Some(Deadline { at, allowed }) => {
                timeout_at(at, call(client)).await.map_err(|_| DeadlinePassed { allowed, statement })
            }
        };
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        slow::report(statement, started.elapsed());
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if is_dead_plan(&error) {
                    self.end_generation();
                }
                if !leaves_connection_usable(&error) {
                    self.discard();
                }
                Err(PgError::from_driver(self.operation, statement, error))
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
        // Without a runtime nothing can be sent: the process is ending.
        match (Object::pool(&object), Handle::try_current()) {
            (Some(pool), Ok(runtime)) if given_up && self.deadline.is_some() => {
                let cancels = !self.committing.load(Ordering::SeqCst);
                runtime.spawn(end_given_up(pool, object, cancels));
            }
            _ => drop(Object::take(object)),
        }
    }
}

/// Keeps the connection's place in the pool until the server has ended its statement, then closes it.
async fn end_given_up(pool: Pool<Connections>, object: Object<Connections>, cancels: bool) {
    let ended = async {
        if cancels {
            pool.manager().cancel(object.cancel_token()).await;
        }
        // The server responds to this after everything that was sent before it. A closed connection ends the
        // wait, too.
        drop(object.simple_query("").await);
    };
    // Without a response, the wait ends at the limit.
    drop(timeout(MAX_GIVEN_UP, ended).await);
    drop(Object::take(object));
}
