//! The leader-change notice, from one replica to another.

use std::time::Duration;

use store_redis::LeaderNotice;
use tokio::time::{Instant, timeout};

use crate::*;

const KEY: &str = "notification:leader_changes:{in}:aW50YWtl";

#[tokio::test]
async fn a_waiting_candidate_receives_the_notice_of_another_client() {
    let world = World::new().await;
    let candidate = LeaderNotice::new(&world.client, "in", "intake");
    let other_client = client_of(&world.redis.addr(), OPERATION_TIMEOUT);
    let leader = LeaderNotice::new(&other_client, "in", "intake");
    let begun = Instant::now();
    let waiting = tokio::spawn(async move { candidate.wait(BOUND).await });
    leader.announce().await.expect("Redis serves");
    timeout(BOUND, waiting).await.expect("in time").expect("no panic").expect("Redis serves");
    assert!(begun.elapsed() < BOUND);
    assert_eq!(world.ask::<i64>(&["EXISTS", KEY]).await, 0, "the notice was for one candidate");
}

#[tokio::test]
async fn a_notice_that_reaches_no_candidate_expires_within_five_seconds() {
    let world = World::new().await;
    LeaderNotice::new(&world.client, "in", "intake").announce().await.expect("Redis serves");
    let ttl: i64 = world.ask(&["PTTL", KEY]).await;
    assert!((1..=5_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn two_announcements_leave_one_notice() {
    let world = World::new().await;
    let leader = LeaderNotice::new(&world.client, "in", "intake");
    for _ in 0..2 {
        leader.announce().await.expect("Redis serves");
    }
    assert_eq!(world.ask::<i64>(&["LLEN", KEY]).await, 1);
}

#[tokio::test]
async fn a_wait_without_a_notice_ends_in_time_and_one_that_was_dropped_takes_no_notice_from_the_next() {
    let world = World::new().await;
    let notice = LeaderNotice::new(&world.client, "in", "intake");
    notice.wait(Duration::from_millis(20)).await.expect("no notice is no error");
    assert!(timeout(Duration::from_millis(20), notice.wait(BOUND)).await.is_err(), "it waits");
    let blocked = async || {
        let clients: String = world.ask(&["CLIENT", "LIST"]).await;
        clients.contains("cmd=blpop").then_some(())
    };
    harness::wait_for("the dropped connection is closed", BOUND, async || {
        blocked().await.is_none().then_some(())
    })
    .await;
    notice.announce().await.expect("Redis serves");
    notice.wait(BOUND).await.expect("Redis serves");
    assert_eq!(world.ask::<i64>(&["EXISTS", KEY]).await, 0, "the notice was received");
}
