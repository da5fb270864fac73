//! An event as a relay claims it.

use ambient::Timestamp;
use bytes::Bytes;
use uuid::Uuid;

/// The number of characters of an error that `last_error` keeps.
pub const MAX_ERROR_CHARS: usize = 2_000;
/// The beginning of `last_error` while an event must be claimed apart from others.
pub(crate) const REAPED: &str = "lease expired";

/// Converts an error to the form stored in the column `last_error`.
pub(crate) fn stored_error(error: &str) -> String {
    error.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c }).take(MAX_ERROR_CHARS).collect()
}

/// A claimed row of the outbox.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Its primary key, which also identifies its published marker.
    pub event_id: Uuid,
    /// Its kind or destination, interpreted by the publisher.
    pub event_type: String,
    /// Events with the same key are published in order; empty for none, also if the column is NULL.
    pub partition_key: String,
    /// Payload and headers.
    pub content: EventContent,
    /// The number of earlier failed attempts.
    pub attempts: u32,
    /// The start of the producer's transaction, unless the producer set another time; `None` if outside the
    /// years 1 to 9999.
    pub created_at: Option<Timestamp>,
}

/// The payload and headers of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventContent {
    /// Payload and headers, complete.
    Whole {
        /// The column `payload`, byte for byte.
        payload: Bytes,
        /// The column `headers`, as JSON text.
        headers: String,
    },
    /// The event exceeds the limit of the claim and was not read.
    TooLarge {
        /// Its size.
        bytes: u64,
    },
}
