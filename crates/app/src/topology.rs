//! The check at the start that the servers of Redis are of the configured kind, and a warning if its replicas
//! are not the configured ones.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use domain::ports::StoreError;
use store_redis::{RedisClient, RedisVersion, ServerMode, Topology};
use tokio::net::lookup_host;

use crate::config::RedisAddr;

/// The time for comparing the replicas, which includes the lookup of their names.
const REPLICAS_TIMEOUT: Duration = Duration::from_secs(2);

/// Fails if the server is not of the configured kind. One that does not disclose its mode is accepted.
pub(crate) fn check_mode(topology: &Topology, version: Option<&RedisVersion>) -> anyhow::Result<()> {
    let Some(version) = version else { return Ok(()) };
    match (topology, version.mode) {
        (Topology::Single(_) | Topology::Sentinel { .. }, ServerMode::ClusterNode) => bail!(
            "it is a node of a Redis Cluster: set NOTIFICATION_REDIS_CLUSTER_ADDRS, and nothing else that names \
             servers"
        ),
        (Topology::Single(_), ServerMode::Sentinel) => bail!(
            "it is a Sentinel: set NOTIFICATION_REDIS_SENTINEL_ADDRS and NOTIFICATION_REDIS_SENTINEL_MASTER instead \
             of NOTIFICATION_REDIS_MASTER_ADDR"
        ),
        (Topology::Cluster { .. }, ServerMode::Standalone | ServerMode::Sentinel) => bail!(
            "it is not a node of a Redis Cluster: set NOTIFICATION_REDIS_MASTER_ADDR for one server, or \
             NOTIFICATION_REDIS_SENTINEL_ADDRS"
        ),
        _ => Ok(()),
    }
}

/// Warns if the server has other replicas than the configured ones; compares nothing if none are configured.
/// With Sentinels, all servers may be listed: any of them may become the primary.
pub(crate) async fn compare_replicas(redis: &RedisClient, configured: &[RedisAddr]) {
    if configured.is_empty() {
        return;
    }
    match tokio::time::timeout(REPLICAS_TIMEOUT, differences(redis, configured)).await {
        Ok(Ok(Some((unlisted, missing)))) => tracing::warn!(
            unlisted,
            missing,
            "the replicas of Redis are not those in NOTIFICATION_REDIS_REPLICA_ADDRS; continuing"
        ),
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            let error = domain::ports::error_chain(&error);
            tracing::debug!(error, "Redis does not disclose its replicas");
        }
        Err(_) => tracing::debug!("the replicas of Redis could not be compared in time"),
    }
}

/// The replicas that are not listed, and the listed servers that are not replicas. `None` if there are none,
/// or in a Cluster.
async fn differences(
    redis: &RedisClient,
    configured: &[RedisAddr],
) -> Result<Option<(String, String)>, StoreError> {
    let Some(primary) = redis.server_addr() else { return Ok(None) };
    let connected = resolve(redis.replicas().await?.into_iter()).await;
    let primary = resolve([primary].into_iter()).await;
    let listed = resolve(configured.iter().map(|addr| (addr.host.clone(), addr.port))).await;
    let unlisted = names(&connected, |server| listed.iter().all(|known| !known.is_same(server)));
    let is_known = |server: &Server| connected.iter().chain(&primary).any(|known| known.is_same(server));
    let missing = names(&listed, |server| !is_known(server));
    let differs = !unlisted.is_empty() || !missing.is_empty();
    Ok(differs.then_some((unlisted, missing)))
}

/// A server, by its name and its addresses.
struct Server {
    name: String,
    addresses: BTreeSet<SocketAddr>,
}

impl Server {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name || !self.addresses.is_disjoint(&other.addresses)
    }
}

async fn resolve(servers: impl Iterator<Item = (String, u16)>) -> Vec<Server> {
    let mut resolved = Vec::new();
    for (host, port) in servers {
        // A name that cannot be resolved is compared as it is written.
        let addresses = lookup_host((host.as_str(), port)).await.map(Iterator::collect).unwrap_or_default();
        resolved.push(Server { name: format!("{host}:{port}"), addresses });
    }
    resolved
}

fn names(servers: &[Server], is_named: impl Fn(&Server) -> bool) -> String {
    let named = servers.iter().filter(|server| is_named(server)).map(|server| server.name.as_str());
    named.collect::<Vec<_>>().join(", ")
}
