//! The name and version of the server.

use domain::ports::StoreError;
use redis::Value;

use crate::RedisClient;
use crate::connect::unexpected;

/// The name and version of the server that responds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisVersion {
    /// The version of Redis that it is, or with which it is compatible: `7.0.15`.
    pub redis: String,
    /// Its own name and version, if it is not Redis: `valkey 8.0.1`.
    pub other: Option<String>,
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
        match &answer {
            Value::BulkString(bytes) => Ok(parse(&String::from_utf8_lossy(bytes))),
            Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(parse(text)),
            other => Err(unexpected(OPERATION, other)),
        }
    }
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
    Some(RedisVersion { redis: property("redis_version")?, other })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_a_name_beside_the_version_of_redis() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nredis_git_sha1:00000000\r\n";
        assert_eq!(parse(redis), Some(RedisVersion { redis: "7.0.15".to_owned(), other: None }));
        let valkey = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
        let other = Some("valkey 8.0.1".to_owned());
        assert_eq!(parse(valkey), Some(RedisVersion { redis: "7.2.4".to_owned(), other }));
        assert_eq!(parse("# Server\r\n"), None);
    }
}
