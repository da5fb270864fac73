//! The nodes of a Cluster that a process uses, and the streams that it can use there.

use tokio::time::{Instant, timeout_at};

use crate::cluster::Node;
use crate::connect::RedisClient;
use crate::keyspace::hash_tag;
use crate::permissions::KeyUse;
use crate::socket::ServerAddr;

/// A stream that cannot be used in a Cluster.
#[derive(Debug, thiserror::Error)]
pub enum UnusableStream {
    /// No other key can be in the slot of the stream.
    #[error(
        "the name of the stream {0} has a closing brace and no hash tag: in a Cluster, the keys of a stream \
         need its hash tag; name the stream with a part in braces, such as {{orders}}:created"
    )]
    WithoutTag(String),
    /// The streams of a relay are in several slots.
    #[error(
        "the relay's streams {0} and {1} have different hash tags: in a Cluster, all streams of one relay need \
         the same one, such as {{orders}}:created and {{orders}}:cancelled"
    )]
    OtherSlot(String, String),
}

impl RedisClient {
    /// Checks that these streams can be used together: outside a Cluster, always.
    pub fn check_streams(&self, streams: &[(KeyUse, &str)]) -> Result<(), UnusableStream> {
        if !self.is_cluster() {
            return Ok(());
        }
        if let Some((_, stream)) = streams.iter().find(|(_, stream)| hash_tag(stream).is_none()) {
            return Err(UnusableStream::WithoutTag((*stream).to_owned()));
        }
        let mut relayed = streams.iter().filter(|(purpose, _)| *purpose == KeyUse::Relayed);
        let Some((_, first)) = relayed.next() else { return Ok(()) };
        match relayed.find(|(_, other)| hash_tag(other) != hash_tag(first)) {
            Some((_, other)) => Err(UnusableStream::OtherSlot((*first).to_owned(), (*other).to_owned())),
            None => Ok(()),
        }
    }

    /// The streams that stand for the servers of all of these: in a Cluster all of them, and otherwise the
    /// first one.
    pub fn by_node<'a, 'b>(&self, streams: &'a [(KeyUse, &'b str)]) -> &'a [(KeyUse, &'b str)] {
        if self.is_cluster() { streams } else { streams.get(..1).unwrap_or_default() }
    }

    /// The primaries of a Cluster that have slots, each with its address; none outside a Cluster, or if no
    /// node responds.
    pub async fn primaries(&self) -> Vec<(String, Self)> {
        let Some((cluster, at)) = self.cluster() else { return Vec::new() };
        let primaries = timeout_at(Instant::now() + self.operation_timeout(), cluster.primaries()).await;
        let client = |addr: ServerAddr| (addr.to_string(), at(Node::At(addr)));
        primaries.ok().and_then(Result::ok).unwrap_or_default().into_iter().map(client).collect()
    }
}
