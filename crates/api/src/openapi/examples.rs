//! The examples of the document: values of the domain, rendered like responses.

mod operators;

use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::intent::{BodyContext, IntentBody};
use domain::malformed_intent::{FailureCode, Rejection};
use domain::outcome::Acceptance;
use domain::query::{IntentTrace, Notification, NotificationSummary, Route, RouteCounts};
use domain::receipt::{Receipt, ReceiptStatus, Recorded, Report, ReportOutcome};
use domain::record::{IdempotencyKey, NotificationId, Record, RecordContent};
use domain::route::{Channel, FailedAttempt, NewRoute, RouteKey, RouteStatus, Start};
use serde::Serialize;
use serde_json::{Value, json};

use crate::problems::malformed_intent;
use crate::view::{
    Accepted, AcceptedElement, ElementResult, IntentState, KeyOutcome, Notifications, OUTCOME_ACCEPTED,
    OUTCOME_INVALID, ReceiptResult, ReceiptResults, Results,
};

pub(super) use operators::{
    actions, activity, cancel_requests, cancelled, changed_hold, dead_letters, discard_requests, discarded,
    erase_requests, erased, hold_requests, holds, malformed, malformed_intents, malformed_intents_page,
    matches, release_requests, replay_requests, replayed, resend_requests, resent, resubmit_requests,
    resubmitted, status,
};

const ID: &str = "019d4d2f-9a74-7cc3-8a5e-1f0c6b7d2e90";
const CURSOR: &str = "WzEsIm5vdGlmaWNhdGlvbnMiXQ";
const PRODUCER: &str = "game_master";
const KEY: &str = "game-123:turn-54";
/// 2026-04-02T09:21:40Z, in Unix milliseconds.
const OCCURRED_AT_MS: i64 = 1_775_121_700_000;

/// The time `millis` milliseconds after the event.
fn after(millis: i64) -> Timestamp {
    Timestamp::from_millis(OCCURRED_AT_MS + millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn only(value: Value) -> Value {
    json!({"example": {"value": value}})
}

fn rendered(value: impl Serialize) -> Value {
    // Cannot fail: responses consist of strings, numbers and lists in memory.
    only(serde_json::to_value(value).expect("it is JSON"))
}

fn payload() -> Value {
    json!({"game_id": "game-123", "game_name": "Nova", "turn_number": 54})
}

fn turn_ready() -> Value {
    json!({
        "notification_type": "game.turn.ready",
        "audience_kind": "user",
        "recipient_user_ids": ["u-1"],
        "occurred_at_ms": OCCURRED_AT_MS,
        "payload": payload(),
    })
}

/// An example intent, if the catalogue has its type.
pub(super) fn intent(catalog: &Catalog) -> Value {
    match is_valid(catalog) {
        true => only(turn_ready()),
        false => json!({}),
    }
}

/// A batch with that intent.
pub(super) fn batch(catalog: &Catalog) -> Value {
    let mut element = turn_ready();
    element["idempotency_key"] = KEY.into();
    match is_valid(catalog) {
        true => only(json!({"intents": [element]})),
        false => json!({}),
    }
}

fn is_valid(catalog: &Catalog) -> bool {
    let text = turn_ready().to_string();
    let context = BodyContext { producer: PRODUCER, idempotency_key: Some(KEY), request_id: None };
    IntentBody::parse(&text).is_ok_and(|body| body.decode(context, catalog).is_ok())
}

/// The record of that intent.
fn record() -> Record {
    Record {
        notification_id: NotificationId::from(ID.to_owned()),
        idempotency_key: IdempotencyKey { producer: PRODUCER.to_owned(), key: KEY.to_owned() },
        audience_kind: "user",
        recipient_user_ids: vec!["u-1".to_owned()],
        fingerprint: format!("v1:{}", "4f".repeat(32)),
        content: Arc::new(RecordContent {
            producer: "game-master".into(),
            notification_type: "game.turn.ready".to_owned(),
            payload_json: payload().to_string(),
            occurred_at: after(0),
            accepted_at: after(438),
            request_id: String::new(),
            trace_id: String::new(),
        }),
        idempotency_expires_at: after(438) + Duration::from_secs(168 * 60 * 60),
    }
}

fn key(channel: Channel) -> RouteKey {
    let notification_id = NotificationId::from(ID.to_owned());
    RouteKey { notification_id, route_id: route(channel).route_id.to_string() }
}

fn route(channel: Channel) -> Route {
    Route {
        route_id: format!("{channel}:user:u-1").into(),
        route_number: 1,
        channel,
        recipient_ref: "user:u-1".into(),
        status: RouteStatus::Pending,
        attempt_count: 0,
        max_attempts: 3,
        next_attempt_at: Some(after(5_438)),
        resolved_email: "".into(),
        resolved_locale: "en".to_owned(),
        last_error_classification: String::new(),
        last_error_message: String::new(),
        last_error_at: None,
        failed_attempts: Vec::new(),
        created_at: after(438),
        updated_at: after(438),
        published_at: None,
        dead_lettered_at: None,
        skipped_at: None,
        published_entry_id: String::new(),
        recovery_hint: String::new(),
        discarded: None,
        resend: None,
        hold: None,
        receipt: None,
        explanation: String::new(),
    }
}

fn detail() -> Notification {
    let delivered =
        Report { status: ReceiptStatus::Delivered, at: after(460), detail: "1 device".to_owned() };
    let published = Route {
        status: RouteStatus::Published,
        next_attempt_at: None,
        updated_at: after(447),
        published_at: Some(after(447)),
        published_entry_id: "1775121700447-0".to_owned(),
        receipt: Some(Receipt::after(None, delivered).0),
        ..route(Channel::Push)
    };
    let attempt = FailedAttempt {
        attempt: 1,
        at: after(447),
        classification: Channel::Email.publish_failed().to_owned(),
        message: "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(),
    };
    let failed = Route {
        status: RouteStatus::Failed,
        attempt_count: 1,
        max_attempts: 7,
        next_attempt_at: Some(after(1_447)),
        resolved_email: "u-1@example.com".into(),
        last_error_classification: attempt.classification.clone(),
        last_error_message: attempt.message.clone(),
        last_error_at: Some(attempt.at),
        failed_attempts: vec![attempt],
        updated_at: after(447),
        ..route(Channel::Email)
    };
    Notification::new(record(), after(438), vec![failed, published])
}

/// Examples of operators' searches.
pub(super) fn searches() -> Value {
    let failed = json!({
        "accepted_at": {"$after": after(-3_600_000).to_string()},
        "route.channel": "email",
        "route.status": {"$in": ["failed", "dead_letter"]},
    });
    json!({
        "failed e-mails of an hour": {"value": {"filter": failed, "limit": 100}},
        "by payload": {"value": {"filter": {"recipient": "u-1", "payload.turn_number": {"$gte": 54}}}},
    })
}

/// The response to that intent, and the response to a later duplicate.
pub(super) fn accepted() -> Value {
    let start = Start::Pending { due: after(5_438) };
    let new = |channel| {
        let Route { recipient_ref, resolved_email, resolved_locale, max_attempts, .. } = route(channel);
        NewRoute {
            key: key(channel),
            channel,
            recipient_ref: recipient_ref.to_string(),
            resolved_email: resolved_email.to_string(),
            resolved_locale,
            max_attempts,
            start,
        }
    };
    let acceptance = Acceptance { record: record(), routes: Channel::ALL.map(new).into() };
    let accepted = rendered(Accepted::new(&acceptance))["example"].take();
    let duplicate = rendered(Accepted::duplicate(&detail()))["example"].take();
    json!({"accepted": accepted, "duplicate": duplicate})
}

/// The outcomes of that intent's key: while it waits in the stream, after acceptance, and after a malformed
/// intent.
pub(super) fn intent_outcomes() -> Value {
    let told = |state, trace| rendered(KeyOutcome::new(state, &trace, true))["example"].take();
    let accepted = IntentTrace { notification: Some(detail()), ..IntentTrace::default() };
    let malformed = IntentTrace { malformed: Some(malformed().summary), ..IntentTrace::default() };
    json!({
        "accepted": told(IntentState::Accepted, accepted),
        "malformed": told(IntentState::Malformed, malformed),
        "unread": told(IntentState::Unread, IntentTrace::default()),
    })
}

pub(super) fn batch_results() -> Value {
    let accepted = AcceptedElement {
        status: 202,
        notification_id: ID.to_owned(),
        outcome: OUTCOME_ACCEPTED,
        accepted_at: after(438),
        routes: 2,
    };
    let message = "a required field is absent or empty: idempotency_key".to_owned();
    let rejection = Rejection { code: FailureCode::MissingField, message };
    let refused = ElementResult::problem(&malformed_intent(&rejection));
    rendered(Results { results: vec![ElementResult::Accepted(accepted), refused] })
}

pub(super) fn notification() -> Value {
    rendered(detail().explained(after(500)))
}

pub(super) fn notifications() -> Value {
    let record = record();
    let mut routes = RouteCounts::default();
    routes.add(RouteStatus::Failed, 1);
    routes.add(RouteStatus::Published, 1);
    let summary = NotificationSummary {
        notification_id: record.notification_id,
        notification_type: record.content.notification_type.clone(),
        producer: record.idempotency_key.producer,
        audience_kind: record.audience_kind.to_owned(),
        idempotency_key: record.idempotency_key.key,
        recipients: 1,
        first_recipient_user_ids: record.recipient_user_ids,
        accepted_at: record.content.accepted_at,
        occurred_at: record.content.occurred_at,
        routes,
    };
    rendered(Notifications { notifications: vec![summary], next_cursor: Some(CURSOR.to_owned()) })
}

fn bounced() -> Report {
    Report {
        status: ReceiptStatus::Bounced,
        at: after(90_000),
        detail: "550 5.1.1 mailbox does not exist".to_owned(),
    }
}

/// The receipt of the mail service for the e-mail.
pub(super) fn receipts() -> Value {
    let Report { status, at, detail } = bounced();
    let id = key(Channel::Email).to_string();
    let report = json!({"id": id, "status": status.as_str(), "at": at.to_string(), "detail": detail});
    only(json!({"receipts": [report]}))
}

pub(super) fn receipt_results() -> Value {
    let result = |id: &str, outcome: ReportOutcome| ReceiptResult {
        id: Some(id.to_owned()),
        outcome: outcome.as_str(),
        detail: None,
    };
    let id = key(Channel::Email).to_string();
    let invalid = ReceiptResult {
        outcome: OUTCOME_INVALID,
        detail: Some("at takes a time of RFC 3339.".to_owned()),
        ..result(&id, ReportOutcome::UnknownRoute)
    };
    let results = vec![
        result(&id, ReportOutcome::Known(Recorded::Recorded)),
        result(&id, ReportOutcome::Known(Recorded::Stale)),
        result("1775121700000-0/email:user:u-9", ReportOutcome::UnknownRoute),
        invalid,
    ];
    rendered(ReceiptResults { results })
}
