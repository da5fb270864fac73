//! Examples of operators' reads and changes.

use std::time::Duration;

use domain::dead_letter::recovery_hint;
use domain::entry::EntryId;
use domain::erase::{ErasedRows, ErasurePlan, ErasureReport, Mentions};
use domain::explanation::intent::Fate;
use domain::find::{Match, Matches};
use domain::hold::{Hold, HoldChange, HoldKey, HoldPlan, HoldScope};
use domain::malformed_intent::{FailureCode, MalformedKey};
use domain::operations::{ChangeReport, Group, OperatorActionId, Plan, PlanGroup};
use domain::query::{
    self, ActivityHistory, ActivityPeriod, CauseCounts, ChannelStatus, Counted, DeadLetter, LeaderTerm,
    MalformedSummary, RecentFailures, RecordedAction, ReplicaStatus, Route, Status, StoreStatus,
    StoredMalformedIntent, StreamBacklog,
};
use domain::replica::{
    Activity, ActivityPart, AttemptsReport, Delays, PartActivity, ReplicaReport, WorkerReport,
};
use domain::resubmit::{ResubmitReport, ResubmitTarget, ResubmitTargets};
use domain::route::Channel;
use serde_json::{Value, json};

use super::{OCCURRED_AT_MS, PRODUCER, after, detail, key, rendered, route};
use crate::view::{
    Actions, Cancelled, ChangedHold, DeadLetters, Discarded, Holds, MalformedIntents, MalformedIntentsPage,
    Replayed, Resent,
};

const ENTRY_ID: &str = "1775121700000-0";

fn dead_letter() -> DeadLetter {
    let Route { channel, recipient_ref, .. } = route(Channel::Push);
    DeadLetter {
        key: key(channel),
        notification_type: "game.turn.ready".to_owned(),
        channel,
        recipient_ref: recipient_ref.to_string(),
        final_attempt_count: 3,
        max_attempts: 3,
        failure_classification: channel.publish_failed().to_owned(),
        failure_message: "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(),
        recovery_hint: recovery_hint(channel, channel.publish_failed()).to_owned(),
        created_at: after(4_500),
        discarded: None,
    }
}

pub(in crate::openapi) fn dead_letters() -> Value {
    rendered(DeadLetters { dead_letters: vec![dead_letter()], next_cursor: None })
}

pub(in crate::openapi) fn replay_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()]}},
        "plan": {"value": {"filter": {"channel": "push"}, "dry_run": true}},
    })
}

pub(in crate::openapi) fn discard_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()], "reason": "the game is over"}},
        "plan": {"value": {
            "filter": {"notification_type": "game.turn.ready", "created_before": after(10_000).to_string()},
            "reason": "obsolete",
            "dry_run": true,
        }},
    })
}

pub(in crate::openapi) fn cancel_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()], "reason": "wrong template"}},
        "plan": {"value": {
            "filter": {"notification_type": "game.turn.ready", "since": after(0).to_string()},
            "reason": "wrong template",
            "dry_run": true,
        }},
    })
}

pub(in crate::openapi) fn resend_requests() -> Value {
    json!({
        "ids": {"value": {"ids": [dead_letter().key.to_string()]}},
        "plan": {"value": {
            "filter": {"channel": "email", "since": after(0).to_string(), "until": after(10_200_000).to_string()},
            "reason": "the mail service lost them",
            "dry_run": true,
        }},
    })
}

fn report() -> ChangeReport {
    ChangeReport { changed: 1, ..ChangeReport::default() }
}

fn planned(group: Group) -> Value {
    let letter = dead_letter();
    let group = PlanGroup { channel: letter.channel, group, count: 1 };
    let count = Counted { count: 1, capped: false };
    let plan = Plan {
        count,
        by: vec![group],
        first: vec![letter.key],
        unknown: Vec::new(),
        remaining: Counted::default(),
    };
    rendered(plan)["example"].take()
}

fn cause() -> Group {
    Group::Cause(dead_letter().failure_classification)
}

pub(in crate::openapi) fn resent() -> Value {
    let plan = planned(Group::Type(dead_letter().notification_type));
    json!({"done": rendered(Resent::from(report()))["example"], "plan": plan})
}

pub(in crate::openapi) fn cancelled() -> Value {
    let plan = planned(Group::Type(dead_letter().notification_type));
    json!({"done": rendered(Cancelled::from(report()))["example"], "plan": plan})
}

pub(in crate::openapi) fn replayed() -> Value {
    json!({"done": rendered(Replayed::from(report()))["example"], "plan": planned(cause())})
}

pub(in crate::openapi) fn discarded() -> Value {
    json!({"done": rendered(Discarded::from(report()))["example"], "plan": planned(cause())})
}

pub(in crate::openapi) fn malformed() -> StoredMalformedIntent {
    let summary = MalformedSummary {
        key: MalformedKey {
            stream: "notification:intents".to_owned(),
            entry_id: ENTRY_ID.to_owned(),
            fields_fingerprint: "7c".repeat(32),
        },
        notification_type: String::new().into(),
        producer: PRODUCER.to_owned(),
        idempotency_key: String::new().into(),
        failure_code: FailureCode::UnknownField.as_str().to_owned(),
        failure_message: "colour is not a field of an intent".to_owned().into(),
        recorded_at: after(12),
        resubmitted_at: None,
        resubmitted_entry_id: None,
    };
    StoredMalformedIntent {
        summary,
        raw_fields: Some(r#"[["producer","game_master"],["colour","red"]]"#.to_owned()),
        resubmitted_from: None,
        resubmitted_outcome: None,
        conflict: None,
    }
}

pub(in crate::openapi) fn matches() -> Value {
    let (now, found) = (after(1_000), detail().explained(after(1_000)));
    let fate = Fate::Accepted {
        notification_id: found.notification_id.clone(),
        accepted_at: found.accepted_at,
        route_id: None,
    };
    rendered(Matches {
        name: found.idempotency_key.clone(),
        found: vec![Match::new(&fate, None, now)],
        searched: vec![format!("notifications with the idempotency key {}", found.idempotency_key)],
        notifications: vec![found],
        stream_error: None,
    })
}

pub(in crate::openapi) fn resubmit_requests() -> Value {
    let code = FailureCode::RecipientNotFound.as_str();
    json!({
        "ids": {"value": {"ids": [ENTRY_ID]}},
        "plan": {"value": {"filter": {"code": code, "recorded_after": after(-3_600_000).to_string()}, "dry_run": true}},
    })
}

pub(in crate::openapi) fn resubmitted() -> Value {
    let row = malformed().summary;
    let mut report = ResubmitReport::default();
    report.add(&[(row.key.clone(), "1775121760000-0".to_owned())]);
    let stream = row.key.stream.clone();
    let targets = vec![ResubmitTarget::new(row, &stream)];
    let plan = ResubmitTargets { targets, ..ResubmitTargets::default() }.plan();
    json!({"done": rendered(report)["example"], "plan": rendered(plan)["example"]})
}

pub(in crate::openapi) fn malformed_intents_page() -> Value {
    let StoredMalformedIntent { summary, .. } = malformed();
    let malformed_intents = vec![summary];
    rendered(MalformedIntentsPage { malformed_intents, next_cursor: None })
}

pub(in crate::openapi) fn malformed_intents() -> Value {
    rendered(MalformedIntents { malformed_intents: vec![malformed()] })
}

fn hold() -> Hold {
    Hold {
        key: HoldKey { scope: HoldScope::Producer, name: PRODUCER.to_owned() },
        since: after(60_000),
        actor: "ops".to_owned(),
        reason: "sends every turn twice".to_owned(),
        released_at: None,
        routes: Counted { count: 1, capped: false },
    }
}

pub(in crate::openapi) fn actions() -> Value {
    let Hold { key, since, actor, reason, .. } = hold();
    let change = HoldChange::Hold { reason };
    let action = RecordedAction {
        id: OperatorActionId(7),
        at: since,
        actor,
        action: change.action().to_owned(),
        arguments: change.arguments(&key, Some("incident-17")),
        affected: 1,
        request_id: "c1f7a1a2c5d94c1c8f2e6a7f0f8f9b11".to_owned(),
    };
    rendered(Actions { actions: vec![action], next_cursor: None })
}

pub(in crate::openapi) fn holds() -> Value {
    rendered(Holds { holds: vec![hold()] })
}

pub(in crate::openapi) fn hold_requests() -> Value {
    let Hold { key: HoldKey { scope, name }, reason, .. } = hold();
    json!({
        "hold": {"value": {"scope": scope, "name": name, "reason": reason}},
        "plan": {"value": {"scope": "channel", "name": "email", "reason": reason, "dry_run": true}},
    })
}

pub(in crate::openapi) fn release_requests() -> Value {
    let Hold { key: HoldKey { scope, name }, .. } = hold();
    json!({
        "release": {"value": {"scope": scope, "name": name}},
        "plan": {"value": {"scope": "channel", "name": "email", "dry_run": true}},
    })
}

pub(in crate::openapi) fn changed_hold() -> Value {
    let routes = Counted { count: 1, capped: false };
    let plan = HoldPlan { routes, first: vec![dead_letter().key], hold: None };
    let done = ChangedHold { changed: true, hold: Some(hold()) };
    json!({"done": rendered(done)["example"], "plan": rendered(plan)["example"]})
}

pub(in crate::openapi) fn erase_requests() -> Value {
    json!({
        "erase": {"value": {"user_id": "u-1"}},
        "plan": {"value": {"user_id": "u-1", "dry_run": true}},
    })
}

pub(in crate::openapi) fn erased() -> Value {
    let user_hash = "9d".repeat(32);
    let plan = ErasurePlan {
        user_hash: user_hash.clone(),
        notifications: Counted { count: 2, capped: false },
        stream_entries: Counted { count: 4, capped: false },
        directory_document: true,
        ..ErasurePlan::default()
    };
    let rows = ErasedRows { records_deleted: 1, records_changed: 1, routes: 4, ..ErasedRows::default() };
    let done = ErasureReport {
        user_hash,
        request_id: "0197a2c4-7f00-7000-8000-0123456789ab".to_owned(),
        started_at: after(900),
        ended_at: after(960),
        rows,
        stream_entries: 4,
        unread_entries: 0,
        complete: true,
        mentions: Mentions::default(),
    };
    json!({"done": rendered(done)["example"], "plan": rendered(plan)["example"]})
}

pub(in crate::openapi) fn status() -> Value {
    let nothing = Counted::default();
    let channel =
        |channel| ChannelStatus { channel, due: nothing, oldest_due: None, failing: nothing, waiting: None };
    let worker = WorkerReport {
        worker: query::INTAKE.to_owned(),
        last_pass_at: after(900),
        blocked: None,
        position: None,
        deferred: None,
        attempts: Some(AttemptsReport {
            succeeded: 1_200,
            failed: 0,
            failing_since: None,
            cause: String::new(),
        }),
    };
    let report = ReplicaReport {
        replica: "notification-0".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: after(-3_600_000),
        leader_of: vec![query::INTAKE.to_owned()],
        workers: vec![worker],
        stopped: false,
    };
    let store = StoreStatus {
        at: after(1_000),
        stream: "notification:intents".to_owned(),
        checkpoint: None,
        channels: Channel::ALL.map(channel).into(),
        dead_letters: CauseCounts {
            counts: vec![(Channel::Push.publish_failed().to_owned(), 1)],
            capped: false,
        },
        malformed_intents: CauseCounts::default(),
        recent: RecentFailures::default(),
        receipts: CauseCounts::default(),
        holds: Vec::new(),
        replicas: vec![ReplicaStatus::new(report, after(950))],
    };
    let term = LeaderTerm { since: after(-3_590_000), fence: 7 };
    let last_entry_id = Some(EntryId::new(OCCURRED_AT_MS.unsigned_abs(), 0));
    let backlog = StreamBacklog { last_entry_id, first: None, entries: nothing };
    rendered(Status::new(store, Some(term), None, Some(backlog)))
}

pub(in crate::openapi) fn activity() -> Value {
    let mut delays = Delays::default();
    delays.add(Duration::from_millis(40));
    let activity = Activity { published: 1, ..Activity::default() };
    let of_type = |channel| ActivityPart::Routes { channel, notification_type: "game.turn.ready".to_owned() };
    let of_producer =
        PartActivity { activity: Activity { accepted: 1, ..Activity::default() }, ..PartActivity::default() };
    let step = ActivityPeriod::Day.step_of(after(0));
    let parts = vec![
        (step, (of_type(Channel::Push), PartActivity { activity, delays })),
        (step, (ActivityPart::Producer(PRODUCER.to_owned()), of_producer)),
    ];
    let totals = vec![(step, Activity { accepted: 1, published: 1, ..Activity::default() })];
    let mut history = ActivityHistory::new(ActivityPeriod::Day, after(0), totals, parts);
    // The others are as long as it is.
    history.steps.retain(|step| step.activity.accepted > 0);
    rendered(history)
}
