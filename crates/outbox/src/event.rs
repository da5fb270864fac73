//! An event as a relay claims it.

use ambient::Timestamp;
use bytes::Bytes;
use uuid::Uuid;

/// The most characters of an error that `last_error` keeps.
pub const MAX_ERROR_CHARS: usize = 2_000;
/// How `last_error` begins while an event is to be claimed alone.
pub(crate) const REAPED: &str = "lease expired";

/// An error as the column `last_error` takes it.
pub(crate) fn stored_error(error: &str) -> String {
    error.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c }).take(MAX_ERROR_CHARS).collect()
}

/// A row of the outbox, claimed.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Its primary key, under which receipts recognise it.
    pub event_id: Uuid,
    /// What kind of event it is, or where it goes: the publisher's to interpret.
    pub event_type: String,
    /// Events with the same key are published in order; empty for none, which NULL is too.
    pub partition_key: String,
    /// Payload and headers.
    pub content: Content,
    /// How often it has failed before.
    pub attempts: u32,
    /// When the producer's transaction began, unless the producer says otherwise; `None` if it is not a time
    /// between the years 1 and 9999.
    pub created_at: Option<Timestamp>,
}

/// What an event carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// All of it.
    Whole {
        /// The column `payload`, byte for byte.
        payload: Bytes,
        /// The column `headers`, as JSON text.
        headers: String,
    },
    /// It exceeds the limit of the claim, and was not read.
    TooLarge {
        /// How large it is.
        bytes: u64,
    },
}
