use ambient::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::*;
use crate::conflict::Difference;
use crate::explanation::intent::Fate;
use crate::explanation::tests::pending;
use crate::malformed_intent::MalformedKey;
use crate::operations::OperatorActionId;
use crate::query::intent_trace_fixture;
use crate::receipt::ReceiptStatus;
use crate::route::Channel;

const AT: Timestamp = Timestamp::UNIX_EPOCH;
const ADDRESS: &str = "anna@example.com";
const SECRET: &str = "payload-value";

fn shown(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("it is JSON")
}

fn admin_route() -> Route {
    let report =
        Report { status: ReceiptStatus::Bounced, at: AT, detail: format!("{SECRET}: 550 {ADDRESS} unknown") };
    Route {
        route_id: format!("email:email:{ADDRESS}").into(),
        recipient_ref: format!("email:{ADDRESS}").into(),
        resolved_email: ADDRESS.into(),
        last_error_message: format!("<{ADDRESS}> was refused"),
        discarded: Some(Discarded {
            at: AT,
            by: "root@host".to_owned(),
            reason: format!("asked by {ADDRESS}"),
        }),
        receipt: Some(Receipt::after(None, report).0),
        ..pending()
    }
}

fn notification() -> Notification {
    Notification {
        payload_json: json!({ "text": SECRET }).to_string().into(),
        idempotency_key: format!("invite:{ADDRESS}:1"),
        routes: vec![admin_route(), pending()],
        ..intent_trace_fixture(AT)
    }
    .explained(AT)
}

#[test]
fn a_producer_sees_no_address() {
    let found = shown(&notification().seen_by(Sight::Producer));
    let (admin, user) = (&found["routes"][0], &found["routes"][1]);
    assert!(admin["route_id"].is_null() && admin["recipient_ref"].is_null(), "{admin}");
    assert_eq!((&user["route_id"], &user["recipient_ref"]), (&"email:user:u-1".into(), &"user:u-1".into()));
    assert!(admin["resolved_email"].is_null() && user["resolved_email"].is_null(), "{found}");
    assert_eq!(found["payload"], json!({ "text": SECRET }), "its own payload");
}

#[test]
fn a_masked_notification_holds_no_address_and_no_payload_and_keeps_its_ids() {
    let found = notification().seen_by(Sight::Masked).explained(AT);
    assert_eq!(found.routes[0].discarded.as_ref().map(|discard| &*discard.by), Some("root@host"));
    let found = shown(&found);
    let text = found.to_string();
    assert!(!text.contains(ADDRESS) && !text.contains(SECRET), "{text}");
    let (admin, user) = (&found["routes"][0], &found["routes"][1]);
    assert_eq!(admin["route_id"], "email:email:****");
    assert_eq!((&user["route_id"], &user["recipient_ref"]), (&"email:user:u-1".into(), &"user:u-1".into()));
    assert_eq!(found["idempotency_key"], "invite:****:1");
    assert!(found["payload"].is_null() && found["request_fingerprint"].is_null(), "{text}");
    assert!(admin["explanation"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{admin}");
}

#[test]
fn whole_documents_stay_as_they_are() {
    let explained = notification();
    assert_eq!(explained.clone().seen_by(Sight::Whole), explained);
}

#[test]
fn a_masked_dead_letter_and_the_arguments_of_an_action_hold_no_address() {
    let notification = notification();
    let route = Route {
        status: crate::route::RouteStatus::DeadLetter,
        dead_lettered_at: Some(AT),
        channel: Channel::Email,
        ..admin_route()
    };
    let key = notification.key_of(&route);
    let found = Notification { routes: vec![route], ..notification };
    let letter = found.dead_letter(&key).expect("it is one").seen_by(Sight::Masked);
    assert_eq!(
        (letter.key.to_string().as_str(), &*letter.recipient_ref),
        ("5-0/email:email:****", "email:****")
    );
    assert!(!shown(&letter).to_string().contains(ADDRESS));
    let action = RecordedAction {
        id: OperatorActionId(1),
        at: AT,
        actor: "root@host".to_owned(),
        action: "replay_dead_letters".to_owned(),
        arguments: json!({
            "ids": [key.to_string(), "5-0/email:email:\"a b\"@example.com", "5-0/push:user:u-1"],
            "filter": {"recipient": ADDRESS},
            "reason": format!("{ADDRESS}, urgent"),
            "max_attempts": {"push": 3},
        }),
        affected: 1,
        request_id: "r".to_owned(),
    }
    .seen_by(Sight::Masked);
    let expected = json!({
        "ids": ["5-0/email:email:****", "5-0/email:email:****", "5-0/push:user:u-1"],
        "filter": {"recipient": "****"},
        "reason": "****, urgent",
        "max_attempts": {"push": 3},
    });
    assert_eq!((action.arguments, &*action.actor), (expected, "root@host"));
}

#[test]
fn a_masked_malformed_intent_has_no_fields_and_no_fingerprint_of_them() {
    let summary = MalformedSummary {
        key: MalformedKey {
            stream: "intents".to_owned(),
            entry_id: "1-0".to_owned(),
            fields_fingerprint: "5ec7e7".to_owned(),
        },
        notification_type: "t".into(),
        producer: ADDRESS.to_owned(),
        idempotency_key: ADDRESS.into(),
        failure_code: "unknown_field".to_owned(),
        failure_message: format!("\"{ADDRESS}\" is not a field of an intent").into(),
        recorded_at: AT,
        resubmitted_at: None,
        resubmitted_entry_id: None,
    };
    let mut place = summary.place();
    place.hide(Sight::Masked);
    assert_eq!(place.key.fields_fingerprint, "");
    let difference = Difference { member: "payload", refused: json!(SECRET), accepted: json!({"a": SECRET}) };
    let conflict = Conflict { notification_id: None, differs: Some(vec![difference]) };
    let found = Match::new(&Fate::Malformed(summary.clone()), Some(conflict.clone()), AT);
    let raw_fields = Some(format!("[[\"a\",\"{SECRET}\"]]"));
    let intent = StoredMalformedIntent {
        summary,
        raw_fields,
        conflict: Some(conflict),
        resubmitted_from: None,
        resubmitted_outcome: None,
    };
    let text = shown(&intent.seen_by(Sight::Masked)).to_string();
    for text in [&text, &shown(&found.seen_by(Sight::Masked)).to_string()] {
        for hidden in [ADDRESS, SECRET, "5ec7e7"] {
            assert!(!text.contains(hidden), "{text}");
        }
        assert!(text.contains("\"member\":\"payload\""), "{text}");
    }
    assert!(text.contains("\\\"****\\\" is not a field"), "{text}");
}
