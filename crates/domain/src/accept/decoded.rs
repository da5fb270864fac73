//! Decoding of stream entries by the rules of the envelope.

use ambient::Timestamp;

use crate::entry::{ENTRY_COST, EntryId, LargeEntry, RawEntry, RawFields};
use crate::intent::{self, Intent};
use crate::malformed_intent::{MalformedIntent, Rejection};
use crate::policy::Policy;
use crate::record::IdempotencyKey;

/// A decoded stream entry.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The id in the stream.
    pub id: EntryId,
    /// The memory that the entry takes, in bytes: [`crate::entry::cost`], or the length of its malformed row
    /// if that is more.
    pub cost: usize,
    /// The intent, or the malformed row for the first rule that the entry breaks. A malformed entry may be
    /// large, so nothing else of it is kept.
    pub content: Result<DecodedIntent, MalformedIntent>,
}

/// A well-formed intent and the fields that it was decoded from, which become a malformed row if the intent
/// is not accepted.
#[derive(Clone, Debug)]
pub struct DecodedIntent {
    /// The decoded intent.
    pub intent: Intent,
    /// The number of routes that the intent will have.
    pub routes: usize,
    /// The fields as received.
    pub fields: RawFields,
}

/// Decodes an entry of `stream` at the time `now`.
pub fn decode(stream: &str, entry: RawEntry, policy: &Policy, now: Timestamp) -> Decoded {
    let (id, cost) = (entry.id, entry.fields.cost());
    match intent::decode(&entry.fields, &policy.catalog) {
        Ok(intent) => {
            let routes = policy.route_count(&intent);
            Decoded { id, cost, content: Ok(DecodedIntent { intent, routes, fields: entry.fields }) }
        }
        Err(rejection) => {
            let row = MalformedIntent::new(stream, id, entry.fields, rejection, now);
            Decoded { id, cost: cost.max(row.raw_fields.json_length()), content: Err(row) }
        }
    }
}

/// Makes a malformed row, with the heads of the fields, for an entry of `stream` that is too large to be
/// read.
pub fn decode_large(stream: &str, entry: &LargeEntry, now: Timestamp) -> Decoded {
    let row = MalformedIntent::too_large(stream, entry, now);
    Decoded { id: entry.id, cost: ENTRY_COST + row.raw_fields.json_length(), content: Err(row) }
}

impl Decoded {
    /// The intent; `None` if the entry is malformed.
    pub fn intent(&self) -> Option<&Intent> {
        self.content.as_ref().ok().map(|decoded| &decoded.intent)
    }

    /// The number of routes that the intent will have; 0 if the entry is malformed.
    pub fn routes(&self) -> usize {
        self.content.as_ref().map_or(0, |decoded| decoded.routes)
    }

    /// [`crate::entry::RawFields::fingerprint`].
    pub fn fields_fingerprint(&self) -> String {
        match &self.content {
            Ok(decoded) => decoded.fields.fingerprint(),
            Err(row) => row.fields_fingerprint.clone(),
        }
    }

    /// The id and content that identify the entry among the outcomes in PostgreSQL.
    pub fn trace(&self) -> ProcessedTrace {
        let request = self.intent().map(|intent| (intent.key(), intent.fingerprint.clone()));
        ProcessedTrace { entry_id: self.id, fields_fingerprint: self.fields_fingerprint(), request }
    }

    /// The malformed row of the entry for another reason: one that is not in the entry itself, or one that
    /// outweighs the reason found there.
    pub(super) fn rejected(&self, stream: &str, rejection: Rejection, now: Timestamp) -> MalformedIntent {
        match &self.content {
            Ok(decoded) => MalformedIntent::new(stream, self.id, decoded.fields.clone(), rejection, now),
            Err(row) => row.with_rejection(rejection, now),
        }
    }
}

/// Identifies a processed entry: its id and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessedTrace {
    /// The id in the stream.
    pub entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`], as stored in a malformed row.
    pub fields_fingerprint: String,
    /// Key and fingerprint of the intent, as stored in a record; `None` if the entry is malformed.
    pub request: Option<(IdempotencyKey, String)>,
}
