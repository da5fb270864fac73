//! What is kept of an entry that was not accepted, and the codes that say why.

use ambient::Timestamp;

use crate::entry::EntryId;

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
    /// JSON text: every `[name, value]` in the order received.
    pub raw_fields_json: String,
    /// When the service decided.
    pub recorded_at: Timestamp,
}
