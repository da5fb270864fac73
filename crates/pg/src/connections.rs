//! Opening and checking the connections of a pool.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::{CancelToken, Config};

use crate::connect::{Connector, Opened};
use crate::open_error::{OpenError, OpenFailureCause};
use crate::pooler::OwnSession;
use crate::{Dsn, DsnError};

/// Opens and checks the connections of a pool.
#[derive(Debug)]
pub(crate) struct Connections {
    connector: Connector,
    /// The generation of connections that may be used. A connection of an earlier one is closed instead of
    /// being borrowed again.
    generation: AtomicU64,
}

impl Connections {
    pub(crate) fn new(dsn: &Dsn, config: &Config) -> Result<Self, DsnError> {
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
