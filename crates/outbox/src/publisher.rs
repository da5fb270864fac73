//! The port through which a relay publishes events.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pg::RawTimestamp;

use crate::{DeliveredEvent, Event, EventTypes};

/// A server that the publisher has met, numbered in the order of their first contact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ServerNumber(pub u64);

/// A time by the publisher's own clock, after which the publisher refuses to publish for a claim. Any server
/// other than `server` also refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// The time, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The server whose clock it is.
    pub server: ServerNumber,
}

/// The extent to which an outbox was compared with a server, by the clock of the outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Every event that was DELIVERED at this time or before had been published, before this was recorded, on
    /// a server that was compared.
    Settled(RawTimestamp),
    /// Events that were DELIVERED at this time or later are still to be compared.
    Unfinished {
        /// The time.
        since: RawTimestamp,
        /// The id of the comparison. Relays that compare the same loss share it; the next loss has another.
        comparison: u64,
    },
}

/// A record of an outbox that a server holds. A server restored to an older state has an older record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRecord {
    /// The event types that it covers, sorted by name.
    pub types: EventTypes,
    /// True if it was written for the current server, not for one before it.
    pub is_own: bool,
    /// The time since which its relays have published to the same place as this publisher, so that later
    /// events have this publisher's markers; `None` if its last relay published elsewhere, or if the time is
    /// unknown.
    pub marked_since: Option<RawTimestamp>,
    /// The recorded progress.
    pub progress: Progress,
}

impl ServerRecord {
    /// Returns the time until which the server's state contains every DELIVERED event of the types.
    pub(crate) fn covers_until(&self) -> RawTimestamp {
        match self.progress {
            Progress::Settled(until) => until,
            Progress::Unfinished { since, .. } => since.just_before(),
        }
    }
}

/// The server that currently acknowledges publications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its identity.
    pub id: ServerNumber,
    /// The records that it holds, at most one for each set of types.
    pub records: Vec<ServerRecord>,
    /// The raw value of the records as read, used to detect changes.
    pub seen: Arc<[u8]>,
}

impl Server {
    /// Returns a server that loses nothing.
    pub fn lasting() -> Self {
        let progress = Progress::Settled(RawTimestamp::INFINITY);
        let records =
            vec![ServerRecord { types: EventTypes::All, is_own: true, marked_since: None, progress }];
        Self { id: ServerNumber(0), records, seen: Arc::default() }
    }

    /// Returns the record of relays that carry these types.
    pub(crate) fn record(&self, types: &EventTypes) -> Option<&ServerRecord> {
        self.records.iter().find(|record| record.types == *types)
    }
}

/// The outcome of writing a record.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordWrite {
    /// The record was written.
    Written,
    /// The record was not written: the server was replaced, or its records differ from those that were read.
    /// The next read shows the current state.
    Changed,
}

/// The outcome of publishing one event.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Publication {
    /// It is published, now or by an earlier call.
    Done,
    /// The destination returned an error: a failed attempt.
    Failed(String),
    /// It can never be published as it is; it becomes DEAD.
    Rejected(String),
    /// It was not published: an earlier event of its partition key failed in this call, or the deadline has
    /// passed.
    Withheld,
}

/// The publisher is unreachable or cannot publish at present. It is unknown which events were published. Does
/// not count as an attempt.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct PublisherOutage {
    /// The operation that failed.
    pub operation: &'static str,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Publishes events, and keeps a published marker for each if it can.
pub trait Publisher: Send + Sync + 'static {
    /// Returns the types of the events that this publisher publishes. Events of other types are rejected, and
    /// their deliveries by another publisher are not this one's to compare.
    fn event_types(&self) -> EventTypes {
        EventTypes::All
    }

    /// Returns the publisher's own time `after` from now, never later than that, however slow the response.
    /// Fails if the publisher could not publish at present, so that nothing is claimed.
    fn deadline(&self, after: Duration) -> impl Future<Output = Result<Deadline, PublisherOutage>> + Send;

    /// Publishes the events in their order and returns one outcome for each. After one has failed, later ones
    /// with its partition key are withheld. Nothing is published after `deadline`, even if this process was
    /// paused on the way.
    fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Publication>, PublisherOutage>> + Send;

    /// Returns the server that currently acknowledges, possibly cached briefly, and its records of `outbox`.
    /// A publisher whose acknowledgements are never lost needs only the default of this and of the following
    /// methods.
    fn server(&self, _outbox: &str) -> impl Future<Output = Result<Server, PublisherOutage>> + Send {
        async { Ok(Server::lasting()) }
    }

    /// Stores on the server, at the time `now` of the outbox, how far it was compared with the events of
    /// these types in `outbox`, if it is still the same server with the records in `server`.
    fn record_server(
        &self,
        _outbox: &str,
        _server: &Server,
        _types: &EventTypes,
        _progress: Progress,
        _now: RawTimestamp,
    ) -> impl Future<Output = Result<RecordWrite, PublisherOutage>> + Send {
        async { Ok(RecordWrite::Written) }
    }

    /// Returns for each of the events whether the publisher has a published marker.
    fn has_markers(
        &self,
        events: &[DeliveredEvent],
    ) -> impl Future<Output = Result<Vec<bool>, PublisherOutage>> + Send {
        let found = vec![true; events.len()];
        async { Ok(found) }
    }

    /// Returns for each of the events whether it is published although it has no marker, as far as the
    /// publisher can find out; an event that is not found is published again. Returns `None` after a part of
    /// the work: the same call continues it. Data read may be reused within `round`, and in no other.
    fn has_entries(
        &self,
        events: &[DeliveredEvent],
        _round: u64,
    ) -> impl Future<Output = Result<Option<Vec<bool>>, PublisherOutage>> + Send {
        let found = vec![true; events.len()];
        async { Ok(Some(found)) }
    }
}
