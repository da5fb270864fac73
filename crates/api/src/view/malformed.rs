//! Malformed intents.

use domain::query::{MalformedSummary, StoredMalformedIntent};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

use super::{Time, json_of};

/// A page of malformed intents, newest first.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntentsPage<'a> {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub malformed_intents: Vec<MalformedIntentSummary<'a>>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// The malformed intents of one stream entry id.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntents<'a> {
    /// The newest first.
    pub malformed_intents: Vec<MalformedIntent<'a>>,
}

impl<'a> MalformedIntents<'a> {
    /// Renders the rows for operators.
    pub fn new(found: &'a [StoredMalformedIntent]) -> Self {
        Self { malformed_intents: found.iter().map(MalformedIntent::new).collect() }
    }
}

/// A malformed intent without its raw fields.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntentSummary<'a> {
    /// The stream it came by.
    stream: &'a str,
    stream_entry_id: &'a str,
    /// Tells entries of the same id apart.
    fields_fingerprint: &'a str,
    /// As received; empty if it was not text of at most 255 bytes. `null` to a producer that may not send
    /// this type, or if no type has the name: then the entry may be another producer's. `idempotency_key`,
    /// `failure_message` and `raw_fields` are `null` with it.
    notification_type: Option<&'a str>,
    /// As received; empty if it was not text of at most 255 bytes.
    producer: &'a str,
    /// As received; empty if it was not text of at most 255 bytes.
    idempotency_key: Option<&'a str>,
    /// The first rule that it breaks.
    failure_code: &'a str,
    failure_message: Option<&'a str>,
    recorded_at: Time,
}

impl<'a> MalformedIntentSummary<'a> {
    /// Renders the summary for operators.
    pub fn new(summary: &'a MalformedSummary) -> Self {
        Self::for_reader(summary, true)
    }

    /// Renders the summary, with or without the content of the entry.
    pub fn for_reader(summary: &'a MalformedSummary, with_content: bool) -> Self {
        let content = |text| with_content.then_some(text);
        Self {
            stream: &summary.key.stream,
            stream_entry_id: &summary.key.entry_id,
            fields_fingerprint: &summary.key.fields_fingerprint,
            notification_type: content(&*summary.notification_type),
            producer: &summary.producer,
            idempotency_key: content(&*summary.idempotency_key),
            failure_code: &summary.failure_code,
            failure_message: content(&*summary.failure_message),
            recorded_at: Time(summary.recorded_at),
        }
    }
}

/// A malformed intent, whole.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntent<'a> {
    #[serde(flatten)]
    summary: MalformedIntentSummary<'a>,
    /// The fields of the entry as `[name, value]`, in the order received. Bytes that are not text are
    /// `{"base64": …}`; what is too long is truncated. `null` if it is too large to be sent with the others.
    #[schemars(schema_with = "raw_fields_schema")]
    raw_fields: Value,
}

impl<'a> MalformedIntent<'a> {
    /// Renders the row for operators.
    pub fn new(stored: &'a StoredMalformedIntent) -> Self {
        Self::for_reader(stored, true)
    }

    /// Renders the row, with or without the content of the entry.
    pub fn for_reader(stored: &'a StoredMalformedIntent, with_content: bool) -> Self {
        let raw_fields = stored.raw_fields.as_deref().filter(|_| with_content);
        Self {
            summary: MalformedIntentSummary::for_reader(&stored.summary, with_content),
            raw_fields: raw_fields.map_or(Value::Null, json_of),
        }
    }
}

fn raw_fields_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["array", "null"],
        "items": {"type": "array", "items": {"type": ["string", "object"]}, "minItems": 2, "maxItems": 2},
    })
}
