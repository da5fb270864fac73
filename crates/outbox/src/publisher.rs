//! Where events go: the port that a relay publishes through.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pg::RawTimestamp;

use crate::{DeliveredEvent, Event, EventTypes};

/// One of the servers that a publisher has met, in the order in which it met them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ServerId(pub u64);

/// A moment by the publisher's own clock: after it, the publisher itself refuses to publish for a claim. A
/// server other than the one whose clock it is refuses as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// The moment, in milliseconds.
    pub unix_ms: u64,
    /// The server whose clock it is.
    pub server: ServerId,
}

/// How far an outbox was compared with a server, by the clock of the outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Every event that was DELIVERED at this time or before was published before this was recorded, on a
    /// server that was compared.
    Settled(RawTimestamp),
    /// What was DELIVERED at this time or later is still to be compared.
    Unfinished {
        /// The time.
        since: RawTimestamp,
        /// Which comparison it is: relays that compare the same loss share it, and the next loss has another.
        comparison: u64,
    },
}

/// A record of an outbox that a server holds. A server that returns from an older state has an older record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRecord {
    /// The event types that it is about; names are in their order.
    pub types: EventTypes,
    /// Whether it was made with the server that is there, and not with one before it.
    pub is_own: bool,
    /// What it says.
    pub progress: Progress,
}

impl ServerRecord {
    /// The time until which every DELIVERED event of the types is in the state that holds the record.
    pub(crate) fn covers_until(&self) -> RawTimestamp {
        match self.progress {
            Progress::Settled(until) => until,
            Progress::Unfinished { since, .. } => since.just_before(),
        }
    }
}

/// The server that acknowledges what is published now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// The identity of the server.
    pub id: ServerId,
    /// The records that it holds, at most one for each set of types.
    pub records: Vec<ServerRecord>,
    /// The value of the records as it was read, by which a change is noticed.
    pub seen: Arc<[u8]>,
}

impl Server {
    /// A server that loses nothing.
    pub fn lasting() -> Self {
        let progress = Progress::Settled(RawTimestamp::INFINITY);
        let records = vec![ServerRecord { types: EventTypes::All, is_own: true, progress }];
        Self { id: ServerId(0), records, seen: Arc::default() }
    }

    /// The record of relays that carry these types.
    pub(crate) fn record(&self, types: &EventTypes) -> Option<&ServerRecord> {
        self.records.iter().find(|record| record.types == *types)
    }
}

/// Whether a record was written.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// It was.
    Written,
    /// It was not: another server is there, or its records are not those that were seen. The next look shows
    /// what is there.
    Changed,
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
    /// It was not published: an earlier event of its partition key failed in this call, or the deadline has
    /// passed.
    Withheld,
}

/// The publisher cannot be reached, or cannot publish at present. Which events it published is unknown. Not
/// an attempt.
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
    /// The publisher's own time, `after` from now; never later than that, however slow the answer is. Fails
    /// if it could not publish at present, so that nothing is claimed.
    fn deadline(&self, after: Duration) -> impl Future<Output = Result<Deadline, PublisherOutage>> + Send;

    /// Publishes the events in their order, and gives one outcome for each. Once one has failed, the later
    /// ones with its partition key are withheld. Nothing is published after `deadline`, even if this process
    /// was paused on its way there.
    fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Publication>, PublisherOutage>> + Send;

    /// The server that acknowledges now, as of not long ago, and its records of `outbox`. A publisher whose
    /// acknowledgements last needs this and what follows no more than by default.
    fn server(&self, _outbox: &str) -> impl Future<Output = Result<Server, PublisherOutage>> + Send {
        async { Ok(Server::lasting()) }
    }

    /// Records with the server itself how far it was compared with the events of these types in `outbox`, if
    /// it is still there with the records that `server` shows.
    fn record_server(
        &self,
        _outbox: &str,
        _server: &Server,
        _types: &EventTypes,
        _progress: Progress,
    ) -> impl Future<Output = Result<Recorded, PublisherOutage>> + Send {
        async { Ok(Recorded::Written) }
    }

    /// Whether the publisher has a receipt for each of the events.
    fn has_receipts(
        &self,
        events: &[DeliveredEvent],
    ) -> impl Future<Output = Result<Vec<bool>, PublisherOutage>> + Send {
        let found = vec![true; events.len()];
        async { Ok(found) }
    }

    /// Whether each of the events is published all the same, as far as the publisher can find out: an event
    /// that it does not find is published again. `None` after a part of the work: the same call continues it.
    /// What was read may be used again within `round`, and in no other.
    fn has_entries(
        &self,
        events: &[DeliveredEvent],
        _round: u64,
    ) -> impl Future<Output = Result<Option<Vec<bool>>, PublisherOutage>> + Send {
        let found = vec![true; events.len()];
        async { Ok(Some(found)) }
    }
}
