//! The name, the version and the mode of the server, and the replicas that it knows.

use domain::ports::StoreError;
use redis::Value;

use crate::RedisClient;
use crate::error::unexpected;
use crate::socket::ServerAddr;

/// The name and version of the server that responds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisVersion {
    /// The version of Redis that it is, or with which it is compatible: `7.0.15`.
    pub redis: String,
    /// Its own name and version, if it is not Redis: `valkey 8.0.1`.
    pub other: Option<String>,
    /// The mode in which it runs.
    pub mode: ServerMode,
}

/// The mode in which a server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerMode {
    /// One server, with or without replicas.
    Standalone,
    /// A node of a Cluster.
    ClusterNode,
    /// A Sentinel, which has no data.
    Sentinel,
}

impl RedisClient {
    /// Requests the server's version. `None` if it is not disclosed: the user lacks the permission, or the
    /// reply does not contain it.
    pub async fn server_version(&self) -> Result<Option<RedisVersion>, StoreError> {
        const OPERATION: &str = "ask Redis for its version";
        let answer = match self.command(OPERATION, redis::cmd("INFO").arg("server")).await {
            Err(StoreError::Refused { .. }) => return Ok(None),
            answer => answer?,
        };
        Ok(parse(&text(OPERATION, answer)?))
    }

    /// The replicas that are connected to the server, each with host and port.
    pub async fn replicas(&self) -> Result<Vec<(String, u16)>, StoreError> {
        const OPERATION: &str = "ask Redis for its replicas";
        let answer = self.command(OPERATION, redis::cmd("INFO").arg("replication")).await?;
        Ok(text(OPERATION, answer)?.lines().filter_map(parse_replica).collect())
    }

    /// The host and the port of the server itself: of one server the configured ones, with Sentinels those
    /// of the last primary; `None` in a Cluster.
    pub fn server_addr(&self) -> Option<(String, u16)> {
        self.endpoint().server().map(|ServerAddr { host, port }| (host, port))
    }
}

fn text(operation: &'static str, answer: Value) -> Result<String, StoreError> {
    match answer {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(text),
        other => Err(unexpected(operation, &other)),
    }
}

/// Parses `slave0:ip=10.0.0.2,port=6379,state=online,…` of `INFO replication`.
fn parse_replica(line: &str) -> Option<(String, u16)> {
    let (name, properties) = line.trim_end().split_once(':')?;
    name.strip_prefix("slave")?.parse::<u32>().ok()?;
    let property = |name: &str| {
        properties.split(',').find_map(|property| property.strip_prefix(name)?.strip_prefix('='))
    };
    Some((property("ip")?.to_owned(), property("port")?.parse().ok()?))
}

/// Parses the reply to `INFO server`. Forks report a version of Redis, and name themselves beside it.
fn parse(info: &str) -> Option<RedisVersion> {
    let property = |name: &str| {
        let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        lines.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let other = property("server_name").filter(|name| name != "redis").map(|name| {
        let version = property(&format!("{name}_version"));
        version.map_or_else(|| name.clone(), |version| format!("{name} {version}"))
    });
    // Valkey has a name of its own for it. A server that does not tell is accepted as it is.
    let mode = match property("redis_mode").or_else(|| property("server_mode")).as_deref() {
        Some("cluster") => ServerMode::ClusterNode,
        Some("sentinel") => ServerMode::Sentinel,
        _ => ServerMode::Standalone,
    };
    Some(RedisVersion { redis: property("redis_version")?, other, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_a_name_beside_the_version_of_redis() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nredis_git_sha1:00000000\r\n";
        let mode = ServerMode::Standalone;
        assert_eq!(parse(redis), Some(RedisVersion { redis: "7.0.15".to_owned(), other: None, mode }));
        let valkey = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
        let other = Some("valkey 8.0.1".to_owned());
        assert_eq!(parse(valkey), Some(RedisVersion { redis: "7.2.4".to_owned(), other, mode }));
        assert_eq!(parse("# Server\r\n"), None);
    }

    #[test]
    fn a_node_of_a_cluster_and_a_sentinel_say_what_they_are() {
        for (word, mode) in [
            ("standalone", ServerMode::Standalone),
            ("cluster", ServerMode::ClusterNode),
            ("sentinel", ServerMode::Sentinel),
        ] {
            for name in ["redis_mode", "server_mode"] {
                let info = format!("# Server\r\nredis_version:7.0.15\r\n{name}:{word}\r\n");
                assert_eq!(parse(&info).map(|version| version.mode), Some(mode), "{info}");
            }
        }
    }

    #[test]
    fn a_replica_has_a_host_and_a_port() {
        let line = "slave12:ip=fd00::2,port=6380,state=online,offset=1484,lag=0\r";
        assert_eq!(parse_replica(line), Some(("fd00::2".to_owned(), 6380)));
        for other in ["slave_read_repl_offset:14", "connected_slaves:2", "role:master", "slave0:ip=h"] {
            assert_eq!(parse_replica(other), None, "{other}");
        }
    }
}
