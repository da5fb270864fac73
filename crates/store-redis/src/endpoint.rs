//! The servers of a topology, and a connection to the one that takes writes.

use std::sync::Arc;

use domain::ports::BoxError;

use crate::cluster::{Cluster, Node};
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
    /// Sentinels.
    Sentinel,
    /// A node of a Cluster.
    Cluster(Arc<Cluster>, Node),
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
            Topology::Sentinel { .. } => Ok(Self::Sentinel),
            Topology::Cluster { addrs } => {
                let parse = |addr: &String| ServerAddr::parse(addr).map_err(invalid(addr));
                let seeds: Vec<(ServerAddr, bool)> = addrs.iter().map(parse).collect::<Result<_, _>>()?;
                let tls = seeds.iter().any(|(_, tls)| *tls);
                let all = || invalid(&settings.topology.to_string());
                let connector = Connector::new(tls, settings.password.as_ref(), settings).map_err(all())?;
                let seeds = seeds.into_iter().map(|(addr, _)| addr).collect();
                Ok(Self::Cluster(Arc::new(Cluster::new(connector, seeds)), Node::Any))
            }
        }
    }

    /// Opens a connection to the server that takes writes, and logs in.
    pub(crate) async fn connect(&self) -> Result<Connection, BoxError> {
        match self {
            Self::Single(connector, server) => connector.connect(server).await,
            Self::Sentinel => Err("Sentinels are not supported yet".into()),
            Self::Cluster(cluster, node) => cluster.connect(node).await,
        }
    }

    /// Another node of a Cluster; the same server otherwise.
    pub(crate) fn at(&self, node: Node) -> Self {
        match self {
            Self::Single(connector, server) => Self::Single(connector.clone(), server.clone()),
            Self::Sentinel => Self::Sentinel,
            Self::Cluster(cluster, _) => Self::Cluster(Arc::clone(cluster), node),
        }
    }

    /// Remembers the node of a Cluster that was named as the one that has the slot.
    pub(crate) fn note_moved(&self, named: &str) {
        if let Self::Cluster(cluster, node) = self {
            cluster.note_moved(node, named);
        }
    }
}
