//! The servers of a topology, and a connection to the one that takes writes.

use domain::ports::BoxError;

use crate::settings::{RedisSettings, Topology};
use crate::socket::{Connection, Connector, ServerAddr};

/// Settings that do not name a valid server address.
#[derive(Debug, thiserror::Error)]
#[error("{addr} is not an address of a Redis server")]
pub struct InvalidSettings {
    addr: String,
    #[source]
    source: BoxError,
}

/// The server to connect to, and how to find it.
pub(crate) enum Endpoint {
    /// Always the same server.
    Single(Connector, ServerAddr),
    /// A Cluster.
    Cluster,
}

impl Endpoint {
    pub(crate) fn new(settings: &RedisSettings) -> Result<Self, InvalidSettings> {
        let invalid = |addr: &str| {
            let addr = addr.to_owned();
            |source| InvalidSettings { addr, source }
        };
        match &settings.topology {
            Topology::Single(addr) => {
                let (server, tls) = ServerAddr::parse(addr).map_err(invalid(addr))?;
                let connector = Connector::new(tls, settings.password.as_ref(), settings);
                Ok(Self::Single(connector.map_err(invalid(addr))?.with_db(settings.db), server))
            }
            Topology::Sentinel { .. } | Topology::Cluster { .. } => Ok(Self::Cluster),
        }
    }

    /// Opens a connection to the server that takes writes, and logs in.
    pub(crate) async fn connect(&self) -> Result<Connection, BoxError> {
        match self {
            Self::Single(connector, server) => connector.connect(server).await,
            Self::Cluster => Err("a Redis Cluster is not supported yet".into()),
        }
    }
}
