//! A publisher whose servers replace each other and lose events.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    Deadline, DeliveredEvent, Event, EventTypes, Progress, Publication, Publisher, PublisherOutage,
    RecordWrite, Server, ServerNumber, ServerRecord,
};
use pg::RawTimestamp;
use uuid::Uuid;

use crate::relay_fixture::{Running, go_on, settings, with_events};
use crate::support::{MINUTE, ids};

/// The record of each set of types, which is empty for all types: the server that it was made with, and the
/// progress.
pub(crate) type Records = BTreeMap<Vec<String>, (u64, Progress)>;
type OnSettle = dyn FnOnce(&mut HashSet<Uuid>, &mut Records) + Send;

/// A publisher on a sequence of servers; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Servers(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) server: u64,
    /// The events that the server holds.
    pub(crate) held: HashSet<Uuid>,
    pub(crate) records: Records,
    /// The round of each lookup of entries.
    pub(crate) rounds: Vec<u64>,
    /// The number of writes of records.
    pub(crate) recorded: usize,
    /// A callback before events are looked up.
    pub(crate) on_look: Option<Box<dyn FnMut() + Send>>,
    /// A callback before the record that ends a comparison is written.
    pub(crate) on_settle: Option<Box<OnSettle>>,
    /// All events ever published.
    pub(crate) published: Vec<Uuid>,
    /// The number of events looked up.
    pub(crate) looked_for: usize,
    pub(crate) away: bool,
    /// True if lookups of events fail.
    pub(crate) fails_to_look: bool,
}

impl Servers {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().expect("no panic"))
    }

    /// Replaces the server by one that lacks these events. Its record and its state are from before any event
    /// was delivered.
    pub(crate) fn replace(&self, lost: &[Uuid]) {
        self.with(|state| {
            state.server += 1;
            state.held.retain(|id| !lost.contains(id));
            let before = RawTimestamp::from_server_micros(0);
            state.records.insert(Vec::new(), (0, Progress::Settled(before)));
        });
    }

    /// Replaces the server by one in this state: its events and its record.
    pub(crate) fn restore(&self, held: &[Uuid], record: Option<(u64, Progress)>) {
        self.with(|state| {
            state.server += 1;
            state.held = held.iter().copied().collect();
            state.records = record.map(|record| (Vec::new(), record)).into_iter().collect();
        });
    }

    pub(crate) fn record(&self) -> (u64, Progress) {
        self.with(|state| state.records[&Vec::new()])
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.record().1, Progress::Settled(_))
    }

    pub(crate) fn published(&self) -> Vec<Uuid> {
        self.with(|state| state.published.clone())
    }
}

fn outage() -> PublisherOutage {
    PublisherOutage { operation: "could not reach the stand-in", source: "it is away".into() }
}

impl Publisher for Servers {
    async fn deadline(&self, _: Duration) -> Result<Deadline, PublisherOutage> {
        self.with(|state| match state.away {
            true => Err(outage()),
            false => Ok(Deadline { unix_ms: 0, server: ServerNumber(state.server) }),
        })
    }

    async fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> Result<Vec<Publication>, PublisherOutage> {
        self.with(|state| {
            if state.away || deadline.server.0 != state.server {
                return Err(outage());
            }
            for event in events.iter().filter(|event| state.held.insert(event.event_id)) {
                state.published.push(event.event_id);
            }
            Ok(events.iter().map(|_| Publication::Done).collect())
        })
    }

    async fn server(&self, _: &str) -> Result<Server, PublisherOutage> {
        self.with(|state| {
            let shown = |(types, (server, progress)): (&Vec<String>, &(u64, Progress))| ServerRecord {
                types: if types.is_empty() { EventTypes::All } else { EventTypes::Only(types.clone()) },
                is_own: *server == state.server,
                marked_since: Some(RawTimestamp::NEG_INFINITY),
                progress: *progress,
            };
            let records = state.records.iter().map(shown).collect();
            match state.away {
                true => Err(outage()),
                false => Ok(Server { id: ServerNumber(state.server), records, seen: seen(&state.records) }),
            }
        })
    }

    async fn record_server(
        &self,
        _: &str,
        server: &Server,
        types: &EventTypes,
        progress: Progress,
        _: RawTimestamp,
    ) -> Result<RecordWrite, PublisherOutage> {
        self.with(|state| {
            if let Some(happens) = state.on_settle.take_if(|_| matches!(progress, Progress::Settled(_))) {
                happens(&mut state.held, &mut state.records);
            }
            if server.id.0 != state.server || server.seen != seen(&state.records) {
                return Ok(RecordWrite::Changed);
            }
            state.recorded += 1;
            let types = if let EventTypes::Only(names) = types { names.clone() } else { Vec::new() };
            state.records.insert(types, (server.id.0, progress));
            Ok(RecordWrite::Written)
        })
    }

    async fn has_markers(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, PublisherOutage> {
        self.with(|state| {
            state.looked_for += events.len();
            if let Some(happens) = &mut state.on_look {
                happens();
            }
            if state.fails_to_look {
                return Err(outage());
            }
            Ok(events.iter().map(|event| state.held.contains(&event.event_id)).collect())
        })
    }

    async fn has_entries(
        &self,
        events: &[DeliveredEvent],
        round: u64,
    ) -> Result<Option<Vec<bool>>, PublisherOutage> {
        self.with(|state| {
            // Each round reads two pages.
            state.rounds.push(round);
            let is_read = state.rounds.iter().filter(|read| **read == round).count() > 1;
            let is_there = |event: &DeliveredEvent| state.held.contains(&event.event_id);
            Ok(is_read.then(|| events.iter().map(is_there).collect()))
        })
    }
}

fn seen(records: &Records) -> Arc<[u8]> {
    format!("{records:?}").into_bytes().into()
}

/// Starts a relay that has delivered events 1 to 5 and compared the server.
pub(crate) async fn delivered() -> Running<Servers> {
    let running = Running::start(with_events(1..=5, "k").await, Servers::default(), settings());
    go_on(MINUTE * 2).await;
    assert_eq!(running.stand.published(), ids(1..=5));
    assert!(running.stand.is_settled(), "nothing is left to compare");
    running
}
