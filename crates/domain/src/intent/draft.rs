//! An intent as a producer writes it, before it becomes a stream entry.

use super::envelope::{
    AUDIENCE_KIND, IDEMPOTENCY_KEY, NOTIFICATION_TYPE, OCCURRED_AT_MS, PAYLOAD, PRODUCER, RECIPIENTS,
    REQUEST_ID, TRACE_ID,
};
use super::{Intent, decode};
use crate::catalog::{AudienceKind, Catalog};
use crate::entry::RawFields;
use crate::malformed_intent::Rejection;

/// The recipients of a draft.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recipients {
    /// These user ids, in any order.
    Users(Vec<String>),
    /// The administrators of the type.
    Administrators,
}

/// An intent to append. It may break any rule; [`IntentDraft::decode`] checks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntentDraft {
    /// The type.
    pub notification_type: String,
    /// The producer that sends it.
    pub producer: String,
    /// The recipients.
    pub recipients: Recipients,
    /// The idempotency key. The same key with the same content is the same intent.
    pub idempotency_key: String,
    /// The time of the event, in Unix milliseconds. Text, so that [`IntentDraft::decode`] rejects invalid
    /// input of the users of `send`.
    pub occurred_at_ms: String,
    /// The payload, byte for byte.
    pub payload_json: String,
    /// The request id, for observability only.
    pub request_id: Option<String>,
    /// The trace id, for observability only.
    pub trace_id: Option<String>,
}

impl IntentDraft {
    /// The names and values of the entry, in the order of the contract.
    pub fn into_fields(self) -> Vec<(&'static str, String)> {
        let (kind, recipients) = match self.recipients {
            Recipients::Users(users) => {
                (AudienceKind::User, Some(serde_json::Value::from(users).to_string()))
            }
            Recipients::Administrators => (AudienceKind::AdminEmail, None),
        };
        let all = [
            (NOTIFICATION_TYPE, Some(self.notification_type)),
            (PRODUCER, Some(self.producer)),
            (AUDIENCE_KIND, Some(kind.as_str().to_owned())),
            (RECIPIENTS, recipients),
            (IDEMPOTENCY_KEY, Some(self.idempotency_key)),
            (OCCURRED_AT_MS, Some(self.occurred_at_ms)),
            (PAYLOAD, Some(self.payload_json)),
            (REQUEST_ID, self.request_id),
            (TRACE_ID, self.trace_id),
        ];
        all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
    }

    /// The entry in the stream.
    pub fn into_entry(self) -> RawFields {
        RawFields::from_iter(self.into_fields())
    }

    /// Decodes the draft as the service decodes its entry, or returns the first rule that it breaks.
    pub fn decode(&self, catalog: &Catalog) -> Result<Intent, Rejection> {
        decode(&self.clone().into_entry(), catalog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::FIELDS;
    use crate::malformed_intent::FailureCode;

    fn turn_ready() -> IntentDraft {
        IntentDraft {
            notification_type: "game.turn.ready".into(),
            producer: "game_master".into(),
            recipients: Recipients::Users(vec!["u-2".into(), "u-\"1".into()]),
            idempotency_key: "k".into(),
            occurred_at_ms: "7".into(),
            payload_json: r#"{"game_id":"g","game_name":"n","turn_number":54}"#.into(),
            request_id: Some("r".into()),
            trace_id: Some("t".into()),
        }
    }

    #[test]
    fn a_draft_with_everything_has_every_field_in_the_order_of_the_contract() {
        let names: Vec<&str> = turn_ready().into_fields().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, FIELDS);
    }

    #[test]
    fn a_draft_decodes_to_its_own_values() {
        let intent = turn_ready().decode(&Catalog::built_in()).expect("well formed");
        assert_eq!(intent.audience.users(), ["u-\"1", "u-2"]);
        assert_eq!((intent.occurred_at.as_millis(), intent.idempotency_key.as_str()), (7, "k"));
        assert_eq!((intent.request_id.as_str(), intent.trace_id.as_str()), ("r", "t"));
    }

    #[test]
    fn a_draft_for_administrators_names_no_recipients_and_absent_ids_have_no_field() {
        let draft = IntentDraft {
            recipients: Recipients::Administrators,
            request_id: None,
            trace_id: None,
            ..turn_ready()
        };
        let fields = draft.into_fields();
        assert_eq!(fields[2], ("audience_kind", "admin_email".to_owned()));
        assert!(fields.iter().all(|(name, _)| ![RECIPIENTS, REQUEST_ID, TRACE_ID].contains(name)));
    }

    #[test]
    fn a_draft_that_breaks_a_rule_is_rejected_as_its_entry_would_be() {
        let draft = IntentDraft { occurred_at_ms: "yesterday".into(), ..turn_ready() };
        let rejection = draft.decode(&Catalog::built_in()).expect_err("no number");
        assert_eq!(rejection.code, FailureCode::InvalidField);
        assert_eq!(decode(&draft.into_entry(), &Catalog::built_in()), Err(rejection));
    }
}
