//! An intent as an event of a producer's outbox.
//!
//! The event's type is the notification type, and its payload is the object of [`IntentBody`] without that
//! member. The event becomes the entry that the relay appends to the intents stream, with payload and
//! recipients in normal form. The rules of the stream are applied before the entry is appended, so an event
//! that the service would find malformed never reaches the stream. Whether its key was used before or a
//! recipient exists is not decided here.

use ambient::Timestamp;

use super::IntentBody;
use super::body::decode_members;
use super::envelope::{IDEMPOTENCY_KEY, NOTIFICATION_TYPE, OCCURRED_AT_MS, PRODUCER, TRACE_ID};
use crate::catalog::Catalog;
use crate::entry::RawFields;
use crate::malformed_intent::{FailureCode, Rejection, reject};

/// The placeholder for a time that `occurred_at_ms` cannot express. It breaks the rule of that field.
const NO_TIME: &str = "none";

/// The columns of an event that the relay reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxEvent<'a> {
    /// The idempotency key of an intent without its own.
    pub event_id: &'a str,
    /// The notification type.
    pub event_type: &'a str,
    /// The members of the intent, as JSON.
    pub payload: &'a [u8],
    /// The time of the event, unless the payload contains one; `None` if it is not between the years 1 and
    /// 9999.
    pub created_at: Option<Timestamp>,
    /// The trace id of an intent without its own: the event's header of that name.
    pub traceparent: Option<&'a str>,
}

impl OutboxEvent<'_> {
    /// Returns the entry that `producer` would append, or the first rule that the event breaks.
    pub fn to_entry(&self, producer: &str, catalog: &Catalog) -> Result<RawFields, Rejection> {
        let Ok(text) = str::from_utf8(self.payload) else {
            return reject(FailureCode::InvalidEncoding, "the payload is not UTF-8");
        };
        let Ok(body) = IntentBody::parse(text) else {
            return reject(FailureCode::InvalidPayloadJson, "the payload is not strict JSON, or no object");
        };
        let created_at = self.created_at.map_or_else(|| NO_TIME.to_owned(), |at| at.as_millis().to_string());
        let fixed = [(PRODUCER, producer), (NOTIFICATION_TYPE, self.event_type)];
        let mut defaults = vec![(IDEMPOTENCY_KEY, self.event_id), (OCCURRED_AT_MS, created_at.as_str())];
        defaults.extend(self.traceparent.map(|trace_id| (TRACE_ID, trace_id)));
        let entry = body.to_entry(&fixed, &defaults)?;
        decode_members(&entry, catalog).map(|_| entry)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const EVENT_ID: &str = "0b1d0f8e-5c7e-4b58-9a9b-8e4f8a3c2d10";

    fn payload() -> Value {
        json!({
            "audience_kind": "user",
            "recipient_user_ids": ["u-2", "u-1", "u-2"],
            "payload": {"turn_number": 54, "game_name": "n", "game_id": "g"},
        })
    }

    fn with(member: &str, value: Value) -> Value {
        let mut changed = payload();
        changed[member] = value;
        changed
    }

    fn event<'a>(payload: &'a [u8]) -> OutboxEvent<'a> {
        let created_at = Timestamp::from_micros(1_775_121_700_000_999).expect("a time");
        OutboxEvent {
            event_id: EVENT_ID,
            event_type: "game.turn.ready",
            payload,
            created_at: Some(created_at),
            traceparent: None,
        }
    }

    fn entry(event: OutboxEvent<'_>) -> Result<Vec<(String, String)>, FailureCode> {
        let entry =
            event.to_entry("game_master", &Catalog::built_in()).map_err(|rejection| rejection.code)?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let mut fields: Vec<_> = entry.0.into_iter().map(|(name, value)| (text(name), text(value))).collect();
        fields.sort();
        Ok(fields)
    }

    fn field(event: OutboxEvent<'_>, name: &str) -> Option<String> {
        let fields = entry(event).expect("well formed");
        fields.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    #[test]
    fn an_event_becomes_an_entry_in_normal_form_with_defaults_from_its_row() {
        let expected = [
            ("audience_kind", "user"),
            ("idempotency_key", EVENT_ID),
            ("notification_type", "game.turn.ready"),
            ("occurred_at_ms", "1775121700000"),
            ("payload_json", r#"{"game_id":"g","game_name":"n","turn_number":54}"#),
            ("producer", "game_master"),
            ("recipient_user_ids_json", r#"["u-1","u-2"]"#),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(entry(event(payload().to_string().as_bytes())), Ok(expected));
    }

    #[test]
    fn members_win_over_defaults_and_null_is_absent() {
        let text = with("idempotency_key", json!("k-1")).to_string();
        assert_eq!(field(event(text.as_bytes()), "idempotency_key").as_deref(), Some("k-1"));
        let text = with("idempotency_key", Value::Null).to_string();
        assert_eq!(field(event(text.as_bytes()), "idempotency_key").as_deref(), Some(EVENT_ID));
        let text = with("occurred_at_ms", json!(7)).to_string();
        assert_eq!(field(event(text.as_bytes()), "occurred_at_ms").as_deref(), Some("7"));
        let text = payload().to_string();
        let traced = OutboxEvent { traceparent: Some("00-1-2-01"), ..event(text.as_bytes()) };
        assert_eq!(field(traced, "trace_id").as_deref(), Some("00-1-2-01"));
        let text = with("trace_id", json!("t-1")).to_string();
        let traced = OutboxEvent { payload: text.as_bytes(), ..traced };
        assert_eq!(field(traced, "trace_id").as_deref(), Some("t-1"));
    }

    #[test]
    fn each_fault_of_the_envelope_breaks_the_rule_of_the_contract() {
        let twice = payload().to_string().replacen('{', r#"{"audience_kind":"user","#, 1);
        for (text, expected) in [
            ("[]".to_owned(), FailureCode::InvalidPayloadJson),
            ("{".to_owned(), FailureCode::InvalidPayloadJson),
            (String::new(), FailureCode::InvalidPayloadJson),
            (twice, FailureCode::RepeatedField),
            (with("producer", json!("game_master")).to_string(), FailureCode::UnknownField),
            (with("notification_type", json!("game.turn.ready")).to_string(), FailureCode::UnknownField),
            (with("audience_kind", json!(1)).to_string(), FailureCode::InvalidField),
            (with("recipient_user_ids", json!("u-1")).to_string(), FailureCode::InvalidRecipients),
            (with("occurred_at_ms", json!("7")).to_string(), FailureCode::InvalidField),
            (with("payload", json!([])).to_string(), FailureCode::InvalidPayloadJson),
            (with("payload", json!({"game_id": 1})).to_string(), FailureCode::PayloadSchemaViolation),
            (with("payload", Value::Null).to_string(), FailureCode::MissingField),
        ] {
            assert_eq!(entry(event(text.as_bytes())), Err(expected), "{text}");
        }
        assert_eq!(entry(event(b"{\"a\":\"\xff\"}")), Err(FailureCode::InvalidEncoding));
    }

    #[test]
    fn the_type_and_the_producer_are_judged_too() {
        let text = payload().to_string();
        let unknown = OutboxEvent { event_type: "game.unknown", ..event(text.as_bytes()) };
        assert_eq!(entry(unknown), Err(FailureCode::UnknownNotificationType));
        let foreign = event(text.as_bytes()).to_entry("another_service", &Catalog::built_in());
        assert_eq!(foreign.map_err(|rejection| rejection.code), Err(FailureCode::ProducerNotAllowed));
    }

    #[test]
    fn a_time_of_creation_that_cannot_be_written_is_an_invalid_field_unless_the_payload_has_one() {
        let before_1970 = Timestamp::from_micros(-1).expect("a time");
        for created_at in [None, Some(before_1970)] {
            let text = payload().to_string();
            let unwritable = OutboxEvent { created_at, ..event(text.as_bytes()) };
            assert_eq!(entry(unwritable), Err(FailureCode::InvalidField), "{created_at:?}");
            let text = with("occurred_at_ms", json!(7)).to_string();
            assert!(entry(OutboxEvent { created_at, ..event(text.as_bytes()) }).is_ok(), "{created_at:?}");
        }
    }
}
