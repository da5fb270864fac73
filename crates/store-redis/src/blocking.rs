//! Commands that block, on a connection of their own.
//!
//! A blocking command would delay every other command on its connection. So its connection is not shared, and
//! it is taken out of its slot while a command waits: if the caller drops the wait, the connection is dropped
//! as well, because Redis continues to block on it. The next command then opens another.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{ServerId, StoreError};
use redis::{Cmd, Value};
use tokio::time::{Instant, timeout};

use crate::connect::{MAX_COPY_TIME, RedisClient};
use crate::error::{TimedOut, redis_error, unavailable};
use crate::socket::Connection;

/// The largest reply after which a connection is used again: the client library keeps a buffer of that size.
pub(crate) const MAX_KEPT_BUFFER_BYTES: usize = 1024 * 1024;
/// The age of a connection's server identity after which it is checked again.
const MAX_IDENTITY_AGE: Duration = Duration::from_secs(1);

/// A connection for blocking commands; the first command opens it. Clones share it.
#[derive(Clone)]
pub(crate) struct BlockingConnection {
    client: RedisClient,
    slot: Arc<Mutex<BlockingSlot>>,
}

#[derive(Default)]
struct BlockingSlot {
    /// Counts the calls of `close`: a connection from before the last one is not used again.
    generation: u64,
    idle: Option<Identified>,
    /// The server that the next connection must lead to: that of the last connection, or before the first
    /// one the server that the caller has identified.
    server: Option<Vec<String>>,
}

/// The lines of `INFO` that identify a server that accepts writes.
fn identity_of_primary(server: &ServerId) -> Vec<String> {
    let ServerId { run_id, replication_id } = server;
    let mut lines =
        vec![format!("run_id:{run_id}"), format!("master_replid:{replication_id}"), "role:master".to_owned()];
    lines.sort_unstable();
    lines
}

/// A connection, and the time at which its server's identity was last confirmed. A server that becomes a
/// replica keeps its connections.
struct Identified {
    connection: Connection,
    at: Instant,
}

impl BlockingConnection {
    pub(crate) fn new(client: &RedisClient) -> Self {
        Self { client: client.clone(), slot: Arc::default() }
    }

    /// The reply to `command`, which blocks for at most `block`; `None` if the reply exceeds `max_bytes`.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        command: &Cmd,
        block: Duration,
        max_bytes: usize,
    ) -> Result<Option<Value>, StoreError> {
        let (generation, idle) = {
            let mut slot = self.slot();
            (slot.generation, slot.idle.take())
        };
        let Identified { mut connection, at } = match idle {
            Some(idle) if idle.at.elapsed() < MAX_IDENTITY_AGE => idle,
            Some(idle) => self.identify(operation, idle.connection).await?,
            None => self.identify(operation, self.client.dedicated(operation).await?).await?,
        };
        let limit = block + self.client.operation_timeout();
        let reply = ask_within(operation, &mut connection, command, max_bytes, limit).await?;
        if reply.is_some() && connection.received() <= MAX_KEPT_BUFFER_BYTES {
            // No failover happened: a server that becomes a replica ends commands that block.
            let has_blocked = reply == Some(Value::Nil) && block > Duration::ZERO;
            let at = if has_blocked { Instant::now() } else { at };
            let mut slot = self.slot();
            if slot.generation == generation {
                slot.idle = Some(Identified { connection, at });
            }
        }
        Ok(reply)
    }

    /// Makes the first connection return an error if it leads to another server than this one, on which the
    /// caller has determined where to resume.
    pub(crate) fn expect(&self, server: &ServerId) {
        self.slot().server.get_or_insert_with(|| identity_of_primary(server));
    }

    /// Requests the identity of the server. Returns an error once if the connection leads to another server
    /// than the one before: the stream may have lost entries, and the caller determines again where to
    /// resume.
    // MODEL-09
    async fn identify(
        &self,
        operation: &'static str,
        mut connection: Connection,
    ) -> Result<Identified, StoreError> {
        let at = Instant::now();
        let info = redis::cmd("INFO").arg("server").arg("replication").to_owned();
        let limit = self.client.operation_timeout();
        let info = ask_within(operation, &mut connection, &info, MAX_KEPT_BUFFER_BYTES, limit).await?;
        let info: String = info.and_then(|info| redis::from_redis_value(info).ok()).unwrap_or_default();
        let mut ids: Vec<String> = info
            .lines()
            .filter(|line| ["run_id:", "master_replid:", "role:"].iter().any(|name| line.starts_with(name)))
            .map(str::to_owned)
            .collect();
        ids.sort_unstable();
        let former = self.slot().server.replace(ids.clone());
        match former {
            Some(former) if former != ids => {
                Err(unavailable(operation, "Redis is another server than before"))
            }
            _ => Ok(Identified { connection, at }),
        }
    }

    /// Closes the connection; a waiting command keeps its own until it ends.
    pub(crate) fn close(&self) {
        let mut slot = self.slot();
        slot.generation += 1;
        slot.idle = None;
    }

    /// Locks the slot. Ignores poisoning: no code panics while it holds the lock.
    fn slot(&self) -> MutexGuard<'_, BlockingSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reply to `command`; `None` if it exceeds `max_bytes`: the connection is then broken. Its first byte,
/// and each next one, arrives within `limit`, and all of it within [`MAX_COPY_TIME`] more: a large reply
/// takes its time on a slow network.
pub(crate) async fn ask_within(
    operation: &'static str,
    connection: &mut Connection,
    command: &Cmd,
    max_bytes: usize,
    limit: Duration,
) -> Result<Option<Value>, StoreError> {
    connection.allow(max_bytes);
    let (begun, mut received) = (Instant::now(), 0);
    let mut commands = connection.commands.clone();
    let mut asking = pin!(command.query_async::<Value>(&mut commands));
    loop {
        match timeout(limit, asking.as_mut()).await {
            Ok(Ok(reply)) => return Ok(Some(reply)),
            _ if connection.exceeded() => return Ok(None),
            Ok(Err(error)) => return Err(redis_error(operation, error)),
            Err(_) if connection.received() > received && begun.elapsed() < MAX_COPY_TIME => {
                received = connection.received();
            }
            Err(_) => return Err(unavailable(operation, TimedOut(limit))),
        }
    }
}
