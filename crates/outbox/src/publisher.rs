//! Where events go: the port that a relay publishes through.

use std::future::Future;
use std::time::Duration;

use pg::RawTimestamp;

use crate::{DeliveredEvent, Event};

/// One of the servers that a publisher has met, in the order in which it met them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ServerId(pub u64);

/// A moment by the publisher's own clock: after it, the publisher itself refuses to publish for a claim. Another server than
/// the one whose clock that is refuses too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// The moment, in milliseconds.
    pub unix_ms: u64,
    /// Whose clock it is.
    pub server: ServerId,
}

/// The server that acknowledges what is published now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// Which one it is.
    pub id: ServerId,
    /// Whether it holds all that was acknowledged before, as far as a comparison has shown.
    pub is_compared: bool,
    /// The beginning of a comparison that a relay began and did not finish.
    pub unfinished_since: Option<RawTimestamp>,
}

impl Server {
    /// One that loses nothing.
    pub const LASTING: Self = Self { id: ServerId(0), is_compared: true, unfinished_since: None };
}

/// What became of one event.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Publication {
    /// It is published, now or by an earlier call.
    Done,
    /// The destination answered with an error: a failed attempt.
    Failed(String),
    /// It can never be published as it is: DEAD.
    Rejected(String),
    /// It was not published: an earlier event of its partition key failed in this call, or the deadline has passed.
    Withheld,
}

/// The publisher cannot be reached, or cannot publish at present. Which events it published is unknown. Not an attempt.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct PublisherOutage {
    /// What could not be done.
    pub operation: &'static str,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Publishes events, with a receipt for each if it can.
pub trait Publisher: Send + Sync + 'static {
    /// The publisher's own time, `after` from now; never later than that, however slow the answer is. Fails if it could not
    /// publish at present, so that nothing is claimed.
    fn deadline(&self, after: Duration) -> impl Future<Output = Result<Deadline, PublisherOutage>> + Send;

    /// Publishes the events in their order, and gives one outcome for each. Once one has failed, the later ones with its partition key are
    /// withheld. Nothing is published after `deadline`, even if this process was paused on its way there.
    fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Publication>, PublisherOutage>> + Send;

    /// The server that acknowledges now, as of not long ago, and whether it was compared with the events of `outbox` that are
    /// DELIVERED. A publisher whose acknowledgements last needs this and what follows no more than by default.
    fn server(&self, _outbox: &str) -> impl Future<Output = Result<Server, PublisherOutage>> + Send {
        async { Ok(Server::LASTING) }
    }

    /// Records with `server` itself that it was compared with `outbox`, or since when its events are still to be compared. Fails
    /// if another server is there.
    fn record_server(
        &self,
        _outbox: &str,
        _server: ServerId,
        _unfinished_since: Option<RawTimestamp>,
    ) -> impl Future<Output = Result<(), PublisherOutage>> + Send {
        async { Ok(()) }
    }

    /// Whether each of the events is published, as far as the publisher can tell: one that it does not find is published again.
    fn find(
        &self,
        events: &[DeliveredEvent],
    ) -> impl Future<Output = Result<Vec<bool>, PublisherOutage>> + Send {
        let found = vec![true; events.len()];
        async { Ok(found) }
    }
}
