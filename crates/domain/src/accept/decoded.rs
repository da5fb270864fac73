//! Entries of the stream, read by the rules of the envelope.

use ambient::Timestamp;

use crate::entry::{ENTRY_COST, EntryId, LargeEntry, RawEntry, RawFields};
use crate::intent::{self, Intent};
use crate::malformed::{MalformedIntent, Rejection};
use crate::policy::Policy;
use crate::record::IdempotencyScope;

/// An entry of the stream, read by the rules of the envelope.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Its id in the stream.
    pub id: EntryId,
    /// What it costs to have it in memory, in bytes: [`crate::entry::cost`], or the length of its malformed
    /// row if that is more.
    pub cost: usize,
    /// What it says, or the row that it becomes because of the first rule that it breaks. Of a malformed
    /// entry nothing else is kept, because it may be large.
    pub content: Result<DecodedIntent, MalformedIntent>,
}

/// A well-formed intent and what it was read from, which becomes a malformed row if the intent is not
/// accepted.
#[derive(Clone, Debug)]
pub struct DecodedIntent {
    /// What the entry says.
    pub intent: Intent,
    /// How many routes it will have.
    pub routes: usize,
    /// As it was received.
    pub fields: RawFields,
}

/// Reads an entry of `stream` by the rules of the envelope, at the time `now`.
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

/// An entry of `stream` that is too large to be read: malformed, with the heads of its fields.
pub fn decode_large(stream: &str, entry: &LargeEntry, now: Timestamp) -> Decoded {
    let row = MalformedIntent::too_large(stream, entry, now);
    Decoded { id: entry.id, cost: ENTRY_COST + row.raw_fields.json_length(), content: Err(row) }
}

impl Decoded {
    /// What it says, if it is well formed.
    pub fn intent(&self) -> Option<&Intent> {
        self.content.as_ref().ok().map(|decoded| &decoded.intent)
    }

    /// How many routes it will have; 0 if it is malformed.
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

    /// By what it can be recognised among the outcomes that PostgreSQL has.
    pub fn trace(&self) -> ProcessedTrace {
        let request = self.intent().map(|intent| (intent.scope(), intent.fingerprint.clone()));
        ProcessedTrace { entry_id: self.id, fields_fingerprint: self.fields_fingerprint(), request }
    }

    /// The malformed row that it becomes for a reason that is not in the entry itself, or for a reason that
    /// outweighs the one found there.
    pub(super) fn rejected(&self, stream: &str, rejection: Rejection, now: Timestamp) -> MalformedIntent {
        match &self.content {
            Ok(decoded) => MalformedIntent::new(stream, self.id, decoded.fields.clone(), rejection, now),
            Err(row) => row.with_rejection(rejection, now),
        }
    }
}

/// By what an entry that has been processed is recognised: its id and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessedTrace {
    /// Its id in the stream.
    pub entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`], which a malformed row has.
    pub fields_fingerprint: String,
    /// Key and fingerprint, which a record has; `None` if the entry is malformed.
    pub request: Option<(IdempotencyScope, String)>,
}
