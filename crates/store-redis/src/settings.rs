//! Configuration of the connection to Redis.

use std::fmt;
use std::time::Duration;

/// The servers of Redis, the login, and the time limit of a call.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The servers.
    pub topology: Topology,
    /// The password of the default user.
    pub password: Option<Password>,
    /// The number of the database; 0 with a Cluster.
    pub db: i64,
    /// The longest that one call may take, including connecting.
    pub operation_timeout: Duration,
}

/// The servers of Redis. An address is `host:port`, or `rediss://host:port` for TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topology {
    /// One server at this address.
    Single(String),
    /// A primary and its replicas, of which Sentinels say which is the primary.
    Sentinel {
        /// The addresses of the Sentinels. If they use TLS, the servers do as well.
        addrs: Vec<String>,
        /// The name under which the Sentinels know the primary.
        master: String,
        /// The password of the Sentinels' default user.
        password: Option<Password>,
    },
    /// A Redis Cluster.
    Cluster {
        /// The addresses of nodes, from which the others are found. If they use TLS, all nodes do.
        addrs: Vec<String>,
    },
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(addr) => f.write_str(addr),
            Self::Sentinel { addrs, master, .. } => {
                write!(f, "the primary {master} of the Sentinels {}", addrs.join(", "))
            }
            Self::Cluster { addrs } => write!(f, "the Cluster {}", addrs.join(", ")),
        }
    }
}

/// A password that `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}
