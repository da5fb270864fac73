//! Queries for malformed intents.

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::cursor::{Place, Query};
use crate::catalog::Catalog;
use crate::conflict::Conflict;
use crate::document::{Guarded, raw_fields_schema, stored_json};
use crate::malformed_intent::MalformedKey;
use crate::record::IdempotencyKey;
use crate::resubmit::ResubmittedOutcome;

/// Filter for malformed intents; a field that is `None` does not restrict the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MalformedFilter {
    /// Failure code.
    pub code: Option<String>,
    /// Producer, as received.
    pub producer: Option<String>,
    /// Idempotency key, as received.
    pub idempotency_key: Option<String>,
    /// Earliest time of recording, inclusive.
    pub recorded_after: Option<Timestamp>,
    /// Latest time of recording, exclusive.
    pub recorded_before: Option<Timestamp>,
}

impl Query for MalformedFilter {
    const LIST: &'static str = "malformed-intents";

    fn conditions(&self) -> Vec<Option<String>> {
        let mut conditions = vec![
            self.code.clone(),
            self.producer.clone(),
            self.recorded_after.map(|at| at.to_string()),
            self.recorded_before.map(|at| at.to_string()),
        ];
        // Without a key the cursors equal those of versions that lacked this condition.
        conditions.extend(self.idempotency_key.clone().map(Some));
        conditions
    }
}

/// A malformed intent's place in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MalformedPlace {
    /// Time of recording.
    pub recorded_at: Timestamp,
    /// Primary key of the row.
    pub key: MalformedKey,
}

impl Place for MalformedPlace {
    type Filter = MalformedFilter;

    fn parts(&self) -> (Timestamp, Vec<&str>) {
        let MalformedKey { stream, entry_id, fields_fingerprint } = &self.key;
        (self.recorded_at, vec![stream, entry_id, fields_fingerprint])
    }

    fn from_parts(recorded_at: Timestamp, texts: Vec<String>) -> Option<Self> {
        let [stream, entry_id, fields_fingerprint] = <[String; 3]>::try_from(texts).ok()?;
        Some(Self { recorded_at, key: MalformedKey { stream, entry_id, fields_fingerprint } })
    }
}

/// A malformed intent without its raw fields, which may be large.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MalformedIntentSummary")]
pub struct MalformedSummary {
    /// Stream, entry id and fingerprint of the fields.
    #[serde(flatten)]
    pub key: MalformedKey,
    /// Type as received; empty if it was not text of at most 255 bytes. `null` to a producer that may not
    /// send this type, or if no type has the name: then the entry may be another producer's.
    /// `idempotency_key`, `failure_message` and `raw_fields` are `null` with it.
    pub notification_type: Guarded,
    /// Producer as received; empty if it was not text of at most 255 bytes.
    pub producer: String,
    /// Idempotency key as received; empty if it was not text of at most 255 bytes.
    pub idempotency_key: Guarded,
    /// The first rule that the entry breaks, or a code of an older version.
    pub failure_code: String,
    /// Explanation for a person.
    pub failure_message: Guarded,
    /// Time of the decision.
    pub recorded_at: Timestamp,
    /// When an operator resubmitted it; `null` if none did.
    pub resubmitted_at: Option<Timestamp>,
    /// The id of the new entry, whose outcome is that of the intent.
    pub resubmitted_entry_id: Option<String>,
}

impl MalformedSummary {
    /// Its place in the list.
    pub fn place(&self) -> MalformedPlace {
        MalformedPlace { recorded_at: self.recorded_at, key: self.key.clone() }
    }

    /// Its key, as received.
    pub fn idempotency_key(&self) -> IdempotencyKey {
        IdempotencyKey { producer: self.producer.clone(), key: self.idempotency_key.to_string() }
    }

    /// Removes the content of the entry, for a reader that may not see it.
    pub fn withhold(&mut self) {
        self.notification_type.withhold();
        self.idempotency_key.withhold();
        self.failure_message.withhold();
    }

    /// True if the named producer may send the named type. If not, the entry may belong to another producer.
    pub fn allows_producer(&self, catalog: &Catalog) -> bool {
        catalog.get(&self.notification_type).is_some_and(|known| known.allows_producer(&self.producer))
    }
}

/// A malformed intent, whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MalformedIntent")]
pub struct StoredMalformedIntent {
    /// All columns except the raw fields.
    #[serde(flatten)]
    pub summary: MalformedSummary,
    /// The fields of the entry as `[name, value]`, in the order received. Bytes that are not text are
    /// `{"base64": …}`; what is too long is truncated. `null` if it is too large to be sent with the others,
    /// and to a viewer who may not see personal data.
    #[serde(serialize_with = "stored_json")]
    #[schemars(schema_with = "raw_fields_schema")]
    pub raw_fields: Option<String>,
    /// The id of the malformed entry that an operator resubmitted as this one; `null` if it is not one.
    pub resubmitted_from: Option<String>,
    /// The outcome of the new entry; `null` if no operator resubmitted this one.
    pub resubmitted_outcome: Option<ResubmittedOutcome>,
    /// The other intent, if the code is `idempotency_conflict`; else `null`.
    pub conflict: Option<Conflict>,
}

impl StoredMalformedIntent {
    /// Removes the content of the entry, for a reader that may not see it.
    pub fn withhold(&mut self) {
        self.summary.withhold();
        self.raw_fields = None;
        self.resubmitted_outcome = None;
        self.conflict = None;
    }
}
