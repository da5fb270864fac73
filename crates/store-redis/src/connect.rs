//! One shared connection, replaced when it fails, with a deadline on every call.
//!
//! The client library's own reconnecting wrapper waits for reconnects outside any deadline and keeps a socket
//! whose peer does not respond. Here a call that fails or times out removes the connection from its slot, and
//! the next call opens another. So a restarted server or a broken socket costs one deadline at most.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, ToRedisArgs, Value};
use tokio::time::{Instant, timeout_at};

use crate::cluster::{Cluster, Node};
use crate::endpoint::{Endpoint, InvalidSettings};
use crate::keyspace::OldKey;
use crate::settings::{RedisSettings, Topology};
use crate::socket::Connection;

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
    /// Held by the call that connects. Separate from the slot, so that a call that failed can clear the slot
    /// without waiting.
    connecting: tokio::sync::Mutex<()>,
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
        // Calls that arrive while another one connects wait for that connection.
        let _connecting = timeout_at(deadline, self.inner.connecting.lock()).await.map_err(late)?;
        if let Some(present) = self.inner.slot().present() {
            return Ok(present);
        }
        let connection = self.open(operation, deadline).await?;
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

/// One call of a script. The library's own type allocates every argument separately, and a chunk of routes
/// has ten thousand.
pub(crate) struct ScriptCall<'a> {
    script: &'a Script,
    command: Cmd,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new(script: &'a Script, keys: impl ExactSizeIterator<Item = impl ToRedisArgs>) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        Self { script, command }
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match self.command.query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.script.load_async(connection).await?;
                self.command.query_async(connection).await
            }
            answer => answer,
        }
    }
}

/// The longest that Redis may take to copy an entry of any size, or its reply to arrive. Finding the id of an
/// entry copies it, too.
pub(crate) const MAX_COPY_TIME: Duration = Duration::from_secs(30);

/// A deadline passed.
#[derive(Debug, thiserror::Error)]
#[error("no response within {0:?}")]
pub(crate) struct TimedOut(pub(crate) Duration);

/// The error codes with which Redis reports that it cannot serve any command at present.
const OUTAGES: [&str; 15] = [
    "OOM",
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "BUSY",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "CLUSTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "UNKILLABLE",
    "NOTBUSY",
];

/// Parts of the error texts with which Redis reports that this connection may not use a command or a key: a
/// permission that the user lacks, or a command that was renamed. Every command of the kind fails, whatever
/// its arguments.
const MISSING_PERMISSIONS: [&str; 8] = [
    "NOPERM",
    "has no permissions to",
    "can't run this command",
    "can't access at least one of the keys",
    "ACL failure in script",
    "unknown command",
    "Unknown Redis command called from script",
    // A long command on a connection that was opened before a password was set.
    "Protocol error: unauthenticated",
];

/// The beginning of the error texts with which a node of a Cluster reports inside a script that it may not
/// use a key at present.
const NOT_OF_THIS_NODE: &str = "Script attempted to ";

/// True if an error text of Redis is about its own state or the connection's permissions, and not about the
/// command.
fn is_outage(text: &str) -> bool {
    codes(text).any(|code| OUTAGES.contains(&code))
        || text.contains(NOT_OF_THIS_NODE)
        || is_missing_permission(text)
}

/// True if an error text of Redis reports that this connection may not use a command or a key.
pub(crate) fn is_missing_permission(text: &str) -> bool {
    MISSING_PERMISSIONS.iter().any(|part| text.contains(part))
}

/// The possible codes of an error text: at its beginning. Before Redis 7, the code of an error inside a
/// script comes later and begins with a minus: `@user_script: 11: -OOM command not allowed`.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    let first = text.split([' ', ':']).next();
    first.into_iter().chain(text.split(' ').filter_map(|word| word.strip_prefix('-')))
}

/// The error text of the server, its code first; `None` if the server returned no error.
fn said(error: &RedisError) -> Option<String> {
    error.code().map(|code| format!("{code} {}", error.detail().unwrap_or_default()))
}

/// An error that the server returned.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Answered(String);

/// An error text of Redis without the places in scripts that it names: before Redis 7 they come first, and
/// since then last.
pub(crate) fn without_script(text: &str) -> String {
    let text = text.find(" script: ").map_or(text, |end| &text[..end]);
    let begin = match (text.contains("@user_script:"), text.rfind(": -")) {
        (true, Some(place)) => place + 3,
        _ => 0,
    };
    text[begin..].trim().to_owned()
}

/// True if the connection is usable after this error: any error that the server returned except those after
/// which the server may no longer be the primary, or not that of these keys.
fn leaves_connection_usable(error: &RedisError) -> bool {
    said(error).is_some_and(|text| !is_demotion(&text))
}

fn is_demotion(text: &str) -> bool {
    codes(text).any(|code| ["READONLY", "MOVED", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"].contains(&code))
}

/// True if the server rejected the command, so that nothing was carried out: it is full, for example.
pub fn is_rejected(error: &StoreError) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Answered>())
}

pub(crate) fn redis_error(operation: &'static str, error: RedisError) -> StoreError {
    let answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    let Some(text) = said(&error) else { return unavailable(operation, error) };
    let is_moving = codes(&text).any(|code| ["ASK", "TRYAGAIN"].contains(&code));
    let source = match is_moving {
        true => Answered(format!("the slot of these keys is being moved to another node: {text}")),
        false => Answered(without_script(&text)),
    };
    if answered && !is_outage(&text) {
        return StoreError::Refused { operation, source: source.into() };
    }
    unavailable(operation, source)
}

pub(crate) fn unavailable(
    operation: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::Unavailable { operation, source: source.into() }
}

/// Redis returned a value of a type that the command never returns.
pub(crate) fn unexpected(operation: &'static str, value: &Value) -> StoreError {
    let kind = match value {
        Value::Nil => "nil",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a string",
        Value::Array(_) => "an array of another shape",
        _ => "another type",
    };
    unavailable(operation, format!("Redis returned {kind}, which this command never returns"))
}

/// A time in milliseconds, at least 1: Redis accepts only whole milliseconds above zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_known_by_its_code_wherever_redis_puts_it() {
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:5.",
            "@user_script: 11: -OOM command not allowed when used memory > 'maxmemory'.\r\n",
            "ERR Error running script (call to f_1f): @user_script:23: @user_script: 23: -READONLY You can't.",
            "NOPERM this user has no permissions to access one of the keys",
            "ERR The user executing the script can't run this command or subcommand script: 1f, on @user_script:5.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR Unknown Redis command called from script script: 1f, on @user_script:5.",
            "ERR Protocol error: unauthenticated multibulk length",
            "ERR Protocol error: unauthenticated bulk length",
        ] {
            assert!(is_outage(text), "{text}");
        }
    }

    #[test]
    fn an_error_text_names_no_place_in_a_script() {
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        for (text, expected) in [
            (format!("{wrong} script: 6399c2ab, on @user_script:7."), wrong),
            (wrong.to_owned(), wrong),
            (format!("{full} script: 1f, on @user_script:5."), full),
            (format!("@user_script: 11: -{full}\r\n"), full),
            (
                format!(
                    "ERR Error running script (call to f_1f): @user_script:23: @user_script: 23: -{full}"
                ),
                full,
            ),
        ] {
            assert_eq!(without_script(&text), expected);
        }
    }

    #[test]
    fn a_refusal_is_no_outage_whatever_else_it_mentions() {
        for text in [
            "",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Error running script (call to f_1f): @user_script:1: Wrong type",
            "ERR value of OOM - BUSY is no number",
        ] {
            assert!(!is_outage(text), "{text}");
        }
    }

    #[test]
    fn a_server_that_may_no_longer_be_the_primary_is_not_called_again_on_this_connection() {
        for text in [
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:5.",
            "NOREPLICAS Not enough good replicas to write.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ] {
            assert!(is_demotion(text) && is_outage(text), "{text}");
        }
        assert!(!is_demotion("OOM command not allowed when used memory > 'maxmemory'."));
    }
}
