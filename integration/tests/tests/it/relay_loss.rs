//! Delivered, then lost: events of an outbox that Redis acknowledged and no longer has are sent again.

use std::ops::Range;
use std::time::{Duration, Instant};

use harness::{Redis, RedisOptions, Service, wait_for};

use crate::outbox::*;
use crate::restore::{Snapshot, world_with_snapshots};
use crate::world::*;

const REQUEUED: &str = "delivered outbox events were lost by their server; they are PENDING again";
const COMPARED: &str = "delivered outbox events were compared with the entries on their server";

pub(crate) async fn with_snapshots() -> Outbox {
    Outbox::with(world_with_snapshots().await).await
}

pub(crate) async fn ask(outbox: &Outbox, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
        .query_async(&mut outbox.world.redis().await)
        .await
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn lines(relay: &Service, text: &str) -> usize {
    relay.output().iter().filter(|line| line.contains(text)).count()
}

/// Waits until the relay has reported more than `before` comparisons.
pub(crate) async fn compared(relay: &Service, before: usize) {
    wait_for("a comparison", BOUND, async || (lines(relay, COMPARED) > before).then_some(())).await;
}

/// Inserts these events, and waits until all events are DELIVERED.
pub(crate) async fn deliver(outbox: &Outbox, events: Range<u32>) {
    outbox.insert(events).await;
    outbox.drained().await;
}

/// Deletes the record of the comparison from Redis.
async fn delete_record(outbox: &Outbox) {
    let records: Vec<String> =
        redis::from_redis_value(ask(outbox, &["KEYS", "notification:outbox_servers:*"]).await).expect("keys");
    for record in records {
        ask(outbox, &["DEL", &record]).await;
    }
}

/// Delivers the events 0 to 20, five hours ago. Redis loses the last 15 of them and its record while no relay
/// runs.
async fn lose_while_no_relay_runs(outbox: &mut Outbox) {
    let relay = outbox.relay().start().await;
    deliver(outbox, 0..5).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    deliver(outbox, 5..20).await;
    relay.kill().await;
    snapshot.restore(&mut outbox.world).await;
    delete_record(outbox).await;
    outbox
        .execute(
            "UPDATE openoutbox_events SET delivered_at = delivered_at - interval '5 hours',
                created_at = created_at - interval '5 hours'",
        )
        .await;
}

/// Waits until each of these events is on the stream once, and DELIVERED.
async fn all_are_there(outbox: &Outbox, range: Range<u32>) {
    wait_for("all are on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() == range.len()).then_some(())
    })
    .await;
    outbox.drained().await;
    outbox.check_stream(range).await;
}

#[tokio::test]
async fn what_redis_lost_with_its_tail_is_sent_again_once_by_one_of_two_relays() {
    let mut outbox = with_snapshots().await;
    let (relay, other) = (outbox.relay().start().await, outbox.relay().start().await);
    deliver(&outbox, 0..10).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    deliver(&outbox, 10..40).await;
    snapshot.restore(&mut outbox.world).await;
    assert_eq!(outbox.entries(INTENTS).await.len(), 10, "the tail is lost");
    all_are_there(&outbox, 0..40).await;
    wait_for("the report", BOUND, async || {
        (lines(&relay, REQUEUED) + lines(&other, REQUEUED) > 0).then_some(())
    })
    .await;
    assert_eq!(outbox.number("SELECT sum(attempts) FROM openoutbox_events").await, 0, "a loss is no attempt");
}

#[tokio::test]
async fn a_loss_while_no_relay_runs_is_noticed_by_the_next_that_starts() {
    let mut outbox = with_snapshots().await;
    lose_while_no_relay_runs(&mut outbox).await;
    let _next = outbox.relay().start().await;
    all_are_there(&outbox, 0..20).await;
}

#[tokio::test]
async fn a_loss_is_compared_from_the_record_that_the_older_state_has() {
    let mut outbox = with_snapshots().await;
    let relay = outbox.relay().env("NOTIFICATION_REPUBLISH_WINDOW", "1s").start().await;
    compared(&relay, 0).await;
    deliver(&outbox, 0..5).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    deliver(&outbox, 5..20).await;
    relay.kill().await;
    snapshot.restore(&mut outbox.world).await;
    let _next = outbox.relay().env("NOTIFICATION_REPUBLISH_WINDOW", "1s").start().await;
    all_are_there(&outbox, 0..20).await;
}

#[tokio::test]
async fn an_empty_redis_gets_all_events_of_the_window_again() {
    let mut outbox = with_snapshots().await;
    let empty = Snapshot::of(&outbox.world).await;
    let _relay = outbox.relay().start().await;
    deliver(&outbox, 0..12).await;
    deliver(&outbox, 12..13).await;
    let old = format!(
        "UPDATE openoutbox_events SET delivered_at = now() - interval '2 hours' WHERE event_id = '{}'",
        event_id(12)
    );
    outbox.execute(&old).await;
    empty.restore(&mut outbox.world).await;
    all_are_there(&outbox, 0..12).await;
}

#[tokio::test]
async fn a_redis_that_is_emptied_in_place_is_noticed() {
    let outbox = Outbox::new().await;
    let _relay = outbox.relay().start().await;
    deliver(&outbox, 0..8).await;
    ask(&outbox, &["FLUSHALL"]).await;
    all_are_there(&outbox, 0..8).await;
}

#[tokio::test]
async fn an_orderly_restart_sends_nothing_again_whatever_consumers_have_removed() {
    let redis = Redis::start(RedisOptions { appendonly: true, ..RedisOptions::default() }).await;
    let world = World { redis: redis.expect("a private Redis starts"), ..World::new().await };
    let mut outbox = Outbox::with(world).await;
    let relay = outbox.relay().start().await;
    compared(&relay, 0).await;
    deliver(&outbox, 0..10).await;
    ask(&outbox, &["XTRIM", INTENTS, "MAXLEN", "0"]).await;
    let before = lines(&relay, COMPARED);
    outbox.world.redis.stop().await;
    outbox.world.redis.start_again().await.expect("it starts");
    compared(&relay, before).await;
    deliver(&outbox, 10..11).await;
    outbox.check_stream(10..11).await;
    assert_eq!(lines(&relay, REQUEUED), 0);
}

#[tokio::test]
async fn an_event_whose_marker_has_ended_is_found_by_its_entry() {
    let mut outbox = with_snapshots().await;
    let relay = outbox.relay().start().await;
    deliver(&outbox, 0..6).await;
    delete_markers(&outbox).await;
    delete_record(&outbox).await;
    let (before, snapshot) = (lines(&relay, COMPARED), Snapshot::of(&outbox.world).await);
    snapshot.restore(&mut outbox.world).await;
    compared(&relay, before).await;
    deliver(&outbox, 6..7).await;
    outbox.check_stream(0..7).await;
}

#[tokio::test]
async fn a_table_without_indexes_is_compared_block_by_block() {
    let mut outbox = with_snapshots().await;
    outbox
        .execute(
            "DROP INDEX idx_openoutbox_prune_delivered, idx_openoutbox_prune_dead, idx_openoutbox_key_order",
        )
        .await;
    lose_while_no_relay_runs(&mut outbox).await;
    let _next = outbox.relay().start().await;
    all_are_there(&outbox, 0..20).await;
}

#[tokio::test]
async fn redis_and_postgresql_that_fail_together_lose_nothing() {
    let redis = Redis::start(RedisOptions::default()).await.expect("a private Redis starts");
    let world = World { redis, ..World::with_own_postgres().await };
    let database = harness::TestDatabase::empty_on(world.postgres.as_ref().expect("its own")).await;
    let mut outbox = Outbox { world, database };
    outbox.migrate().await;
    let _relay = outbox.relay().start().await;
    deliver(&outbox, 0..5).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    outbox.insert(5..500).await;
    wait_for("a part is on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() > 5).then_some(())
    })
    .await;
    outbox.world.postgres.as_mut().expect("its own").kill().await;
    snapshot.restore(&mut outbox.world).await;
    outbox.world.postgres.as_mut().expect("its own").start_again().await.expect("it starts");
    all_are_there(&outbox, 0..500).await;
}

#[tokio::test]
async fn without_a_window_nothing_is_sent_again_until_an_operator_does_it() {
    let mut outbox = with_snapshots().await;
    let _relay = outbox.relay().env("NOTIFICATION_REPUBLISH_WINDOW", "0").start().await;
    deliver(&outbox, 0..5).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    let since = outbox
        .text("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        .await;
    deliver(&outbox, 5..9).await;
    snapshot.restore(&mut outbox.world).await;
    deliver(&outbox, 9..10).await;
    outbox.check_stream([0, 1, 2, 3, 4, 9]).await;
    let dry = outbox.command(&["outbox", "requeue", "--delivered-since", &since, "--dry-run"]).await;
    assert!(dry.stdout.contains("5 DELIVERED events would be requeued"), "{dry:?}");
    let done = outbox.command(&["outbox", "requeue", "--delivered-since", &since, "--yes"]).await;
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "5 events are requeued"), "{done:?}");
    all_are_there(&outbox, 0..10).await;
}

/// The time within which a second round must come and finish.
const NEXT_ROUND: Duration = Duration::from_secs(100);

#[tokio::test]
async fn lost_events_that_are_locked_or_whose_trigger_fails_are_sent_again_by_a_later_round() {
    let mut outbox = with_snapshots().await;
    let empty = Snapshot::of(&outbox.world).await;
    let _relay = outbox.relay().env("NOTIFICATION_REPUBLISH_WINDOW", "5s").start().await;
    deliver(&outbox, 0..6).await;
    outbox.execute("UPDATE openoutbox_events SET delivered_at = delivered_at - interval '1 hour'").await;
    let open = outbox.database.client().await;
    let lock =
        format!("BEGIN; SELECT 1 FROM openoutbox_events WHERE event_id = '{}' FOR UPDATE", event_id(3));
    open.batch_execute(&lock).await.expect("it is locked");
    outbox
        .execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'not now' USING ERRCODE = 'serialization_failure'; END $$",
        )
        .await;
    outbox
        .execute(&format!(
            "CREATE TRIGGER fail BEFORE UPDATE ON openoutbox_events FOR EACH ROW
             WHEN (OLD.event_id = '{}' AND NEW.status = 'PENDING') EXECUTE FUNCTION fail()",
            event_id(4)
        ))
        .await;
    empty.restore(&mut outbox.world).await;
    wait_for("the others are on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() == 4).then_some(())
    })
    .await;
    open.batch_execute("COMMIT").await.expect("it is released");
    outbox.execute("DROP TRIGGER fail ON openoutbox_events").await;
    wait_for("the other two are on the stream", NEXT_ROUND, async || {
        (outbox.entries(INTENTS).await.len() == 6).then_some(())
    })
    .await;
    outbox.drained().await;
    outbox.check_stream(0..6).await;
}

async fn delete_markers(outbox: &Outbox) {
    let markers: Vec<String> =
        redis::from_redis_value(ask(outbox, &["KEYS", "notification:outbox_receipts:*"]).await)
            .expect("keys");
    for marker in markers {
        ask(outbox, &["DEL", &marker]).await;
    }
}

/// Waits until the relay has recorded that Redis has every event that was delivered. The time in the record
/// is in microseconds since 2000.
async fn settled(outbox: &Outbox) {
    let sql = "SELECT (extract(epoch FROM max(delivered_at) - timestamptz '2000-01-01T00:00:00Z') * 1000000)::bigint
        FROM openoutbox_events";
    let delivered = outbox.number(sql).await;
    wait_for("the record follows the events", BOUND, async || {
        let keys: Vec<String> =
            redis::from_redis_value(ask(outbox, &["KEYS", "notification:outbox_servers:*"]).await).ok()?;
        let value: String = redis::from_redis_value(ask(outbox, &["GET", keys.first()?]).await).ok()?;
        let records: serde_json::Value = serde_json::from_str(&value).ok()?;
        (records[0]["progress"]["settled"].as_i64()? >= delivered).then_some(())
    })
    .await;
}

/// An outbox on a Redis that keeps all data when it is stopped.
async fn on_durable_redis() -> Outbox {
    let redis = Redis::start(RedisOptions { appendonly: true, ..RedisOptions::default() }).await;
    let world = World { redis: redis.expect("a private Redis starts"), ..World::new().await };
    Outbox::with(world).await
}

#[tokio::test]
async fn an_orderly_restart_after_a_quiet_time_sends_nothing_again_although_the_markers_have_ended() {
    let mut outbox = on_durable_redis().await;
    let relay = outbox.relay().start().await;
    deliver(&outbox, 0..10).await;
    settled(&outbox).await;
    delete_markers(&outbox).await;
    ask(&outbox, &["XTRIM", INTENTS, "MAXLEN", "0"]).await;
    let before = lines(&relay, COMPARED);
    outbox.world.redis.stop().await;
    outbox.world.redis.start_again().await.expect("it starts");
    compared(&relay, before).await;
    deliver(&outbox, 10..11).await;
    outbox.check_stream(10..11).await;
    assert_eq!(lines(&relay, REQUEUED), 0);
}

/// Adds entries of other producers to a stream.
async fn fill(outbox: &Outbox, stream: &str, entries: usize) {
    let script =
        "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'id', 'other-' .. n, 'payload', 'x') end";
    ask(outbox, &["EVAL", script, "1", stream, &entries.to_string()]).await;
}

#[tokio::test]
async fn long_streams_whose_markers_have_ended_delay_claims_and_a_stop_by_seconds() {
    let mut outbox = on_durable_redis().await;
    let streams = |outbox: &Outbox| {
        outbox
            .relay()
            .env("NOTIFICATION_OUTBOX_MODE", "streams")
            .env("NOTIFICATION_OUTBOX_STREAMS", "sa,sb")
            .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "5s")
            .env("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "60s")
    };
    let relay = streams(&outbox).start().await;
    for stream in ["sa", "sb"] {
        fill(&outbox, stream, 80_000).await;
    }
    let insert = "INSERT INTO openoutbox_events (event_id, event_type, payload)
        SELECT gen_random_uuid(), (ARRAY['sa', 'sb'])[n % 2 + 1], 'x' FROM generate_series(1, 600) n";
    outbox.execute(insert).await;
    outbox.drained().await;
    for stream in ["sa", "sb"] {
        fill(&outbox, stream, 80_000).await;
    }
    relay.kill().await;
    delete_markers(&outbox).await;
    delete_record(&outbox).await;
    outbox.world.redis.stop().await;
    outbox.world.redis.start_again().await.expect("it starts");
    let mut relay = streams(&outbox).start().await;
    let begun = Instant::now();
    outbox.execute("INSERT INTO openoutbox_events (event_id, event_type, payload) VALUES (gen_random_uuid(), 'sa', 'new')").await;
    wait_for("what is new is delivered", Duration::from_secs(20), async || {
        let new = "SELECT count(*) FROM openoutbox_events WHERE payload = 'new' AND status = 'DELIVERED'";
        (outbox.number(new).await == 1).then_some(())
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let begun = Instant::now();
    relay.signal("TERM");
    relay.wait_exit(Duration::from_secs(60)).await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_redis_that_is_set_back_in_place_while_no_relay_runs_is_noticed_by_the_next() {
    let outbox = with_snapshots().await;
    let relay = outbox.relay().start().await;
    compared(&relay, 0).await;
    deliver(&outbox, 0..3).await;
    relay.kill().await;
    // As it was before the last two events, on the server that still runs.
    let entries = outbox.entries(INTENTS).await;
    for entry in &entries[1..] {
        ask(&outbox, &["XDEL", INTENTS, &entry.id]).await;
    }
    delete_markers(&outbox).await;
    let _next = outbox.relay().start().await;
    all_are_there(&outbox, 0..3).await;
}

#[tokio::test]
async fn a_table_in_which_delivered_events_cannot_be_listed_in_time_stops_no_claims() {
    let outbox = with_snapshots().await;
    let relay = outbox.relay().start().await;
    compared(&relay, 0).await;
    deliver(&outbox, 0..3).await;
    relay.kill().await;
    // Each look at a DELIVERED event takes longer than a statement may.
    outbox
        .execute(
            "CREATE POLICY slow ON openoutbox_events USING (status <> 'DELIVERED' OR pg_sleep(4) IS NOT NULL);
             ALTER TABLE openoutbox_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
        .await;
    let _next = outbox.relay().start().await;
    outbox.insert(3..5).await;
    wait_for("the new events", BOUND, async || (outbox.entries(INTENTS).await.len() == 5).then_some(()))
        .await;
}
