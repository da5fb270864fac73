//! A pool of connections with a deadline on everything.
//!
//! Each statement has three deadlines: the client stops waiting, the server cancels the statement, and the
//! kernels of both ends close a connection whose peer acknowledges nothing. So neither a black-holed socket
//! nor a transaction that was abandoned in it can hold a key for longer than the operation's timeout.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Runtime};
use tokio_postgres::{CancelToken, Config};

use crate::connect::{Connector, Opened};
use crate::error::NoneFree;
use crate::open_error::{OpenError, OpenFailureCause};
use crate::pooler::OwnSession;
use crate::session::Session;
use crate::session_settings::{SessionSettings, session_config};
use crate::{Dsn, DsnError, PgError};

/// The settings of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// The maximum number of open connections.
    pub max_connections: usize,
    /// The longest that a caller waits for a free connection, and the longest that an operation takes once it
    /// has one. Neither includes opening a connection: see [`crate::OPEN_TIMEOUT`].
    pub operation_timeout: Duration,
    /// The settings of its sessions.
    pub session: SessionSettings,
}

/// Connections to one database, opened when needed.
#[derive(Clone, Debug)]
pub struct PgPool {
    pool: Pool<Connections>,
    /// `None` for operations without a deadline.
    operation_timeout: Option<Duration>,
}

impl PgPool {
    /// Creates a pool; opens no connection yet.
    pub fn new(dsn: &Dsn, settings: PoolSettings) -> Result<Self, DsnError> {
        let config = session_config(dsn, settings.session, Some(settings.operation_timeout));
        // Opening has its own time limit, and an idle connection is checked without a round trip.
        let pool = Pool::builder(Connections::new(dsn, &config)?)
            .max_size(settings.max_connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(settings.operation_timeout))
            // The connection that was used last already has the most frequent statements prepared.
            .queue_mode(QueueMode::Lifo)
            .build()
            .map_err(|error| DsnError::Parameter(format!("no pool can be made: {error}")))?;
        Ok(Self { pool, operation_timeout: Some(settings.operation_timeout) })
    }

    /// One connection whose statements may take as long as they need, such as those that build indexes. A
    /// peer that is gone is still detected.
    pub fn without_deadlines(dsn: &Dsn, session: SessionSettings) -> Result<Self, DsnError> {
        let config = session_config(dsn, session, None);
        let pool = Pool::builder(Connections::new(dsn, &config)?)
            .max_size(1)
            .build()
            .map_err(|error| DsnError::Parameter(format!("no pool can be made: {error}")))?;
        Ok(Self { pool, operation_timeout: None })
    }

    /// The longest that an operation takes once it has a connection; `None` without a limit.
    pub fn operation_timeout(&self) -> Option<Duration> {
        self.operation_timeout
    }

    /// Borrows a connection for one operation, whose deadline starts when the connection is available.
    pub async fn session(&self, operation: &'static str) -> Result<Session, PgError> {
        let object = self.connection(operation).await?;
        Ok(Session::new(object, operation, self.operation_timeout))
    }

    /// A connection of the pool. If the caller stops waiting, the opening continues and the next caller gets
    /// the connection. So a caller with less time than an opening takes succeeds on a retry.
    async fn connection(&self, operation: &'static str) -> Result<Object<Connections>, PgError> {
        let pool = self.pool.clone();
        let mut got = Box::pin(async move { pool.get().await });
        let outcome = match poll_fn(|context| Poll::Ready(got.as_mut().poll(context))).await {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                tokio::spawn(got).await.map_err(|error| PgError::unavailable(operation, error))?
            }
        };
        outcome.map_err(|error| match error {
            PoolError::Backend(error) => PgError::unavailable(operation, error),
            PoolError::Timeout(_) => {
                PgError::unavailable(operation, NoneFree(self.operation_timeout.unwrap_or_default()))
            }
            other => PgError::unavailable(operation, other),
        })
    }

    /// Runs an empty query, to check that the database is reachable.
    pub async fn ping(&self) -> Result<(), PgError> {
        self.session("reach PostgreSQL").await?.execute_batch("SELECT 1").await
    }

    /// The numbers of open and of idle connections.
    pub fn usage(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    /// Closes the idle connections now, and borrowed ones when they are returned.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// Opens and checks the connections of a pool.
#[derive(Debug)]
pub(crate) struct Connections {
    connector: Connector,
    /// The generation of connections that may be used. A connection of an earlier one is closed instead of
    /// being borrowed again.
    generation: AtomicU64,
}

impl Connections {
    fn new(dsn: &Dsn, config: &Config) -> Result<Self, DsnError> {
        Ok(Self { connector: Connector::new(dsn, config)?, generation: AtomicU64::new(0) })
    }

    /// Ends the generation of this connection, because what makes it unusable holds for all that were opened
    /// at the same time: a plan that is out of date, or a server that cannot be reached any more, which would
    /// cost each borrower a whole timeout.
    pub(crate) fn end_generation(&self, client: &PooledClient) {
        self.generation.fetch_max(client.generation + 1, Ordering::Relaxed);
    }

    /// Requests that the server cancel the statement of a connection. There is no confirmation.
    pub(crate) async fn cancel(&self, token: CancelToken) {
        self.connector.cancel(token).await;
    }
}

/// A connection of a pool.
#[derive(Debug)]
pub(crate) struct PooledClient {
    client: ClientWrapper,
    /// The session of the server that belongs to it alone, if it leads through a pooler. No statement is
    /// prepared on it then: see `pooler.rs`.
    pub(crate) behind_pooler: Option<OwnSession>,
    /// The generation in which it was opened.
    generation: u64,
}

impl Deref for PooledClient {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

impl Manager for Connections {
    type Type = PooledClient;
    type Error = OpenError;

    async fn create(&self) -> Result<PooledClient, OpenError> {
        let generation = self.generation.load(Ordering::Relaxed);
        let Opened { client, connection, pooled } = self.connector.open().await?;
        Ok(PooledClient { client: ClientWrapper::new(client, connection), behind_pooler: pooled, generation })
    }

    async fn recycle(&self, client: &mut PooledClient, _: &Metrics) -> RecycleResult<OpenError> {
        if client.is_closed() {
            return Err(RecycleError::message("the connection has ended"));
        }
        if client.generation < self.generation.load(Ordering::Relaxed) {
            return Err(RecycleError::message("another connection of its generation became unusable"));
        }
        let Some(session) = &client.behind_pooler else { return Ok(()) };
        session.still_serves(client).await.map_err(|cause| {
            if matches!(cause, OpenFailureCause::Late(_)) {
                self.end_generation(client);
            }
            RecycleError::message(cause.to_string())
        })
    }
}

#[cfg(test)]
mod tests;
