//! Entries of the three streams, made by the code that writes and reads them: a draft is encoded, decoded and
//! accepted, and its routes are encoded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::catalog::{AudienceKind, Catalog, NotificationType};
use domain::entry::EntryId;
use domain::intent::{Intent, IntentDraft, Recipients};
use domain::outbound::encode;
use domain::policy::Policy;
use domain::recipient::{Lookup, User};
use domain::record::NotificationId;
use domain::route::{Channel, LiveRoute};
use domain::submission::decide;
use serde_json::{Map, Value, json};

/// 2026-04-02T09:21:40Z, in Unix milliseconds.
const OCCURRED_AT_MS: i64 = 1_775_121_700_000;

/// The entries of one notification type: for each audience an intent, and its outbound entries.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) intents: Vec<Value>,
    pub(super) client_events: Vec<Value>,
    pub(super) delivery_commands: Vec<Value>,
}

/// One intent for each audience of the type, with or without request and trace ids.
pub(super) fn entries(catalog: &Catalog, known: &NotificationType, with_ids: bool) -> Entries {
    let mut all = Entries::default();
    for kind in AudienceKind::ALL.into_iter().filter(|kind| known.channels(*kind).is_some()) {
        let draft = draft(known, kind, with_ids);
        let intent = draft.decode(catalog).unwrap_or_else(|refused| panic!("{}: {refused}", known.name()));
        all.intents.push(object(draft.into_fields()));
        for route in routes(&intent) {
            let entry = object(encode(&route).expect("the route can be encoded").0);
            match route.channel {
                Channel::Push => all.client_events.push(entry),
                Channel::Email => all.delivery_commands.push(entry),
            }
        }
    }
    all
}

fn object<V: Into<String>>(fields: Vec<(&'static str, V)>) -> Value {
    fields.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value.into()))).collect()
}

fn draft(known: &NotificationType, kind: AudienceKind, with_ids: bool) -> IntentDraft {
    let recipients = match kind {
        AudienceKind::User => Recipients::Users(vec!["u-1".to_owned()]),
        AudienceKind::AdminEmail => Recipients::Administrators,
    };
    IntentDraft {
        notification_type: known.name().to_owned(),
        producer: known.producers()[0].clone(),
        recipients,
        idempotency_key: "game-123:turn-54".to_owned(),
        occurred_at_ms: OCCURRED_AT_MS.to_string(),
        payload_json: payload(known).to_string(),
        request_id: with_ids.then(|| "req-8f14e45f".to_owned()),
        trace_id: with_ids.then(|| "4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
    }
}

/// A payload of the type. Types of the built-in catalogue contain only texts and integers.
fn payload(known: &NotificationType) -> Value {
    let properties = known.payload_schema()["properties"].as_object().expect("properties");
    let value = |name: &str, schema: &Value| match (name, schema["type"].as_str()) {
        ("game_id", _) => json!("game-123"),
        ("game_name", _) => json!("Nova"),
        (name, Some("integer")) if name.ends_with("_ms") => json!(OCCURRED_AT_MS),
        (_, Some("integer")) => json!(54),
        (name, _) if name.ends_with("_id") => {
            json!(format!("{}-1", name.trim_end_matches("_id").replace('_', "-")))
        }
        (name, _) => json!(name.replace('_', " ")),
    };
    Value::Object(
        properties.iter().map(|(name, schema)| (name.clone(), value(name, schema))).collect::<Map<_, _>>(),
    )
}

/// The routes of the intent, accepted 438 ms after it happened.
fn routes(intent: &Intent) -> Vec<LiveRoute> {
    let user = User { email: "u-1@example.com".to_owned(), preferred_language: "en".to_owned() };
    let users = HashMap::from([("u-1".to_owned(), Lookup::Found(user))]);
    let addresses = vec!["ops@example.com".to_owned()];
    let policy = Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::from([(intent.notification_type.clone(), addresses)]),
        locales: vec!["en".to_owned()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(168 * 60 * 60),
        head_start: Duration::from_secs(5),
    };
    let id = NotificationId::of(EntryId::new(OCCURRED_AT_MS.unsigned_abs() + 431, 0), 0);
    let now = Timestamp::from_millis(OCCURRED_AT_MS + 438).expect("in range");
    let decision = decide(intent, None, &users, id, &policy, policy.schedule(now, true));
    let acceptance = decision.expect("it is accepted");
    acceptance.live_routes().collect()
}
