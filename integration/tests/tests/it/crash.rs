//! SIGKILL at each step of an intent's life: the state that remains, and its recovery by the next process.
//!
//! A proxy holds the service at a chosen step of the protocol, so that it is killed exactly there.

use std::time::{Duration, Instant};

use harness::{Proxy, Stopwatch, wait_for};

use crate::world::*;

/// The steps are recognised by the text of the requests: the payload is in the request with the records, a
/// route id in the one with the routes and the COMMIT; the others have names of keys and streams.
const RECORDS: &[u8] = b"Nova";
const ROUTES_AND_COMMIT: &[u8] = b"push:user:u-";
const PERMITS: &[u8] = b"notification:publish_permits:";
const LEASES: &[u8] = b"notification:route_leases:";
const SCAN_LOCKS: &[u8] = b"notification:scan_locks:";
const OFFSETS: &[u8] = b"notification:stream_offsets:";

/// Accepts an intent and publishes it, accepts another one, and is killed before the append of its routes.
/// The scripts are in Redis by then: otherwise it would respond to the first request with NOSCRIPT.
async fn killed_before_its_append(world: &World, redis: &Proxy) {
    let service = world.service_via(redis.port(), world.database.port()).start().await;
    world.send(0..1).await;
    world.settled(1).await;
    let at_append = redis.hold_request(LEASES);
    world.send(1..2).await;
    at_append.reached(BOUND).await;
    service.kill().await;
    redis.heal();
}

/// Checks that another replica publishes what a killed one left of two intents, within the lease TTL and a
/// second.
async fn the_next_replica_publishes_in_time(world: &World) {
    let live = world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await;
    assert!(live >= 2, "{live} routes are still pending");

    let _next = world.service().start().await;
    let since = Stopwatch::start();
    world.settled(2).await;
    let bound = LEASE_TTL + Duration::from_secs(1);
    assert!(since.elapsed() < bound, "the routes moved after {:?}", since.elapsed());
    world.check(0..2).await;
}

// CRASH-01
#[tokio::test]
async fn killed_after_the_read_nothing_is_left_and_the_entries_are_read_again() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let service = world.service_via(world.redis.port(), postgres.port()).start().await;
    let at_begin = postgres.hold_request(RECORDS);
    world.send(0..3).await;
    at_begin.reached(BOUND).await;
    service.kill().await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);
    assert_eq!(world.cached_entry_id().await.as_deref(), Some("0-0"));

    let _next = world.service().start().await;
    world.settled(3).await;
    world.check(0..3).await;
}

// INV-02, CRASH-02
#[tokio::test]
async fn killed_before_the_commit_nothing_is_left_and_the_entries_are_read_again() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let service = world.service_via(world.redis.port(), postgres.port()).start().await;
    let at_commit = postgres.hold_request(ROUTES_AND_COMMIT);
    world.send(0..3).await;
    at_commit.reached(BOUND).await;
    service.kill().await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);

    let _next = world.service().start().await;
    world.settled(3).await;
    world.check(0..3).await;
}

// INV-07, CRASH-04
#[tokio::test]
async fn killed_after_the_commit_before_the_cached_checkpoint_nothing_is_accepted_twice() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    let service = world.service_via(redis.port(), world.database.port()).start().await;
    reads(&service).await;
    let at_offset = redis.hold_request(OFFSETS);
    world.send(0..3).await;
    at_offset.reached(BOUND).await;
    service.kill().await;
    let accepted = world.number("SELECT count(*) FROM records").await;
    assert!((1..=3).contains(&accepted), "{accepted} accepted");
    assert_eq!(world.cached_entry_id().await.as_deref(), Some("0-0"), "the cached checkpoint lags");

    let _next = world.service().start().await;
    world.settled(3).await;
    world.check(0..3).await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
}

// CRASH-05
#[tokio::test]
async fn killed_with_a_permit_the_routes_move_again_within_the_lease_ttl_and_a_second() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    let service = world.service_via(redis.port(), world.database.port()).start().await;
    let granted = redis.hold_reply(PERMITS);
    world.send(0..2).await;
    granted.reached(BOUND).await;
    service.kill().await;
    the_next_replica_publishes_in_time(&world).await;
}

// CRASH-05
#[tokio::test]
async fn killed_with_leases_won_the_routes_move_again_within_the_lease_ttl_and_a_second() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    killed_before_its_append(&world, &redis).await;

    // The accepted routes become due, and the next replica is killed with their leases.
    let won = redis.hold_reply(LEASES);
    let service = world.service_via(redis.port(), world.database.port()).start().await;
    won.reached(BOUND).await;
    let mut direct = world.redis().await;
    wait_for("leases are won", BOUND, async || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("notification:route_leases:{*").query_async(&mut direct).await.ok()?;
        (keys.len() >= 2).then_some(())
    })
    .await;
    service.kill().await;
    the_next_replica_publishes_in_time(&world).await;
}

// CRASH-06
#[tokio::test]
async fn killed_with_the_scan_lock_held_the_due_routes_wait_until_it_expires_and_no_longer() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    killed_before_its_append(&world, &redis).await;

    // The accepted routes become due, and the next replica is killed while it holds the scan lock.
    let taken = redis.hold_reply(SCAN_LOCKS);
    // It must still be waiting for the response when it is killed, however busy the machine is.
    let service = unhurried(world.service_via(redis.port(), world.database.port())).start().await;
    taken.reached(BOUND).await;
    let (mut direct, reached) = (world.redis().await, Instant::now());
    let locks = wait_for("the scan lock is held, or has expired", BOUND, async || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("notification:scan_locks:*").query_async(&mut direct).await.ok()?;
        (!keys.is_empty() || reached.elapsed() > Duration::from_secs(1)).then_some(keys)
    })
    .await;
    service.kill().await;
    for lock in locks {
        let ends: i64 = redis::cmd("PTTL").arg(lock).query_async(&mut direct).await.expect("Redis is there");
        assert!(ends <= 1_000, "the scan lock ends in {ends} ms");
    }
    assert_eq!(world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await, 4);

    let _next = world.service().start().await;
    let since = Stopwatch::start();
    world.settled(2).await;
    assert!(since.elapsed() < Duration::from_secs(3), "the routes moved after {:?}", since.elapsed());
    world.check(0..2).await;
}

// CRASH-07
#[tokio::test]
async fn killed_after_the_append_the_next_publisher_finds_the_marker_and_completes() {
    for (stream, append) in [(PUSH, PUSH_APPEND), (MAIL, MAIL_APPEND)] {
        let world = World::new().await;
        let redis = Proxy::start(world.redis.port()).await;
        // It must still be waiting for the response when it is killed, however busy the machine is.
        let service = world
            .service_via(redis.port(), world.database.port())
            .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "10s")
            .env("NOTIFICATION_ROUTE_LEASE_TTL", "20s")
            .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "3m")
            .start()
            .await;
        // Loads the scripts into Redis: otherwise it would respond to the first request with NOSCRIPT.
        world.send(0..1).await;
        world.settled(1).await;
        let appended = redis.hold_reply(append.as_bytes());
        world.send(1..3).await;
        appended.reached(BOUND).await;
        let mut direct = world.redis().await;
        wait_for("the entries are in the stream", BOUND, async || {
            let length: u64 = redis::cmd("XLEN").arg(stream).query_async(&mut direct).await.ok()?;
            (length > 2).then_some(())
        })
        .await;
        service.kill().await;
        let live = world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await;
        assert!(live > 0, "the routes are still pending");

        let _next = world.service().start().await;
        world.settled(3).await;
        world.check(0..3).await;
    }
}

// CRASH-09
#[tokio::test]
async fn killed_after_everything_was_written_a_restart_does_nothing_again() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..20).await;
    world.settled(20).await;
    service.kill().await;
    let before = world.outbound().await;
    let next = world.service().start().await;
    world.send(20..21).await;
    world.settled(21).await;
    let after = world.outbound().await;
    assert!(before.iter().all(|(id, entries)| after.get(id) == Some(entries)));
    world.check(0..21).await;
    drop(next);
}

// INV-04
#[tokio::test]
async fn killed_repeatedly_under_load_nothing_is_lost_and_nothing_exists_twice() {
    let world = World::new().await;
    for round in 0..6_u32 {
        let service = world.service().start().await;
        world.send(round * 200..(round + 1) * 200).await;
        // Killed during the work: as soon as an intent of this round is accepted.
        wait_for("the round has begun", BOUND, async || {
            (world.number("SELECT count(*) FROM records").await > i64::from(round) * 200).then_some(())
        })
        .await;
        service.kill().await;
    }
    let _last = world.service().start().await;
    world.settled(1200).await;
    world.check(0..1200).await;
}
