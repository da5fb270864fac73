//! Several replicas on the same servers.

use std::time::{Duration, Instant};

use harness::wait_for;

use crate::world::*;

async fn under_load(replicas: usize) {
    let world = World::new().await;
    let mut running = Vec::new();
    for _ in 0..replicas {
        running.push(world.service().start().await);
    }
    for round in 0..10_u32 {
        world.send(round * 200..(round + 1) * 200).await;
    }
    world.settled(2000).await;
    world.check(0..2000).await;
}

// INV-06
#[tokio::test]
async fn two_replicas_under_load_lose_nothing_and_publish_nothing_twice() {
    under_load(2).await;
}

// INV-06
#[tokio::test]
async fn three_replicas_under_load_lose_nothing_and_publish_nothing_twice() {
    under_load(3).await;
}

#[tokio::test]
async fn a_replica_that_was_paused_past_its_leases_wakes_up_and_does_no_harm() {
    let world = World::new().await;
    let paused = world.service().start().await;
    world.send(0..300).await;
    wait_for("it is at work", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await > 0).then_some(())
    })
    .await;
    paused.signal("STOP");
    let since = Instant::now();
    let _other = world.service().start().await;
    world.send(300..600).await;
    world.settled(600).await;
    wait_for("the pause has outlasted every lease", BOUND, async || {
        (since.elapsed() > LEASE_TTL + Duration::from_secs(1)).then_some(())
    })
    .await;
    paused.signal("CONT");
    world.send(600..700).await;
    world.settled(700).await;
    wait_for("the one that was paused comes round again", BOUND, async || {
        let (_, body) = paused.get("/readyz").await;
        let recent = |name: &str| body[name]["last_pass_ms_ago"].as_u64().is_some_and(|ago| ago < 3_000);
        (recent("intake") && recent("push") && recent("email")).then_some(())
    })
    .await;
    world.check(0..700).await;
}

#[tokio::test]
async fn the_routes_of_a_killed_replica_are_taken_over_by_another() {
    let world = World::new().await;
    let killed = world.service().start().await;
    let _other = world.service().start().await;
    world.send(0..500).await;
    wait_for("they are at work", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await > 0).then_some(())
    })
    .await;
    killed.kill().await;
    world.settled(500).await;
    world.check(0..500).await;
}

#[tokio::test]
async fn replicas_that_start_at_once_on_an_empty_schema_migrate_it_once() {
    let world = World::with(harness::TestDatabase::empty().await, None).await;
    let starts = (0..3).map(|_| world.service().start());
    let running = futures_util::future::join_all(starts).await;
    assert_eq!(world.number("SELECT count(*) FROM refinery_schema_history WHERE version = 1").await, 1);
    world.send(0..10).await;
    world.settled(10).await;
    world.check(0..10).await;
    drop(running);
}
