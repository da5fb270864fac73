//! Acceptance is a committed row, or nothing.

use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{AcceptanceBatch, AcceptanceStore, Commit, Progress, StoreError, Swap};
use domain::record::IdempotencyScope;

use super::*;

fn scope(key: &str) -> IdempotencyScope {
    IdempotencyScope { producer: "game_master".into(), key: key.into() }
}

fn progress(fence: u64, number: u64) -> Progress {
    Progress { fence, last_entry_id: EntryId::new(number, 0) }
}

#[tokio::test]
async fn a_batch_writes_record_routes_malformed_row_and_progress_together() {
    let world = World::new().await;
    let broken =
        RawEntry { id: EntryId::new(2, 0), fields: RawFields::from_iter([("a\0", b"\xff".to_vec())]) };
    let settled = decide([entry(1, "key-1", 54), broken], at(0));
    assert_eq!(world.commit(&settled, EntryId::new(2, 0)).await, Commit::Done);

    let record = world
        .column(
            "SELECT concat_ws('|', notification_id, notification_type, producer, audience_kind, recipient_user_ids::text, payload_json,
                idempotency_key, request_id, trace_id, occurred_at, accepted_at, updated_at, idempotency_expires_at) FROM records",
        )
        .await;
    assert_eq!(
        record,
        [
            "1-0|game.turn.ready|game_master|user|[\"u-1\"]|{\"game_id\":\"g-1\",\"game_name\":\"Nebula\",\"turn_number\":54}|key-1|r-1||\
          2026-04-02 09:21:40+00|2026-04-02 09:21:40+00|2026-04-02 09:21:40+00|2026-04-09 09:21:40+00"
        ]
    );
    let routes = world
        .column(
            "SELECT concat_ws('|', notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, next_attempt_at,
                resolved_email, resolved_locale, created_at = updated_at) FROM routes ORDER BY route_id",
        )
        .await;
    assert_eq!(
        routes,
        [
            "1-0|email:user:u-1|email|user:u-1|pending|0|7|2026-04-02 09:21:45+00|u-1@example.com|en|t",
            "1-0|push:user:u-1|push|user:u-1|pending|0|3|2026-04-02 09:21:45+00||en|t",
        ]
    );
    let malformed = world
        .column("SELECT concat_ws('|', stream, stream_entry_id, failure_code, raw_fields::text, recorded_at) FROM malformed_intents")
        .await;
    assert_eq!(
        malformed,
        [
            "notification:intents|2-0|invalid_encoding|[[{\"base64\": \"YQA=\"}, {\"base64\": \"/w==\"}]]|2026-04-02 09:21:40+00"
        ]
    );
    assert_eq!(world.store.load_progress(STREAM).await.expect("is there"), Some(progress(0, 2)));
}

#[tokio::test]
async fn a_key_that_was_taken_meanwhile_leaves_nothing_of_the_batch() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let settled = decide([entry(2, "key-2", 54), entry(3, "key-1", 54)], at(1));
    assert_eq!(world.commit(&settled, EntryId::new(3, 0)).await, Commit::Raced);
    assert_eq!(world.column("SELECT notification_id FROM records").await, ["1-0"]);
    assert_eq!(world.store.load_progress(STREAM).await.expect("is there"), Some(progress(0, 1)));
}

#[tokio::test]
async fn an_id_that_was_taken_never_gives_its_routes_to_another_record() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let before = world.column("SELECT route_id FROM routes ORDER BY 1").await;
    assert_eq!(world.store.restart_progress(STREAM, 0).await.expect("is there"), Swap::Applied);
    let anew = decide([entry(1, "another key", 55)], at(1));
    assert_eq!(world.commit(&anew, EntryId::new(1, 0)).await, Commit::Raced);
    assert_eq!(world.column("SELECT route_id FROM routes ORDER BY 1").await, before);

    // Asked again, the store says which number is free, twice over.
    for (key, id) in [("another key", "1-0~1"), ("a third key", "1-0~2")] {
        let asked = [(scope(key), EntryId::new(1, 0))];
        let known = world.store.find_known(&asked).await.expect("is there");
        let settled = decide_knowing([entry(1, key, 55)], &known, at(1));
        assert_eq!(accepted(settled[0].clone()).record.notification_id.as_str(), id);
        assert_eq!(world.store.restart_progress(STREAM, 0).await.expect("is there"), Swap::Applied);
        assert_eq!(world.commit(&settled, EntryId::new(1, 0)).await, Commit::Done);
    }
}

#[tokio::test]
async fn known_keys_come_with_their_fingerprints_and_hide_that_their_id_is_taken() {
    let world = World::new().await;
    let acceptances = world.accept([1, 2], at(0)).await;
    let asked = [
        (scope("key-1"), EntryId::new(1, 0)),
        (scope("key-9"), EntryId::new(9, 0)),
        (scope("key-8"), EntryId::new(2, 0)),
    ];
    let known = world.store.find_known(&asked).await.expect("is there");
    assert_eq!(
        known.fingerprints,
        HashMap::from([(scope("key-1"), acceptances[0].record.fingerprint.clone())])
    );
    assert_eq!(known.taken_ids, HashMap::from([(EntryId::new(2, 0), 1)]));
}

#[tokio::test]
async fn progress_moves_only_from_where_the_batch_goes_on_and_under_no_older_fence() {
    let world = World::new().await;
    let id = |number| EntryId::new(number, 0);
    let go = async |fence, after: Option<u64>, number| {
        let batch = AcceptanceBatch {
            stream: STREAM,
            fence,
            after: after.map(id),
            last_entry_id: id(number),
            settled: &[],
        };
        world.store.accept(batch).await.expect("PostgreSQL is there")
    };
    assert_eq!(go(5, Some(9), 10).await, Commit::Moved, "there is no progress yet");
    assert_eq!(go(5, None, 10).await, Commit::Done);
    assert_eq!(go(5, None, 11).await, Commit::Moved, "there is one by now");
    assert_eq!(go(5, Some(9), 11).await, Commit::Moved, "somebody has come further");
    assert_eq!(go(5, Some(11), 12).await, Commit::Moved, "PostgreSQL has forgotten something");
    assert_eq!(go(4, Some(10), 11).await, Commit::Moved, "the fence is older");
    assert_eq!(go(6, Some(10), 11).await, Commit::Done);
    assert_eq!(world.store.restart_progress(STREAM, 5).await.expect("is there"), Swap::Conflict);
    assert_eq!(world.store.restart_progress(STREAM, 6).await.expect("is there"), Swap::Applied);
    assert_eq!(world.store.load_progress(STREAM).await.expect("is there"), Some(progress(6, 0)));
}

#[tokio::test]
async fn what_postgresql_refuses_is_said_to_be_refused_and_nothing_is_kept() {
    let world = World::new().await;
    let mut settled = decide([entry(1, "key-1", 54), entry(2, "key-2", 54)], at(0));
    if let Settled::Accepted(acceptance) = &mut settled[1] {
        acceptance.record.fingerprint = "a\0b".into();
    }
    let batch = AcceptanceBatch {
        stream: STREAM,
        fence: 0,
        after: None,
        last_entry_id: EntryId::new(2, 0),
        settled: &settled,
    };
    let error = world.store.accept(batch).await.expect_err("a NUL is refused");
    assert!(matches!(error, StoreError::Refused { operation: "accept a batch of intents", .. }), "{error:?}");
    assert_eq!(world.column("SELECT notification_id FROM records").await, Vec::<String>::new());
    assert_eq!(world.store.load_progress(STREAM).await.expect("is there"), None);
}

#[tokio::test]
async fn two_consumers_that_race_for_the_same_entries_write_them_once() {
    let world = World::new().await;
    let settled = decide((1..=50).map(|n| entry(n, &format!("key-{n}"), 54)), at(0));
    let outcomes =
        futures_util::future::join_all((0..4).map(|_| world.commit(&settled, EntryId::new(50, 0)))).await;
    assert_eq!(outcomes.iter().filter(|commit| **commit == Commit::Done).count(), 1, "{outcomes:?}");
    assert_eq!(world.column("SELECT count(*)::text FROM routes").await, ["100"]);
}

#[tokio::test]
async fn an_entry_that_is_read_twice_is_one_malformed_row() {
    let world = World::new().await;
    let broken = || RawEntry { id: EntryId::new(1, 0), fields: RawFields::from_iter([("unknown", "x")]) };
    assert_eq!(world.commit(&decide([broken()], at(0)), EntryId::new(1, 0)).await, Commit::Done);
    assert_eq!(world.store.restart_progress(STREAM, 0).await.expect("is there"), Swap::Applied);
    assert_eq!(world.commit(&decide([broken()], at(9)), EntryId::new(1, 0)).await, Commit::Done);
    assert_eq!(
        world.column("SELECT recorded_at::text FROM malformed_intents").await,
        ["2026-04-02 09:21:40+00"]
    );
}
