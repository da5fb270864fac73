//! Mode `streams`: an event is appended unchanged to the stream that its type names.

use std::collections::BTreeSet;

use outbox::Event;
use store_redis::{OutboxEntry, OutboxField};

use super::{Mapping, headers, whole};

/// Maps events to entries of the streams that they name, with the fields of the original relay.
#[derive(Debug)]
pub struct StreamMapping {
    /// The keys of the permitted streams.
    pub allowed: BTreeSet<String>,
}

impl Mapping for StreamMapping {
    fn event_types(&self) -> Vec<String> {
        self.allowed.iter().cloned().collect()
    }

    fn stream<'a>(&'a self, event_type: &'a str) -> Option<&'a str> {
        self.allowed.contains(event_type).then_some(event_type)
    }

    fn producer(&self) -> &str {
        ""
    }

    fn destination(&self) -> String {
        String::new()
    }

    fn id_field(&self) -> &'static str {
        "id"
    }

    fn producer_field(&self) -> Option<&'static str> {
        None
    }

    fn to_entry<'a>(&'a self, event: &'a Event) -> Result<OutboxEntry<'a>, String> {
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
            producer: "",
            event_id,
            partition_key: &event.partition_key,
            fields,
        })
    }
}
