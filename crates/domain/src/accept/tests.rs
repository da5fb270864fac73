//! The rules of acceptance, entry by entry and batch by batch.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::catalog::Catalog;
use crate::entry::{RawEntry, RawFields};
use crate::intent::{IntentDraft, Recipients};
use crate::route::{LiveRoute, NewRoute, SkipReason, Start, Version};

const STREAM: &str = "notification:intents";

fn now() -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000).expect("in range")
}

fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::from([(
            "geo.review_recommended".to_owned(),
            vec!["ops@example.com".to_owned(), "geo@example.com".to_owned()],
        )]),
        locales: vec!["en".into(), "fr".into(), "pt-BR".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(60),
        head_start: Duration::from_secs(5),
    }
}

/// An entry of type `game.turn.ready` for `recipients` under `key`; a different `turn` makes a different
/// intent.
fn turn_ready(number: u64, key: &str, recipients: &[&str], turn: u32) -> RawEntry {
    let draft = IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: "game_master".to_owned(),
        recipients: Recipients::Users(recipients.iter().map(|user| (*user).to_owned()).collect()),
        idempotency_key: key.to_owned(),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: format!(r#"{{"game_id":"g","game_name":"n","turn_number":{turn}}}"#),
        request_id: None,
        trace_id: None,
    };
    RawEntry { id: EntryId::new(number, 0), fields: draft.into_entry() }
}

fn admin(number: u64, notification_type: &str, producer: &str, payload: &str) -> RawEntry {
    let draft = IntentDraft {
        notification_type: notification_type.to_owned(),
        producer: producer.to_owned(),
        recipients: Recipients::Administrators,
        idempotency_key: "k".to_owned(),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: payload.to_owned(),
        request_id: None,
        trace_id: None,
    };
    RawEntry { id: EntryId::new(number, 0), fields: draft.into_entry() }
}

fn found(email: &str, language: &str) -> Lookup {
    Lookup::Found(User { email: email.into(), preferred_language: language.into() })
}

fn decoded(entries: impl IntoIterator<Item = RawEntry>) -> Vec<Decoded> {
    let policy = policy();
    entries.into_iter().map(|entry| decode(STREAM, entry, &policy, now())).collect()
}

fn answers(users: &[(&str, Lookup)]) -> HashMap<String, Lookup> {
    users.iter().map(|(id, lookup)| ((*id).to_owned(), lookup.clone())).collect()
}

/// The outcomes of a batch, the state of the rest, and the two flags of the decision.
struct All {
    outcomes: Vec<Outcome>,
    rest: FirstUndecided,
    depends_on_directory: bool,
    next_has_known_keys: bool,
}

fn decide_all(entries: Vec<RawEntry>, known: &Known, users: &[(&str, Lookup)]) -> All {
    let batch = decoded(entries);
    let decision = decide(STREAM, &batch, known, &answers(users), &policy(), policy().schedule(now(), true));
    let (depends_on_directory, next_has_known_keys) =
        (decision.depends_on_directory(), decision.next_has_known_keys());
    assert!(decision.decided.iter().zip(&batch).all(|(decided, entry)| decided.entry.id == entry.id));
    let outcomes = decision.decided.into_iter().map(|decided| decided.outcome).collect();
    All { outcomes, rest: decision.rest, depends_on_directory, next_has_known_keys }
}

fn outcomes(all: &All) -> Vec<&'static str> {
    let describe = |outcome: &Outcome| outcome.failure_code().map_or(outcome.name(), FailureCode::as_str);
    all.outcomes.iter().map(describe).collect()
}

fn routes(all: &All) -> Vec<&NewRoute> {
    all.outcomes.iter().filter_map(Outcome::acceptance).flat_map(|acceptance| &acceptance.routes).collect()
}

#[test]
fn two_users_on_two_channels_have_four_routes() {
    let users = [("u-1", found("u-1@example.com", "fr-FR")), ("u-2", found("u-2@example.com", "de"))];
    let decision = decide_all(vec![turn_ready(1, "k", &["u-2", "u-1"], 54)], &Known::default(), &users);
    let described: Vec<String> = routes(&decision)
        .iter()
        .map(|route| {
            format!(
                "{} {} {:?} {} {}",
                route.key,
                route.recipient_ref,
                route.resolved_email,
                route.resolved_locale,
                route.max_attempts
            )
        })
        .collect();
    assert_eq!(
        described,
        [
            r#"1-0/push:user:u-1 user:u-1 "" fr 3"#,
            r#"1-0/email:user:u-1 user:u-1 "u-1@example.com" fr 7"#,
            r#"1-0/push:user:u-2 user:u-2 "" en 3"#,
            r#"1-0/email:user:u-2 user:u-2 "u-2@example.com" en 7"#,
        ]
    );
    let due = Start::Pending { due: now() + Duration::from_secs(5) };
    assert!(routes(&decision).iter().all(|route| route.start == due));
}

#[test]
fn a_user_without_an_address_is_still_reached_by_push() {
    let users = [("u-1", found("", "en"))];
    let decision = decide_all(vec![turn_ready(1, "k", &["u-1"], 54)], &Known::default(), &users);
    let starts: Vec<bool> =
        routes(&decision).iter().map(|route| matches!(route.start, Start::Pending { .. })).collect();
    assert_eq!(starts, [true, false]);
    assert_eq!(routes(&decision)[1].start, Start::Skipped(SkipReason::NoEmailAddress));
}

#[test]
fn administrators_are_reached_at_the_configured_addresses() {
    let payload = r#"{"user_id":"u","user_email":"e","observed_country":"a","usual_connection_country":"b","review_reason":"r"}"#;
    let decision =
        decide_all(vec![admin(1, "geo.review_recommended", "geoprofile", payload)], &Known::default(), &[]);
    let ids: Vec<&str> = routes(&decision).iter().map(|route| route.key.route_id.as_str()).collect();
    assert_eq!(ids, ["email:email:ops@example.com", "email:email:geo@example.com"]);
}

#[test]
fn an_admin_type_without_addresses_has_one_skipped_route() {
    let payload = r#"{"game_id":"g","game_name":"n","failure_reason":"r"}"#;
    let decision =
        decide_all(vec![admin(1, "game.generation_failed", "game_master", payload)], &Known::default(), &[]);
    let route = routes(&decision)[0];
    assert_eq!(route.key.route_id, "email:config:game.generation_failed");
    assert_eq!(route.start, Start::Skipped(SkipReason::NoAdminRecipients));
}

#[test]
fn one_missing_recipient_rejects_the_whole_intent() {
    let users = [("u-1", found("u-1@example.com", "en")), ("u-2", Lookup::Missing)];
    let decision = decide_all(vec![turn_ready(1, "k", &["u-1", "u-2"], 54)], &Known::default(), &users);
    assert_eq!(outcomes(&decision), ["recipient_not_found"]);
}

// INV-01
#[test]
fn nothing_after_an_entry_that_must_wait_is_decided() {
    let users =
        [("u-1", found("u-1@example.com", "en")), ("u-2", Lookup::Unavailable("no answer within 1s".into()))];
    let entries = vec![
        turn_ready(1, "a", &["u-1"], 1),
        turn_ready(2, "b", &["u-2"], 1),
        turn_ready(3, "c", &["u-1"], 1),
    ];
    let decision = decide_all(entries, &Known::default(), &users);
    assert_eq!(outcomes(&decision), ["accepted"]);
    let wait = Wait { entry_id: EntryId::new(2, 0), cause: "no answer within 1s".into() };
    assert_eq!(decision.rest, FirstUndecided::Waits(wait));
    assert!(decision.depends_on_directory && decision.next_has_known_keys);
}

#[test]
fn an_entry_with_a_user_who_was_not_looked_up_ends_the_decision_and_waits_for_nothing() {
    let users = [("u-1", found("u-1@example.com", "en"))];
    let entries = vec![turn_ready(1, "a", &["u-1"], 1), turn_ready(2, "b", &["u-1", "u-2"], 1)];
    let decision = decide_all(entries, &Known::default(), &users);
    assert_eq!((outcomes(&decision), &decision.rest), (vec!["accepted"], &FirstUndecided::NotLookedUp));
    assert!(!decision.depends_on_directory);
}

#[test]
fn a_known_key_is_a_duplicate_or_a_conflict_whatever_the_directory_answers() {
    let first = decoded([turn_ready(1, "k", &["u-1"], 54)]);
    let intent = first[0].intent().expect("well formed");
    let known = Known {
        fingerprints: HashMap::from([(intent.key(), intent.fingerprint.clone())]),
        ..Known::default()
    };
    let replay = vec![turn_ready(7, "k", &["u-1"], 54), turn_ready(8, "k", &["u-1"], 55)];
    let down = [("u-1", Lookup::Unavailable("down".into()))];
    let decision = decide_all(replay.clone(), &known, &down);
    assert_eq!(outcomes(&decision), ["duplicate", "idempotency_conflict"]);
    assert_eq!(decision.rest, FirstUndecided::Nothing);
    assert!(!decision.depends_on_directory && decision.next_has_known_keys);
    assert_eq!(missing_lookups(&decoded(replay), &known, &HashMap::new()), []);
}

#[test]
fn the_same_key_twice_in_one_read_is_decided_in_stream_order() {
    let users = [("u-1", found("u-1@example.com", "en")), ("gone", Lookup::Missing)];
    let twice = vec![
        turn_ready(1, "k", &["u-1"], 54),
        turn_ready(2, "k", &["u-1"], 54),
        turn_ready(3, "k", &["u-1"], 55),
    ];
    assert_eq!(
        outcomes(&decide_all(twice, &Known::default(), &users)),
        ["accepted", "duplicate", "idempotency_conflict"]
    );
    let first_is_malformed = vec![turn_ready(1, "k", &["gone"], 54), turn_ready(2, "k", &["u-1"], 54)];
    assert_eq!(
        outcomes(&decide_all(first_is_malformed, &Known::default(), &users)),
        ["recipient_not_found", "accepted"]
    );
}

#[test]
fn if_the_first_of_two_must_wait_so_does_the_second() {
    let users = [("u-1", found("u-1@example.com", "en")), ("u-2", Lookup::Unavailable("down".into()))];
    let entries = vec![turn_ready(1, "k", &["u-2"], 54), turn_ready(2, "k", &["u-1"], 54)];
    let decision = decide_all(entries, &Known::default(), &users);
    let wait = Wait { entry_id: EntryId::new(1, 0), cause: "down".into() };
    assert_eq!((outcomes(&decision).len(), decision.rest), (0, FirstUndecided::Waits(wait)));
}

#[test]
fn each_user_without_an_answer_is_asked_for_once_for_the_first_entry_that_needs_them() {
    let batch = decoded([
        turn_ready(1, "a", &["u-2", "u-1"], 1),
        turn_ready(2, "b", &["u-1", "u-3"], 1),
        RawEntry { id: EntryId::new(3, 0), fields: RawFields::default() },
    ]);
    let asked = |answered: &[(&str, Lookup)]| -> Vec<(usize, String)> {
        missing_lookups(&batch, &Known::default(), &answers(answered))
            .iter()
            .map(|user| (user.place, user.user_id.to_owned()))
            .collect()
    };
    let user = |place, id: &str| (place, id.to_owned());
    assert_eq!(asked(&[]), [user(0, "u-1"), user(0, "u-2"), user(1, "u-3")]);
    assert_eq!(asked(&[("u-1", Lookup::Missing), ("u-3", found("", ""))]), [user(0, "u-2")]);
    assert_eq!(batch.iter().map(Decoded::routes).collect::<Vec<_>>(), [4, 4, 0]);
}

#[test]
fn a_refused_element_is_not_storable_then_reduced_and_then_nothing_more_can_be_done() {
    for entry in
        [turn_ready(1, "k", &["u-1"], 54), RawEntry { id: EntryId::new(1, 0), fields: RawFields::default() }]
    {
        let batch = decoded([entry]);
        let users = answers(&[("u-1", found("u-1@example.com", "en"))]);
        let decision =
            decide(STREAM, &batch, &Known::default(), &users, &policy(), policy().schedule(now(), true));
        let first = decision.decided[0].not_storable(STREAM, "refused".into(), now()).expect("a row");
        let row = first.outcome.malformed_row().expect("a row").clone();
        assert_eq!(
            (row.rejection.code, row.rejection.message.as_str()),
            (FailureCode::NotStorable, "refused")
        );
        let second = first.not_storable(STREAM, "refused again".into(), now()).expect("a smaller row");
        assert_eq!(second.outcome.malformed_row(), row.reduced().as_ref());
        assert!(second.not_storable(STREAM, "refused again".into(), now()).is_none());
    }
}

#[test]
fn a_probe_is_of_another_type_and_producer_than_what_was_refused() {
    let batch = decoded([turn_ready(1, "k", &["u-1"], 54)]);
    let probe = probe(STREAM, &policy(), batch[0].intent(), now());
    let record = &probe.acceptance.record;
    assert_ne!(record.idempotency_key.producer, "game_master");
    assert_ne!(record.content.notification_type, "game.turn.ready");
    assert!(!probe.acceptance.routes.is_empty());
}

#[test]
fn an_id_that_belongs_to_another_intent_gets_a_number() {
    let known = Known { taken_ids: HashMap::from([(EntryId::new(1, 0), 2)]), ..Known::default() };
    let users = [("u-1", found("u-1@example.com", "en"))];
    let decision = decide_all(vec![turn_ready(1, "k", &["u-1"], 54)], &known, &users);
    assert_eq!(routes(&decision)[0].key.to_string(), "1-0~2/push:user:u-1");
}

#[test]
fn a_language_falls_back_to_its_base_and_then_to_english() {
    let policy = policy();
    let cases = [
        ("fr", "fr"),
        ("FR", "fr"),
        ("fr-CA", "fr"),
        ("pt-br", "pt-BR"),
        ("pt", "en"),
        ("pt-PT", "en"),
        ("", "en"),
        ("-", "en"),
        ("de-DE", "en"),
    ];
    for (preferred, expected) in cases {
        assert_eq!(policy.locale(preferred), expected, "{preferred}");
    }
}

#[test]
fn an_accepted_intent_keeps_its_normal_form_and_its_times() {
    let users = [("u-1", found("u-1@example.com", "en"))];
    let decision = decide_all(vec![turn_ready(1, "k", &["u-1", "u-1"], 54)], &Known::default(), &users);
    let acceptance = decision.outcomes[0].acceptance().expect("accepted");
    let record = &acceptance.record;
    assert_eq!(record.recipient_user_ids, ["u-1"]);
    assert_eq!(record.content.payload_json, r#"{"game_id":"g","game_name":"n","turn_number":54}"#);
    assert_eq!(record.content.accepted_at, now());
    assert_eq!(record.idempotency_expires_at, now() + Duration::from_secs(60));
    let live: Vec<LiveRoute> = acceptance.live_routes().collect();
    assert_eq!(live.len(), 2);
    assert!(live.iter().all(|route| route.version == Version::read(now()) && route.attempt() == 1));
}

#[test]
fn routes_that_are_not_dispatched_are_due_at_once_and_others_after_the_head_start() {
    let policy = policy();
    assert_eq!(policy.schedule(now(), true).due, now() + policy.head_start);
    assert_eq!(policy.schedule(now(), false).due, now());
}
