//! The durable record of one accepted intent. It also reserves the idempotency key (ADR 0002).

use std::fmt;
use std::sync::Arc;

use ambient::Timestamp;
use schemars::json_schema;
use serde::{Serialize, Serializer};

use crate::document::inline_schema;
use crate::entry::EntryId;

/// The id of a notification: `<entry id>`, or `<entry id>~<n>` if that id already belonged to another intent;
/// a UUIDv7 for an intent that did not come from a stream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NotificationId(Arc<str>);

impl NotificationId {
    /// The id of the intent in the stream entry `entry`; `n` is 0 unless the id belongs to another intent.
    pub fn of(entry: EntryId, n: u32) -> Self {
        match n {
            0 => Self(entry.to_string().into()),
            n => Self(format!("{entry}~{n}").into()),
        }
    }

    /// A new id for an intent that did not come from a stream: a UUIDv7 of `at` and the last ten of the
    /// random bytes.
    pub fn v7(at: Timestamp, random: [u8; 16]) -> Self {
        let mut counted = [0; 10];
        counted.copy_from_slice(&random[6..]);
        let millis = u64::try_from(at.as_millis()).unwrap_or(0);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &counted).into_uuid();
        Self(id.hyphenated().to_string().into())
    }

    /// The text in the tables and the outbound entries.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The time in the id: the id of the stream entry, or the time of the acceptance in this form. Zero if
    /// the service did not make the id.
    pub fn time(&self) -> EntryId {
        self.entry().unwrap_or_else(|| {
            let at = uuid::Uuid::try_parse(&self.0).ok().and_then(|id| id.get_timestamp());
            let (seconds, nanos) = at.map_or((0, 0), |at| at.to_unix());
            EntryId::new(seconds.saturating_mul(1_000) + u64::from(nanos / 1_000_000), 0)
        })
    }

    /// Returns the id of the intent's stream entry; `None` if the intent did not come from a stream.
    pub fn entry(&self) -> Option<EntryId> {
        self.0.split('~').next()?.parse().ok()
    }
}

impl From<String> for NotificationId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Serialize for NotificationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

inline_schema!(NotificationId, json_schema!({"type": "string"}));

impl fmt::Display for NotificationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The idempotency key of an intent, with the producer that chose it. Each record has a different one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IdempotencyKey {
    /// The producer of the intent.
    pub producer: String,
    /// The key that the producer chose.
    pub key: String,
}

/// The part of a record that is needed to publish its routes. All routes of the record share one copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordContent {
    /// The producer of the intent.
    pub producer: String,
    /// The name of a type in the catalogue, which is also the event type and the mail template.
    pub notification_type: String,
    /// The payload in normal form.
    pub payload_json: String,
    /// The time of the event according to the producer.
    pub occurred_at: Timestamp,
    /// The time at which this service took responsibility.
    pub accepted_at: Timestamp,
    /// The request id, for observability only; empty if not given.
    pub request_id: String,
    /// The trace id, for observability only; empty if not given.
    pub trace_id: String,
}

/// A row of `records`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The primary key.
    pub notification_id: NotificationId,
    /// The producer and idempotency key, unique as long as the record exists.
    pub idempotency_key: IdempotencyKey,
    /// The kind of audience: `user` or `admin_email`.
    pub audience_kind: &'static str,
    /// The recipients, sorted by bytes, without repeats; empty for `admin_email`.
    pub recipient_user_ids: Vec<String>,
    /// The fingerprint of the intent, which distinguishes a duplicate from a conflict.
    pub fingerprint: String,
    /// The content that its routes publish.
    pub content: Arc<RecordContent>,
    /// `accepted_at` plus the idempotency TTL. It is reported, not enforced: the key is taken as long as the
    /// record exists.
    pub idempotency_expires_at: Timestamp,
}

/// The position of a record in the order of acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordCursor {
    /// The time of acceptance.
    pub accepted_at: Timestamp,
    /// The id of the record.
    pub notification_id: NotificationId,
}

impl RecordCursor {
    /// Returns the position before every record that was accepted at `accepted_at` or later.
    pub fn before(accepted_at: Timestamp) -> Self {
        Self { accepted_at, notification_id: NotificationId::from(String::new()) }
    }
}
