//! Tests of every fate, derived from the data found under a name.

use std::sync::Arc;

use ambient::Timestamp;

use super::*;
use crate::catalog::Catalog;
use crate::document::Age;
use crate::entry::RawEntry;
use crate::intent::{IntentDraft, Recipients, decode};
use crate::malformed_intent::MalformedKey;
use crate::record::RecordContent;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(seconds * 1_000).expect("small")).expect("in range")
}

fn id(seconds: u64) -> EntryId {
    EntryId::new(seconds * 1_000, 0)
}

/// Fields of an intent; another `turn` makes a different intent.
pub(crate) fn fields(key: &str, turn: u32) -> RawFields {
    let draft = IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: "game_master".to_owned(),
        recipients: Recipients::Users(vec!["u-1".to_owned()]),
        idempotency_key: key.to_owned(),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: format!(r#"{{"game_id":"g","game_name":"n","turn_number":{turn}}}"#),
        request_id: None,
        trace_id: None,
    };
    draft.into_entry()
}

fn content(fields: &RawFields) -> Content {
    decode(fields, &Catalog::built_in())
}

/// The record that an entry with these fields became, under this id.
pub(crate) fn record(notification_id: &str, fields: &RawFields) -> Record {
    let intent = content(fields).expect("well formed");
    Record {
        notification_id: notification_id.to_owned().into(),
        idempotency_key: intent.key(),
        audience_kind: "user",
        recipient_user_ids: vec!["u-1".to_owned()],
        fingerprint: intent.fingerprint,
        content: Arc::new(RecordContent {
            producer: "p".into(),
            notification_type: intent.notification_type,
            payload_json: intent.payload_json,
            occurred_at: intent.occurred_at,
            accepted_at: at(50),
            request_id: String::new(),
            trace_id: String::new(),
        }),
        idempotency_expires_at: at(60),
    }
}

pub(crate) fn row(id: EntryId, fields: &RawFields, code: FailureCode) -> MalformedSummary {
    MalformedSummary {
        key: MalformedKey {
            stream: "intents".to_owned(),
            entry_id: id.to_string(),
            fields_fingerprint: fields.fingerprint(),
        },
        notification_type: "game.turn.ready".to_owned().into(),
        producer: "game_master".to_owned(),
        idempotency_key: "k".to_owned().into(),
        failure_code: code.as_str().to_owned(),
        failure_message: "it is wrong".to_owned().into(),
        recorded_at: at(51),
        resubmitted_at: None,
        resubmitted_entry_id: None,
    }
}

fn progress(checkpoint: u64) -> StreamPosition {
    let unread = UnreadEntries { entries: Vec::new(), is_all: true };
    StreamPosition { checkpoint: Some(id(checkpoint)), unread: Some(unread), leads: true, waiting: None }
}

fn stream() -> StreamState {
    StreamState { first: Some(id(20)), last_generated: id(40), max_deleted: EntryId::ZERO, copied_bytes: 0 }
}

/// Findings for an entry in the stream with these fields; the checkpoint is at second 35.
fn present(seconds: u64, fields: &RawFields) -> EntryFindings {
    EntryFindings {
        look: Some(EntryLook { stream: Some(stream()), entry: Some(FoundEntry::Fields(fields.clone())) }),
        content: Some(content(fields)),
        fields_fingerprint: Some(fields.fingerprint()),
        ..absent(seconds, Some(stream()))
    }
}

fn absent(seconds: u64, stream: Option<StreamState>) -> EntryFindings {
    EntryFindings {
        id: id(seconds),
        progress: progress(35),
        look: Some(EntryLook { stream, entry: None }),
        content: None,
        fields_fingerprint: None,
        records: Vec::new(),
        malformed: Vec::new(),
        holders: Vec::new(),
    }
}

fn sentences(fates: &[Fate]) -> Vec<String> {
    fates.iter().map(|fate| fate.sentence(at(60))).collect()
}

/// Name and sentence of the fate, which must be the only one.
fn only(found: &EntryFindings) -> (&'static str, String) {
    let fates = entry_fates(found);
    assert_eq!(fates.len(), 1, "{fates:?}");
    (fates[0].name(), fates[0].sentence(at(60)))
}

#[test]
fn an_entry_with_a_record_under_its_id_is_accepted_in_the_stream_or_not() {
    let fields = fields("k", 1);
    let accepted = record("30000-0", &fields);
    let expected = "Accepted at 1970-01-01T00:00:50.000000Z: it is the notification 30000-0";
    for found in [present(30, &fields), absent(10, Some(stream()))] {
        let records = vec![accepted.clone()];
        let found = EntryFindings { holders: records.clone(), records, ..found };
        assert_eq!(only(&found), ("accepted", expected.to_owned()));
    }
}

#[test]
fn an_entry_of_a_recreated_stream_is_told_from_the_one_that_had_its_id_before() {
    let (now, before) = (fields("k", 1), fields("before", 2));
    let records = vec![record("30000-0", &before), record("30000-0~1", &now)];
    let found = EntryFindings { holders: records.clone(), records, ..present(30, &now) };
    let ids: Vec<String> =
        entry_fates(&found).iter().filter_map(|fate| fate.notification().map(ToString::to_string)).collect();
    assert_eq!(ids, ["30000-0~1", "30000-0"], "that of the entry that is there comes first");
}

#[test]
fn an_entry_that_was_read_and_says_what_another_record_says_is_its_duplicate() {
    let fields = fields("k", 1);
    let found = EntryFindings { holders: vec![record("7-0", &fields)], ..present(30, &fields) };
    let expected = "The entry 30000-0 is a duplicate of the intent that became the notification 7-0 at \
        1970-01-01T00:00:50.000000Z; it changed nothing";
    assert_eq!(only(&found), ("duplicate", expected.to_owned()));
}

#[test]
fn a_conflict_names_the_notification_that_has_the_key_with_and_without_its_row() {
    let fields_of = fields("k", 1);
    let holders = vec![record("7-0", &fields("k", 2))];
    let found = EntryFindings { holders: holders.clone(), ..present(30, &fields_of) };
    let expected = "The entry 30000-0 was refused, because its idempotency key is that of the notification 7-0, \
        which another intent became";
    assert_eq!(only(&found), ("conflict", expected.to_owned()));
    let malformed = vec![row(id(30), &fields_of, FailureCode::IdempotencyConflict)];
    for found in [present(30, &fields_of), absent(10, Some(stream()))] {
        let found = EntryFindings { holders: holders.clone(), malformed: malformed.clone(), ..found };
        let (name, sentence) = only(&found);
        assert_eq!(name, "conflict");
        assert!(sentence.contains("refused at 1970") && sentence.contains("notification 7-0"), "{sentence}");
    }
    let gone = EntryFindings { malformed, ..absent(10, Some(stream())) };
    assert!(only(&gone).1.contains("whose notification retention has deleted"), "{:?}", only(&gone));
}

#[test]
fn a_malformed_entry_has_its_code_its_message_and_the_rule() {
    let fields = fields("k", 1);
    let malformed = vec![row(id(30), &fields, FailureCode::RecipientNotFound)];
    let found = EntryFindings { malformed, ..present(30, &fields) };
    let expected = "The entry 30000-0 was refused at 1970-01-01T00:00:51.000000Z as malformed: recipient_not_found: \
        it is wrong (the rule: the user directory knows every recipient); its key is free, so that the producer can \
        correct it and send it again";
    assert_eq!(only(&found), ("malformed", expected.to_owned()));
}

#[test]
fn every_failure_code_has_a_rule() {
    for code in FailureCode::ALL {
        assert!(
            crate::malformed_intent::rule_of(code.as_str()).is_some_and(|rule| !rule.is_empty()),
            "{code:?}"
        );
    }
    assert_eq!(crate::malformed_intent::rule_of("retired"), None);
}

#[test]
fn an_unread_entry_says_how_far_away_it_is_and_what_holds_it_up() {
    let entry = |seconds| RawEntry { id: id(seconds), fields: fields("other", 1) };
    let fields = fields("k", 1);
    let with = |entries: Vec<RawEntry>, is_all: bool, leads: bool, waiting: Option<Waiting>| {
        let unread = Some(UnreadEntries { entries, is_all });
        let progress = StreamPosition { checkpoint: Some(id(35)), unread, leads, waiting };
        only(&EntryFindings { progress, ..present(40, &fields) })
    };
    let waiting = Waiting {
        replica: "notification-0".to_owned(),
        entry_id: Some(id(36)),
        cause: "status 503".to_owned(),
        age: Age::between(at(50), at(60)),
    };
    let decided = "; its outcome is decided when it is read";
    for (found, middle) in [
        (
            with(vec![entry(36), entry(40)], true, true, None),
            "1 entry before it; intake reads and waits for nothing",
        ),
        (
            with(vec![entry(40)], true, false, None),
            "it is the next; no replica reads the stream now, and one that runs takes over within 12 s",
        ),
        (
            with(vec![entry(36), entry(37)], false, true, Some(waiting)),
            "at least 2 entries before it; intake has waited for 10 s at the entry 36000-0: status 503",
        ),
    ] {
        let expected = format!(
            "The entry 40000-0 is in the stream, added 20 s ago, and is not read yet: {middle}{decided}"
        );
        assert_eq!(found, ("unread", expected));
    }
}

#[test]
fn an_unread_entry_says_what_will_become_of_it() {
    let read = |holders, fields: &RawFields| only(&EntryFindings { holders, ..present(40, fields) }).1;
    let same = read(vec![record("7-0", &fields("k", 1))], &fields("k", 1));
    assert!(same.ends_with("it will be a duplicate of the notification 7-0"), "{same}");
    let other = read(vec![record("7-0", &fields("k", 2))], &fields("k", 1));
    assert!(other.ends_with("because its key is that of the notification 7-0"), "{other}");
    let broken = read(Vec::new(), &RawFields::from_iter([("colour", "red")]));
    assert!(broken.contains("it will be refused as malformed: unknown_field: "), "{broken}");
}

#[test]
fn every_entry_is_unread_before_the_first_batch() {
    let fields = fields("k", 1);
    let progress = StreamPosition { checkpoint: None, ..progress(0) };
    assert_eq!(only(&EntryFindings { progress, ..present(30, &fields) }).0, "unread");
}

#[test]
fn nothing_of_a_stream_that_ends_before_the_checkpoint_counts_as_read() {
    let cases = [
        (Some(id(35)), Some(stream()), Some(id(35))),
        (Some(id(40)), Some(stream()), Some(id(40))),
        (Some(id(41)), Some(stream()), None),
        (Some(id(41)), None, Some(id(41))),
        (None, Some(stream()), None),
    ];
    for (checkpoint, stream, expected) in cases {
        assert_eq!(read_until(checkpoint, stream), expected, "{checkpoint:?} {stream:?}");
    }
}

#[test]
fn an_entry_that_was_read_and_has_no_row_is_where_the_trail_ends() {
    let fields_of = fields("k", 1);
    let (name, sentence) = only(&present(30, &fields_of));
    assert_eq!(name, "forgotten");
    assert!(sentence.ends_with("or what was stored of it as malformed; the trail ends here"), "{sentence}");
    let (name, sentence) = only(&present(30, &RawFields::from_iter([("colour", "red")])));
    assert_eq!(name, "forgotten");
    assert!(sentence.contains("it is malformed (unknown_field: "), "{sentence}");
}

#[test]
fn an_entry_that_is_too_large_to_be_read_has_the_fate_that_its_row_tells() {
    let too_large = |seconds| EntryFindings {
        look: Some(EntryLook { stream: Some(stream()), entry: Some(FoundEntry::TooLarge) }),
        ..absent(seconds, Some(stream()))
    };
    assert_eq!(only(&too_large(30)).0, "forgotten");
    assert_eq!(only(&too_large(40)).0, "unread");
    let malformed = vec![row(id(30), &RawFields::default(), FailureCode::EntryTooLarge)];
    assert_eq!(only(&EntryFindings { malformed, ..too_large(30) }).0, "malformed");
}

#[test]
fn an_entry_that_is_nowhere_was_trimmed_deleted_or_never_there() {
    let empty = StreamState { first: None, ..stream() };
    for (found, name, part) in [
        (absent(10, Some(stream())), "trimmed", "begins after it, with 20000-0"),
        (absent(10, Some(stream())), "trimmed", "it was read if it existed"),
        (absent(30, Some(empty)), "trimmed", "the stream is empty"),
        (absent(25, Some(stream())), "deleted", "between its other entries"),
        (absent(38, Some(stream())), "deleted", "its producer must send it again"),
        (absent(41, Some(stream())), "unknown", "its last id is 40000-0"),
        (absent(30, None), "unknown", "the intents stream does not exist"),
    ] {
        let (found_name, sentence) = only(&found);
        assert_eq!(found_name, name, "{sentence}");
        assert!(sentence.contains(part), "{sentence}");
        assert!(!entry_fates(&found)[0].is_found());
    }
    let unread = EntryFindings { progress: progress(5), ..absent(10, Some(stream())) };
    assert!(only(&unread).1.contains("it was not read"), "{:?}", only(&unread));
}

#[test]
fn without_redis_the_tables_tell_what_they_know() {
    let unavailable = |seconds| EntryFindings { look: None, ..absent(seconds, None) };
    for (seconds, part) in [(30, "it was read if it existed"), (40, "it is not read yet")] {
        let (name, sentence) = only(&unavailable(seconds));
        assert_eq!(name, "stream_unavailable");
        assert!(sentence.contains(part) && sentence.contains("Redis could not be asked"), "{sentence}");
    }
    let records = vec![record("30000-0", &fields("k", 1))];
    assert_eq!(only(&EntryFindings { records, ..unavailable(30) }).0, "accepted");
}

#[test]
fn a_key_is_found_in_the_tables_and_among_unread_entries() {
    let (one, other) = (fields("k", 1), fields("k", 2));
    let found = KeyFindings {
        progress: progress(35),
        records: vec![record("7-0", &one)],
        malformed: vec![
            row(id(30), &other, FailureCode::IdempotencyConflict),
            row(id(31), &other, FailureCode::RecipientNotFound),
        ],
        unread: vec![(id(36), content(&one)), (id(37), content(&other))],
    };
    let fates = key_fates(&found);
    let names: Vec<&str> = fates.iter().map(Fate::name).collect();
    assert_eq!(names, ["accepted", "unread", "unread", "conflict", "malformed"]);
    let shown = sentences(&fates);
    assert!(shown[1].ends_with("a duplicate of the notification 7-0"), "{shown:?}");
    assert!(shown[2].ends_with("its key is that of the notification 7-0"), "{shown:?}");
    let none = KeyFindings {
        progress: progress(35),
        records: Vec::new(),
        malformed: Vec::new(),
        unread: Vec::new(),
    };
    assert_eq!(key_fates(&none), []);
}

#[test]
fn unread_entries_are_selected_by_key_and_producer_as_received() {
    let entry = |seconds, key| RawEntry { id: id(seconds), fields: fields(key, 1) };
    let entries = vec![entry(36, "k"), entry(37, "other"), entry(38, "k")];
    let unread = UnreadEntries { entries, is_all: true };
    let ids = |producer| {
        let found = unread_with_key(&unread, producer, "k");
        found.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None), [id(36), id(38)]);
    assert_eq!(ids(Some("game_master")), [id(36), id(38)]);
    assert_eq!(ids(Some("lobby")), []);
}

#[test]
fn a_route_that_its_notification_lacks_and_a_name_without_a_trace_are_not_found() {
    let key = crate::route::RouteKey {
        notification_id: "7-0".to_owned().into(),
        route_id: "push:user:u-9".to_owned(),
    };
    let (no_route, unknown) = (Fate::NoRoute(key), Fate::Unknown { name: "game-1".to_owned() });
    assert_eq!([no_route.name(), unknown.name()], ["no_route", "unknown"]);
    assert!(!no_route.is_found() && !unknown.is_found());
    let shown = sentences(&[no_route, unknown]);
    assert_eq!(shown[0], "There is the notification 7-0, and it has no route push:user:u-9");
    assert!(shown[1].contains("by the name game-1"), "{shown:?}");
}
