//! The examples of the document: values of the domain, rendered like answers.

use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::dead_letter::recovery_hint;
use domain::entry::EntryId;
use domain::intent::{BodyContext, IntentBody};
use domain::malformed::{FailureCode, MalformedKey, Rejection};
use domain::operations::{ChangeReport, Plan, PlanGroup};
use domain::outcome::Acceptance;
use domain::query::{
    self, CauseCounts, ChannelStatus, Counted, LeaderTerm, MalformedSummary, NotificationDetail,
    ReplicaStatus, RouteCounts, Status, StoreStatus, StoredMalformedIntent, StoredRoute, StreamBacklog,
};
use domain::record::{Content, IdempotencyScope, NotificationId, Record};
use domain::replica::{ReplicaReport, WorkerReport};
use domain::route::{Channel, NewRoute, RouteKey, RouteStatus, Start};
use serde::Serialize;
use serde_json::{Value, json};

use crate::batch::{ElementResult, Results};
use crate::problems::malformed_intent;
use crate::view::{
    Accepted, AcceptedElement, DeadLetter, DeadLetters, Discarded, MalformedIntent, MalformedIntentSummary,
    MalformedIntents, MalformedIntentsPage, Notification, NotificationSummary, Notifications,
    OUTCOME_ACCEPTED, Planned, Replayed, ServiceStatus, Time,
};

const ID: &str = "019d4d2f-9a74-7cc3-8a5e-1f0c6b7d2e90";
const ENTRY_ID: &str = "1775121700000-0";
const CURSOR: &str = "WzEsIm5vdGlmaWNhdGlvbnMiXQ";
const PRODUCER: &str = "game_master";
const KEY: &str = "game-123:turn-54";
/// 2026-04-02T09:21:40Z, in Unix milliseconds.
const OCCURRED_AT_MS: i64 = 1_775_121_700_000;

/// A time so many milliseconds after the event.
fn after(millis: i64) -> Timestamp {
    Timestamp::from_millis(OCCURRED_AT_MS + millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn only(value: Value) -> Value {
    json!({"example": {"value": value}})
}

fn rendered(value: impl Serialize) -> Value {
    // Cannot fail: answers are made of texts, numbers and lists in memory.
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

/// An intent, if the catalogue has its type.
pub(super) fn intent(catalog: &Catalog) -> Value {
    match is_valid(catalog) {
        true => only(turn_ready()),
        false => json!({}),
    }
}

/// A batch of it.
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
        scope: IdempotencyScope { producer: PRODUCER.to_owned(), key: KEY.to_owned() },
        audience_kind: "user",
        recipient_user_ids: vec!["u-1".to_owned()],
        fingerprint: format!("v1:{}", "4f".repeat(32)),
        content: Arc::new(Content {
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

fn route(channel: Channel) -> StoredRoute {
    StoredRoute {
        key: RouteKey {
            notification_id: NotificationId::from(ID.to_owned()),
            route_id: format!("{channel}:user:u-1"),
        },
        channel,
        recipient_ref: "user:u-1".to_owned(),
        status: RouteStatus::Pending,
        attempt_count: 0,
        max_attempts: 3,
        next_attempt_at: Some(after(5_438)),
        resolved_email: String::new(),
        resolved_locale: "en".to_owned(),
        last_error_classification: String::new(),
        last_error_message: String::new(),
        last_error_at: None,
        created_at: after(438),
        updated_at: after(438),
        published_at: None,
        dead_lettered_at: None,
        skipped_at: None,
        published_entry_id: String::new(),
        recovery_hint: String::new(),
        discarded: None,
    }
}

fn detail() -> NotificationDetail {
    let published = StoredRoute {
        status: RouteStatus::Published,
        next_attempt_at: None,
        updated_at: after(447),
        published_at: Some(after(447)),
        published_entry_id: "1775121700447-0".to_owned(),
        ..route(Channel::Push)
    };
    let failed = StoredRoute {
        status: RouteStatus::Failed,
        attempt_count: 1,
        max_attempts: 7,
        next_attempt_at: Some(after(1_447)),
        resolved_email: "u-1@example.com".to_owned(),
        last_error_classification: Channel::Email.publish_failed().to_owned(),
        last_error_message: "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(),
        last_error_at: Some(after(447)),
        updated_at: after(447),
        ..route(Channel::Email)
    };
    NotificationDetail { record: record(), updated_at: after(438), routes: vec![failed, published] }
}

/// The answer to that intent, and that to a later one that is the same.
pub(super) fn accepted() -> Value {
    let start = Start::Pending { due: after(5_438) };
    let new = |channel| {
        let StoredRoute { key, recipient_ref, resolved_email, resolved_locale, max_attempts, .. } =
            route(channel);
        NewRoute { key, channel, recipient_ref, resolved_email, resolved_locale, max_attempts, start }
    };
    let acceptance = Acceptance { record: record(), routes: Channel::ALL.map(new).into() };
    let accepted = rendered(Accepted::new(&acceptance))["example"].take();
    let duplicate = rendered(Accepted::duplicate(&detail()))["example"].take();
    json!({"accepted": accepted, "duplicate": duplicate})
}

pub(super) fn batch_results() -> Value {
    let accepted = AcceptedElement {
        status: 202,
        notification_id: ID.to_owned(),
        outcome: OUTCOME_ACCEPTED,
        accepted_at: Time(after(438)),
        routes: 2,
    };
    let message = "a required field is absent or empty: idempotency_key".to_owned();
    let rejection = Rejection { code: FailureCode::MissingField, message };
    let refused = ElementResult::problem(&malformed_intent(&rejection));
    rendered(Results { results: vec![ElementResult::Accepted(accepted), refused] })
}

pub(super) fn notification() -> Value {
    rendered(Notification::new(&detail(), after(500), true))
}

pub(super) fn notifications() -> Value {
    let record = record();
    let mut routes = RouteCounts::default();
    routes.add(RouteStatus::Failed, 1);
    routes.add(RouteStatus::Published, 1);
    let summary = query::NotificationSummary {
        notification_id: record.notification_id,
        notification_type: record.content.notification_type.clone(),
        producer: record.scope.producer,
        audience_kind: record.audience_kind.to_owned(),
        idempotency_key: record.scope.key,
        accepted_at: record.content.accepted_at,
        occurred_at: record.content.occurred_at,
        routes,
    };
    let notifications = vec![NotificationSummary::new(&summary)];
    rendered(Notifications { notifications, next_cursor: Some(CURSOR.to_owned()) })
}

fn dead_letter() -> query::DeadLetter {
    let StoredRoute { key, channel, recipient_ref, .. } = route(Channel::Push);
    query::DeadLetter {
        key,
        notification_type: "game.turn.ready".to_owned(),
        channel,
        recipient_ref,
        final_attempt_count: 3,
        max_attempts: 3,
        failure_classification: channel.publish_failed().to_owned(),
        failure_message: "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(),
        recovery_hint: recovery_hint(channel, channel.publish_failed()).to_owned(),
        created_at: after(4_500),
        discarded: None,
    }
}

pub(super) fn dead_letters() -> Value {
    let letter = dead_letter();
    rendered(DeadLetters { dead_letters: vec![DeadLetter::new(&letter)], next_cursor: None })
}

pub(super) fn replay_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()]}},
        "plan": {"value": {"filter": {"channel": "push"}, "dry_run": true}},
    })
}

pub(super) fn discard_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()], "reason": "the game is over"}},
        "plan": {"value": {
            "filter": {"notification_type": "game.turn.ready", "created_before": after(10_000).to_string()},
            "reason": "obsolete",
            "dry_run": true,
        }},
    })
}

fn report() -> ChangeReport {
    ChangeReport { changed: 1, remaining: Counted::default(), unknown: Vec::new() }
}

fn planned() -> Value {
    let letter = dead_letter();
    let group =
        PlanGroup { channel: letter.channel, classification: letter.failure_classification, count: 1 };
    let count = Counted { count: 1, capped: false };
    let plan = Plan {
        count,
        by: vec![group],
        first: vec![letter.key],
        unknown: Vec::new(),
        remaining: Counted::default(),
    };
    rendered(Planned::new(plan))["example"].take()
}

pub(super) fn replayed() -> Value {
    json!({"done": rendered(Replayed::from(report()))["example"], "plan": planned()})
}

pub(super) fn discarded() -> Value {
    json!({"done": rendered(Discarded::from(report()))["example"], "plan": planned()})
}

fn malformed() -> StoredMalformedIntent {
    let summary = MalformedSummary {
        key: MalformedKey {
            stream: "notification:intents".to_owned(),
            entry_id: ENTRY_ID.to_owned(),
            fields_fingerprint: "7c".repeat(32),
        },
        notification_type: String::new(),
        producer: PRODUCER.to_owned(),
        idempotency_key: String::new(),
        failure_code: FailureCode::UnknownField.as_str().to_owned(),
        failure_message: "colour is not a field of an intent".to_owned(),
        recorded_at: after(12),
    };
    StoredMalformedIntent {
        summary,
        raw_fields: Some(r#"[["producer","game_master"],["colour","red"]]"#.to_owned()),
    }
}

pub(super) fn malformed_intents_page() -> Value {
    let StoredMalformedIntent { summary, .. } = malformed();
    let malformed_intents = vec![MalformedIntentSummary::new(&summary)];
    rendered(MalformedIntentsPage { malformed_intents, next_cursor: None })
}

pub(super) fn malformed_intents() -> Value {
    let stored = malformed();
    rendered(MalformedIntents { malformed_intents: vec![MalformedIntent::new(&stored)] })
}

pub(super) fn status() -> Value {
    let nothing = Counted::default();
    let channel = |channel| ChannelStatus { channel, due: nothing, oldest_due: None, failing: nothing };
    let worker = WorkerReport {
        worker: query::INTAKE.to_owned(),
        last_pass_at: after(900),
        blocked: None,
        position: None,
        deferred: 0,
    };
    let report = ReplicaReport {
        replica: "notification-0".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: after(-3_600_000),
        leader_of: vec![query::INTAKE.to_owned()],
        workers: vec![worker],
    };
    let store = StoreStatus {
        at: after(1_000),
        checkpoint: None,
        channels: Channel::ALL.map(channel).into(),
        dead_letters: CauseCounts {
            counts: vec![(Channel::Push.publish_failed().to_owned(), 1)],
            capped: false,
        },
        malformed_intents: CauseCounts::default(),
        replicas: vec![ReplicaStatus { report, seen_at: after(950) }],
    };
    let term = LeaderTerm { since: after(-3_590_000), fence: 7 };
    let last_entry_id = Some(EntryId::new(OCCURRED_AT_MS.unsigned_abs(), 0));
    let backlog = StreamBacklog { last_entry_id, first: None, entries: nothing };
    let status = Status::new(store, Some(term), Some(backlog));
    rendered(ServiceStatus::new(&status, "notification:intents", env!("CARGO_PKG_VERSION")))
}
