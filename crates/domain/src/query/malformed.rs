//! Queries for malformed intents.

use ambient::Timestamp;

use super::cursor::{Place, Query};
use crate::catalog::Catalog;
use crate::malformed::MalformedKey;

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

/// A row of `malformed_intents` without its raw fields, which may be large.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MalformedSummary {
    /// Stream, entry id and fingerprint of the fields.
    pub key: MalformedKey,
    /// Type as received, if it is text of at most 255 bytes; else empty. The same holds for the next two.
    pub notification_type: String,
    /// Producer; see `notification_type`.
    pub producer: String,
    /// Idempotency key; see `notification_type`.
    pub idempotency_key: String,
    /// The first rule that the entry breaks: [`FailureCode`](crate::malformed::FailureCode), or a code of an
    /// older version.
    pub failure_code: String,
    /// Explanation for a person.
    pub failure_message: String,
    /// Time of the decision.
    pub recorded_at: Timestamp,
}

impl MalformedSummary {
    /// Its place in the list.
    pub fn place(&self) -> MalformedPlace {
        MalformedPlace { recorded_at: self.recorded_at, key: self.key.clone() }
    }

    /// True if the named producer may send the named type. If not, the entry may belong to another producer.
    pub fn allows_producer(&self, catalog: &Catalog) -> bool {
        catalog.get(&self.notification_type).is_some_and(|known| known.allows_producer(&self.producer))
    }
}

/// A row of `malformed_intents`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMalformedIntent {
    /// All columns except the raw fields.
    pub summary: MalformedSummary,
    /// The complete raw fields as JSON: an array of `[name, value]` in the order received. `None` if the rows
    /// before it in the response are so large that there is no room for them.
    pub raw_fields: Option<String>,
}
