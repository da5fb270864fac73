//! A private primary with replicas, and the Sentinels that watch them.

use std::time::{Duration, Instant};

use redis::RedisError;

use crate::process::{START_BOUND, StartError};
use crate::redis::{Redis, RedisMode, RedisOptions};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The interval at which a Sentinel asks the servers for their state; 10 s by default.
const INFO_PERIOD: Duration = Duration::from_secs(1);

/// Settings of the group.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    /// The name under which the Sentinels know the primary.
    pub master: String,
    /// The number of servers: a primary, and the others its replicas.
    pub servers: usize,
    /// The number of Sentinels, of which a majority must agree on a failover.
    pub sentinels: usize,
    /// The time after which a server that does not respond counts as down.
    pub down_after: Duration,
    /// The interval at which Sentinels tell each other what they know; 2 s by default. A former primary that
    /// is up is made a replica four intervals after a failover, and takes writes until then.
    pub publish_period: Duration,
    /// The password of the Sentinels.
    pub sentinel_password: Option<String>,
    /// The settings of each server; TLS is also that of the Sentinels.
    pub server: RedisOptions,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        Self {
            master: "galaxy".to_owned(),
            servers: 3,
            sentinels: 3,
            down_after: Duration::from_millis(500),
            publish_period: Duration::from_millis(500),
            sentinel_password: None,
            server: RedisOptions { appendonly: true, ..RedisOptions::default() },
        }
    }
}

/// Running servers and Sentinels. When dropped, they are stopped.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The servers, the first primary first. A failover changes the roles, but not the order.
    pub servers: Vec<Redis>,
    /// The Sentinels.
    pub sentinels: Vec<Redis>,
    /// The name under which the Sentinels know the primary.
    pub master: String,
}

impl SentinelGroup {
    /// Starts the servers and the Sentinels, and waits until all Sentinels know all of them.
    pub async fn start(options: SentinelOptions) -> Result<Self, StartError> {
        let refused = |source| StartError::Redis { doing: "form a group with Sentinels", source };
        let mut servers: Vec<Redis> = Vec::new();
        for _ in 0..options.servers {
            let server = Redis::start(options.server.clone()).await?;
            if let Some(primary) = servers.first() {
                let (host, port) = primary.peer_addr();
                server.ask::<()>(&["REPLICAOF", host, &port.to_string()]).await.map_err(refused)?;
            }
            servers.push(server);
        }
        let lines = configuration(&options, &servers[0]);
        let sentinel = RedisOptions {
            password: options.sentinel_password.clone(),
            tls: options.server.tls.clone(),
            ..RedisOptions::default()
        };
        let mut group = Self { servers, sentinels: Vec::new(), master: options.master };
        // A Sentinel sees at once what is there when it starts.
        group.replicated().await.map_err(refused)?;
        for _ in 0..options.sentinels {
            let sentinel = Redis::start_as(RedisMode::Sentinel(lines.clone()), sentinel.clone()).await?;
            for (name, period) in [("INFO-PERIOD", INFO_PERIOD), ("PUBLISH-PERIOD", options.publish_period)] {
                let period = period.as_millis().to_string();
                sentinel.ask::<()>(&["SENTINEL", "DEBUG", name, &period]).await.map_err(refused)?;
            }
            group.sentinels.push(sentinel);
        }
        group.complete().await.map_err(refused)?;
        Ok(group)
    }

    /// Waits until every server but the primary follows it.
    pub async fn replicated(&self) -> Result<(), RedisError> {
        let started = Instant::now();
        loop {
            let mut followers = 0;
            for server in self.servers.iter().filter(|server| server.pid().is_some()) {
                // Sentinels close the connections to a server that they make a replica.
                let info: String = server.ask(&["INFO", "replication"]).await.unwrap_or_default();
                followers += usize::from(info.contains("master_link_status:up"));
            }
            if followers + 1 == self.servers.len() {
                return Ok(());
            }
            pause(started).await?;
        }
    }

    /// Waits until every Sentinel sees the primary, all replicas and all other Sentinels in good health.
    pub async fn complete(&self) -> Result<(), RedisError> {
        let started = Instant::now();
        for sentinel in &self.sentinels {
            while !self.is_complete(sentinel).await? {
                pause(started).await?;
            }
        }
        Ok(())
    }

    async fn is_complete(&self, sentinel: &Redis) -> Result<bool, RedisError> {
        type Properties = std::collections::HashMap<String, String>;
        let replicas: Vec<Properties> = sentinel.ask(&["SENTINEL", "REPLICAS", &self.master]).await?;
        let others: Vec<Properties> = sentinel.ask(&["SENTINEL", "SENTINELS", &self.master]).await?;
        let is =
            |node: &Properties, name: &str, value: &str| node.get(name).is_some_and(|known| known == value);
        let follow =
            replicas.iter().filter(|node| is(node, "flags", "slave") && is(node, "master-link-status", "ok"));
        let watch = others.iter().filter(|node| is(node, "flags", "sentinel"));
        Ok(follow.count() + 1 == self.servers.len() && watch.count() + 1 == self.sentinels.len())
    }

    /// Returns the addresses of the Sentinels for clients, separated by commas.
    pub fn addrs(&self) -> String {
        self.sentinels.iter().map(Redis::client_addr).collect::<Vec<_>>().join(",")
    }

    /// Returns the index of the server that the first running Sentinel calls the primary.
    pub async fn primary(&self) -> Result<usize, RedisError> {
        let not_connected = || RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected));
        let sentinel =
            self.sentinels.iter().find(|sentinel| sentinel.pid().is_some()).ok_or_else(not_connected)?;
        let (_, port): (String, u16) =
            sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.master]).await?;
        let index = self.servers.iter().position(|server| server.peer_addr().1 == port);
        index.ok_or_else(not_connected)
    }

    /// Asks a Sentinel for a failover, as an operator would.
    pub async fn fail_over(&self) -> Result<(), RedisError> {
        self.sentinels[0].ask(&["SENTINEL", "FAILOVER", &self.master]).await
    }
}

/// Fails if the bound for a change of the group has passed.
async fn pause(started: Instant) -> Result<(), RedisError> {
    if started.elapsed() > START_BOUND {
        return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    }
    tokio::time::sleep(POLL_INTERVAL).await;
    Ok(())
}

/// The configuration of a Sentinel. It adds to it what it learns.
fn configuration(options: &SentinelOptions, primary: &Redis) -> String {
    let (name, (host, port)) = (&options.master, primary.peer_addr());
    let (quorum, down_after) = (options.sentinels / 2 + 1, options.down_after.as_millis());
    let mut lines = String::new();
    if options.server.tls.is_some() {
        lines.push_str("sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\nsentinel announce-ip localhost\n");
    }
    lines.push_str(&format!(
        "sentinel monitor {name} {host} {port} {quorum}\n\
         sentinel down-after-milliseconds {name} {down_after}\n\
         sentinel failover-timeout {name} 3000\n\
         sentinel parallel-syncs {name} 2\n"
    ));
    if let Some(password) = &options.server.password {
        lines.push_str(&format!("sentinel auth-pass {name} {password}\n"));
    }
    if let Some(password) = &options.sentinel_password {
        lines.push_str(&format!("sentinel sentinel-pass {password}\n"));
    }
    lines
}
