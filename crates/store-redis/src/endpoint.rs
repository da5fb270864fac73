//! The servers of a topology, and a connection to the one that takes writes.

use std::sync::Arc;

use domain::ports::BoxError;
use tokio::time::Instant;

use crate::cluster::{Cluster, Node};
use crate::sentinel::Sentinels;
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
    /// The primary that Sentinels name.
    Sentinel(Arc<Sentinels>),
    /// A node of a Cluster.
    Cluster(Arc<Cluster>, Node),
}

impl Endpoint {
    pub(crate) fn new(settings: &RedisSettings) -> Result<Self, InvalidSettings> {
        let invalid = |addr: &str| {
            let addr = addr.to_owned();
            |source| InvalidSettings { addr, source }
        };
        let connector = |tls, password| {
            let all = settings.topology.to_string();
            Connector::new(tls, password, settings).map_err(invalid(&all))
        };
        match &settings.topology {
            Topology::Single(addr) => {
                let (server, tls) = ServerAddr::parse(addr).map_err(invalid(addr))?;
                let connector = connector(tls, settings.password.as_ref())?;
                Ok(Self::Single(connector.with_db(settings.db), server))
            }
            Topology::Sentinel { addrs, master, password } => {
                let (addrs, tls) = parse_all(addrs)?;
                let to_sentinel = connector(tls, password.as_ref())?;
                let to_server = connector(tls, settings.password.as_ref())?.with_db(settings.db);
                let sentinels = Sentinels::new(addrs, master.clone(), to_sentinel, to_server);
                Ok(Self::Sentinel(Arc::new(sentinels)))
            }
            Topology::Cluster { addrs } => {
                let (seeds, tls) = parse_all(addrs)?;
                let connector = connector(tls, settings.password.as_ref())?;
                Ok(Self::Cluster(Arc::new(Cluster::new(connector, seeds)), Node::Any))
            }
        }
    }

    /// Opens a connection to the server that takes writes, and logs in. The caller ends it at the deadline;
    /// an error that it returns until then names the cause.
    pub(crate) async fn connect(&self, deadline: Instant) -> Result<Connection, BoxError> {
        match self {
            Self::Single(connector, server) => connector.connect(server).await,
            Self::Sentinel(sentinels) => sentinels.connect(deadline).await,
            Self::Cluster(cluster, node) => cluster.connect(node).await,
        }
    }

    /// The server that it leads to; with Sentinels, the last primary.
    pub(crate) fn server(&self) -> Option<ServerAddr> {
        match self {
            Self::Single(_, server) => Some(server.clone()),
            Self::Sentinel(sentinels) => sentinels.primary(),
            Self::Cluster(..) => None,
        }
    }

    /// The Cluster, and the node of it; `None` if the server is not part of one.
    pub(crate) fn cluster(&self) -> Option<(&Arc<Cluster>, &Node)> {
        match self {
            Self::Cluster(cluster, node) => Some((cluster, node)),
            Self::Single(..) | Self::Sentinel(_) => None,
        }
    }
}

/// Parses the addresses of a list; true if all of them use TLS.
fn parse_all(addrs: &[String]) -> Result<(Vec<ServerAddr>, bool), InvalidSettings> {
    let parse = |addr: &String| {
        ServerAddr::parse(addr).map_err(|source| InvalidSettings { addr: addr.clone(), source })
    };
    let parsed: Vec<(ServerAddr, bool)> = addrs.iter().map(parse).collect::<Result<_, _>>()?;
    let tls = parsed.iter().all(|(_, tls)| *tls);
    if let Some((server, _)) = parsed.iter().find(|(_, of_server)| *of_server != tls) {
        let source = "some servers use TLS, and others do not".into();
        return Err(InvalidSettings { addr: server.to_string(), source });
    }
    Ok((parsed.into_iter().map(|(server, _)| server).collect(), tls))
}
