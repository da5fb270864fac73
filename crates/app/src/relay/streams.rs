//! Mode `streams`: an event goes as it is to the stream that its type names.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox::{Deadline, Event, Publication, Publisher, PublisherOutage};
use store_redis::{OutboxEntry, OutboxField, RedisOutboxStreams, outbox_receipt};

use super::{append, deadline, headers, whole};

/// Appends events to streams, with the fields of the original relay.
#[derive(Debug)]
pub struct StreamsPublisher {
    /// Where they are appended.
    pub streams: RedisOutboxStreams,
    /// The keys of the streams that events may go to.
    pub allowed: BTreeSet<String>,
}

impl StreamsPublisher {
    fn to_entry<'a>(&self, event: &'a Event) -> Result<OutboxEntry<'a>, String> {
        if !self.allowed.contains(&event.event_type) {
            return Err(
                "STREAM_NOT_ALLOWED: NOTIFICATION_OUTBOX_STREAMS does not name the event's type".to_owned()
            );
        }
        let (payload, headers) = whole(event)?;
        let event_id = event.event_id.to_string();
        let mut fields: Vec<OutboxField<'a>> =
            vec![(b"id".into(), event_id.clone().into_bytes().into()), (b"payload".into(), payload.into())];
        if !event.partition_key.is_empty() {
            fields.push((b"partition_key".into(), event.partition_key.as_bytes().into()));
        }
        for (name, value) in headers::parse(headers)? {
            fields.push((format!("h:{name}").into_bytes().into(), value.into_bytes().into()));
        }
        Ok(OutboxEntry {
            stream: &event.event_type,
            receipt: outbox_receipt(&event.event_type, "", &event_id),
            partition_key: &event.partition_key,
            fields,
        })
    }
}

impl Publisher for StreamsPublisher {
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
