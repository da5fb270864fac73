//! A pool of connections with a deadline on everything.
//!
//! Each statement has three deadlines: the client stops waiting, the server cancels the statement, and the
//! kernels of both ends close a connection whose peer acknowledges nothing. So neither a black-holed socket
//! nor a transaction that was abandoned in it can hold a key for longer than the operation's timeout.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use deadpool::managed::{Object, Pool, PoolError, QueueMode};
use deadpool_postgres::Runtime;

use crate::connections::Connections;
use crate::error::NoneFree;
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

#[cfg(test)]
mod tests;
