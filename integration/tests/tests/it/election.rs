//! One replica reads the stream; another takes over, and the first can do no more harm.

use std::time::Duration;

use harness::{Service, Stopwatch, wait_for};

use crate::world::*;

/// The duration of a term.
const TERM: Duration = Duration::from_secs(10);

/// Two replicas, the leader first.
async fn two(world: &World) -> (Service, Service) {
    let one = world.service().start().await;
    wait_for("the first replica leads", BOUND, async || leads(&one).await.then_some(())).await;
    let other = world.service().start().await;
    assert!(!leads(&other).await, "one leads");
    (one, other)
}

// CRASH-11
#[tokio::test]
async fn a_killed_leader_is_followed_long_before_its_term_ends() {
    let world = World::new().await;
    let (leader, other) = two(&world).await;
    world.send(0..50).await;
    world.settled(50).await;
    leader.kill().await;
    let killed = Stopwatch::start();
    world.send(50..60).await;
    wait_for("the other leads", BOUND, async || leads(&other).await.then_some(())).await;
    // A second, and what a busy machine adds to it.
    assert!(killed.elapsed() < TERM / 2, "it took {:?}", killed.elapsed());
    world.settled(60).await;
    world.check(0..60).await;
}

// CRASH-10
#[tokio::test]
async fn a_leader_that_is_stopped_is_followed_by_another_at_once() {
    let world = World::new().await;
    let (mut leader, other) = two(&world).await;
    world.send(0..50).await;
    world.settled(50).await;
    // The follower receives a notice only while it waits for one, which it does once its first campaign is
    // over.
    leader.signal("TERM");
    leader.wait_exit(BOUND).await;
    let stopped = Stopwatch::start();
    wait_for("the other leads", BOUND, async || leads(&other).await.then_some(())).await;
    assert!(stopped.elapsed() < Duration::from_millis(500), "it took {:?}", stopped.elapsed());
    world.send(50..60).await;
    world.settled(60).await;
    world.check(0..60).await;
}

// CRASH-10
#[tokio::test]
async fn a_single_replica_that_stopped_cleanly_leads_again_without_waiting_out_a_term() {
    let world = World::new().await;
    let mut first = world.service().start().await;
    world.send(0..5).await;
    world.settled(5).await;
    first.signal("TERM");
    first.wait_exit(BOUND).await;
    let held = "SELECT count(*) FROM locks WHERE user_key = 'intake:notification:intents'";
    assert_eq!(world.number(held).await, 0, "the term is released");
    world.send(5..6).await;
    let _next = world.service().start().await;
    world.settled(6).await;
}

// INV-08, CRASH-12
#[tokio::test]
async fn a_leader_that_was_paused_past_its_term_is_deposed_and_its_writes_are_refused() {
    let world = World::new().await;
    let (leader, other) = two(&world).await;
    world.send(0..200).await;
    wait_for("it is at work", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await > 0).then_some(())
    })
    .await;
    leader.signal("STOP");
    let paused = Stopwatch::start();
    world.send(200..300).await;
    wait_for("the other leads", BOUND, async || leads(&other).await.then_some(())).await;
    assert!(paused.elapsed() < TERM + Duration::from_secs(2), "it took {:?}", paused.elapsed());
    world.settled(300).await;
    let last = world.last_entry().await;
    let mark = wait_for("the checkpoint is cached at the end", BOUND, async || {
        world.cached_checkpoint().await.filter(|mark| mark.starts_with(&last))
    })
    .await;

    leader.signal("CONT");
    wait_for("it has noticed", BOUND, async || (!leads(&leader).await).then_some(())).await;
    assert_eq!(world.cached_checkpoint().await, Some(mark), "no checkpoint goes back");
    world.send(300..400).await;
    world.settled(400).await;
    assert!(leads(&other).await && !leads(&leader).await);
    world.check(0..400).await;
}

// INV-08
#[tokio::test]
async fn the_cached_checkpoint_carries_the_fence_and_fences_only_rise() {
    let world = World::new().await;
    let mut fences = Vec::new();
    for round in 0..3_u32 {
        let mut service = world.service().start().await;
        world.send(round..round + 1).await;
        world.settled(i64::from(round) + 1).await;
        service.signal("TERM");
        service.wait_exit(BOUND).await;
        let mark = world.cached_checkpoint().await.expect("there is one");
        let (id, fence) = mark.split_once('@').expect("it carries a fence");
        assert_eq!((id, fence.len()), (world.last_entry().await.as_str(), 15));
        fences.push(fence.parse::<u64>().expect("a number"));
    }
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

// INV-08, CRASH-13
#[tokio::test]
async fn a_postgresql_with_lower_fences_than_the_cached_checkpoint_raises_its_counter_above_them() {
    let world = World::new().await;
    let mut redis = world.redis().await;
    redis::cmd("SET")
        .arg(CACHED_CHECKPOINT)
        .arg("0-0@000000000000777")
        .query_async::<()>(&mut redis)
        .await
        .expect("Redis is there");
    let service = world.service().start().await;
    world.send(0..5).await;
    world.settled(5).await;
    wait_for("the cached checkpoint has a higher fence", BOUND, async || {
        let mark = world.cached_checkpoint().await?;
        let fence: u64 = mark.split_once('@')?.1.parse().ok()?;
        (fence > 777).then_some(())
    })
    .await;
    world.check(0..5).await;
    drop(service);
}
