//! Acceptance commits a row, or nothing.

use domain::checkpoint::Checkpoint;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{AcceptanceStore, CheckpointStore, Fate, FenceWrite, StoreError};
use domain::record::IdempotencyKey;

use super::*;

fn key_of(key: &str) -> IdempotencyKey {
    IdempotencyKey { producer: "game_master".into(), key: key.into() }
}

fn checkpoint(fence: u64, number: u64) -> Checkpoint {
    Checkpoint { fence, last_entry_id: EntryId::new(number, 0) }
}

fn broken(number: u64) -> RawEntry {
    RawEntry { id: EntryId::new(number, 0), fields: RawFields::from_iter([("unknown", "x")]) }
}

// INV-01
#[tokio::test]
async fn a_batch_writes_record_routes_malformed_row_and_checkpoint_together() {
    let world = World::new().await;
    let broken =
        RawEntry { id: EntryId::new(2, 0), fields: RawFields::from_iter([("a\0", b"\xff".to_vec())]) };
    let batch = decide([entry(1, "key-1", 54), broken], at(0));
    assert_eq!(world.commit(&batch).await, Fate::Committed);

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
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), Some(checkpoint(0, 2)));
}

// INV-02
#[tokio::test]
async fn a_batch_without_a_checkpoint_to_move_writes_its_rows_and_leaves_every_checkpoint() {
    let world = World::new().await;
    let accept = async |batch: &Batch| {
        let outcomes = batch.outcomes.iter().collect();
        world
            .store
            .accept(AcceptanceBatch { outcomes, checkpoint: None, responses: Vec::new() })
            .await
            .expect("is there")
    };
    let first = decide([entry(1, "key-1", 54), broken(2)], at(0));
    assert_eq!(accept(&first).await, Fate::Committed);
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), None);
    assert_eq!(world.column("SELECT notification_id FROM records").await, ["1-0"]);
    assert_eq!(world.column("SELECT route_id FROM routes ORDER BY 1").await.len(), 2);
    assert_eq!(world.column("SELECT stream_entry_id FROM malformed_intents").await, ["2-0"]);

    world.accept([5], at(1)).await;
    assert_eq!(accept(&decide([entry(3, "key-3", 54)], at(2))).await, Fate::Committed);
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), Some(checkpoint(0, 5)));
    assert_eq!(accept(&decide([entry(6, "key-3", 55)], at(3))).await, Fate::WriteConflict);
    assert_eq!(world.column("SELECT notification_id FROM records ORDER BY 1").await, ["1-0", "3-0", "5-0"]);
}

#[tokio::test]
async fn a_key_that_was_taken_meanwhile_leaves_nothing_of_the_batch() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let batch = decide([entry(2, "key-2", 54), entry(3, "key-1", 54)], at(1));
    assert_eq!(world.commit(&batch).await, Fate::WriteConflict);
    assert_eq!(world.column("SELECT notification_id FROM records").await, ["1-0"]);
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), Some(checkpoint(0, 1)));
}

#[tokio::test]
async fn a_record_that_another_unique_index_refuses_is_refused_by_its_name_and_no_write_conflict() {
    let world = World::new().await;
    world
        .execute("CREATE UNIQUE INDEX operators_own ON records (occurred_at, request_id, payload_json)")
        .await;
    world.accept([1], at(0)).await;
    let batch = decide([entry(2, "key-2", 54)], at(1));
    let refused = world.try_commit(&batch, 0, Some(EntryId::new(1, 0))).await.expect_err("it is refused");
    assert!(matches!(refused, StoreError::Refused { .. }), "{refused:?}");
    let cause = domain::ports::error_chain(&refused);
    assert!(cause.contains("SQLSTATE 23505, constraint operators_own, table records"), "{cause}");
    assert_eq!(world.column("SELECT notification_id FROM records").await, ["1-0"]);
    // A taken key is still a write conflict.
    let batch = decide([entry(3, "key-1", 55)], at(1));
    assert_eq!(world.commit(&batch).await, Fate::WriteConflict);
}

#[tokio::test]
async fn a_record_that_a_trigger_leaves_out_is_no_write_conflict() {
    let world = World::new().await;
    let client = world.database.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER leave_out BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION leave_out()",
        )
        .await
        .expect("the superuser may");
    let batch = decide([entry(1, "key-1", 54)], at(0));
    let left_out = world.try_commit(&batch, 0, None).await.expect_err("it is not there");
    assert!(domain::ports::error_chain(&left_out).contains("a trigger"), "{left_out:?}");
}

// INV-02
#[tokio::test]
async fn an_id_that_was_taken_never_gives_its_routes_to_another_record() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let before = world.column("SELECT route_id FROM routes ORDER BY 1").await;
    let recreated = decide([entry(1, "another key", 55)], at(1));
    assert_eq!(world.commit(&recreated).await, Fate::WriteConflict);
    assert_eq!(world.column("SELECT route_id FROM routes ORDER BY 1").await, before);

    // Another lookup returns the next free number, for two keys in sequence.
    for (key, id) in [("another key", "1-0~1"), ("a third key", "1-0~2")] {
        let asked = [(key_of(key), EntryId::new(1, 0))];
        let known = world.store.find_known(&asked).await.expect("is there");
        let batch = decide_knowing([entry(1, key, 55)], &known, at(1));
        assert_eq!(batch.acceptances()[0].record.notification_id.as_str(), id);
        assert_eq!(world.commit(&batch).await, Fate::Committed);
    }
}

#[tokio::test]
async fn known_keys_come_with_their_fingerprints_and_hide_that_their_id_is_taken() {
    let world = World::new().await;
    let acceptances = world.accept([1, 2], at(0)).await;
    let asked = [
        (key_of("key-1"), EntryId::new(1, 0)),
        (key_of("key-9"), EntryId::new(9, 0)),
        (key_of("key-8"), EntryId::new(2, 0)),
    ];
    let known = world.store.find_known(&asked).await.expect("is there");
    assert_eq!(
        known.fingerprints,
        HashMap::from([(key_of("key-1"), acceptances[0].record.fingerprint.clone())])
    );
    assert_eq!(known.taken_ids, HashMap::from([(EntryId::new(2, 0), 1)]));
}

// INV-07
#[tokio::test]
async fn a_checkpoint_moves_only_from_the_expected_entry_and_under_no_older_fence() {
    let world = World::new().await;
    let id = |number| EntryId::new(number, 0);
    let go = async |fence, expected: Option<u64>, number| {
        let batch = decide([broken(number)], at(0));
        world.try_commit(&batch, fence, expected.map(id)).await.expect("PostgreSQL is there")
    };
    assert_eq!(go(5, Some(9), 10).await, Fate::CheckpointMoved, "there is no checkpoint yet");
    assert_eq!(go(5, None, 10).await, Fate::Committed);
    assert_eq!(go(5, None, 11).await, Fate::CheckpointMoved, "there is one by now");
    assert_eq!(go(5, Some(9), 11).await, Fate::CheckpointMoved, "another replica is further");
    assert_eq!(go(5, Some(11), 12).await, Fate::CheckpointMoved, "PostgreSQL has lost outcomes");
    assert_eq!(go(4, Some(10), 11).await, Fate::CheckpointMoved, "the fence is older");
    assert_eq!(go(6, Some(10), 11).await, Fate::Committed);
    assert_eq!(go(6, Some(11), 3).await, Fate::Committed, "the stream was recreated");
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), Some(checkpoint(6, 3)));
}

// INV-08
#[tokio::test]
async fn a_term_claims_the_checkpoint_unless_its_fence_is_there_already_when_it_begins() {
    let world = World::new().await;
    let claim = async |fence, begins| {
        world.store.write_fence(STREAM, fence, begins).await.expect("PostgreSQL is there")
    };
    assert_eq!(claim(5, true).await, FenceWrite::NoCheckpoint);
    let batch = decide([broken(1)], at(0));
    assert_eq!(world.try_commit(&batch, 5, None).await.expect("is there"), Fate::Committed);
    let at_one = FenceWrite::At(EntryId::new(1, 0));
    for (fence, begins, expected) in [
        (5, true, FenceWrite::Superseded(5)),
        (5, false, at_one),
        (4, true, FenceWrite::Superseded(5)),
        (4, false, FenceWrite::Superseded(5)),
        (6, true, at_one),
        (5, false, FenceWrite::Superseded(6)),
    ] {
        assert_eq!(claim(fence, begins).await, expected, "{fence} {begins}");
    }
}

#[tokio::test]
async fn entries_are_recognised_as_processed_by_id_and_content() {
    let world = World::new().await;
    let first =
        decide([entry(1, "key-1", 54), broken(2), entry(3, "key-1", 54), entry(4, "key-1", 55)], at(0));
    assert_eq!(world.commit(&first).await, Fate::Committed);
    // Stored under the id of another intent.
    let known = Known { taken_ids: HashMap::from([(EntryId::new(1, 0), 1)]), ..Known::default() };
    assert_eq!(world.commit(&decide_knowing([entry(1, "key-9", 54)], &known, at(0))).await, Fate::Committed);

    let last_processed = async |entries: Vec<RawEntry>| {
        let traces: Vec<_> = decide(entries, at(9)).entries.iter().map(Decoded::trace).collect();
        let found = world.store.find_last_processed(STREAM, &traces).await.expect("is there");
        found.map(|id| id.millis)
    };
    let reordered = RawEntry { id: EntryId::new(2, 0), fields: RawFields::from_iter([("unknown", "y")]) };
    for (entries, expected) in [
        (vec![], None),
        (vec![entry(1, "key-1", 54)], Some(1)),
        (vec![entry(1, "key-9", 54)], Some(1)),
        (vec![broken(2), entry(1, "key-1", 54)], Some(2)),
        (vec![entry(4, "key-1", 55)], Some(4)),
        (vec![entry(3, "key-1", 54)], None),
        (vec![entry(1, "key-1", 55)], None),
        (vec![entry(7, "key-1", 54), broken(8), reordered], None),
    ] {
        let ids: Vec<String> = entries.iter().map(|entry| entry.id.to_string()).collect();
        assert_eq!(last_processed(entries).await, expected, "{ids:?}");
    }
    let other = world.store.find_last_processed("another stream", &[]).await.expect("is there");
    assert_eq!(other, None);
}

#[tokio::test]
async fn a_probe_leaves_nothing_and_is_refused_only_if_every_row_is() {
    let world = World::new().await;
    let batch = decide([entry(1, "key-1", 54)], at(0));
    let probe = accept::probe(STREAM, &policy(), batch.entries[0].intent(), at(0));
    world.store.probe(&probe).await.expect("a valid row is taken");
    for (table, change, undo) in [
        ("records", "ADD CHECK (producer <> 'game_master')", "DROP CONSTRAINT records_producer_check"),
        ("records", "ADD COLUMN x int NOT NULL", "DROP COLUMN x"),
        ("routes", "ADD COLUMN x int NOT NULL", "DROP COLUMN x"),
        ("malformed_intents", "ADD COLUMN x int NOT NULL", "DROP COLUMN x"),
    ] {
        world.execute(&format!("ALTER TABLE {table} {change}")).await;
        let refused = matches!(world.store.probe(&probe).await, Err(StoreError::Refused { .. }));
        assert_eq!(refused, !change.contains("CHECK"), "{table} {change}");
        world.execute(&format!("ALTER TABLE {table} {undo}")).await;
    }
    world.store.probe(&probe).await.expect("a valid row is taken again");
    let rows = "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM malformed_intents)";
    assert_eq!(world.column(&format!("SELECT ({rows})::text")).await, ["0"]);
}

#[tokio::test]
async fn what_postgresql_refuses_is_said_to_be_refused_and_nothing_is_kept() {
    let world = World::new().await;
    let mut batch = decide([entry(1, "key-1", 54), entry(2, "key-2", 54)], at(0));
    if let Outcome::Accepted(acceptance) = &mut batch.outcomes[1] {
        acceptance.record.fingerprint = "a\0b".into();
    }
    let error = world.try_commit(&batch, 0, None).await.expect_err("a NUL is refused");
    assert!(matches!(error, StoreError::Refused { operation: "accept a batch of intents", .. }), "{error:?}");
    assert_eq!(world.column("SELECT notification_id FROM records").await, Vec::<String>::new());
    assert_eq!(world.store.load_checkpoint(STREAM).await.expect("is there"), None);
}

#[tokio::test]
async fn a_large_malformed_row_is_the_same_as_a_small_one_and_is_written_once() {
    let world = World::new().await;
    let value = "é\\\"\u{1}".repeat(300_000);
    let large = || RawEntry {
        id: EntryId::new(2, 0),
        fields: RawFields::from_iter([("producer", "p\t"), ("f", &value)]),
    };
    for seconds in [0, 9] {
        let batch = decide([broken(1), large(), broken(3)], at(seconds));
        assert_eq!(world.commit(&batch).await, Fate::Committed);
    }
    let rows = world
        .column(
            "SELECT concat_ws('|', stream, stream_entry_id, producer, failure_code, failure_message <> '', recorded_at,
                jsonb_array_length(raw_fields), md5(raw_fields #>> '{1,1}') = md5(repeat(U&'\\00e9\\005c\\0022\\0001', 300000)))
             FROM malformed_intents ORDER BY stream_entry_id",
        )
        .await;
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1], "notification:intents|2-0|p\t|entry_too_large|t|2026-04-02 09:21:40+00|2|t");
}

#[tokio::test]
async fn a_locked_row_is_said_to_be_locked_and_nothing_is_kept() {
    let world = World::new().await;
    let mut client = world.database.client().await;
    let open = client.transaction().await.expect("a transaction");
    let insert = "INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, failure_code, failure_message, raw_fields, recorded_at)
                  VALUES ($1, '2-0', $2, '', '', '[]', now())";
    let fingerprint = broken(2).fields.fingerprint();
    open.execute(insert, &[&STREAM, &fingerprint]).await.expect("the statement is right");
    let batch = decide([entry(1, "key-1", 54), broken(2)], at(0));
    let error = world.try_commit(&batch, 0, None).await.expect_err("the row is locked");
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert_eq!(world.column("SELECT notification_id FROM records").await, Vec::<String>::new());
    open.rollback().await.expect("the statement is right");
    assert_eq!(world.commit(&batch).await, Fate::Committed);
}

#[tokio::test]
async fn two_replicas_that_write_the_same_entries_write_them_once() {
    let world = World::new().await;
    let batch = decide((1..=50).map(|n| entry(n, &format!("key-{n}"), 54)), at(0));
    let outcomes = futures_util::future::join_all((0..4).map(|_| world.commit(&batch))).await;
    assert_eq!(outcomes.iter().filter(|commit| **commit == Fate::Committed).count(), 1, "{outcomes:?}");
    assert_eq!(world.column("SELECT count(*)::text FROM routes").await, ["100"]);
}

#[tokio::test]
async fn an_entry_that_is_read_twice_is_one_malformed_row() {
    let world = World::new().await;
    assert_eq!(world.commit(&decide([broken(1)], at(0))).await, Fate::Committed);
    assert_eq!(world.commit(&decide([broken(1)], at(9))).await, Fate::Committed);
    assert_eq!(
        world.column("SELECT recorded_at::text FROM malformed_intents").await,
        ["2026-04-02 09:21:40+00"]
    );
}

#[tokio::test]
async fn two_batches_with_the_same_keys_in_opposite_order_never_deadlock() {
    let world = World::new().await;
    world.accept([2], at(0)).await;
    // The key in the middle belongs to a transaction: both batches meet there, each with the rows it has
    // inserted before.
    let client = world.database.client().await;
    client.batch_execute("BEGIN; DELETE FROM records").await.expect("it is deleted");
    let opposite = |first: u64| {
        let keys = if first == 11 { [1, 2, 3] } else { [3, 2, 1] };
        decide((first..).zip(keys).map(|(number, key)| entry(number, &format!("key-{key}"), 54)), at(0))
    };
    let (one, other) = (opposite(11), opposite(21));
    let accept = async |batch: &Batch| {
        let outcomes = batch.outcomes.iter().collect();
        world.store.accept(AcceptanceBatch { outcomes, checkpoint: None, responses: Vec::new() }).await
    };
    let released = async {
        harness::wait_for("both wait", Duration::from_secs(4), async || {
            let waiting = "SELECT count(*)::text FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (world.column(waiting).await == ["2"]).then_some(())
        })
        .await;
        client.batch_execute("COMMIT").await.expect("it commits");
    };
    let (one, other, ()) = tokio::join!(accept(&one), accept(&other), released);
    let outcomes = [one.expect("no deadlock"), other.expect("no deadlock")];
    assert!(
        matches!(outcomes, [Fate::Committed, Fate::WriteConflict] | [Fate::WriteConflict, Fate::Committed]),
        "{outcomes:?}"
    );
    assert_eq!(world.column("SELECT count(*)::text FROM records").await, ["3"]);
}
