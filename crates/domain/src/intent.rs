//! A producer's request to notify an audience: decoded by the rules of the envelope, converted to normal form
//! and fingerprinted.
//!
//! The rules are tried in a fixed order, and the first one broken is the entry's failure code. So every
//! replica and `send` reject an entry for the same reason. Whether a key was used before or a recipient
//! exists is not decided here. Messages name fields and their allowed values; they never repeat a payload or
//! a recipient.

use ambient::Timestamp;

use crate::catalog::AudienceKind;
use crate::record::IdempotencyKey;

mod body;
mod decode;
mod draft;
mod envelope;
mod event;
mod fingerprint;

pub use body::{BodyContext, IntentBody, NotAnObject};
pub use decode::decode;
pub use draft::{IntentDraft, Recipients};
pub use envelope::FIELDS;
pub use event::OutboxEvent;

/// The largest entry: all names and values, in bytes.
pub const MAX_ENTRY: usize = 256 * 1024;
/// The largest `payload_json`, in bytes as received.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// The most recipients of one intent, counted before repeats are removed.
pub const MAX_RECIPIENTS: usize = 1_000;
/// The longest recipient, in bytes.
pub const MAX_RECIPIENT: usize = 128;
/// The longest `idempotency_key`, `request_id` and `trace_id`, in bytes.
pub const MAX_IDENTIFIER: usize = 255;
/// The last `occurred_at_ms`: the last millisecond of the year 9999.
pub const MAX_OCCURRED_AT_MS: i64 = 253_402_300_799_999;

/// The recipients of an intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Audience {
    /// These user ids: at least one, sorted by bytes, without repeats.
    Users(Vec<String>),
    /// The addresses configured for the type.
    AdminEmail,
}

impl Audience {
    /// The kind in the field `audience_kind`.
    pub fn kind(&self) -> AudienceKind {
        match self {
            Self::Users(_) => AudienceKind::User,
            Self::AdminEmail => AudienceKind::AdminEmail,
        }
    }

    /// The user ids; none for administrators.
    pub fn users(&self) -> &[String] {
        match self {
            Self::Users(users) => users,
            Self::AdminEmail => &[],
        }
    }
}

/// A valid intent in normal form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The name of a type in the catalogue.
    pub notification_type: String,
    /// A producer that the type allows.
    pub producer: String,
    /// An audience that the type allows.
    pub audience: Audience,
    /// The key chosen by the producer, which uses it for this intent only.
    pub idempotency_key: String,
    /// The time of the event according to the producer, in whole milliseconds.
    pub occurred_at: Timestamp,
    /// The payload in normal form.
    pub payload_json: String,
    /// The request id, for observability only; empty if not given.
    pub request_id: String,
    /// The trace id, for observability only; empty if not given.
    pub trace_id: String,
    /// `v1:` and the lower-case hex SHA-256 of everything except the key and the two ids above. Equal
    /// fingerprints under one key are a duplicate, different ones a conflict.
    pub fingerprint: String,
}

impl Intent {
    /// The approximate memory that the intent takes, in bytes, as counted for a transaction
    /// ([`crate::entry::cost`]).
    pub fn cost(&self) -> usize {
        let users = self.audience.users();
        let bytes = self.payload_json.len() + users.iter().map(String::len).sum::<usize>();
        crate::entry::cost(bytes, users.len() + FIELDS.len())
    }

    /// The key that the intent reserves when it is accepted.
    pub fn key(&self) -> IdempotencyKey {
        IdempotencyKey { producer: self.producer.clone(), key: self.idempotency_key.clone() }
    }
}

#[cfg(test)]
mod tests;
