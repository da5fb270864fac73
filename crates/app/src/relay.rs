//! What a relay publishes: the event of an outbox as the entry of a stream.

mod headers;
mod intents;
mod streams;

pub use intents::IntentsPublisher;
pub use streams::StreamsPublisher;

use outbox::{Content, Deadline, Event, Publication, PublisherOutage};
use store_redis::{OutboxAppend, OutboxEntry, RedisOutboxStreams};

/// Appends those of the events that `to_entry` has an entry for; the others are rejected with the reason that it gives.
async fn append<'a>(
    streams: &RedisOutboxStreams,
    events: &'a [Event],
    deadline: Deadline,
    to_entry: impl Fn(&'a Event) -> Result<OutboxEntry<'a>, String>,
) -> Result<Vec<Publication>, PublisherOutage> {
    let mut entries = Vec::with_capacity(events.len());
    let mut rejected = Vec::with_capacity(events.len());
    for event in events {
        match to_entry(event) {
            Ok(entry) => {
                entries.push(entry);
                rejected.push(None);
            }
            Err(reason) => rejected.push(Some(reason)),
        }
    }
    let appended = streams.append(&entries, deadline.0).await.map_err(|source| PublisherOutage {
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

async fn deadline(
    streams: &RedisOutboxStreams,
    after: std::time::Duration,
) -> Result<Deadline, PublisherOutage> {
    let deadline = streams.deadline(after).await;
    deadline.map(Deadline).map_err(|source| PublisherOutage {
        operation: "could not read the clock of Redis",
        source: source.into(),
    })
}

/// Payload and headers; a reason if they were too large to be read.
fn whole(event: &Event) -> Result<(&[u8], &str), String> {
    match &event.content {
        Content::Whole { payload, headers } => Ok((payload, headers)),
        Content::TooLarge { bytes } => Err(format!("entry_too_large: the event has {bytes} bytes")),
    }
}
