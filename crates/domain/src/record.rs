//! The durable record of one accepted intent. It is the reservation of its idempotency key, too (ADR 0002).

use std::fmt;
use std::sync::Arc;

use ambient::Timestamp;

use crate::entry::EntryId;

/// `<entry id>`, or `<entry id>~<n>` where that id already belonged to another intent; a UUIDv7 for an intent
/// that did not come from a stream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NotificationId(Arc<str>);

impl NotificationId {
    /// The id of the intent that came as `entry`; `n` is 0 unless the id belongs to another intent.
    pub fn of(entry: EntryId, n: u32) -> Self {
        match n {
            0 => Self(entry.to_string().into()),
            n => Self(format!("{entry}~{n}").into()),
        }
    }

    /// A new id for an intent that did not come from a stream: a UUIDv7 of `at` and of random bytes, the last
    /// ten of which count.
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

    /// The entry that the intent came as; `None` if it did not come from a stream.
    pub fn entry(&self) -> Option<EntryId> {
        self.0.split('~').next()?.parse().ok()
    }
}

impl From<String> for NotificationId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for NotificationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What reserves an intent's place: no two records share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IdempotencyScope {
    /// Who sent it.
    pub producer: String,
    /// The key that the producer chose.
    pub key: String,
}

/// What publishing a route needs of its record; one copy is shared by all routes of the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// A type of the catalogue; event type and mail template at once.
    pub notification_type: String,
    /// The payload in normal form.
    pub payload_json: String,
    /// When the event happened, according to the producer.
    pub occurred_at: Timestamp,
    /// When this service took responsibility.
    pub accepted_at: Timestamp,
    /// For observability only; empty if not given.
    pub request_id: String,
    /// For observability only; empty if not given.
    pub trace_id: String,
}

/// A row of `records`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Primary key.
    pub notification_id: NotificationId,
    /// Unique, for as long as the record lives.
    pub scope: IdempotencyScope,
    /// `user` or `admin_email`.
    pub audience_kind: &'static str,
    /// Sorted by bytes, without repeats; empty for `admin_email`.
    pub recipient_user_ids: Vec<String>,
    /// Decides between duplicate and conflict.
    pub fingerprint: String,
    /// What its routes carry to the outside.
    pub content: Arc<Content>,
    /// `accepted_at` plus the idempotency TTL: reported, not enforced; the key lives as long as the record.
    pub idempotency_expires_at: Timestamp,
}

/// A record's place in the order of acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordCursor {
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Which one it is.
    pub notification_id: NotificationId,
}

impl RecordCursor {
    /// Before every record that was accepted at `accepted_at` or later.
    pub fn before(accepted_at: Timestamp) -> Self {
        Self { accepted_at, notification_id: NotificationId::from(String::new()) }
    }
}
