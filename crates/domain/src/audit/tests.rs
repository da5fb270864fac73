//! Tests of the rules of an audit, one table each.

mod outbound;

use super::DiscrepancyKind as Kind;
use super::*;
use crate::catalog::{AudienceKind, Catalog};
use crate::checkpoint::{CachedCheckpoint, Checkpoint, StreamState};
use crate::entry::{RawFields, Unread};
use crate::intent::{IntentDraft, Recipients};
use crate::record::IdempotencyKey;

use crate::route::{Channel, RouteKey, RouteStatus};

/// 2026-04-02, in milliseconds.
const TODAY: u64 = 1_775_121_700_000;
const DAY: u64 = 24 * 60 * 60 * 1_000;

fn id(millis: u64) -> EntryId {
    EntryId::new(millis, 0)
}

fn at(millis: u64) -> Timestamp {
    id(millis).time()
}

/// Retention: 30 days for records, 60 for malformed intents.
fn cutoffs() -> RetentionCutoffs {
    RetentionCutoffs { records: at(TODAY - 30 * DAY), malformed_intents: at(TODAY - 60 * DAY) }
}

fn fields(occurred_at_ms: u64, notification_type: &str) -> RawFields {
    IntentDraft {
        notification_type: notification_type.to_owned(),
        producer: "game_master".into(),
        recipients: Recipients::Users(vec!["u-1".into()]),
        idempotency_key: "k".into(),
        occurred_at_ms: occurred_at_ms.to_string(),
        payload_json: r#"{"game_id":"g-1","game_name":"Nova","turn_number":1}"#.into(),
        request_id: None,
        trace_id: None,
    }
    .into_entry()
}

fn trace(millis: u64, fields: &RawFields) -> EntryTrace {
    EntryTrace::new(id(millis), Ok(fields), &Catalog::built_in())
}

fn valid(millis: u64) -> EntryTrace {
    trace(millis, &fields(millis, "game.turn.ready"))
}

fn record(notification_id: &str, of: &EntryTrace) -> FoundOutcome {
    let fingerprint = match &of.content {
        Some(Ok((fingerprint, _))) => fingerprint.clone(),
        other => panic!("it is no intent: {other:?}"),
    };
    FoundOutcome { record: Some((notification_id.to_owned().into(), fingerprint)), ..FoundOutcome::default() }
}

fn row(of: &EntryTrace, code: &str) -> MalformedTrace {
    MalformedTrace {
        fields_fingerprint: of.fields_fingerprint.clone().expect("it was read"),
        failure_code: code.into(),
    }
}

fn judge(entry: &EntryTrace, found: &FoundOutcome) -> Result<EntryOutcome, Kind> {
    judge_in(entry, found, false)
}

fn judge_in(entry: &EntryTrace, found: &FoundOutcome, is_stream_behind: bool) -> Result<EntryOutcome, Kind> {
    let context = EntryContext { stream: "s", processed: id(TODAY), is_stream_behind, cutoffs: cutoffs() };
    judge_entry(entry, found, &context).map_err(|discrepancy| discrepancy.kind)
}

#[test]
fn an_entry_is_explained_by_its_record_its_row_or_the_record_of_its_key() {
    let entry = valid(TODAY);
    let other = valid(TODAY - 1);
    let malformed = |code| FoundOutcome { malformed: vec![row(&entry, code)], ..FoundOutcome::default() };
    let own = format!("{}-0", TODAY);
    for (found, expected) in [
        (record(&own, &entry), Ok(EntryOutcome::Accepted)),
        (record(&format!("{own}~2"), &entry), Ok(EntryOutcome::Accepted)),
        (record("5-0", &entry), Ok(EntryOutcome::Duplicate)),
        (record("018f2d3a-7c11-7aaa-8bbb-0123456789ab", &entry), Ok(EntryOutcome::Duplicate)),
        (malformed("recipient_not_found"), Ok(EntryOutcome::Malformed)),
        (malformed("idempotency_conflict"), Ok(EntryOutcome::Conflict)),
        (FoundOutcome::default(), Err(Kind::EntryWithoutOutcome)),
        (record(&own, &other), Err(Kind::RecordDiffersFromEntry)),
        (record("5-0", &other), Err(Kind::ConflictWithoutRow)),
        (
            FoundOutcome { malformed: vec![row(&other, "invalid_field")], ..FoundOutcome::default() },
            Err(Kind::EntryWithoutOutcome),
        ),
        (
            FoundOutcome { malformed: vec![row(&entry, "invalid_field")], ..record(&own, &entry) },
            Err(Kind::EntryWithTwoOutcomes),
        ),
        (
            FoundOutcome { malformed: vec![row(&entry, "idempotency_conflict")], ..record(&own, &other) },
            Ok(EntryOutcome::Conflict),
        ),
    ] {
        assert_eq!(judge(&entry, &found), expected, "{found:?}");
    }
    assert_eq!(judge(&valid(TODAY + 1), &FoundOutcome::default()), Ok(EntryOutcome::NotRead));
    assert_eq!(judge_in(&entry, &FoundOutcome::default(), true), Ok(EntryOutcome::NotRead));
}

#[test]
fn a_type_that_has_left_the_catalogue_does_not_turn_a_record_into_a_discrepancy() {
    let entry = trace(TODAY, &fields(TODAY, "game.no_longer_known"));
    assert_eq!(judge(&entry, &record("5-0", &valid(TODAY))), Ok(EntryOutcome::Duplicate));
    let broken = RawFields::from_iter([("producer", "game_master"), ("idempotency_key", "k"), ("x", "y")]);
    let entry = trace(TODAY, &broken);
    assert_eq!(entry.key, Some(IdempotencyKey { producer: "game_master".into(), key: "k".into() }));
    assert_eq!(judge(&entry, &record("5-0", &valid(TODAY))), Err(Kind::EntryWithoutOutcome));
}

#[test]
fn what_retention_may_have_deleted_is_no_discrepancy() {
    let none = FoundOutcome::default();
    assert_eq!(judge(&valid(TODAY - 30 * DAY), &none), Ok(EntryOutcome::Expired));
    assert_eq!(judge(&valid(TODAY - 30 * DAY + 1), &none), Err(Kind::EntryWithoutOutcome));
    let repeated = trace(TODAY, &fields(TODAY - 30 * DAY, "game.turn.ready"));
    assert_eq!(
        judge(&repeated, &none),
        Err(Kind::EntryWithoutOutcome),
        "it came today, however old its event is"
    );
    let broken = RawFields::from_iter([("x", "y")]);
    assert_eq!(judge(&trace(TODAY - 60 * DAY, &broken), &none), Ok(EntryOutcome::Expired));
    assert_eq!(judge(&trace(TODAY - 59 * DAY, &broken), &none), Err(Kind::EntryWithoutOutcome));
    let conflict = record("5-0", &valid(TODAY));
    assert_eq!(judge(&valid(TODAY - 60 * DAY), &conflict), Ok(EntryOutcome::Conflict));
}

#[test]
fn an_entry_that_is_too_large_or_too_slow_to_be_read_is_recognised_by_its_id() {
    for (why, without_row) in [
        (Unread::TooLarge, Err(Kind::EntryWithoutOutcome)),
        // The entry may be a valid intent, whose key is unknown.
        (Unread::TooSlow, Ok(EntryOutcome::NotCompared)),
    ] {
        let entry = EntryTrace::new(id(TODAY), Err(why), &Catalog::built_in());
        let malformed = vec![row(&valid(TODAY), "entry_too_large")];
        let found = FoundOutcome { malformed, ..FoundOutcome::default() };
        assert_eq!(judge(&entry, &found), Ok(EntryOutcome::Malformed));
        assert_eq!(judge(&entry, &FoundOutcome::default()), without_row, "{why:?}");
    }
}

fn checkpoints() -> Checkpoints {
    let checkpoint = Checkpoint { fence: 3, last_entry_id: id(10) };
    Checkpoints {
        cached: CachedCheckpoint::At(checkpoint),
        durable: Some(checkpoint),
        stream: Some(StreamState {
            first: Some(id(1)),
            last_generated: id(10),
            max_deleted: EntryId::ZERO,
            copied_bytes: 0,
        }),
        leader: Some(3),
    }
}

#[test]
fn checkpoints_that_lag_or_are_missing_are_no_discrepancy_and_those_that_lead_are() {
    let cached = |fence, last| CachedCheckpoint::At(Checkpoint { fence, last_entry_id: id(last) });
    let good = checkpoints();
    for (changed, expected) in [
        (good.clone(), vec![]),
        (Checkpoints { cached: CachedCheckpoint::Missing, ..good.clone() }, vec![]),
        (Checkpoints { cached: cached(2, 9), ..good.clone() }, vec![]),
        (Checkpoints { leader: Some(4), ..good.clone() }, vec![]),
        (Checkpoints { leader: None, ..good.clone() }, vec![]),
        (Checkpoints { durable: None, stream: None, leader: None, ..good.clone() }, vec![]),
        (Checkpoints { cached: cached(3, 11), ..good.clone() }, vec![Kind::CachedCheckpointAhead]),
        (Checkpoints { cached: cached(4, 10), ..good.clone() }, vec![Kind::CachedFenceAhead]),
        (
            Checkpoints { cached: CachedCheckpoint::Garbled("x".into()), ..good.clone() },
            vec![Kind::CachedCheckpointGarbled],
        ),
        (Checkpoints { leader: Some(2), ..good.clone() }, vec![Kind::LeaderFenceBelowCheckpoint]),
        (Checkpoints { stream: None, ..good.clone() }, vec![Kind::IntentsStreamAbsent]),
        (
            Checkpoints {
                stream: Some(StreamState {
                    first: Some(id(12)),
                    last_generated: id(13),
                    max_deleted: EntryId::ZERO,
                    copied_bytes: 0,
                }),
                ..good.clone()
            },
            vec![Kind::StreamTrimmedPastCheckpoint],
        ),
        (
            Checkpoints {
                stream: Some(StreamState {
                    first: Some(id(1)),
                    last_generated: id(9),
                    max_deleted: EntryId::ZERO,
                    copied_bytes: 0,
                }),
                ..good.clone()
            },
            vec![Kind::CheckpointAfterStream],
        ),
    ] {
        let found: Vec<Kind> = judge_checkpoints("s", &changed).into_iter().map(|found| found.kind).collect();
        assert_eq!(found, expected, "{changed:?}");
    }
}

fn route(user: &str, channel: Channel) -> AuditedRoute {
    let recipient_ref = format!("user:{user}");
    AuditedRoute {
        key: RouteKey {
            notification_id: "5-0".to_owned().into(),
            route_id: format!("{channel}:{recipient_ref}"),
        },
        channel,
        recipient_ref,
        status: RouteStatus::Published,
        attempt_count: 0,
        max_attempts: 3,
        next_attempt_at: None,
        created_at: at(1),
        updated_at: at(2),
        published_at: Some(at(2)),
        dead_lettered_at: None,
        skipped_at: None,
        published_entry_id: "7-0".into(),
        has_dead_letter: false,
        is_held: false,
    }
}

fn audited(routes: impl IntoIterator<Item = AuditedRoute>) -> AuditedRecord {
    AuditedRecord {
        notification_id: "5-0".to_owned().into(),
        accepted_at: at(1),
        updated_at: at(1),
        audience: AudienceKind::User,
        recipient_user_ids: vec!["u-1".into(), "u-2".into()],
        routes: routes.into_iter().map(RouteRow::Read).collect(),
    }
}

fn whole() -> Vec<AuditedRoute> {
    ["u-1", "u-2"].iter().flat_map(|user| Channel::ALL.map(|channel| route(user, channel))).collect()
}

fn kinds(record: &AuditedRecord) -> Vec<Kind> {
    judge_record(record).into_iter().map(|found| found.kind).collect()
}

#[test]
fn a_record_is_whole_if_every_recipient_has_a_route_on_each_of_its_channels() {
    assert_eq!(kinds(&audited(whole())), []);
    let push = whole().into_iter().filter(|route| route.channel == Channel::Push);
    assert_eq!(kinds(&audited(push)), [], "the catalogue may have had one channel only");
    assert_eq!(kinds(&audited(whole().into_iter().skip(1))), [Kind::RecordIncomplete]);
    assert_eq!(kinds(&audited([])), [Kind::RecordWithoutRoutes]);
    let stranger = route("u-9", Channel::Push);
    assert_eq!(kinds(&audited(whole().into_iter().chain([stranger]))), [Kind::RouteOfNoRecipient]);
    let changed = AuditedRecord { updated_at: at(2), ..audited(whole()) };
    assert_eq!(kinds(&changed), [Kind::RecordChanged]);
    let mut unreadable = audited(whole());
    let RouteRow::Read(first) = unreadable.routes.remove(0) else { panic!("it was read") };
    unreadable.routes.push(RouteRow::Unreadable(first.key, "status".into()));
    assert_eq!(kinds(&unreadable), [Kind::UnreadableRow]);
}

#[test]
fn administrators_have_addresses_or_one_route_that_is_skipped() {
    for reference in ["email:ops@example.com", "config:some.type"] {
        let mut admin = route("x", Channel::Email);
        admin.recipient_ref = reference.into();
        admin.key.route_id = format!("email:{reference}");
        let record = AuditedRecord {
            audience: AudienceKind::AdminEmail,
            recipient_user_ids: Vec::new(),
            ..audited([admin])
        };
        assert_eq!(kinds(&record), [], "{reference}");
    }
    let record = AuditedRecord {
        audience: AudienceKind::AdminEmail,
        recipient_user_ids: Vec::new(),
        ..audited([route("x", Channel::Email)])
    };
    assert_eq!(kinds(&record), [Kind::RouteOfNoRecipient]);
}

#[test]
fn each_contradiction_in_a_route_is_named_and_nothing_else() {
    let good = || route("u-1", Channel::Push);
    let pending = || AuditedRoute {
        status: RouteStatus::Pending,
        next_attempt_at: Some(at(3)),
        published_at: None,
        published_entry_id: String::new(),
        ..good()
    };
    let dead = || AuditedRoute {
        status: RouteStatus::DeadLetter,
        published_at: None,
        published_entry_id: String::new(),
        dead_lettered_at: Some(at(2)),
        has_dead_letter: true,
        ..good()
    };
    let skipped = || AuditedRoute {
        status: RouteStatus::Skipped,
        published_at: None,
        published_entry_id: String::new(),
        skipped_at: Some(at(1)),
        updated_at: at(1),
        ..good()
    };
    for (changed, expected) in [
        (good(), vec![]),
        (pending(), vec![]),
        (AuditedRoute { updated_at: at(1), ..pending() }, vec![]),
        (dead(), vec![]),
        (skipped(), vec![]),
        (AuditedRoute { next_attempt_at: None, ..pending() }, vec![Kind::ScheduleMismatch]),
        (AuditedRoute { next_attempt_at: Some(Timestamp::MAX), ..pending() }, vec![Kind::RouteWithoutEnd]),
        (AuditedRoute { next_attempt_at: Some(at(3)), ..good() }, vec![Kind::ScheduleMismatch]),
        (AuditedRoute { attempt_count: 4, ..good() }, vec![Kind::AttemptsOverBudget]),
        (AuditedRoute { recipient_ref: "user:u-2".into(), ..good() }, vec![Kind::RouteIdMismatch]),
        (AuditedRoute { updated_at: at(1), ..good() }, vec![Kind::VersionDidNotRise]),
        (AuditedRoute { updated_at: at(0), ..pending() }, vec![Kind::VersionDidNotRise]),
        (AuditedRoute { published_at: None, ..good() }, vec![Kind::TerminalWithoutTime]),
        (AuditedRoute { skipped_at: None, ..skipped() }, vec![Kind::TerminalWithoutTime]),
        (AuditedRoute { published_entry_id: "x".into(), ..good() }, vec![Kind::PublishedWithoutEntry]),
        (AuditedRoute { has_dead_letter: false, ..dead() }, vec![Kind::DeadLetterWithoutRow]),
        (AuditedRoute { has_dead_letter: true, ..good() }, vec![Kind::RowWithoutDeadLetter]),
    ] {
        let record = AuditedRecord { recipient_user_ids: vec!["u-1".into()], ..audited([changed.clone()]) };
        assert_eq!(kinds(&record), expected, "{changed:?}");
    }
}

#[test]
fn a_live_route_is_stuck_a_minute_after_it_was_due() {
    let pending = AuditedRoute {
        status: RouteStatus::Pending,
        next_attempt_at: Some(at(0)),
        ..route("u", Channel::Push)
    };
    assert!(pending.stuck_since(at(60_000)).is_none() && pending.stuck_since(at(60_001)) == Some(at(0)));
    assert!(AuditedRoute { next_attempt_at: None, ..pending }.stuck_since(at(60_001)).is_none());
}

#[test]
fn every_kind_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(names.len(), Kind::ALL.len());
}
