//! Intents as JSON: bodies of requests, and payloads of events.

use ambient::Timestamp;
use domain::intent::{BodyContext, IntentBody, MAX_PAYLOAD, OutboxEvent, decode};
use serde_json::Value;

use super::entries::{catalog, check_intent};
use crate::Target;

pub(super) const TARGET: Target = Target { name: "bodies", max_bytes: 8 * 1024, check };

const PRODUCER: &str = "game_master";

fn check(input: &[u8]) {
    check_event(input);
    let Ok(text) = str::from_utf8(input) else { return };
    let body = match IntentBody::parse(text) {
        Ok(body) => body,
        Err(error) => {
            let parsed: Result<Value, _> = serde_json::from_str(text);
            assert!(!parsed.is_ok_and(|value| value.is_object()), "an object is not a body: {error}");
            return;
        }
    };
    let apart = BodyContext { producer: PRODUCER, idempotency_key: Some("k"), request_id: Some("r") };
    let within = BodyContext { idempotency_key: None, request_id: None, ..apart };
    for context in [apart, within] {
        let outcome = body.decode(context, catalog());
        assert!(outcome == body.decode(context, catalog()), "decoding twice has two outcomes");
        let Ok(intent) = outcome else { continue };
        check_intent(&intent);
        assert!(
            intent.payload_json.len() <= MAX_PAYLOAD && intent.audience.users().len() <= body.recipients()
        );
        assert_eq!(intent.producer, PRODUCER);
    }
}

/// Checks that the entry of an event is one that the service accepts.
fn check_event(payload: &[u8]) {
    let event = OutboxEvent {
        event_id: "0b1d0f8e-5c7e-4b58-9a9b-8e4f8a3c2d10",
        event_type: "game.turn.ready",
        payload,
        created_at: Some(Timestamp::UNIX_EPOCH),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    };
    if let Ok(entry) = event.to_entry(PRODUCER, catalog()) {
        let intent = decode(&entry, catalog()).expect("the entry of an event is an intent");
        check_intent(&intent);
    }
}
