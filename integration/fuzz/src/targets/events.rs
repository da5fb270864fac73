//! Events of an outbox: type, partition key, payload and headers, separated by 0x1e.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use app::relay::{IntentMapping, Mapping, StreamMapping};
use bytes::Bytes;
use domain::catalog::Catalog;
use domain::entry::RawFields;
use domain::intent::decode;
use outbox::{Event, EventContent};
use uuid::Uuid;

use super::entries::{catalog, check_intent};
use crate::Target;
use crate::text::records;

pub(super) const TARGET: Target = Target { name: "events", max_bytes: 8 * 1024, check };

/// The most headers of an event.
const MAX_HEADERS: usize = 1_000;

static INTENTS: LazyLock<IntentMapping> = LazyLock::new(|| IntentMapping {
    stream: "intents".to_owned(),
    producer: "game_master".to_owned(),
    catalog: Arc::new(Catalog::built_in()),
});
static STREAMS: LazyLock<StreamMapping> =
    LazyLock::new(|| StreamMapping { allowed: BTreeSet::from(["orders".to_owned()]) });

fn check(input: &[u8]) {
    let mut parts = records(input);
    let mut part = || parts.next().unwrap_or_default();
    let (event_type, partition_key) = (String::from_utf8_lossy(part()), String::from_utf8_lossy(part()));
    let (payload, headers) = (Bytes::copy_from_slice(part()), String::from_utf8_lossy(part()));
    let event = Event {
        event_id: Uuid::from_u128(1),
        event_type: event_type.into_owned(),
        partition_key: partition_key.into_owned(),
        content: EventContent::Whole { payload: payload.clone(), headers: headers.into_owned() },
        attempts: 0,
        created_at: None,
    };
    match INTENTS.to_entry(&event) {
        Ok(entry) => {
            assert_eq!((entry.stream, entry.producer), ("intents", "game_master"));
            let fields: RawFields = entry.fields.into_iter().map(owned).collect();
            check_intent(&decode(&fields, catalog()).expect("the entry of an event is an intent"));
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
    match STREAMS.to_entry(&event) {
        Ok(entry) => {
            assert_eq!((entry.stream, entry.partition_key), ("orders", event.partition_key.as_str()));
            assert!(entry.fields.len() <= 3 + MAX_HEADERS);
            let names: BTreeSet<&Cow<'_, [u8]>> = entry.fields.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), entry.fields.len(), "a field is there twice");
            let sent = entry.fields.iter().find(|(name, _)| **name == *b"payload").map(|(_, value)| value);
            assert_eq!(sent.map(|value| &**value), Some(&*payload), "the payload was changed");
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

fn owned((name, value): (Cow<'_, [u8]>, Cow<'_, [u8]>)) -> (Vec<u8>, Vec<u8>) {
    (name.into_owned(), value.into_owned())
}
