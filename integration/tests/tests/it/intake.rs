//! Intake under faults caused by producers, operators and broken servers: streams that vanish or lose
//! entries, rows that are rejected, locked or slow, floods of malformed entries.

use std::time::{Duration, Instant};

use domain::intent::IntentDraft;
use harness::{Service, Stopwatch, wait_for};
use serde_json::Value;

use crate::world::*;

/// Twice the promise of the operations page, for a machine that is busy with other tests; without the
/// handling of outages it would exceed ten seconds.
const SOON: Duration = Duration::from_secs(6);
/// The key under which a stream is kept while it is absent.
const ELSEWHERE: &[u8] = b"elsewhere";

/// Runs a command on Redis.
async fn ask<T: redis::FromRedisValue>(world: &World, words: &[&[u8]]) -> T {
    let mut command = redis::cmd(std::str::from_utf8(words[0]).expect("a command"));
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query_async(&mut world.redis().await).await.expect("Redis is there")
}

/// The log lines with this message.
fn lines(service: &Service, message: &str) -> Vec<Value> {
    let output = service.output();
    let parsed = output.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"] == message).collect()
}

/// Waits until `/readyz` reports that intake waits and the cause contains `text`.
async fn waits_for(service: &Service, text: &str) -> Value {
    wait_for(&format!("intake waits: {text}"), BOUND, async || {
        let waiting = service.get("/readyz").await.1["intake"]["waiting"].clone();
        waiting["cause"].as_str().is_some_and(|cause| cause.contains(text)).then_some(waiting)
    })
    .await
}

/// Deletes all records but that of `key`, as retention might: an intent that is accepted again was read
/// again.
async fn keep_record(world: &World, key: &str) {
    world.execute(&format!("DELETE FROM records WHERE idempotency_key <> '{key}'")).await;
}

async fn keys(world: &World) -> Vec<String> {
    world.column("SELECT idempotency_key FROM records ORDER BY 1").await
}

#[tokio::test]
async fn a_stream_that_is_absent_while_intake_runs_is_waited_for_and_not_read_again() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..5).await;
    world.settled(5).await;
    let last = world.caught_up().await;
    keep_record(&world, "game-1:turn-4").await;

    ask::<()>(&world, &[b"RENAME", INTENTS.as_bytes(), ELSEWHERE]).await;
    waits_for(&service, "the intents stream is absent").await;
    assert_eq!(world.column("SELECT last_entry_id FROM intake").await, [last]);
    ask::<()>(&world, &[b"RENAME", ELSEWHERE, INTENTS.as_bytes()]).await;
    world.send(5..6).await;
    world.settled(2).await;
    assert_eq!(keys(&world).await, [key(4), key(5)]);
    let absent = |line: &Value| line["error"].as_str().is_some_and(|error| error.contains("absent"));
    let reports = lines(&service, "worker failed; retrying");
    assert_eq!(reports.iter().filter(|line| absent(line)).count(), 1, "{reports:?}");
}

#[tokio::test]
async fn a_stream_that_is_absent_at_start_is_waited_for_and_not_read_again() {
    let world = World::new().await;
    let mut first = world.service().start().await;
    world.send(0..5).await;
    world.settled(5).await;
    let last = world.caught_up().await;
    first.signal("TERM");
    first.wait_exit(BOUND).await;
    keep_record(&world, "game-1:turn-4").await;
    ask::<()>(&world, &[b"RENAME", INTENTS.as_bytes(), ELSEWHERE]).await;
    let cached: Vec<Vec<u8>> = ask(&world, &[b"KEYS", b"notification:stream_offsets:*"]).await;
    assert_eq!(ask::<u64>(&world, &[b"DEL", &cached[0]]).await, 1);

    let service = world.service().start().await;
    waits_for(&service, "the intents stream is absent").await;
    assert_eq!(world.column("SELECT last_entry_id FROM intake").await, [last]);
    ask::<()>(&world, &[b"RENAME", ELSEWHERE, INTENTS.as_bytes()]).await;
    world.send(5..6).await;
    world.settled(2).await;
    assert_eq!(keys(&world).await, [key(4), key(5)]);
    let lost = "the checkpoint cached in Redis is lost or garbled; resuming after the one in PostgreSQL";
    assert_eq!(lines(&service, lost).len(), 1, "it is reported where intake resumes, not while it waits");
}

#[tokio::test]
async fn a_new_installation_without_a_stream_is_ready_and_reports_nothing() {
    let world = World::new().await;
    let service = unhurried(world.service()).start().await;
    reads(&service).await;
    // Two idle reads, after each of which intake checks the stream.
    let begun = Instant::now();
    wait_for("it has looked around", BOUND, async || {
        assert!(service.get("/readyz").await.1["intake"]["waiting"].is_null());
        (begun.elapsed() > Duration::from_millis(1_200)).then_some(())
    })
    .await;
    assert_eq!(lines(&service, "worker failed; retrying"), Vec::<Value>::new());
    world.send(0..1).await;
    world.settled(1).await;
}

#[tokio::test]
async fn a_stream_that_lost_its_newest_entries_is_not_read_again_from_its_beginning() {
    for while_it_runs in [true, false] {
        let world = World::new().await;
        let mut service = world.service().start().await;
        world.send(0..5).await;
        world.settled(5).await;
        let kept = world.caught_up().await;
        let dump: Vec<u8> = ask(&world, &[b"DUMP", INTENTS.as_bytes()]).await;
        world.send(5..8).await;
        world.settled(8).await;
        let lost = world.caught_up().await;
        keep_record(&world, "game-1:turn-4").await;
        if !while_it_runs {
            service.signal("TERM");
            service.wait_exit(BOUND).await;
        }

        // The state after a failover to a replica that lacked the last entries.
        ask::<()>(&world, &[b"RESTORE", INTENTS.as_bytes(), b"0", &dump, b"REPLACE"]).await;
        if !while_it_runs {
            service = world.service().start().await;
        }
        let message = "the stream was cut short: Redis lost its newest entries; those up to the checkpoint have their \
                       outcomes; entries that producers added after it and that were not read, if there were any, are lost";
        let report = wait_for("the loss is reported", BOUND, async || lines(&service, message).pop()).await;
        assert_eq!(
            (&report["resume_after"], &report["after"], &report["before"]),
            (&kept.as_str().into(), &lost.as_str().into(), &serde_json::Value::Null)
        );
        world.send(8..10).await;
        world.settled(3).await;
        assert_eq!(keys(&world).await, [key(4), key(8), key(9)]);
        world.caught_up().await;
    }
}

#[tokio::test]
async fn a_fence_that_redis_has_seen_already_is_never_used_again() {
    // PostgreSQL was restored by one term: its next fence is that of the cached checkpoint.
    for (stored, least) in [("0-0@000000000000001", 2), ("0-0@000000001000001", 1_000_002)] {
        let world = World::new().await;
        ask::<()>(&world, &[b"SET", CACHED_CHECKPOINT.as_bytes(), stored.as_bytes()]).await;
        let _service = world.service().start().await;
        world.send(0..3).await;
        world.settled(3).await;
        world.caught_up().await;
        let cached = world.cached_checkpoint().await.expect("there is one");
        let fence: u64 = cached.split_once('@').expect("with a fence").1.parse().expect("a number");
        assert!((least..least + 5).contains(&fence), "{stored}: {fence}");
    }
}

#[tokio::test]
async fn a_garbled_fence_in_redis_does_not_use_up_the_fences() {
    let world = World::new().await;
    let garbled = "0-0@000000001000002";
    ask::<()>(&world, &[b"SET", CACHED_CHECKPOINT.as_bytes(), garbled.as_bytes()]).await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    world.caught_up().await;
    let cached = world.cached_checkpoint().await.expect("there is one");
    assert!(cached.ends_with("@000000000000001"), "{cached}");
    let message =
        "the checkpoint cached in Redis is garbled and PostgreSQL has none; reading from the beginning";
    assert_eq!(lines(&service, message).len(), 1);
}

#[tokio::test]
async fn a_refusal_that_affects_every_row_makes_no_intent_not_storable() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.execute("ALTER TABLE records ADD COLUMN x int NOT NULL").await;
    world.send(0..50).await;
    let waiting = waits_for(&service, "PostgreSQL refuses a valid row of the service, too").await;
    assert!(waiting["entry_id"].is_string(), "{waiting}");
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
    world.execute("ALTER TABLE records DROP COLUMN x").await;
    world.settled(50).await;
    world.check(0..50).await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
}

#[tokio::test]
async fn an_intent_that_is_refused_alone_is_not_storable_and_shows_nothing_of_its_content() {
    let world = World::new().await;
    world.directory.set_user("u-7", "marked@example.com", "en");
    let service = world.service().start().await;
    world.execute("ALTER TABLE records ADD CHECK (payload_json NOT LIKE '%marked payload%')").await;
    world.send(0..5).await;
    let payload_json = r#"{"game_id":"marked payload","game_name":"Nova","turn_number":7}"#.to_owned();
    let refused = world.add_draft(IntentDraft { payload_json, ..intent_draft(7) }).await;
    world.send(10..15).await;
    world.settled(10).await;
    world.check((0..5).chain(10..15)).await;
    let rows = world
        .column(
            "SELECT stream_entry_id || ' ' || failure_code || ' ' || failure_message FROM malformed_intents",
        )
        .await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(row.starts_with(&format!("{refused} not_storable ")), "{row}");
    assert!(row.contains("records_payload_json_check"), "{row}");
    let said = [rows, service.output()].concat().join("\n");
    for marked in ["marked payload", "marked@example.com", "u-107"] {
        assert!(!said.contains(marked), "{marked} is in {said}");
    }
}

#[tokio::test]
async fn batches_that_postgresql_is_too_slow_for_are_made_smaller_until_they_get_through() {
    let world = World::new().await;
    world
        .execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'",
        )
        .await;
    world.execute("CREATE TRIGGER slow BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION slow()").await;
    world.send(0..48).await;
    let _service = world.service().start().await;
    world.settled(48).await;
    world.check(0..48).await;
}

#[tokio::test]
async fn entries_before_a_locked_one_are_accepted_and_the_rest_when_the_lock_is_gone() {
    let world = World::new().await;
    let service = world.service().start().await;
    reads(&service).await;
    let mut client = world.database.client().await;
    let open = client.transaction().await.expect("a transaction");
    let taken = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
                 request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
                 VALUES ('x', '', 'game_master', 'user', '{}', 'game-1:turn-11', '', now(), now(), now(), now())";
    open.execute(taken, &[]).await.expect("the statement is right");
    world.send(0..16).await;
    let waiting = waits_for(&service, "another transaction holds a lock").await;
    let accepted = world.column("SELECT idempotency_key FROM records ORDER BY notification_id").await;
    assert_eq!(accepted.len(), 11, "{waiting}: {accepted:?}");
    open.rollback().await.expect("the statement is right");
    world.settled(16).await;
    world.check(0..16).await;
}

#[tokio::test]
async fn five_thousand_malformed_entries_are_all_kept_and_do_not_flood_the_log() {
    const ENTRIES: u64 = 5_000;
    let world = World::new().await;
    let mut pipeline = redis::pipe();
    for n in 0..ENTRIES {
        pipeline.cmd("XADD").arg(INTENTS).arg("*").arg("nonsense").arg(n).ignore();
    }
    pipeline.query_async::<()>(&mut world.redis().await).await.expect("Redis is there");
    let mut service = world.service().start().await;
    world.caught_up().await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await as u64, ENTRIES);
    service.signal("TERM");
    service.wait_exit(BOUND).await;
    let logged = lines(&service, "an entry was not accepted").len() as u64;
    let rest =
        lines(&service, "more entries were not accepted for the same reason; malformed_intents has them all");
    let suppressed: u64 = rest.iter().filter_map(|line| line["suppressed"].as_u64()).sum();
    assert_eq!(logged + suppressed, ENTRIES);
    assert!(service.output().len() < 300, "{} lines", service.output().len());
}

#[tokio::test]
async fn an_intent_that_an_operators_unique_index_refuses_is_not_storable_and_holds_no_other() {
    let world = World::new().await;
    world.execute("CREATE UNIQUE INDEX operators_own ON records (payload_json)").await;
    let service = unhurried(world.service()).start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let refused = world.add_draft(IntentDraft { idempotency_key: "another".into(), ..intent_draft(1) }).await;
    world.send(3..6).await;
    world.settled(6).await;
    world.check(0..6).await;
    let rows = world
        .column(
            "SELECT concat_ws(' ', stream_entry_id, failure_code, failure_message) FROM malformed_intents",
        )
        .await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].starts_with(&format!("{refused} not_storable ")), "{rows:?}");
    assert!(rows[0].contains("constraint operators_own"), "{rows:?}");
    assert_eq!(lines(&service, "worker failed; retrying"), Vec::<Value>::new());
}

#[tokio::test]
async fn intake_continues_soon_after_ten_seconds_without_redis() {
    let mut world = World::new().await;
    let service = world.service().start().await;
    world.send(0..1).await;
    world.settled(1).await;
    world.redis.kill().await;
    let killed = Instant::now();
    wait_for("the outage has lasted", BOUND, async || {
        (killed.elapsed() > Duration::from_secs(10)).then_some(())
    })
    .await;
    world.redis.start_again().await.expect("it starts again");
    let back = Stopwatch::start();
    world.send(1..2).await;
    world.accepted(2).await;
    assert!(back.elapsed() < SOON, "it took {:?}", back.elapsed());
    drop(service);
}

#[tokio::test]
async fn intake_continues_soon_after_ten_seconds_without_postgresql() {
    let mut world = World::with_own_postgres().await;
    let service = world.service().start().await;
    world.send(0..1).await;
    world.settled(1).await;
    let mut postgres = world.postgres.take().expect("its own");
    postgres.kill().await;
    let killed = Instant::now();
    world.send(1..2).await;
    wait_for("the outage has lasted", BOUND, async || {
        (killed.elapsed() > Duration::from_secs(10)).then_some(())
    })
    .await;
    postgres.start_again().await.expect("it starts again");
    let back = Stopwatch::start();
    world.accepted(2).await;
    assert!(back.elapsed() < SOON, "it took {:?}", back.elapsed());
    drop(service);
}

#[tokio::test]
async fn a_locked_table_of_malformed_intents_delays_no_valid_intent() {
    let world = World::new().await;
    let _service = world.service().start().await;
    world.send(0..2).await;
    world.settled(2).await;
    let operator = world.database.client().await;
    let lock = "BEGIN; LOCK TABLE malformed_intents IN ACCESS EXCLUSIVE MODE";
    operator.batch_execute(lock).await.expect("the table is free");
    world.send(2..6).await;
    world.settled(6).await;
    operator.batch_execute("ROLLBACK").await.expect("PostgreSQL is there");
    world.check(0..6).await;
}
