//! Redis loses acknowledged entries during another failure: no route is `published` but missing from its
//! stream, no entry of the intents stream is skipped, and permanent losses are reported.

use std::collections::BTreeSet;

use harness::{Service, wait_for};
use tokio_postgres::Client;

use crate::restore::{Snapshot, ask, world_with_snapshots};
use crate::world::*;

const COMPARED: &str = "the stream was compared with the published routes";
const LOST: &str = "Redis lost entries of the outbound stream, which begins after them now: consumers may have processed them, and \
                    nothing is appended again";
/// The advisory lock that every change of a route waits for after [`hold_completions`] was called.
const GATE: i64 = 77;

/// Makes every completion wait until the returned session is dropped. The rows are not locked.
async fn hold_completions(world: &World) -> Client {
    let holder = world.database.client().await;
    holder
        .batch_execute(&format!(
            "CREATE FUNCTION wait_for_gate() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NEW; END $$;
             CREATE TRIGGER gate BEFORE UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION wait_for_gate();
             SELECT pg_advisory_lock({GATE});"
        ))
        .await
        .expect("the role owns the table");
    holder
}

async fn appended(world: &World, entries: usize) {
    wait_for(&format!("{entries} entries are appended"), BOUND, async || {
        (world.outbound().await.len() == entries).then_some(())
    })
    .await;
}

/// Publishes the intents 0 to 3 and takes a snapshot of Redis. The intents 3 to 28 are appended after it, and
/// their completions wait until the returned session is dropped.
async fn hold_completions_after_snapshot(world: &World) -> (Client, Snapshot) {
    world.send(0..3).await;
    world.settled(3).await;
    let holder = hold_completions(world).await;
    let snapshot = Snapshot::of(world).await;
    world.send(3..28).await;
    appended(world, 28 * 4).await;
    (holder, snapshot)
}

async fn both_compared(service: &Service) {
    compared(service, 2).await;
}

async fn compared(service: &Service, comparisons: usize) {
    wait_for(&format!("{comparisons} comparisons of a stream"), BOUND, async || {
        (count_lines(service, COMPARED) >= comparisons).then_some(())
    })
    .await;
}

fn count_lines(service: &Service, message: &str) -> usize {
    service.output().into_iter().filter(|line| line.contains(message)).count()
}

/// The number of routes whose entries an audit misses, and its exit code.
async fn missing_in_audit(audit: harness::ServiceBuilder) -> (usize, Option<i32>) {
    let audit = audit.run().await;
    let missing = audit.stdout.lines().filter(|line| line.contains("published_entry_missing")).count();
    (missing, audit.code)
}

/// Waits until the current end of the gateway's stream is saved as observed.
async fn saved(world: &World) {
    let last: Vec<(String, Vec<String>)> = redis::cmd("XREVRANGE")
        .arg(PUSH)
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1)
        .query_async(&mut world.redis().await)
        .await
        .expect("Redis is there");
    let query = format!(
        "SELECT count(*) FROM outbound_streams WHERE stream = '{PUSH}' AND last_generated_id = '{}'",
        last[0].0
    );
    wait_for("the observation is saved", BOUND, async || (world.number(&query).await == 1).then_some(()))
        .await;
}

/// The published routes whose entry is not in their stream under their id, and the entries without a
/// published route.
async fn differences(world: &World) -> Vec<String> {
    let published = "SELECT notification_id || '/' || route_id || '@' || published_entry_id FROM routes
        WHERE status = 'published'";
    let routes: BTreeSet<String> = world.column(published).await.into_iter().collect();
    let entries = world.outbound().await;
    let entries: BTreeSet<String> =
        entries.iter().flat_map(|(name, ids)| ids.iter().map(move |id| format!("{name}@{id}"))).collect();
    routes.symmetric_difference(&entries).cloned().collect()
}

// INV-13
#[tokio::test]
async fn completions_that_wait_while_redis_loses_their_entries_are_published_again() {
    let mut world = world_with_snapshots().await;
    let service = world.service().start().await;
    let (holder, snapshot) = hold_completions_after_snapshot(&world).await;
    snapshot.restore(&mut world).await;
    // Every row can be read, and none of these is published: the comparison finds none of them missing.
    both_compared(&service).await;
    drop(holder);
    world.settled(28).await;
    assert_eq!(differences(&world).await, Vec::<String>::new());
    world.check_after_loss(0..28).await;
}

// INV-13, CRASH-23
#[tokio::test]
async fn entries_that_redis_loses_while_postgresql_is_down_are_published_again() {
    let redis =
        harness::Redis::start(harness::RedisOptions::default()).await.expect("a private Redis starts");
    let mut world = World { redis, ..World::with_own_postgres().await };
    let _service = world.service().start().await;
    let (holder, snapshot) = hold_completions_after_snapshot(&world).await;
    let mut postgres = world.postgres.take().expect("its own");
    postgres.kill().await;
    drop(holder);
    snapshot.restore(&mut world).await;
    postgres.start_again().await.expect("it starts again");
    world.settled(28).await;
    wait_for("every published route is in its stream", BOUND, async || {
        differences(&world).await.is_empty().then_some(())
    })
    .await;
    world.check_after_loss(0..28).await;
}

// INV-13
#[tokio::test]
async fn what_a_replica_with_a_fast_clock_accepted_is_appended_again() {
    let mut world = world_with_snapshots().await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let snapshot = Snapshot::of(&world).await;
    world.send(3..20).await;
    world.settled(20).await;
    // The timestamps of a replica whose clock is an hour ahead.
    let ahead = "UPDATE records SET accepted_at = accepted_at + interval '1 hour' WHERE idempotency_key NOT LIKE '%turn-0'";
    assert!(world.execute(ahead).await > 0);
    snapshot.restore(&mut world).await;
    both_compared(&service).await;
    wait_for("every published route is in its stream", BOUND, async || {
        differences(&world).await.is_empty().then_some(())
    })
    .await;
}

// INV-07
#[tokio::test]
async fn entries_below_the_checkpoint_that_a_slow_clock_gave_are_accepted() {
    let mut world = world_with_snapshots().await;
    let service = world.service().start().await;
    world.send(0..10).await;
    world.settled(10).await;
    let snapshot = Snapshot::of(&world).await;
    let kept = world.last_entry().await;
    world.send(10..30).await;
    world.settled(30).await;
    let checkpoint = world.caught_up().await;
    // Before intake reads, the new primary appends ten entries whose ids are below the checkpoint, and three
    // above it.
    service.signal("STOP");
    snapshot.restore(&mut world).await;
    let millis = |id: &str| -> u64 { id.split('-').next().expect("an id").parse().expect("a number") };
    let below = (100..110).zip(1..).map(|(n, sequence)| (n, format!("{}-{sequence}", millis(&kept) + 1)));
    assert!(millis(&kept) + 1 < millis(&checkpoint), "there is room for them");
    let above =
        (110..113).zip(1..).map(|(n, sequence)| (n, format!("{}-{sequence}", millis(&checkpoint) + 1)));
    for (n, id) in below.chain(above) {
        let mut command = redis::cmd("XADD");
        command.arg(INTENTS).arg(id);
        for (name, value) in intent_fields(n) {
            command.arg(name).arg(value);
        }
        command.exec_async(&mut world.redis().await).await.expect("Redis is there");
    }
    service.signal("CONT");
    world.settled(43).await;
    let cut = wait_for("the loss is reported", BOUND, async || {
        service.logged(
            "the stream was cut short: Redis lost its newest entries; those up to the checkpoint have their outcomes; \
             entries that producers added after it and that were not read, if there were any, are lost",
        )
    })
    .await;
    assert_eq!(cut["resume_after"], kept.as_str(), "{cut}");
    let sent = (0..30).chain(100..113);
    let accepted = world.column("SELECT idempotency_key FROM records").await;
    assert_eq!(accepted.len(), sent.count());
}

// INV-07
#[tokio::test]
async fn another_server_without_a_visible_loss_is_reported_as_one_that_may_miss_entries() {
    let mut world = World::new().await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    world.caught_up().await;
    wait_for("the server is saved beside the checkpoint", BOUND, async || {
        (world.number("SELECT count(*) FROM intake WHERE server_run_id IS NOT NULL").await == 1).then_some(())
    })
    .await;
    world.redis.stop().await;
    world.redis.start_again().await.expect("it starts");
    let message = "the intents stream is on another server than before, and shows no loss; entries that were not read yet may be \
                   missing";
    wait_for("it is said", BOUND, async || service.logged(message)).await;
    world.send(3..5).await;
    world.settled(5).await;
    world.check(0..5).await;
}

// INV-13
#[tokio::test]
async fn outbound_streams_that_come_back_empty_under_traffic_are_lost_and_not_trimmed() {
    let mut world = world_with_snapshots().await;
    let service = world.service().start().await;
    let empty = Snapshot::of(&world).await;
    world.send(0..20).await;
    world.settled(20).await;
    // The installation's key and the intents are gone as well; the entries after that are added at once.
    empty.restore(&mut world).await;
    world.send(20..25).await;
    world.accepted(25).await;
    let line = wait_for("it is an error", BOUND, async || service.logged(LOST)).await;
    assert_eq!((&line["level"], &line["entries"]), (&"ERROR".into(), &40.into()), "{line}");
    world.settled(25).await;
    assert_eq!(world.outbound().await.len(), 20, "only the new ones");
    assert_eq!(missing_in_audit(world.audit()).await, (80, Some(1)));
    // Both streams: one line each, however many restarts follow.
    saved(&world).await;
    let comparisons = count_lines(&service, COMPARED);
    world.redis.stop().await;
    world.redis.start_again().await.expect("it starts");
    compared(&service, comparisons + 2).await;
    assert_eq!(count_lines(&service, LOST), 2, "it is reported once");
}

// INV-13
#[tokio::test]
async fn an_outbound_stream_that_is_deleted_under_traffic_is_lost_and_not_trimmed() {
    for command in ["DEL", "FLUSHALL"] {
        let world = world_with_snapshots().await;
        let service = world.service().start().await;
        world.send(0..20).await;
        world.settled(20).await;
        saved(&world).await;
        let arguments: &[&str] = if command == "DEL" { &[command, PUSH] } else { &[command] };
        ask(&world, arguments).await;
        world.send(20..25).await;
        let line = wait_for("it is an error", BOUND, async || service.logged(LOST)).await;
        assert_eq!((&line["level"], &line["entries"]), (&"ERROR".into(), &40.into()), "{command}: {line}");
        world.settled(25).await;
        let (missing, code) = missing_in_audit(world.audit()).await;
        assert_eq!((missing >= 40, code), (true, Some(1)), "{command}: {missing}");
    }
}

// INV-13
#[tokio::test]
async fn what_redis_lost_is_not_called_trimmed_once_the_stream_has_its_full_length() {
    const MAX_LEN: &str = "NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM_MAXLEN";
    let mut world = world_with_snapshots().await;
    let _service = world.service().env(MAX_LEN, "10").start().await;
    let empty = Snapshot::of(&world).await;
    world.send(0..3).await;
    world.settled(3).await;
    empty.restore(&mut world).await;
    world.send(3..203).await;
    world.settled(203).await;
    let (missing, code) = missing_in_audit(world.audit().env(MAX_LEN, "10")).await;
    assert_eq!((missing, code), (12, Some(1)), "three intents, two routes of each channel");
}

// INV-13
#[tokio::test]
async fn an_orderly_restart_in_the_middle_of_a_rename_of_a_stream_repeats_nothing() {
    let mut world = World::new().await;
    let renamed = "gateway:renamed-events";
    let former = world.service().start().await;
    world.send(0..10).await;
    world.settled(10).await;
    let next = world.service().env("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", renamed).start().await;
    drop(former);
    world.send(10..20).await;
    world.settled(20).await;
    wait_for("both names are known", BOUND, async || {
        (world.number("SELECT count(*) FROM outbound_names WHERE channel = 'push'").await == 2).then_some(())
    })
    .await;
    let length = async |world: &World| -> (u64, u64, u64) {
        let mut lengths = redis::pipe();
        for stream in [PUSH, renamed, MAIL] {
            lengths.cmd("XLEN").arg(stream);
        }
        lengths.query_async(&mut world.redis().await).await.expect("Redis is there")
    };
    let before = length(&world).await;
    world.redis.stop().await;
    world.redis.start_again().await.expect("it starts");
    let refused = "the outbound stream is not compared, because routes of the channel were published to another stream in the same \
                   time; `notification audit` names entries that Redis lost, once the stream exists";
    let line = wait_for("it is refused", BOUND, async || next.logged(refused)).await;
    assert_eq!((&line["stream"], &line["other_stream"]), (&renamed.into(), &PUSH.into()), "{line}");
    wait_for("the mail stream is compared", BOUND, async || next.logged(COMPARED)).await;
    assert_eq!(length(&world).await, before);
    let audit = world.audit().env("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", renamed);
    assert_eq!(missing_in_audit(audit).await, (0, Some(0)), "the entries are in the former stream");
    // Entries that neither stream has are lost.
    let first: Vec<(String, Vec<String>)> = redis::cmd("XRANGE")
        .arg(renamed)
        .arg("-")
        .arg("+")
        .arg("COUNT")
        .arg(2)
        .query_async(&mut world.redis().await)
        .await
        .expect("Redis is there");
    let lost = first[1].0.as_str();
    let query = format!(
        "UPDATE routes SET published_entry_id = '{}-5', updated_at = updated_at + interval '1 microsecond'
        WHERE published_entry_id = '{lost}' AND channel = 'push'",
        lost.split('-').next().expect("an id")
    );
    assert_eq!(world.execute(&query).await, 1);
    let audit = world.audit().env("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", renamed);
    assert_eq!(missing_in_audit(audit).await.1, Some(1));
}
