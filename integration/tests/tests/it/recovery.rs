//! The time until all due routes are published after a store is available again.

use std::time::{Duration, Instant};

use harness::{Proxy, Service, ServiceBuilder, Stopwatch, wait_for};

use crate::world::*;

/// The promise of the operations page: from the return of the store to the last route that was due.
const RECOVERY: Duration = Duration::from_secs(3);

/// Waits until an outage that began at `since` has been noticed and has lasted for `time`.
async fn outage_lasts(service: &Service, since: Instant, time: Duration) {
    wait_for("the outage is noticed and has lasted", BOUND, async || {
        let noticed = service.logged("worker failed; retrying").is_some();
        (noticed && since.elapsed() >= time).then_some(())
    })
    .await;
}

/// Waits until `records` intents are published, and asserts that it took no longer than promised.
async fn recovers(world: &World, records: u32) {
    let back = Stopwatch::start();
    world.settled(records.into()).await;
    let took = back.elapsed();
    world.check(0..records).await;
    assert!(took < RECOVERY, "everything was out {took:?} after the store was back");
}

/// The default times, and batches so small that the publishers' queues overflow.
fn usual(service: ServiceBuilder) -> ServiceBuilder {
    service
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "5s")
        .env("NOTIFICATION_INTENTS_BATCH_SIZE", "1")
        // The inspection of the outbound streams contains their names, too, and would be held.
        .env("NOTIFICATION_REPUBLISH_WINDOW", "0")
}

async fn config(world: &World, pairs: &[(&str, &str)]) {
    let mut redis = world.redis().await;
    for (name, value) in pairs {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        set.query_async::<()>(&mut redis).await.expect("Redis is there");
    }
}

// INV-11
#[tokio::test]
async fn after_ten_seconds_without_redis_everything_due_is_out_within_three() {
    let mut world = World::new().await;
    let proxy = Proxy::start(world.redis.port()).await;
    let service = usual(world.service_via(proxy.port(), world.database.port())).start().await;
    // Loads the scripts into Redis: otherwise it would respond to the first request with NOSCRIPT.
    world.send(0..1).await;
    world.settled(1).await;
    // A permit is granted, and expires while Redis is unavailable.
    let appending = proxy.hold_request(PUSH_APPEND.as_bytes());
    world.send(1..300).await;
    appending.reached(BOUND).await;
    world.accepted(300.into()).await;
    world.redis.kill().await;
    outage_lasts(&service, Instant::now(), Duration::from_secs(10)).await;
    world.redis.start_again().await.expect("it starts again");
    proxy.heal();
    recovers(&world, 300).await;
}

// INV-11
#[tokio::test]
async fn after_ten_seconds_without_postgresql_everything_due_is_out_within_three() {
    let mut world = World::with_own_postgres().await;
    // Intents that wait in the stream are part of the due work: they are accepted in batches of the usual
    // size.
    let service = world.service().env("NOTIFICATION_ROUTE_LEASE_TTL", "5s").start().await;
    world.send(0..200).await;
    wait_for("some are accepted", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await > 0).then_some(())
    })
    .await;
    let mut postgres = world.postgres.take().expect("its own");
    postgres.kill().await;
    let since = Instant::now();
    world.send(200..300).await;
    outage_lasts(&service, since, Duration::from_secs(10)).await;
    postgres.start_again().await.expect("it starts again");
    recovers(&world, 300).await;
}

#[tokio::test]
async fn after_a_redis_that_was_full_everything_due_is_out_within_three_seconds() {
    let world = World::new().await;
    let service = usual(world.service()).start().await;
    world.send(0..1).await;
    world.settled(1).await;
    // A full Redis rejects XADD, so the intents are sent before.
    let mut redis = world.redis().await;
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    for n in 1..100 {
        pipeline.add_command(intent(n)).ignore();
    }
    pipeline.cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").ignore();
    config(&world, &[("maxmemory-policy", "noeviction")]).await;
    pipeline.query_async::<()>(&mut redis).await.expect("Redis is there");
    outage_lasts(&service, Instant::now(), Duration::from_secs(1)).await;
    world.accepted(100.into()).await;
    config(&world, &[("maxmemory", "0")]).await;
    recovers(&world, 100).await;
}

#[tokio::test]
async fn after_a_redis_that_was_read_only_everything_due_is_out_within_three_seconds() {
    let world = World::new().await;
    let service = usual(world.service()).start().await;
    world.send(0..1).await;
    world.settled(1).await;
    let mut redis = world.redis().await;
    let mut pipeline = redis::pipe();
    for n in 1..100 {
        pipeline.add_command(intent(n)).ignore();
    }
    // A replica of a server that does not exist keeps its data and is read-only.
    pipeline.cmd("REPLICAOF").arg("127.0.0.1").arg("1").ignore();
    pipeline.query_async::<()>(&mut redis).await.expect("Redis is there");
    outage_lasts(&service, Instant::now(), Duration::from_secs(1)).await;
    world.accepted(100.into()).await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async::<()>(&mut redis).await.expect("is there");
    recovers(&world, 100).await;
}
