//! Mode `intents`: an event becomes an intent of one producer.

use std::borrow::Cow;
use std::sync::Arc;

use domain::catalog::Catalog;
use domain::intent::OutboxEvent;
use outbox::Event;
use store_redis::OutboxEntry;

use super::{Mapping, headers, whole};

/// Maps events to entries of the intents stream. Rejects an event that the service would find malformed, with
/// its failure code.
#[derive(Debug)]
pub struct IntentMapping {
    /// The key of the intents stream.
    pub stream: String,
    /// The producer of the intents.
    pub producer: String,
    /// The catalogue against which an intent is checked.
    pub catalog: Arc<Catalog>,
}

impl Mapping for IntentMapping {
    fn event_types(&self) -> Vec<String> {
        let types = self.catalog.types().filter(|kind| kind.producers().contains(&self.producer));
        types.map(|kind| kind.name().to_owned()).collect()
    }

    fn stream<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        Some(&self.stream)
    }

    fn producer(&self) -> &str {
        &self.producer
    }

    fn destination(&self) -> String {
        format!("{} {}", self.producer, self.stream)
    }

    fn id_field(&self) -> &'static str {
        "idempotency_key"
    }

    fn producer_field(&self) -> Option<&'static str> {
        Some("producer")
    }

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
            producer: &self.producer,
            event_id,
            partition_key: &event.partition_key,
            fields: entry.0.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect(),
        })
    }
}
