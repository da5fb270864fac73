//! What is kept of an entry that was not accepted, and the codes that say why.
//!
//! The fields are kept as they came, byte for byte, up to a size that no sound entry comes near. A row never fails to
//! be stored for what a producer wrote: bytes that PostgreSQL refuses are kept as base64.

use ambient::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::entry::{EntryId, RawEntry, RawFields};
use crate::json;

/// Up to this many bytes, [`FIELD_COST`] included, the fields of an entry are kept whole; of a larger one no more than
/// this many bytes are kept.
pub const RAW_FIELDS_MAX: usize = 16 * 1024 * 1024;

/// What each field counts beyond its bytes, so that empty fields do not come for nothing.
pub const FIELD_COST: usize = 16;

/// How many bytes are kept of a long name or value of an entry that is not kept whole.
pub const TRUNCATED_HEAD: usize = 64 * 1024;

/// The longest value that an id column of `malformed_intents` holds, in bytes.
const MAX_ID: usize = 255;

/// The longest message, in characters.
const MAX_MESSAGE: usize = 1_000;

/// The first rule that an entry broke, in the order in which the rules are tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureCode {
    /// More than 256 KiB.
    EntryTooLarge,
    /// A name or value is not UTF-8.
    InvalidEncoding,
    /// A field name twice.
    RepeatedField,
    /// A field that the envelope does not have.
    UnknownField,
    /// A required field is absent or empty.
    MissingField,
    /// Not a type of the catalogue.
    UnknownNotificationType,
    /// The type does not allow this producer.
    ProducerNotAllowed,
    /// The type does not allow this audience.
    AudienceNotAllowed,
    /// Not an array of 1 to 1,000 strings of 1 to 128 bytes, or recipients on `admin_email`.
    InvalidRecipients,
    /// Length, white space or control characters of an identifier, or a time that is none.
    InvalidField,
    /// Not strict JSON, not an object, too long.
    InvalidPayloadJson,
    /// The payload does not satisfy the type's schema.
    PayloadSchemaViolation,
    /// The key was used for something else.
    IdempotencyConflict,
    /// A recipient does not exist.
    RecipientNotFound,
    /// PostgreSQL refuses this one element.
    NotStorable,
}

impl FailureCode {
    /// Every code, in the order in which the rules are tried.
    pub const ALL: [Self; 15] = [
        Self::EntryTooLarge,
        Self::InvalidEncoding,
        Self::RepeatedField,
        Self::UnknownField,
        Self::MissingField,
        Self::UnknownNotificationType,
        Self::ProducerNotAllowed,
        Self::AudienceNotAllowed,
        Self::InvalidRecipients,
        Self::InvalidField,
        Self::InvalidPayloadJson,
        Self::PayloadSchemaViolation,
        Self::IdempotencyConflict,
        Self::RecipientNotFound,
        Self::NotStorable,
    ];

    /// As it is spelled in `malformed_intents.failure_code`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EntryTooLarge => "entry_too_large",
            Self::InvalidEncoding => "invalid_encoding",
            Self::RepeatedField => "repeated_field",
            Self::UnknownField => "unknown_field",
            Self::MissingField => "missing_field",
            Self::UnknownNotificationType => "unknown_notification_type",
            Self::ProducerNotAllowed => "producer_not_allowed",
            Self::AudienceNotAllowed => "audience_not_allowed",
            Self::InvalidRecipients => "invalid_recipients",
            Self::InvalidField => "invalid_field",
            Self::InvalidPayloadJson => "invalid_payload_json",
            Self::PayloadSchemaViolation => "payload_schema_violation",
            Self::IdempotencyConflict => "idempotency_conflict",
            Self::RecipientNotFound => "recipient_not_found",
            Self::NotStorable => "not_storable",
        }
    }
}

/// Why an entry is not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Rejection {
    /// Which rule.
    pub code: FailureCode,
    /// What was found, for a person; never a payload.
    pub message: String,
}

/// A row of `malformed_intents`.
#[derive(Clone, PartialEq, Debug)]
pub struct MalformedIntent {
    /// The stream it came by.
    pub stream: String,
    /// Its id there.
    pub entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`].
    pub fields_fingerprint: String,
    /// The value received, if it is valid text of at most 255 bytes, else empty. The next two likewise.
    pub notification_type: String,
    /// See `notification_type`.
    pub producer: String,
    /// See `notification_type`.
    pub idempotency_key: String,
    /// Why.
    pub rejection: Rejection,
    /// JSON text: every `[name, value]` in the order received. A name or value that is not UTF-8 or holds U+0000 is
    /// `{"base64": …}`. Of an entry beyond [`RAW_FIELDS_MAX`] long ones are `{"truncated": {"bytes": …, "sha256": …,
    /// "head_base64": …}}`, and where even that is too much the last pair is `{"omitted": {"fields": …}}` and
    /// `{"omitted": {"bytes": …}}`.
    pub raw_fields_json: String,
    /// When the service decided.
    pub recorded_at: Timestamp,
}

impl MalformedIntent {
    /// The row for an entry of `stream` that was refused at `now`. A message that is too long is cut.
    pub fn new(stream: &str, entry: &RawEntry, rejection: Rejection, now: Timestamp) -> Self {
        let message =
            rejection.message.chars().take(MAX_MESSAGE).map(|c| if c == '\0' { '\u{fffd}' } else { c });
        Self {
            stream: stream.to_owned(),
            entry_id: entry.id,
            fields_fingerprint: entry.fields.fingerprint(),
            notification_type: id_column(&entry.fields, "notification_type"),
            producer: id_column(&entry.fields, "producer"),
            idempotency_key: id_column(&entry.fields, "idempotency_key"),
            rejection: Rejection { code: rejection.code, message: message.collect() },
            raw_fields_json: raw_fields_json(&entry.fields, RAW_FIELDS_MAX),
            recorded_at: now,
        }
    }

    /// The same row with next to nothing of its fields, for when PostgreSQL refuses them all the same: one pair, the
    /// name `raw_fields` and [`Self::raw_fields_json`] in its truncated form.
    pub fn reduced(&self) -> Self {
        let raw_fields = Part::Truncated { truncated: Truncated::of(self.raw_fields_json.as_bytes()) };
        Self { raw_fields_json: json::to_text(&[(Part::Text("raw_fields"), raw_fields)]), ..self.clone() }
    }
}

/// The first value of the field `name`, if the column can hold it.
fn id_column(fields: &RawFields, name: &str) -> String {
    let value =
        fields.0.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice());
    let storable = value.filter(|value| value.len() <= MAX_ID).and_then(storable_text);
    storable.unwrap_or_default().to_owned()
}

/// The bytes as text, if PostgreSQL can store them as such.
fn storable_text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// A name or value as it stands in `raw_fields`.
#[derive(Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Text(&'a str),
    Base64 { base64: String },
    Truncated { truncated: Truncated },
    Omitted { omitted: Omitted },
}

/// What is kept of a part that is too long.
#[derive(Serialize)]
struct Truncated {
    bytes: usize,
    sha256: String,
    head_base64: String,
}

/// What is said of fields for which there is no room.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Omitted {
    Fields(usize),
    Bytes(usize),
}

impl<'a> Part<'a> {
    /// The whole part, or its truncated form if it is longer than `longest` bytes.
    fn of(bytes: &'a [u8], longest: usize) -> Self {
        match storable_text(bytes) {
            _ if bytes.len() > longest => Self::Truncated { truncated: Truncated::of(bytes) },
            Some(text) => Self::Text(text),
            None => Self::Base64 { base64: BASE64.encode(bytes) },
        }
    }
}

impl Truncated {
    fn of(bytes: &[u8]) -> Self {
        let head = &bytes[..bytes.len().min(TRUNCATED_HEAD)];
        Self {
            bytes: bytes.len(),
            sha256: hex::encode(Sha256::digest(bytes)),
            head_base64: BASE64.encode(head),
        }
    }
}

/// The fields as JSON text, of which at most `max` bytes are theirs.
fn raw_fields_json(fields: &RawFields, max: usize) -> String {
    let whole = fields.size() + FIELD_COST * fields.0.len() <= max;
    let longest = if whole { usize::MAX } else { TRUNCATED_HEAD };
    let mut room = max;
    let mut pairs = Vec::with_capacity(fields.0.len().min(max / FIELD_COST));
    for (at, (name, value)) in fields.0.iter().enumerate() {
        let cost = FIELD_COST + name.len().min(longest) + value.len().min(longest);
        if cost > room {
            let rest = &fields.0[at..];
            let bytes = rest.iter().map(|(name, value)| name.len() + value.len()).sum();
            pairs.push((omitted(Omitted::Fields(rest.len())), omitted(Omitted::Bytes(bytes))));
            break;
        }
        room -= cost;
        pairs.push((Part::of(name, longest), Part::of(value, longest)));
    }
    json::to_text(&pairs)
}

fn omitted(omitted: Omitted) -> Part<'static> {
    Part::Omitted { omitted }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(fields: RawFields, message: &str) -> MalformedIntent {
        let entry = RawEntry { id: EntryId::new(5, 1), fields };
        let rejection = Rejection { code: FailureCode::UnknownField, message: message.to_owned() };
        MalformedIntent::new("intents", &entry, rejection, Timestamp::UNIX_EPOCH)
    }

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    fn kept(fields: &RawFields, max: usize) -> Value {
        parsed(&raw_fields_json(fields, max))
    }

    #[test]
    fn codes_are_listed_in_the_order_in_which_the_rules_are_tried() {
        assert!(FailureCode::ALL.is_sorted());
        assert_eq!(FailureCode::ALL.last(), Some(&FailureCode::NotStorable));
    }

    #[test]
    fn fields_are_kept_in_the_order_received_with_repeats() {
        let fields = RawFields::from_iter([("b", "1"), ("a", "\u{1}é\""), ("b", ""), ("", "2")]);
        let expected = json!([["b", "1"], ["a", "\u{1}é\""], ["b", ""], ["", "2"]]);
        assert_eq!(parsed(&row(fields, "").raw_fields_json), expected);
        assert_eq!(row(RawFields::default(), "").raw_fields_json, "[]");
    }

    #[test]
    fn what_is_not_utf_8_or_holds_a_nul_is_kept_as_base64() {
        let fields =
            RawFields::from_iter([(b"\xff".to_vec(), b"x\0".to_vec()), (b"a".to_vec(), b"\xc3".to_vec())]);
        let expected = json!([[{"base64": "/w=="}, {"base64": "eAA="}], ["a", {"base64": "ww=="}]]);
        assert_eq!(parsed(&row(fields, "").raw_fields_json), expected);
    }

    #[test]
    fn id_columns_hold_the_first_value_if_it_is_sound_text_of_at_most_255_bytes() {
        let named = |name: &str, value: Vec<u8>| {
            row(RawFields::from_iter([(name, value), (name, b"second".to_vec())]), "")
        };
        for (value, expected) in [
            (b"first".to_vec(), "first"),
            (b"".to_vec(), ""),
            (b"\xff".to_vec(), ""),
            (b"a\0".to_vec(), ""),
            (b" \n".to_vec(), " \n"),
            (vec![b'x'; 256], ""),
            (vec![b'x'; 255], "x".repeat(255).as_str()),
        ] {
            assert_eq!(named("notification_type", value.clone()).notification_type, expected);
            assert_eq!(named("producer", value.clone()).producer, expected);
            assert_eq!(named("idempotency_key", value).idempotency_key, expected);
        }
        assert_eq!(named("other", b"x".to_vec()).producer, "");
    }

    #[test]
    fn a_message_is_cut_and_holds_no_nul() {
        let message = row(RawFields::default(), &format!("\0{}", "é".repeat(2_000))).rejection.message;
        assert_eq!(message, format!("\u{fffd}{}", "é".repeat(999)));
    }

    #[test]
    fn of_an_entry_that_is_too_large_long_parts_keep_size_hash_and_head() {
        let long = vec![0xff; TRUNCATED_HEAD + 1];
        let edge = "x".repeat(TRUNCATED_HEAD);
        let fields =
            RawFields::from_iter([(b"a".to_vec(), long.clone()), (b"b".to_vec(), edge.clone().into_bytes())]);
        let size = fields.size() + 2 * FIELD_COST;
        assert_eq!(kept(&fields, size), json!([["a", {"base64": BASE64.encode(&long)}], ["b", edge]]));
        let truncated = json!({
            "bytes": TRUNCATED_HEAD + 1,
            "sha256": hex::encode(Sha256::digest(&long)),
            "head_base64": BASE64.encode(&long[..TRUNCATED_HEAD]),
        });
        assert_eq!(kept(&fields, size - 1), json!([["a", {"truncated": truncated}], ["b", edge]]));
    }

    #[test]
    fn fields_for_which_there_is_no_room_are_counted() {
        let fields = RawFields::from_iter(vec![("name", "value"); 10]);
        let three = 3 * (9 + FIELD_COST);
        let last = json!([{"omitted": {"fields": 7}}, {"omitted": {"bytes": 63}}]);
        let pair = json!(["name", "value"]);
        assert_eq!(kept(&fields, three), json!([pair, pair, pair, last]));
        assert_eq!(kept(&fields, three + 24), json!([pair, pair, pair, last]));
    }

    #[test]
    fn empty_fields_do_not_come_for_nothing() {
        let fields = RawFields(vec![Default::default(); 1_000_000]);
        assert!(raw_fields_json(&fields, 1_000).len() < 1_000);
    }

    #[test]
    fn a_reduced_row_is_small_and_otherwise_the_same() {
        let whole = row(RawFields::from_iter([("a", "x".repeat(200_000))]), "why");
        let reduced = whole.reduced();
        let text = whole.raw_fields_json.as_bytes();
        let truncated = json!({
            "bytes": text.len(),
            "sha256": hex::encode(Sha256::digest(text)),
            "head_base64": BASE64.encode(&text[..TRUNCATED_HEAD]),
        });
        assert_eq!(parsed(&reduced.raw_fields_json), json!([["raw_fields", {"truncated": truncated}]]));
        assert_eq!(MalformedIntent { raw_fields_json: whole.raw_fields_json.clone(), ..reduced }, whole);
    }
}
