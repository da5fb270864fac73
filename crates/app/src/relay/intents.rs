//! Mode `intents`: an event becomes an intent of one producer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use domain::intent::OutboxEvent;
use outbox::{Deadline, Event, Publication, Publisher, PublisherOutage};
use store_redis::{OutboxEntry, RedisOutboxStreams, outbox_receipt};

use super::{append, deadline, headers, whole};

/// Appends events to the intents stream. What the service would find malformed is rejected, with its failure code.
#[derive(Debug)]
pub struct IntentsPublisher {
    /// Where they are appended.
    pub streams: RedisOutboxStreams,
    /// The key of the intents stream.
    pub stream: String,
    /// Whose intents they are.
    pub producer: String,
    /// What an intent must satisfy.
    pub catalog: Arc<Catalog>,
}

impl IntentsPublisher {
    fn to_entry<'a>(&'a self, event: &'a Event) -> Result<OutboxEntry<'a>, String> {
        let (payload, headers) = whole(event)?;
        let event_id = event.event_id.to_string();
        let traceparent = headers::traceparent(headers);
        let intent = OutboxEvent {
            event_id: &event_id,
            event_type: &event.event_type,
            payload,
            created_at: event.created_at,
            traceparent: traceparent.as_deref(),
        };
        let entry =
            intent.to_entry(&self.producer, &self.catalog).map_err(|rejection| rejection.to_string())?;
        Ok(OutboxEntry {
            stream: &self.stream,
            receipt: outbox_receipt(&self.stream, &self.producer, &event_id),
            partition_key: &event.partition_key,
            fields: entry.0.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect(),
        })
    }
}

impl Publisher for IntentsPublisher {
    async fn deadline(&self, after: Duration) -> Result<Deadline, PublisherOutage> {
        deadline(&self.streams, after).await
    }

    async fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> Result<Vec<Publication>, PublisherOutage> {
        append(&self.streams, events, deadline, |event| self.to_entry(event)).await
    }
}
