//! One operation on a borrowed connection, with a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use deadpool::managed::Object;
use deadpool_postgres::ClientWrapper;
use futures_util::{SinkExt, TryStreamExt};
use sea_query::QueryStatementWriter;
use sea_query_postgres::{PostgresBinder, PostgresValues};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row, SimpleQueryMessage, Statement};

use crate::PgError;
use crate::error::{DeadlinePassed, leaves_connection_usable};
use crate::pool::Connections;

/// How much longer than the server the client waits, so that the server's own error arrives first.
const CLIENT_DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// The most statements of varying texts that a connection keeps prepared, and the longest of them, in bytes. Each takes memory of the
/// server, some sixty times its text.
pub const MAX_PREPARED: usize = 100;
const MAX_PREPARED_BYTES: usize = 8 * 1024;

/// How long it may take to tell the server that a statement is not wanted any more.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, borrowed for one operation.
///
/// It goes back to the pool only if its state is known: not after a broken connection or a timeout, nor when it is
/// dropped while a statement is on its way or a transaction is open. A statement that is on its way is cancelled: the server would
/// finish it for nobody, beside those of the connection that takes its place. One without a deadline is not, such as the build of an
/// index: it goes on, and is found done by the next process.
#[derive(Debug)]
pub struct Session {
    object: Option<Object<Connections>>,
    operation: &'static str,
    pub(crate) deadline: Option<Deadline>,
    in_flight: AtomicUsize,
    broken: AtomicBool,
}

/// Until when an operation may take, and how long that was when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    allowed: Duration,
}

/// A statement that the server has prepared, with its parameters.
#[derive(Debug)]
pub struct Prepared {
    statement: Statement,
    values: PostgresValues,
    shared: Option<(usize, SharedText)>,
}

/// A text that is sent without a copy of it.
#[derive(Debug)]
struct SharedText(Arc<str>);

impl ToSql for SharedText {
    fn to_sql(
        &self,
        sql_type: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        (&*self.0).to_sql(sql_type, out)
    }

    fn accepts(sql_type: &Type) -> bool {
        <&str as ToSql>::accepts(sql_type)
    }

    to_sql_checked!();
}

impl Prepared {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut params = self.values.as_params();
        if let Some((index, text)) = &self.shared
            && let Some(param) = params.get_mut(*index)
        {
            *param = text;
        }
        params
    }
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
            broken: AtomicBool::new(false),
        }
    }

    /// Prepares `query` (once for each connection and text) and keeps its parameters with it.
    ///
    /// The text must not vary with the data: each text stays prepared for as long as the connection lives.
    pub async fn prepare(&self, query: &impl PostgresBinderRef) -> Result<Prepared, PgError> {
        let (sql, values) = query.build_ref();
        let statement = self.guard(async |client| client.prepare_cached(&sql).await).await?;
        let shared = query.shared().map(|(index, text)| (index, SharedText(text)));
        Ok(Prepared { statement, values, shared })
    }

    /// Runs a statement that is not needed again, in one round trip: the server does not keep it. Its text may vary.
    pub async fn query_once(&self, query: &impl PostgresBinderRef) -> Result<Vec<Row>, PgError> {
        let (sql, values) = query.build_ref();
        // The server infers each type from the cast beside the parameter (bind.rs).
        let typed = |value| (value as &(dyn ToSql + Sync), Type::UNKNOWN);
        let params: Vec<_> = values.0.iter().map(typed).collect();
        self.guard(async |client| client.query_typed(&sql, &params).await).await
    }

    /// Prepares and runs a statement whose text may vary, and makes of each row what `read` says. No further row is read once `reads_on`
    /// says no. The connection is closed then, because the server would send the others.
    ///
    /// A connection on which it has prepared more than [`MAX_PREPARED`] statements forgets them all. A long text is prepared for this one
    /// time only.
    pub async fn query_while<T>(
        &self,
        query: &impl PostgresBinderRef,
        mut read: impl FnMut(Row) -> T,
        mut reads_on: impl FnMut(&T) -> bool,
    ) -> Result<Vec<T>, PgError> {
        let (sql, values) = query.build_ref();
        self.guard(async |client| {
            let statement = if sql.len() > MAX_PREPARED_BYTES {
                client.prepare(&sql).await?
            } else {
                client.prepare_cached(&sql).await?
            };
            if client.statement_cache.size() > MAX_PREPARED {
                client.statement_cache.clear();
            }
            let mut rows = std::pin::pin!(client.query_raw(&statement, values.as_params()).await?);
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

    /// What the connection was borrowed for.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Runs a prepared statement. Several at once are sent one after the other, in the order of their first poll.
    pub async fn run(&self, prepared: &Prepared) -> Result<Vec<Row>, PgError> {
        let params = prepared.params();
        self.guard(async |client| client.query(&prepared.statement, &params).await).await
    }

    /// Prepares and runs.
    pub async fn query(&self, query: &impl PostgresBinderRef) -> Result<Vec<Row>, PgError> {
        self.run(&self.prepare(query).await?).await
    }

    /// Runs a prepared statement for the number of rows that it changed. Several at once go like those of [`Session::run`].
    pub async fn change(&self, prepared: &Prepared) -> Result<u64, PgError> {
        let params = prepared.params();
        self.guard(async |client| client.execute(&prepared.statement, &params).await).await
    }

    /// Runs a `COPY … FROM STDIN` and sends its data piece by piece. For what is too large for a parameter, of which several
    /// copies are in memory at once.
    pub async fn copy_in(
        &self,
        sql: &str,
        pieces: impl Iterator<Item = Bytes> + Send,
    ) -> Result<u64, PgError> {
        self.guard(async |client| {
            let statement = client.prepare_cached(sql).await?;
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

    /// Closes the connection when it is given back: its buffers are as large as the largest message that went through them.
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

    /// Runs a text without parameters and gives the first column of its rows, as text. For tools, not for data.
    pub async fn raw(&self, sql: &str) -> Result<Vec<String>, PgError> {
        let messages = self.guard(async |client| client.simple_query(sql).await).await?;
        let first = |message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(first).collect())
    }

    /// Opens a transaction. If the session is dropped before [`Session::commit`] or [`Session::rollback`], the
    /// connection is closed, and the server rolls back.
    pub async fn begin(&self) -> Result<(), PgError> {
        self.begin_with("BEGIN").await
    }

    /// Opens a transaction by a text that begins with `BEGIN`, such as one with an isolation level, or with further statements
    /// without rows. Otherwise like [`Session::begin`].
    pub async fn begin_with(&self, text: &str) -> Result<(), PgError> {
        self.broken.store(true, Ordering::SeqCst);
        self.execute_batch(text).await
    }

    /// Commits. An error leaves it unknown whether the transaction was committed.
    pub async fn commit(&self) -> Result<(), PgError> {
        self.execute_batch("COMMIT").await?;
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Takes everything back since [`Session::begin`].
    pub async fn rollback(&self) -> Result<(), PgError> {
        self.execute_batch("ROLLBACK").await?;
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Discards this connection and the idle ones, which probably lead to the same unreachable or demoted server: each
    /// of them would cost its next caller a whole timeout.
    fn discard(&self) {
        self.broken.store(true, Ordering::SeqCst);
        if let Some(pool) = self.object.as_ref().and_then(Object::pool) {
            pool.retain(|_, _| false);
        }
    }

    async fn guard<T>(
        &self,
        call: impl AsyncFnOnce(&ClientWrapper) -> Result<T, tokio_postgres::Error>,
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
                self.discard();
                Err(PgError::TimedOut { operation: self.operation, source: passed.into() })
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let in_flight = self.in_flight.load(Ordering::SeqCst) > 0;
        let unknown = self.broken.load(Ordering::SeqCst) || in_flight;
        let Some(object) = self.object.take().filter(|_| unknown) else { return };
        // Without a runtime nothing can be sent: the process ends.
        if let (true, Some(_), Some(pool), Ok(runtime)) =
            (in_flight, self.deadline, Object::pool(&object), Handle::try_current())
        {
            let token = object.cancel_token();
            runtime.spawn(timeout(CANCEL_TIMEOUT, async move { pool.manager().cancel(token).await }));
        }
        drop(Object::take(object));
    }
}

/// A statement of the query builder.
pub trait PostgresBinderRef: Sync {
    /// Its text and its parameters.
    fn build_ref(&self) -> (String, PostgresValues);

    /// A text in the place of one of the parameters: see [`crate::sql::Written::with_text`].
    fn shared(&self) -> Option<(usize, Arc<str>)> {
        None
    }
}

impl<T: QueryStatementWriter + PostgresBinder + Sync> PostgresBinderRef for T {
    fn build_ref(&self) -> (String, PostgresValues) {
        self.build_postgres(sea_query::PostgresQueryBuilder)
    }
}
