//! What a relay publishes: the event of an outbox as the entry of a stream.

mod headers;
mod intents;
mod streams;

pub use intents::IntentMapping;
pub use streams::StreamMapping;

use std::time::Duration;

use outbox::{Content, Deadline, Event, Publication, Publisher, PublisherOutage};
use store_redis::{OutboxAppend, OutboxEntry, RedisOutboxStreams};

/// What an event becomes: one implementation for each mode.
pub trait Mapping: Send + Sync + 'static {
    /// Its entry, or why it can never be one.
    fn to_entry<'a>(&'a self, event: &'a Event) -> Result<OutboxEntry<'a>, String>;
}

/// Appends to streams what a mapping makes of events, under receipts.
#[derive(Debug)]
pub struct StreamPublisher<M> {
    /// Where entries are appended.
    pub streams: RedisOutboxStreams,
    /// What an event becomes.
    pub mapping: M,
}

impl<M: Mapping> Publisher for StreamPublisher<M> {
    async fn deadline(&self, after: Duration) -> Result<Deadline, PublisherOutage> {
        let deadline = self.streams.deadline(after).await;
        deadline.map(Deadline).map_err(|source| PublisherOutage {
            operation: "could not read the clock of Redis",
            source: source.into(),
        })
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
        let appended = self.streams.append(&entries, deadline.0).await.map_err(|source| PublisherOutage {
            operation: "could not append events of the outbox",
            source: source.into(),
        })?;
        let mut appended = appended.into_iter();
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
}

/// Payload and headers; a reason if they were too large to be read.
fn whole(event: &Event) -> Result<(&[u8], &str), String> {
    match &event.content {
        Content::Whole { payload, headers } => Ok((payload, headers)),
        Content::TooLarge { bytes } => Err(format!("entry_too_large: the event has {bytes} bytes")),
    }
}
