//! The nodes of a Redis Cluster: which of them has a slot, and connections to it (ADR 0067).
//!
//! A connection is opened to the node that has the slot of its client. Any node tells which one that is, so
//! several are asked at the same time and the first response counts. It may be out of date: the node that was
//! asked last is asked last the next time, and a node that no longer has the slot names the one that has it
//! (`MOVED`), to which the next connection leads. Nothing is redirected within a call: a call succeeds on the
//! node of its slot or is an outage.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::ports::BoxError;
use futures_util::future::select_ok;
use redis::cluster_routing::Slot;
use redis::{Value, cmd};

use crate::socket::{Connection, Connector, ServerAddr};

/// The most nodes that are asked at the same time.
const MAX_ASKED_NODES: usize = 8;

/// The node that a client connects to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Node {
    /// Any node.
    Any,
    /// The node that has this slot.
    OfSlot(Slot),
    /// The node at this address.
    At(ServerAddr),
}

/// The nodes of a Cluster. Shared by the clients of all slots.
pub(crate) struct Cluster {
    connector: Connector,
    seeds: Vec<ServerAddr>,
    view: Mutex<View>,
}

/// The view of the Cluster that a node gave last.
#[derive(Default)]
struct View {
    nodes: Vec<ServerAddr>,
    /// The nodes that were named instead of the one that was called, until they are connected to.
    moved: HashMap<Slot, ServerAddr>,
    /// The node that responded last.
    asked: Option<ServerAddr>,
}

/// A range of slots, its primary and its replicas.
#[derive(PartialEq, Eq, Debug)]
struct SlotRange {
    first: u16,
    last: u16,
    nodes: Vec<ServerAddr>,
}

impl SlotRange {
    fn contains(&self, slot: Slot) -> bool {
        (self.first..=self.last).any(|number| Slot::new(number) == Some(slot))
    }
}

impl Cluster {
    /// A Cluster of which these nodes are known.
    pub(crate) fn new(connector: Connector, seeds: Vec<ServerAddr>) -> Self {
        Self { connector, seeds, view: Mutex::default() }
    }

    /// Opens a connection to this node.
    pub(crate) async fn connect(&self, node: &Node) -> Result<Connection, BoxError> {
        let slot = match node {
            Node::At(addr) => return self.connector.connect(addr).await,
            Node::Any => return Ok(self.ask_any().await?.1),
            Node::OfSlot(slot) => *slot,
        };
        let moved = self.view().moved.remove(&slot);
        if let Some(moved) = moved
            && let Ok(connection) = self.connector.connect(&moved).await
        {
            return Ok(connection);
        }
        let (asked, connection, ranges) = self.ask_any().await?;
        let range = ranges.iter().find(|range| range.contains(slot));
        let primary = range.and_then(|range| range.nodes.first());
        match primary {
            None => Err(format!("no node of the Cluster has {slot:?}, says {asked}").into()),
            Some(primary) if *primary == asked => Ok(connection),
            Some(primary) => match self.connector.connect(primary).await {
                Ok(connection) => Ok(connection),
                Err(error) => Err(format!("the node {primary} that has {slot:?}: {error}").into()),
            },
        }
    }

    /// The addresses of the primaries that have slots.
    pub(crate) async fn primaries(&self) -> Result<Vec<ServerAddr>, BoxError> {
        let (_, _, ranges) = self.ask_any().await?;
        let mut primaries: Vec<ServerAddr> = Vec::new();
        for primary in ranges.iter().filter_map(|range| range.nodes.first()) {
            if !primaries.contains(primary) {
                primaries.push(primary.clone());
            }
        }
        Ok(primaries)
    }

    /// Remembers the node that was named as the one that has the slot: `host:port`.
    pub(crate) fn note_moved(&self, node: &Node, named: &str) {
        let (Node::OfSlot(slot), Some((host, port))) = (node, named.rsplit_once(':')) else { return };
        let (host, Ok(port)) = (host.trim_matches(['[', ']']), port.parse()) else { return };
        // A node that does not know the name of another one leaves it empty.
        if !host.is_empty() && host != "?" {
            self.view().moved.insert(*slot, ServerAddr { host: host.to_owned(), port });
        }
    }

    /// Asks nodes for the slots, and returns the first that responds, the connection to it and its response.
    async fn ask_any(&self) -> Result<(ServerAddr, Connection, Vec<SlotRange>), BoxError> {
        let mut nodes: Vec<ServerAddr> = Vec::new();
        let asked = {
            let mut view = self.view();
            for node in self.seeds.iter().chain(&view.nodes) {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            view.asked.take()
        };
        if nodes.len() > 1 {
            nodes.retain(|node| Some(node) != asked.as_ref());
        }
        nodes.truncate(MAX_ASKED_NODES);
        let (found, _) = select_ok(nodes.into_iter().map(|node| Box::pin(self.ask(node)))).await?;
        let mut view = self.view();
        view.asked = Some(found.0.clone());
        view.nodes = found.2.iter().flat_map(|range| range.nodes.iter().cloned()).collect();
        Ok(found)
    }

    async fn ask(&self, node: ServerAddr) -> Result<(ServerAddr, Connection, Vec<SlotRange>), BoxError> {
        let connection = match self.connector.connect(&node).await {
            Ok(connection) => connection,
            Err(error) => return Err(format!("{node}: {error}").into()),
        };
        let mut command = cmd("CLUSTER");
        let ranges: Value = command.arg("SLOTS").query_async(&mut connection.commands.clone()).await?;
        let ranges = parse(&ranges, &node).ok_or_else(|| format!("{node} gave no slots"))?;
        Ok((node, connection, ranges))
    }

    /// Locks the view. Ignores poisoning: no code panics while it holds the lock.
    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses the reply of `asked` to `CLUSTER SLOTS`. A node without a host has that of `asked`; one whose host
/// is unknown is left out.
fn parse(reply: &Value, asked: &ServerAddr) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else { return None };
    let node = |node: &Value| {
        let Value::Array(node) = node else { return None };
        let host = match node.first()? {
            Value::Nil => String::new(),
            Value::BulkString(host) => String::from_utf8_lossy(host).into_owned(),
            _ => return None,
        };
        let Value::Int(port) = node.get(1)? else { return None };
        let host = if host.is_empty() { asked.host.clone() } else { host };
        (host != "?").then_some(ServerAddr { host, port: u16::try_from(*port).ok()? })
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &range[..] else { return None };
        let nodes = [node(primary)?].into_iter().chain(replicas.iter().filter_map(node));
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(SlotRange { first, last, nodes: nodes.collect() })
    };
    Some(ranges.iter().filter_map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(host: &str, port: u16) -> ServerAddr {
        ServerAddr { host: host.to_owned(), port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_range_of_slots_has_a_primary_and_replicas_and_an_unnamed_host_is_the_one_that_was_asked() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let reply = Value::Array(vec![
            range(0, 5, vec![node(text("10.0.0.1"), 7000), node(text("?"), 7001), node(Value::Nil, 7002)]),
            range(6, 6, vec![node(text("?"), 7003)]),
            range(7, 16_383, vec![node(text(""), 7004)]),
        ]);
        let ranges = parse(&reply, &addr("asked", 1)).expect("an array");
        let nodes: Vec<_> = ranges.iter().map(|range| range.nodes.clone()).collect();
        assert_eq!(nodes, [vec![addr("10.0.0.1", 7000), addr("asked", 7002)], vec![addr("asked", 7004)]]);
        let has = |number| ranges.iter().position(|range| range.contains(Slot::new(number).expect("a slot")));
        assert_eq!([has(0), has(5), has(6), has(7), has(16_383)], [Some(0), Some(0), None, Some(1), Some(1)]);
        assert_eq!(parse(&Value::Nil, &addr("asked", 1)), None);
    }
}
