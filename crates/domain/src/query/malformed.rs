//! Malformed intents.

use ambient::Timestamp;

use super::cursor::{Place, Query};
use crate::catalog::Catalog;
use crate::malformed::MalformedKey;

/// Which malformed intents to list; what is `None` selects nothing out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MalformedFilter {
    /// With this failure code.
    pub code: Option<String>,
    /// Of this producer, as received.
    pub producer: Option<String>,
    /// With this idempotency key, as received.
    pub idempotency_key: Option<String>,
    /// Recorded at this time or later.
    pub recorded_after: Option<Timestamp>,
    /// Recorded before this time.
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
        // Without a key the cursors are those of versions that did not know this condition.
        conditions.extend(self.idempotency_key.clone().map(Some));
        conditions
    }
}

/// A malformed intent's place in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MalformedPlace {
    /// When it was recorded.
    pub recorded_at: Timestamp,
    /// Which one it is.
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
    /// Its stream, entry id and the fingerprint of its fields.
    pub key: MalformedKey,
    /// As received, if it is text of at most 255 bytes; else empty. The next two likewise.
    pub notification_type: String,
    /// See `notification_type`.
    pub producer: String,
    /// See `notification_type`.
    pub idempotency_key: String,
    /// The first rule that it breaks: [`FailureCode`](crate::malformed::FailureCode), or one of an older
    /// version.
    pub failure_code: String,
    /// What was found, for a person.
    pub failure_message: String,
    /// When it was decided.
    pub recorded_at: Timestamp,
}

impl MalformedSummary {
    /// Its place in the list.
    pub fn place(&self) -> MalformedPlace {
        MalformedPlace { recorded_at: self.recorded_at, key: self.key.clone() }
    }

    /// Whether the producer that the entry names may send the type that it names. If not, the entry may be
    /// another producer's.
    pub fn allows_producer(&self, catalog: &Catalog) -> bool {
        catalog.get(&self.notification_type).is_some_and(|known| known.allows_producer(&self.producer))
    }
}

/// A row of `malformed_intents`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMalformedIntent {
    /// All but the raw fields.
    pub summary: MalformedSummary,
    /// The raw fields as JSON, whole: an array of `[name, value]` in the order received. `None` if the rows
    /// before it in the answer are so large that there is no room for them.
    pub raw_fields: Option<String>,
}
