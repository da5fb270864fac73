//! A private Redis Cluster.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisError};

use crate::process::{START_BOUND, StartError};
use crate::redis::{Redis, RedisMode, RedisOptions};

/// The number of slots of a Cluster.
const SLOTS: usize = 16_384;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Settings of a Cluster.
#[derive(Clone, Debug)]
pub struct RedisClusterOptions {
    /// The number of primaries, among which the slots are divided evenly.
    pub primaries: usize,
    /// The number of replicas of each primary.
    pub replicas: usize,
    /// The time after which a node that does not respond counts as failed.
    pub node_timeout: Duration,
    /// The settings of each node.
    pub node: RedisOptions,
}

impl Default for RedisClusterOptions {
    fn default() -> Self {
        let node = RedisOptions { appendonly: true, ..RedisOptions::default() };
        Self { primaries: 3, replicas: 1, node_timeout: Duration::from_secs(1), node }
    }
}

/// A running Cluster. When dropped, its nodes are stopped.
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes: the first primaries, then their replicas. A failover changes the roles, but not the order.
    pub nodes: Vec<Redis>,
}

/// A node in the reply to `CLUSTER NODES`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterNode {
    /// Its id.
    pub id: String,
    /// Its index in [`RedisCluster::nodes`].
    pub index: usize,
    /// True if it is a primary.
    pub is_primary: bool,
    /// True if it counts as failed, or as failed perhaps.
    pub has_failed: bool,
    /// The id of the primary of a replica.
    pub primary: Option<String>,
    /// Its ranges of slots.
    pub slots: Vec<(u16, u16)>,
}

impl ClusterNode {
    /// True if the slot is its own.
    pub fn has_slot(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

impl RedisCluster {
    /// Starts the nodes, and waits until each of them calls the Cluster complete.
    pub async fn start(options: RedisClusterOptions) -> Result<Self, StartError> {
        let number = options.primaries * (1 + options.replicas);
        let mut node = options.node.clone();
        let timeout = options.node_timeout.as_millis().to_string();
        node.arguments.extend(["--cluster-node-timeout".to_owned(), timeout]);
        let mut nodes = Vec::new();
        for _ in 0..number {
            nodes.push(Redis::start_as(RedisMode::ClusterNode, node.clone()).await?);
        }
        let cluster = Self { nodes };
        cluster.form(&options).await.map_err(refused("form a Cluster"))?;
        Ok(cluster)
    }

    /// Assigns the slots, introduces the nodes to each other, and assigns the replicas to their primaries.
    async fn form(&self, options: &RedisClusterOptions) -> Result<(), RedisError> {
        let primaries = options.primaries;
        for (n, node) in self.nodes[..primaries].iter().enumerate() {
            let (first, end) = (SLOTS * n / primaries, SLOTS * (n + 1) / primaries);
            let range = [first.to_string(), (end - 1).to_string()];
            node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await?;
            node.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]).await?;
        }
        for node in &self.nodes[1..] {
            let (port, bus) =
                (node.peer_addr().1.to_string(), node.bus_port().unwrap_or_default().to_string());
            self.nodes[0].ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        let number = self.nodes.len();
        self.wait_for_all(async |node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]).await?;
            Ok(introduced(&nodes).count() == number)
        })
        .await?;
        for (n, node) in self.nodes[primaries..].iter().enumerate() {
            let primary: String = self.nodes[n % primaries].ask(&["CLUSTER", "MYID"]).await?;
            node.ask::<()>(&["CLUSTER", "REPLICATE", &primary]).await?;
        }
        self.complete(number - primaries).await
    }

    /// Waits until every node calls the Cluster complete, and this many replicas follow their primary.
    pub async fn complete(&self, replicas: usize) -> Result<(), RedisError> {
        self.wait_for_all(async |node| {
            let info: String = node.ask(&["CLUSTER", "INFO"]).await?;
            let nodes: String = node.ask(&["CLUSTER", "NODES"]).await?;
            let known = introduced(&nodes).filter(|line| line.contains("slave")).count();
            let replication: String = node.ask(&["INFO", "replication"]).await?;
            let follows =
                replication.contains("role:master") || replication.contains("master_link_status:up");
            Ok(info.contains("cluster_state:ok") && known == replicas && follows)
        })
        .await
    }

    async fn wait_for_all(
        &self,
        ready: impl AsyncFn(&Redis) -> Result<bool, RedisError>,
    ) -> Result<(), RedisError> {
        let started = Instant::now();
        for node in &self.nodes {
            while !ready(node).await? {
                if started.elapsed() > START_BOUND {
                    return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Returns the addresses for clients, separated by commas.
    pub fn addrs(&self) -> String {
        self.nodes.iter().map(Redis::client_addr).collect::<Vec<_>>().join(",")
    }

    /// Returns the nodes as the first one that responds sees them.
    pub async fn topology(&self) -> Result<Vec<ClusterNode>, RedisError> {
        // A node names the ports of the others by the kind of the connection: without TLS, or with TLS.
        let ports = self.nodes.iter().enumerate().flat_map(|(index, node)| {
            [Some(node.port()), node.tls_port()].into_iter().flatten().map(move |port| (port, index))
        });
        let ports: HashMap<u16, usize> = ports.collect();
        let nodes: String = self.ask_any(&["CLUSTER", "NODES"]).await?;
        Ok(introduced(&nodes).filter_map(|line| parse(line, &ports)).collect())
    }

    /// Returns the slot of a key.
    pub async fn slot(&self, key: &str) -> Result<u16, RedisError> {
        self.ask_any(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// Returns the index of the primary that has the slot of a key; `None` during a failover.
    pub async fn primary_of(&self, key: &str) -> Result<Option<usize>, RedisError> {
        let (slot, nodes) = (self.slot(key).await?, self.topology().await?);
        let primary = nodes.iter().find(|node| node.is_primary && !node.has_failed && node.has_slot(slot));
        Ok(primary.map(|node| node.index))
    }

    /// Returns the response of the first node that responds.
    async fn ask_any<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, RedisError> {
        let mut failure = std::io::Error::from(std::io::ErrorKind::NotConnected).into();
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            match node.ask(words).await {
                Ok(response) => return Ok(response),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn refused(doing: &'static str) -> impl FnOnce(RedisError) -> StartError {
    move |source| StartError::Redis { doing, source }
}

/// The lines of `CLUSTER NODES` about nodes that have been introduced.
fn introduced(nodes: &str) -> impl Iterator<Item = &str> {
    nodes.lines().filter(|line| !line.contains("handshake"))
}

/// Parses `id ip:port@bus[,hostname] flags primary ping pong epoch state slots…`.
fn parse(line: &str, ports: &HashMap<u16, usize>) -> Option<ClusterNode> {
    let words: Vec<&str> = line.split(' ').collect();
    let (address, flags) = (*words.get(1)?, *words.get(2)?);
    let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(ClusterNode {
        id: words[0].to_owned(),
        index: *ports.get(&port)?,
        is_primary: flags.split(',').any(|flag| flag == "master"),
        has_failed: flags.split(',').any(|flag| flag.starts_with("fail")),
        primary: words.get(3).filter(|id| **id != "-").map(|id| (*id).to_owned()),
        slots: words.iter().skip(8).filter_map(range).collect(),
    })
}
