//! Stream entries: fields separated by 0x1e, name and value by 0x1f.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ambient::Timestamp;
use domain::accept;
use domain::catalog::{AudienceKind, Catalog};
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::intent::{
    Audience, Intent, IntentDraft, MAX_IDENTIFIER, MAX_OCCURRED_AT_MS, MAX_PAYLOAD, MAX_RECIPIENT,
    MAX_RECIPIENTS, Recipients, decode,
};
use domain::json;
use domain::malformed_intent::{MalformedIntent, Rejection, whole_fields};
use domain::policy::Policy;

use crate::Target;
use crate::text::{SECRET, records, units};

pub(super) const TARGET: Target = Target { name: "entries", max_bytes: 8 * 1024, check };

/// The bytes that a byte of a payload can become in its normal form: `1e15` becomes `1000000000000000.0`.
const MAX_GROWTH: usize = 5;
/// The longest text of an id column, in bytes.
const MAX_COLUMN: usize = 255;
/// The longest message of a malformed row, in characters.
const MAX_MESSAGE: usize = 1_000;

static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy {
    catalog: Arc::new(Catalog::built_in()),
    admin_emails: HashMap::new(),
    locales: vec!["en".to_owned()],
    push_max_attempts: 3,
    email_max_attempts: 3,
    idempotency_ttl: Duration::from_secs(60),
    head_start: Duration::from_secs(1),
});

/// The built-in catalogue.
pub(super) fn catalog() -> &'static Catalog {
    &POLICY.catalog
}

fn check(input: &[u8]) {
    let fields: RawFields = records(input).map(units).collect();
    let outcome = decode(&fields, catalog());
    assert!(outcome == decode(&fields, catalog()), "decoding twice has two outcomes");
    let reversed: RawFields = fields.0.iter().rev().cloned().collect();
    match (&outcome, decode(&reversed, catalog())) {
        (Ok(one), Ok(other)) => assert_eq!(*one, other, "the order of fields counts"),
        (Err(one), Err(other)) => assert_eq!(one.code, other.code, "the order of fields counts"),
        (one, other) => panic!("the order of fields counts: {one:?}, {other:?}"),
    }
    match &outcome {
        Ok(intent) => {
            check_intent(intent);
            let given = fields.0.iter().find(|(name, _)| name == b"payload_json");
            let given = given.map_or(0, |(_, value)| value.len());
            assert!(given <= MAX_PAYLOAD && intent.payload_json.len() <= MAX_GROWTH * given);
        }
        Err(rejection) => check_rejection(rejection, &fields),
    }
    check_row(fields, outcome.is_ok());
}

/// Checks what holds for every intent, from wherever it came.
pub(super) fn check_intent(intent: &Intent) {
    let known = catalog().get(&intent.notification_type).expect("the type is known");
    assert!(known.allows_producer(&intent.producer));
    assert!(known.channels(intent.audience.kind()).is_some());
    let users = intent.audience.users();
    assert!(users.len() <= MAX_RECIPIENTS && users.is_sorted_by(|one, other| one < other));
    assert_eq!(users.is_empty(), intent.audience.kind() == AudienceKind::AdminEmail);
    assert!(users.iter().all(|user| (1..=MAX_RECIPIENT).contains(&user.len())));
    let ids = [&intent.idempotency_key, &intent.request_id, &intent.trace_id];
    assert!(ids.iter().all(|id| id.len() <= MAX_IDENTIFIER && id.trim() == id.as_str()));
    assert!(ids.into_iter().chain(users).all(|id| !id.contains(char::is_control)));
    assert!((0..=MAX_OCCURRED_AT_MS).contains(&intent.occurred_at.as_millis()));
    let payload = json::parse(&intent.payload_json).expect("the normal form is strict JSON");
    assert_eq!(json::canonical(&payload), intent.payload_json, "the payload is not in normal form");
    assert_eq!(known.check_payload(&payload), Ok(()));
    let digits = intent.fingerprint.strip_prefix("v1:").expect("the fingerprint has a version");
    assert!(digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(POLICY.route_count(intent) > 0);
    if intent.payload_json.len() <= MAX_PAYLOAD {
        let again = draft(intent).decode(catalog());
        assert_eq!(again.as_ref(), Ok(intent), "an intent in normal form is another intent");
    }
}

/// The draft of the entry that has this intent.
fn draft(intent: &Intent) -> IntentDraft {
    let optional = |text: &String| (!text.is_empty()).then(|| text.clone());
    IntentDraft {
        notification_type: intent.notification_type.clone(),
        producer: intent.producer.clone(),
        recipients: match &intent.audience {
            Audience::Users(users) => Recipients::Users(users.clone()),
            Audience::AdminEmail => Recipients::Administrators,
        },
        idempotency_key: intent.idempotency_key.clone(),
        occurred_at_ms: intent.occurred_at.as_millis().to_string(),
        payload_json: intent.payload_json.clone(),
        request_id: optional(&intent.request_id),
        trace_id: optional(&intent.trace_id),
    }
}

/// Checks that a message does not repeat recipients.
fn check_rejection(rejection: &Rejection, fields: &RawFields) {
    let has_secret = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
    let is_elsewhere = fields
        .0
        .iter()
        .any(|(name, value)| has_secret(name) || name != b"recipient_user_ids_json" && has_secret(value));
    assert!(is_elsewhere || !rejection.message.contains(SECRET), "{rejection}");
}

/// Checks the cost of an entry, and the malformed row of one that breaks a rule.
fn check_row(fields: RawFields, is_intent: bool) {
    let entry = RawEntry { id: EntryId::new(7, 1), fields: fields.clone() };
    let decoded = accept::decode("intents", entry, &POLICY, Timestamp::UNIX_EPOCH);
    assert!(decoded.id == EntryId::new(7, 1) && decoded.cost >= fields.cost());
    assert_eq!(decoded.content.is_ok(), is_intent);
    assert_eq!(decoded.fields_fingerprint(), fields.fingerprint());
    if let Err(row) = &decoded.content {
        check_malformed(row, &fields);
        assert!(decoded.cost >= row.raw_fields.json_length());
    }
}

fn check_malformed(row: &MalformedIntent, fields: &RawFields) {
    let columns = [&row.notification_type, &row.producer, &row.idempotency_key];
    assert!(columns.iter().all(|text| text.len() <= MAX_COLUMN && !text.contains('\0')));
    let message = &row.rejection.message;
    assert!(message.chars().count() <= MAX_MESSAGE && !message.contains('\0'));
    let text = row.raw_fields.text();
    assert_eq!(text.len(), row.raw_fields.json_length());
    assert!(row.raw_fields.pieces().flatten().eq(text.bytes()), "pieces and text differ");
    // No entry of Redis is without fields; a row without any was erased.
    let kept = (text != "[]").then_some(fields);
    assert_eq!(whole_fields(&text).as_ref(), kept, "the fields do not come back");
}
