//! One shared connection, replaced when it fails, with a deadline on every call.
//!
//! The client library's own reconnecting wrapper waits for reconnects outside any deadline and keeps a socket
//! whose peer does not respond. Here a call that fails or times out removes the connection from its slot, and
//! the next call opens another. So a restarted server or a broken socket costs one deadline at most.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{StoreError, error_chain};
use redis::cluster_routing::Slot;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, timeout_at};

use crate::cluster::{Cluster, Node};
use crate::endpoint::{Endpoint, InvalidSettings};
use crate::error::{
    TimedOut, is_demotion, is_outage, leaves_connection_usable, redis_error, unavailable, unexpected,
};
use crate::keyspace::OldKey;
use crate::script_call::ScriptCall;
use crate::settings::{RedisSettings, Topology};
use crate::socket::Connection;

/// The longest that Redis may take to copy an entry of any size, or its reply to arrive. Finding the id of an
/// entry copies it, too.
pub(crate) const MAX_COPY_TIME: Duration = Duration::from_secs(30);

/// The shared client. Clones use the same connection. In a Cluster, each slot has a client of its own
/// ([`RedisClient::for_key`]).
#[derive(Clone)]
pub struct RedisClient {
    inner: Arc<ClientState>,
    /// The clients of slots; `None` except in a Cluster.
    of_slots: Option<Arc<SlotClients>>,
}

/// The client of each slot that was used.
type SlotClients = Mutex<HashMap<Slot, Arc<ClientState>>>;

struct ClientState {
    topology: Topology,
    endpoint: Endpoint,
    timeout: Duration,
    slot: Mutex<ConnectionSlot>,
    /// Held by the call that connects, with the last attempt that failed. Separate from the slot, so that a
    /// call that failed can clear the slot without waiting.
    connecting: tokio::sync::Mutex<Option<FailedConnect>>,
}

impl ClientState {
    fn new(topology: Topology, endpoint: Endpoint, timeout: Duration) -> Self {
        let (slot, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { topology, endpoint, timeout, slot, connecting }
    }

    /// Locks the slot. Ignores poisoning: no code panics while it holds the lock.
    fn slot(&self) -> MutexGuard<'_, ConnectionSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt to connect that failed.
struct FailedConnect {
    at: Instant,
    error: String,
}

/// The error of another call's attempt to connect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SharedError(String);

#[derive(Default)]
struct ConnectionSlot {
    /// Counts connections, so that only a call that used the current one removes it.
    generation: u64,
    connection: Option<Connection>,
}

impl ConnectionSlot {
    fn present(&self) -> Option<(u64, Connection)> {
        self.connection.clone().map(|connection| (self.generation, connection))
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").field("topology", &self.inner.topology).finish_non_exhaustive()
    }
}

impl RedisClient {
    /// Creates a client; the first call connects.
    pub fn new(settings: RedisSettings) -> Result<Self, InvalidSettings> {
        let endpoint = Endpoint::new(&settings)?;
        let of_slots = matches!(endpoint, Endpoint::Cluster(..)).then(Arc::default);
        let inner = ClientState::new(settings.topology, endpoint, settings.operation_timeout);
        Ok(Self { inner: Arc::new(inner), of_slots })
    }

    /// The client for `key` and for the keys that have its hash tag: in a Cluster, that of the node that has
    /// their slot.
    #[must_use]
    pub fn for_key(&self, key: &str) -> Self {
        let (Some(of_slots), Some((_, at))) = (&self.of_slots, self.cluster()) else { return self.clone() };
        let slot = Slot::for_key(key);
        let mut clients = of_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let of_slot = clients.entry(slot).or_insert_with(|| at(Node::OfSlot(slot)).inner);
        Self { inner: Arc::clone(of_slot), of_slots: self.of_slots.clone() }
    }

    /// The nodes, and a client for each; `None` except in a Cluster.
    pub(crate) fn cluster(&self) -> Option<(Arc<Cluster>, impl Fn(Node) -> Self)> {
        let (cluster, _) = self.inner.endpoint.cluster()?;
        let at = {
            let (this, cluster) = (self.clone(), Arc::clone(cluster));
            move |node| {
                let endpoint = Endpoint::Cluster(Arc::clone(&cluster), node);
                let inner = ClientState::new(this.inner.topology.clone(), endpoint, this.inner.timeout);
                Self { inner: Arc::new(inner), of_slots: this.of_slots.clone() }
            }
        };
        Some((Arc::clone(cluster), at))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// True in a Cluster: the keys of one script have one slot.
    pub(crate) fn is_cluster(&self) -> bool {
        self.of_slots.is_some()
    }

    /// The names of a key that a script uses: in a Cluster only the present one.
    pub(crate) fn names(&self, key: OldKey) -> Vec<String> {
        match self.is_cluster() {
            true => vec![key.key],
            false => vec![key.key, key.old],
        }
    }

    /// Checks that Redis is reachable and serves.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.command("reach Redis", &redis::cmd("PING")).await.map(drop)
    }

    /// The largest value that Redis accepts, in bytes: its setting `proto-max-bulk-len`.
    pub async fn largest_value(&self) -> Result<u64, StoreError> {
        const OPERATION: &str = "ask how large a value may be";
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("proto-max-bulk-len");
        let answer = self.command(OPERATION, &command).await?;
        let Value::Array(pair) = &answer else { return Err(unexpected(OPERATION, &answer)) };
        match pair.as_slice() {
            [_, Value::BulkString(bytes)] => {
                let bytes = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                bytes.ok_or_else(|| unavailable(OPERATION, "Redis gave no number"))
            }
            _ => Err(unavailable(OPERATION, "Redis has no such setting")),
        }
    }

    /// The eviction policy for a full memory: the setting `maxmemory-policy` of Redis.
    pub async fn eviction_policy(&self) -> Result<String, StoreError> {
        const OPERATION: &str = "ask what Redis evicts";
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("maxmemory-policy");
        let response = self.command(OPERATION, &command).await?;
        let Value::Array(pair) = &response else { return Err(unexpected(OPERATION, &response)) };
        match pair.as_slice() {
            [_, Value::BulkString(bytes)] => Ok(String::from_utf8_lossy(bytes).into_owned()),
            _ => Err(unavailable(OPERATION, "Redis has no such setting")),
        }
    }

    /// The time limit of a call.
    pub(crate) fn operation_timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Runs a command on the shared connection.
    pub async fn command(&self, operation: &'static str, command: &Cmd) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.inner.timeout;
        let (generation, mut connection) = self.connection(operation, deadline).await?;
        let answer = timeout_at(deadline, command.query_async(&mut connection.commands)).await;
        self.judge(operation, generation, answer)
    }

    /// Calls a script on the shared connection; sends its text only if Redis does not have it yet.
    pub(crate) async fn script(
        &self,
        operation: &'static str,
        call: &ScriptCall<'_>,
    ) -> Result<Value, StoreError> {
        self.script_within(operation, call, self.inner.timeout).await
    }

    /// Calls a script that may take longer than other operations.
    pub(crate) async fn script_within(
        &self,
        operation: &'static str,
        call: &ScriptCall<'_>,
        limit: Duration,
    ) -> Result<Value, StoreError> {
        let deadline = Instant::now() + limit;
        let (generation, mut connection) = self.connection(operation, deadline).await?;
        let answer = timeout_at(deadline, call.send(&mut connection.commands)).await;
        self.judge(operation, generation, answer)
    }

    /// True if a script's error for one of its elements is about the state of Redis and not about the
    /// element. If Redis is no longer the primary, the next call opens another connection, as if the whole
    /// call had failed.
    pub(crate) fn is_outage(&self, text: &str) -> bool {
        if is_demotion(text) {
            self.inner.slot().connection = None;
        }
        is_outage(text)
    }

    /// A connection that is not shared, for commands that block.
    pub(crate) async fn dedicated(&self, operation: &'static str) -> Result<Connection, StoreError> {
        self.open(operation, Instant::now() + self.inner.timeout).await
    }

    async fn connection(
        &self,
        operation: &'static str,
        deadline: Instant,
    ) -> Result<(u64, Connection), StoreError> {
        let late = |_| unavailable(operation, TimedOut(self.inner.timeout));
        if let Some(present) = self.inner.slot().present() {
            return Ok(present);
        }
        // Calls that arrive while another one connects wait for its outcome, also if it fails: what is left
        // of their time would be too short for an attempt of their own.
        let begun = Instant::now();
        let mut failed = timeout_at(deadline, self.inner.connecting.lock()).await.map_err(late)?;
        if let Some(present) = self.inner.slot().present() {
            return Ok(present);
        }
        if let Some(FailedConnect { error, .. }) = failed.as_ref().filter(|failed| failed.at > begun) {
            return Err(unavailable(operation, SharedError(error.clone())));
        }
        let connection = match timeout_at(deadline, self.inner.endpoint.connect(deadline)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                *failed = Some(FailedConnect { at: Instant::now(), error: error_chain(&*error) });
                return Err(unavailable(operation, error));
            }
            Err(late_error) => {
                let error = TimedOut(self.inner.timeout).to_string();
                *failed = Some(FailedConnect { at: Instant::now(), error });
                return Err(late(late_error));
            }
        };
        let mut slot = self.inner.slot();
        slot.generation += 1;
        slot.connection = Some(connection.clone());
        Ok((slot.generation, connection))
    }

    async fn open(&self, operation: &'static str, deadline: Instant) -> Result<Connection, StoreError> {
        match timeout_at(deadline, self.inner.endpoint.connect(deadline)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(unavailable(operation, error)),
            Err(_) => Err(unavailable(operation, TimedOut(self.inner.timeout))),
        }
    }

    /// Lets the next connection lead to the node that `error` names as the one that has the slot.
    fn note_moved(&self, error: &RedisError) {
        let is_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
        if let (true, Some((named, _)), Some((cluster, node))) =
            (is_moved, error.redirect_node(), self.inner.endpoint.cluster())
        {
            cluster.note_moved(node, named);
        }
    }

    fn judge(
        &self,
        operation: &'static str,
        generation: u64,
        answer: Result<Result<Value, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<Value, StoreError> {
        if let Ok(Err(error)) = &answer {
            self.note_moved(error);
        }
        let error = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if leaves_connection_usable(&error) => return Err(redis_error(operation, error)),
            Ok(Err(error)) => redis_error(operation, error),
            Err(_) => unavailable(operation, TimedOut(self.inner.timeout)),
        };
        let mut slot = self.inner.slot();
        if slot.generation == generation {
            slot.connection = None;
        }
        Err(error)
    }
}
