//! Malformed intents: the failure code, and the stored part of the entry.
//!
//! The fields are stored as received, byte for byte, up to a size far above that of a valid entry. Storing a
//! row never fails because of its content: bytes that PostgreSQL rejects are stored as base64.

mod raw_fields;
mod stored_fields;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::entry::{EntryId, LargeEntry, LargePart, RawFields};
use crate::intent::MAX_ENTRY;

use raw_fields::storable_text;
pub use raw_fields::{KeptFields, Pieces, RAW_FIELDS_JSON_MAX, RAW_FIELDS_MAX, TRUNCATED_HEAD};
pub use stored_fields::{StoredPart, read_fields, text_of, whole_fields};

/// The longest value of an id column of `malformed_intents`, in bytes.
const MAX_ID: usize = 255;

/// The longest message, in characters.
const MAX_MESSAGE: usize = 1_000;

/// The first rule that an entry broke, in the order in which the rules are applied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureCode {
    /// More than 256 KiB.
    EntryTooLarge,
    /// A name or value is not UTF-8.
    InvalidEncoding,
    /// A repeated field name.
    RepeatedField,
    /// A field that is not part of the envelope.
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
    /// An identifier with an invalid length, white space at an end or control characters, or an invalid time.
    InvalidField,
    /// Not strict JSON, not an object, or too long.
    InvalidPayloadJson,
    /// The payload does not satisfy the type's schema.
    PayloadSchemaViolation,
    /// The key was used for an intent with other content.
    IdempotencyConflict,
    /// A recipient does not exist.
    RecipientNotFound,
    /// PostgreSQL rejects this one element.
    NotStorable,
}

impl FailureCode {
    /// Every code, in the order in which the rules are applied.
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

    /// The text in `malformed_intents.failure_code`.
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

/// Returns the rule of the failure code `code` for a person, without a full stop; `None` if no rule of this
/// version has the code.
pub fn rule_of(code: &str) -> Option<&'static str> {
    let code = FailureCode::ALL.into_iter().find(|known| known.as_str() == code)?;
    Some(match code {
        FailureCode::EntryTooLarge => "an entry has at most 256 KiB",
        FailureCode::InvalidEncoding => "names and values are UTF-8",
        FailureCode::RepeatedField => "each field appears once",
        FailureCode::UnknownField => "an entry has the fields of the envelope and no others",
        FailureCode::MissingField => "every required field is there and not empty",
        FailureCode::UnknownNotificationType => "the type is one of the catalogue",
        FailureCode::ProducerNotAllowed => "the type allows the producer",
        FailureCode::AudienceNotAllowed => "the type allows the audience",
        FailureCode::InvalidRecipients => {
            "recipients are an array of 1 to 1,000 strings of 1 to 128 bytes, and absent for admin_email"
        }
        FailureCode::InvalidField => {
            "identifiers are not too long and have no white space at an end and no control characters, and the time is one"
        }
        FailureCode::InvalidPayloadJson => "the payload is strict JSON, an object, and not too long",
        FailureCode::PayloadSchemaViolation => "the payload satisfies the schema of the type",
        FailureCode::IdempotencyConflict => "a key is used for one intent",
        FailureCode::RecipientNotFound => "the user directory knows every recipient",
        FailureCode::NotStorable => "PostgreSQL can store the intent",
    })
}

/// The reason why an entry is not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Rejection {
    /// The rule that was broken.
    pub code: FailureCode,
    /// A description of the violation for an operator; never a payload.
    pub message: String,
}

/// Returns the rejection as error.
pub(crate) fn reject<T>(code: FailureCode, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection { code, message: message.into() })
}

impl Rejection {
    /// Returns the rejection with a message that fits the column: truncated, and without U+0000.
    fn storable(self) -> Self {
        let characters = self.message.chars().take(MAX_MESSAGE);
        let message = characters.map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect();
        Self { code: self.code, message }
    }
}

/// A row of `malformed_intents`.
#[derive(Clone, PartialEq, Debug)]
pub struct MalformedIntent {
    /// The stream of the entry.
    pub stream: String,
    /// The id of the entry in the stream.
    pub entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`].
    pub fields_fingerprint: String,
    /// The received value if it is valid text of at most 255 bytes, otherwise empty. The same applies to the
    /// next two fields.
    pub notification_type: String,
    /// See `notification_type`.
    pub producer: String,
    /// See `notification_type`.
    pub idempotency_key: String,
    /// The reason.
    pub rejection: Rejection,
    /// The stored part of the fields.
    pub raw_fields: KeptFields,
    /// The time of the decision.
    pub recorded_at: Timestamp,
}

/// The key of a malformed intent.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, JsonSchema)]
pub struct MalformedKey {
    /// The stream of the entry.
    pub stream: String,
    /// The id of the entry in the stream.
    #[serde(rename = "stream_entry_id")]
    pub entry_id: String,
    /// The fingerprint of the raw fields, which distinguishes entries with the same id.
    pub fields_fingerprint: String,
}

impl MalformedIntent {
    /// Makes the row for an entry of `stream` with these fields that was rejected at `now`. A message that is
    /// too long is truncated.
    pub fn new(
        stream: &str,
        entry_id: EntryId,
        fields: RawFields,
        rejection: Rejection,
        now: Timestamp,
    ) -> Self {
        Self {
            stream: stream.to_owned(),
            entry_id,
            fields_fingerprint: fields.fingerprint(),
            notification_type: id_column(&fields, "notification_type"),
            producer: id_column(&fields, "producer"),
            idempotency_key: id_column(&fields, "idempotency_key"),
            rejection: rejection.storable(),
            raw_fields: KeptFields::of(fields),
            recorded_at: now,
        }
    }

    /// Makes the row for an entry that is too large to be read.
    pub fn too_large(stream: &str, entry: &LargeEntry, now: Timestamp) -> Self {
        let LargeEntry { id, fields, bytes, heads } = entry;
        let rejection = Rejection {
            code: FailureCode::EntryTooLarge,
            message: format!(
                "the entry has {bytes} bytes in {fields} fields and takes at most {MAX_ENTRY} bytes"
            ),
        };
        let is_whole = |part: &LargePart| part.head.len() as u64 == part.bytes;
        let whole = heads.iter().filter(|(name, value)| is_whole(name) && is_whole(value));
        let whole: RawFields = whole.map(|(name, value)| (name.head.clone(), value.head.clone())).collect();
        Self {
            stream: stream.to_owned(),
            entry_id: *id,
            fields_fingerprint: entry.fingerprint(),
            notification_type: id_column(&whole, "notification_type"),
            producer: id_column(&whole, "producer"),
            idempotency_key: id_column(&whole, "idempotency_key"),
            rejection: rejection.storable(),
            raw_fields: KeptFields::of_large(entry),
            recorded_at: now,
        }
    }

    /// Returns the same row for another reason, found at `now`.
    pub(crate) fn with_rejection(&self, rejection: Rejection, now: Timestamp) -> Self {
        Self { rejection: rejection.storable(), recorded_at: now, ..self.clone() }
    }

    /// Returns the same row with its fields reduced to length, hash and first bytes, for the case that
    /// PostgreSQL rejects them. `None` if they are reduced already.
    pub fn reduced(&self) -> Option<Self> {
        Some(Self { raw_fields: self.raw_fields.reduced()?, ..self.clone() })
    }
}

/// Returns the first value of the field `name` if the column can hold it, otherwise an empty text.
fn id_column(fields: &RawFields, name: &str) -> String {
    let value =
        fields.0.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice());
    let storable = value.filter(|value| value.len() <= MAX_ID).and_then(storable_text);
    storable.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fields: RawFields, message: &str) -> MalformedIntent {
        let rejection = Rejection { code: FailureCode::UnknownField, message: message.to_owned() };
        MalformedIntent::new("intents", EntryId::new(5, 1), fields, rejection, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn codes_are_listed_in_the_order_in_which_the_rules_are_tried() {
        assert!(FailureCode::ALL.is_sorted());
        assert_eq!(FailureCode::ALL.last(), Some(&FailureCode::NotStorable));
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
    fn a_reduced_row_differs_in_its_fields_alone() {
        let whole = row(RawFields::from_iter([("a", "x".repeat(200_000))]), "why");
        let reduced = whole.reduced().expect("it was not reduced before");
        assert_ne!(reduced.raw_fields, whole.raw_fields);
        assert_eq!(MalformedIntent { raw_fields: whole.raw_fields.clone(), ..reduced }, whole);
    }
}
