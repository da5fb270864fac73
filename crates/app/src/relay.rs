//! The publisher of a relay: it appends events of an outbox to streams as entries.

mod entries;
mod headers;
mod intents;
mod streams;

pub use intents::IntentMapping;
pub use streams::StreamMapping;

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use ambient::error_chain;
use domain::ports::StoreError;
use outbox::{
    Deadline, DeliveredEvent, Event, EventContent, EventTypes, Progress, Publication, Publisher,
    PublisherOutage, RecordWrite, Server, ServerNumber, ServerRecord,
};
use pg::RawTimestamp;
use store_redis::{
    NewOutboxRecord, OutboxAppend, OutboxEntry, OutboxProgress, OutboxRecord, RedisOutboxStreams,
};
use uuid::Uuid;

use self::entries::EntryCache;

/// Converts events to entries. Each mode has one implementation.
pub trait Mapping: Send + Sync + 'static {
    /// Returns the entry of the event, or the reason why the event can never have one.
    fn to_entry<'a>(&'a self, event: &'a Event) -> Result<OutboxEntry<'a>, String>;

    /// The types of the events that have entries.
    fn event_types(&self) -> Vec<String>;

    /// The stream for events of this type; `None` if there is none.
    fn stream<'a>(&'a self, event_type: &'a str) -> Option<&'a str>;

    /// The producer of the entries; empty if they have none.
    fn producer(&self) -> &str;

    /// The name of the place to which all events are appended; empty if each event names its own.
    fn destination(&self) -> String;

    /// The field of an entry that holds the id of its event, unless the event overrides the id.
    fn id_field(&self) -> &'static str;

    /// The field of an entry that holds [`Mapping::producer`]; `None` if entries have no producer.
    fn producer_field(&self) -> Option<&'static str>;
}

/// Appends the entries that a mapping creates from events, each with a published marker.
#[derive(Debug)]
pub struct StreamPublisher<M> {
    streams: RedisOutboxStreams,
    mapping: M,
    entries: EntryCache,
}

impl<M: Mapping> StreamPublisher<M> {
    /// Creates a publisher that appends to `streams`.
    pub fn new(streams: RedisOutboxStreams, mapping: M) -> Self {
        Self { streams, mapping, entries: EntryCache::default() }
    }

    /// Appends the entries. If Redis rejects them as a whole, for instance because one value is too large,
    /// appends them in halves. After a rejected entry, later entries with its key are withheld.
    async fn append(
        &self,
        entries: &[OutboxEntry<'_>],
        deadline: Deadline,
    ) -> Result<Vec<OutboxAppend>, StoreError> {
        let Deadline { unix_ms, server } = deadline;
        let mut appended: Vec<OutboxAppend> = Vec::with_capacity(entries.len());
        let mut parts = vec![entries];
        while let Some(part) = parts.pop() {
            let before = appended.iter().zip(entries);
            let blocked: HashSet<&str> = before
                .filter(|(outcome, _)| !matches!(outcome, OutboxAppend::Done(_)))
                .map(|(_, entry)| entry.partition_key)
                .filter(|key| !key.is_empty())
                .collect();
            let is_free = |entry: &OutboxEntry<'_>| !blocked.contains(entry.partition_key);
            let free: Cow<'_, [OutboxEntry<'_>]> = match part.iter().all(is_free) {
                true => Cow::Borrowed(part),
                false => part.iter().filter(|entry| is_free(entry)).cloned().collect(),
            };
            let outcomes = match self.streams.append(&free, unix_ms, server.0).await {
                Err(StoreError::Refused { .. }) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                    continue;
                }
                Err(error @ StoreError::Refused { .. }) => vec![OutboxAppend::Refused(error_chain(&error))],
                outcomes => outcomes?,
            };
            let mut outcomes = outcomes.into_iter();
            let outcome = |entry| if is_free(entry) { outcomes.next() } else { None };
            appended
                .extend(part.iter().map(outcome).map(|outcome| outcome.unwrap_or(OutboxAppend::Withheld)));
        }
        Ok(appended)
    }

    /// Returns true for each event that has a published marker. An event without a stream counts as one that
    /// has a marker.
    async fn find_markers(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, StoreError> {
        let appended = |event: &DeliveredEvent| {
            let stream = self.mapping.stream(&event.event_type)?;
            Some((stream.to_owned(), event.event_id.to_string()))
        };
        let appended: Vec<Option<(String, String)>> = events.iter().map(appended).collect();
        let asked: Vec<(&str, String)> =
            appended.iter().flatten().map(|(stream, id)| (stream.as_str(), id.clone())).collect();
        let found = self.streams.find_markers(self.mapping.producer(), &asked).await?;
        let mut found = found.into_iter();
        Ok(appended.iter().map(|event| event.is_none() || found.next().unwrap_or(false)).collect())
    }
}

fn outage(operation: &'static str) -> impl FnOnce(StoreError) -> PublisherOutage {
    move |source| PublisherOutage { operation, source: source.into() }
}

impl<M: Mapping> Publisher for StreamPublisher<M> {
    fn event_types(&self) -> EventTypes {
        EventTypes::Only(self.mapping.event_types())
    }

    async fn deadline(&self, after: Duration) -> Result<Deadline, PublisherOutage> {
        let server = ServerNumber(self.streams.known_server());
        let unix_ms =
            self.streams.deadline(after).await.map_err(outage("could not read the clock of Redis"))?;
        Ok(Deadline { unix_ms, server })
    }

    async fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> Result<Vec<Publication>, PublisherOutage> {
        let mut entries = Vec::with_capacity(events.len());
        let mut rejected = Vec::with_capacity(events.len());
        for event in events {
            match self.mapping.to_entry(event) {
                Ok(entry) => {
                    entries.push(entry);
                    rejected.push(None);
                }
                Err(reason) => rejected.push(Some(reason)),
            }
        }
        let appended = self.append(&entries, deadline).await;
        let mut appended = appended.map_err(outage("could not append events of the outbox"))?.into_iter();
        let publication = |rejected: Option<String>| match rejected {
            Some(reason) => Publication::Rejected(reason),
            None => match appended.next() {
                Some(OutboxAppend::Done(_)) => Publication::Done,
                Some(OutboxAppend::Refused(error)) => Publication::Failed(error),
                Some(OutboxAppend::Withheld) | None => Publication::Withheld,
            },
        };
        Ok(rejected.into_iter().map(publication).collect())
    }

    async fn server(&self, outbox: &str) -> Result<Server, PublisherOutage> {
        let server = self.streams.server(outbox).await;
        let server = server.map_err(outage("could not ask which Redis server this is"))?;
        let Some(server) = server else { return Ok(Server::lasting()) };
        let record = |record: &OutboxRecord| ServerRecord {
            types: record.types.clone().map_or(EventTypes::All, EventTypes::Only),
            is_own: *record.server == *server.identity,
            marked_since: record
                .marked_since
                .filter(|_| record.destination == self.mapping.destination())
                .map(RawTimestamp::from_server_micros),
            progress: match record.progress {
                OutboxProgress::Settled(until) => Progress::Settled(RawTimestamp::from_server_micros(until)),
                OutboxProgress::Unfinished { since, comparison } => {
                    Progress::Unfinished { since: RawTimestamp::from_server_micros(since), comparison }
                }
            },
        };
        let records = server.records.iter().map(record).collect();
        Ok(Server { id: ServerNumber(server.number), records, seen: server.seen })
    }

    async fn record_server(
        &self,
        outbox: &str,
        server: &Server,
        types: &EventTypes,
        progress: Progress,
        now: RawTimestamp,
    ) -> Result<RecordWrite, PublisherOutage> {
        let types = match types {
            EventTypes::All => None,
            EventTypes::Only(names) => Some(names.clone()),
        };
        let progress = match progress {
            Progress::Settled(until) => OutboxProgress::Settled(until.as_server_micros()),
            Progress::Unfinished { since, comparison } => {
                OutboxProgress::Unfinished { since: since.as_server_micros(), comparison }
            }
        };
        let (destination, now) = (self.mapping.destination(), now.as_server_micros());
        let new = NewOutboxRecord { types, destination, progress, now };
        let recorded = self.streams.record_server(outbox, server.id.0, &server.seen, new).await;
        let is_written = recorded.map_err(outage("could not record which Redis server was compared"))?;
        Ok(if is_written { RecordWrite::Written } else { RecordWrite::Changed })
    }

    async fn has_markers(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, PublisherOutage> {
        self.find_markers(events).await.map_err(outage("could not look for the markers of delivered events"))
    }

    async fn has_entries(
        &self,
        events: &[DeliveredEvent],
        round: u64,
    ) -> Result<Option<Vec<bool>>, PublisherOutage> {
        // Every event without a marker has a stream.
        let stream = |event| self.mapping.stream(event).unwrap_or_default();
        let events: Vec<(&str, Uuid)> =
            events.iter().map(|event| (stream(&event.event_type), event.event_id)).collect();
        let producer = self.mapping.producer_field().map(|field| (field, self.mapping.producer()));
        let newest = |stream: &str| self.streams.newest_entries(stream, self.mapping.id_field(), producer);
        let found = self.entries.find(newest, round, &events).await;
        found.map_err(outage("could not look for the entries of delivered events"))
    }
}

/// Returns payload and headers, or an error if they were too large to read.
fn whole(event: &Event) -> Result<(&[u8], &str), String> {
    match &event.content {
        EventContent::Whole { payload, headers } => Ok((payload, headers)),
        EventContent::TooLarge { bytes } => Err(format!("entry_too_large: the event has {bytes} bytes")),
    }
}
