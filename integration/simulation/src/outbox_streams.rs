//! The relay's side of Redis: published markers, the record of the servers that were compared, and the
//! appends, by the rules of the scripts in the crate `store-redis`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::catalog::Catalog;
use domain::intent::OutboxEvent;
use domain::ports::IntentProducer;
use memory_stores::MemoryIntents;
use outbox::{
    Deadline, DeliveredEvent, Event, EventContent, EventTypes, Progress, Publication, Publisher,
    PublisherOutage, RecordWrite, Server, ServerNumber, ServerRecord,
};
use pg::RawTimestamp;
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::MachineClock;
use crate::network::{CallFailure, Connection};
use crate::replica::DEDUPE_TTL;
use crate::stores::Ledger;

/// The producer of all events.
pub(crate) const PRODUCER: &str = "game_master";
/// The longest age of a reading of Redis' clock.
const READING_MAX_AGE: Duration = Duration::from_secs(1);
/// The longest age of an observation of the server.
const OBSERVATION_MAX_AGE: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The keys of the relay in Redis.
#[derive(Debug)]
pub(crate) struct OutboxMarkers {
    clock: Arc<MachineClock>,
    state: Mutex<MarkersState>,
}

#[derive(Debug, Default)]
struct MarkersState {
    data: MarkersData,
    /// The number of starts of the server.
    starts: u64,
}

#[derive(Clone, Debug, Default)]
struct MarkersData {
    /// The time until which the marker of an event exists.
    markers: BTreeMap<Uuid, Timestamp>,
    records: Vec<StoredRecord>,
    /// Changes with each write of the records.
    version: u64,
}

#[derive(Clone, Debug)]
struct StoredRecord {
    types: EventTypes,
    server: u64,
    marked_since: RawTimestamp,
    progress: Progress,
}

/// A copy of the keys at one moment.
#[derive(Clone, Debug)]
pub(crate) struct MarkersBackup(MarkersData);

impl OutboxMarkers {
    pub(crate) fn new(clock: Arc<MachineClock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    pub(crate) fn backup(&self) -> MarkersBackup {
        MarkersBackup(lock(&self.state).data.clone())
    }

    pub(crate) fn restore(&self, backup: &MarkersBackup) {
        lock(&self.state).data = backup.0.clone();
    }

    pub(crate) fn restart(&self) {
        lock(&self.state).starts += 1;
    }
}

impl MarkersState {
    fn has_marker(&self, event: Uuid, now: Timestamp) -> bool {
        self.data.markers.get(&event).is_some_and(|until| *until > now)
    }
}

/// The server that a relay has met last.
#[derive(Debug, Default)]
struct KnownServer {
    number: u64,
    starts: Option<u64>,
    records: Vec<ServerRecord>,
    version: u64,
    at: Option<Instant>,
}

/// Publishes events of the outbox to the intents stream.
#[derive(Debug)]
pub(crate) struct OutboxPublisher {
    connection: Connection,
    markers: Arc<OutboxMarkers>,
    intents: Arc<MemoryIntents>,
    catalog: Arc<Catalog>,
    ledger: Arc<Ledger>,
    known: Mutex<KnownServer>,
    /// The last reading of Redis' clock, and the time at which it arrived.
    reading: Mutex<Option<(Timestamp, Instant)>>,
}

impl OutboxPublisher {
    pub(crate) fn new(
        connection: Connection,
        markers: &Arc<OutboxMarkers>,
        intents: &Arc<MemoryIntents>,
        catalog: &Arc<Catalog>,
        ledger: &Arc<Ledger>,
    ) -> Self {
        Self {
            connection,
            markers: Arc::clone(markers),
            intents: Arc::clone(intents),
            catalog: Arc::clone(catalog),
            ledger: Arc::clone(ledger),
            known: Mutex::default(),
            reading: Mutex::default(),
        }
    }

    /// Appends an event, unless its marker exists.
    async fn append(&self, event: &Event) -> Publication {
        let EventContent::Whole { payload, .. } = &event.content else {
            return Publication::Rejected("too large".to_owned());
        };
        let event_id = event.event_id.to_string();
        let outbox_event = OutboxEvent {
            event_id: &event_id,
            event_type: &event.event_type,
            payload,
            created_at: event.created_at,
            traceparent: None,
        };
        let entry = match outbox_event.to_entry(PRODUCER, &self.catalog) {
            Ok(entry) => entry,
            Err(rejection) => return Publication::Rejected(rejection.to_string()),
        };
        let now = self.markers.clock.now();
        if !lock(&self.markers.state).has_marker(event.event_id, now) {
            match self.intents.append(&entry).await {
                Ok(id) => {
                    let mut ledger = self.ledger.state();
                    ledger.acknowledged.entry(event_id).or_default().push(id);
                }
                Err(error) => return Publication::Failed(error.to_string()),
            }
        }
        lock(&self.markers.state).data.markers.insert(event.event_id, now + DEDUPE_TTL);
        Publication::Done
    }
}

fn outage(operation: &'static str) -> impl FnOnce(CallFailure) -> PublisherOutage {
    move |failure| PublisherOutage { operation, source: failure.store_error(operation).into() }
}

impl Publisher for OutboxPublisher {
    fn event_types(&self) -> EventTypes {
        let of_producer =
            self.catalog.types().filter(|kind| kind.producers().iter().any(|name| name == PRODUCER));
        EventTypes::Only(of_producer.map(|kind| kind.name().to_owned()).collect())
    }

    async fn deadline(&self, after: Duration) -> Result<Deadline, PublisherOutage> {
        const OPERATION: &str = "read the clock of Redis";
        let server = ServerNumber(lock(&self.known).number);
        let recent = lock(&self.reading).filter(|(_, at)| at.elapsed() < READING_MAX_AGE);
        let (clock, at) = match recent {
            Some(reading) => reading,
            None => {
                let clock = self.connection.call(OPERATION, || self.markers.clock.now()).await;
                *lock(&self.reading).insert((clock.map_err(outage(OPERATION))?, Instant::now()))
            }
        };
        let unix_ms = (clock + at.elapsed() + after).as_millis();
        Ok(Deadline { unix_ms: u64::try_from(unix_ms).unwrap_or(0), server })
    }

    async fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> Result<Vec<Publication>, PublisherOutage> {
        const OPERATION: &str = "append events of the outbox";
        let starts = {
            let known = lock(&self.known);
            known.starts.filter(|_| known.number == deadline.server.0)
        };
        let other_server = || outage(OPERATION)(CallFailure::Disconnected);
        let starts = starts.ok_or_else(other_server)?;
        let arrived = self.connection.request().await.map_err(outage(OPERATION))?;
        if lock(&self.markers.state).starts != starts {
            lock(&self.known).at = None;
            return Err(other_server());
        }
        let is_over =
            self.markers.clock.now().as_millis() > i64::try_from(deadline.unix_ms).unwrap_or(i64::MAX);
        let mut publications = Vec::with_capacity(events.len());
        for event in events {
            publications.push(if is_over { Publication::Withheld } else { self.append(event).await });
        }
        self.connection.response(arrived).await.map_err(outage(OPERATION))?;
        Ok(publications)
    }

    async fn server(&self, _: &str) -> Result<Server, PublisherOutage> {
        const OPERATION: &str = "ask which Redis server this is";
        let is_recent = lock(&self.known).at.is_some_and(|at| at.elapsed() < OBSERVATION_MAX_AGE);
        if !is_recent {
            let observe = || {
                let state = lock(&self.markers.state);
                (state.starts, state.data.records.clone(), state.data.version)
            };
            let observed = self.connection.call(OPERATION, observe).await;
            let (starts, records, version) = observed.map_err(outage(OPERATION))?;
            let mut known = lock(&self.known);
            if known.starts != Some(starts) {
                (known.number, known.starts) = (known.number + 1, Some(starts));
            }
            let record = |record: StoredRecord| ServerRecord {
                types: record.types,
                is_own: record.server == starts,
                marked_since: Some(record.marked_since),
                progress: record.progress,
            };
            known.records = records.into_iter().map(record).collect();
            (known.version, known.at) = (version, Some(Instant::now()));
        }
        let known = lock(&self.known);
        Ok(Server {
            id: ServerNumber(known.number),
            records: known.records.clone(),
            seen: known.version.to_be_bytes().as_slice().into(),
        })
    }

    async fn record_server(
        &self,
        _: &str,
        server: &Server,
        types: &EventTypes,
        progress: Progress,
        now: RawTimestamp,
    ) -> Result<RecordWrite, PublisherOutage> {
        const OPERATION: &str = "record which Redis server was compared with the outbox";
        let starts = {
            let known = lock(&self.known);
            known.starts.filter(|_| known.number == server.id.0)
        };
        let Some(starts) = starts else { return Ok(RecordWrite::Changed) };
        let write = || {
            let mut state = lock(&self.markers.state);
            if state.starts != starts || *server.seen != state.data.version.to_be_bytes()[..] {
                return RecordWrite::Changed;
            }
            let former = state.data.records.iter().find(|record| record.types == *types);
            let marked_since = former.map_or(now, |record| record.marked_since);
            state.data.records.retain(|record| record.types != *types);
            let record = StoredRecord { types: types.clone(), server: starts, marked_since, progress };
            state.data.records.push(record);
            state.data.version += 1;
            RecordWrite::Written
        };
        let written = self.connection.call(OPERATION, write).await;
        lock(&self.known).at = None;
        written.map_err(outage(OPERATION))
    }

    async fn has_markers(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, PublisherOutage> {
        const OPERATION: &str = "look for the markers of events";
        let find = || {
            let (now, state) = (self.markers.clock.now(), lock(&self.markers.state));
            events.iter().map(|event| state.has_marker(event.event_id, now)).collect()
        };
        self.connection.call(OPERATION, find).await.map_err(outage(OPERATION))
    }

    async fn has_entries(
        &self,
        events: &[DeliveredEvent],
        _: u64,
    ) -> Result<Option<Vec<bool>>, PublisherOutage> {
        const OPERATION: &str = "look for the entries of events";
        let find = || {
            let entries = self.intents.entries();
            let values = entries.iter().flat_map(|entry| &entry.fields.0);
            let keys: Vec<&[u8]> = values
                .filter(|(name, _)| &name[..] == b"idempotency_key")
                .map(|(_, value)| &value[..])
                .collect();
            events.iter().map(|event| keys.contains(&event.event_id.to_string().as_bytes())).collect()
        };
        self.connection.call(OPERATION, find).await.map(Some).map_err(outage(OPERATION))
    }
}
