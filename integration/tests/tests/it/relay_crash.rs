//! A relay that is killed or paused at each step of an event's life: the state that remains, and its recovery
//! by the next relay.

use std::time::Duration;

use harness::{Proxy, Service, wait_for};

use crate::outbox::*;
use crate::world::*;

/// Text that is in every request that appends an event.
const MARKERS: &[u8] = b"notification:outbox_receipts:";

/// A relay that connects through a proxy to a Redis that has loaded the script: otherwise Redis would respond
/// to the first request with NOSCRIPT. Event 0 is delivered.
async fn relay_via_redis_proxy(outbox: &Outbox) -> (Service, Proxy) {
    let redis = Proxy::start(outbox.world.redis.port()).await;
    // One claim of several chunks, however many events there are.
    let relay = outbox.relay_via(redis.port(), outbox.database.port());
    let relay = relay.env("NOTIFICATION_OUTBOX_BATCH_SIZE", "4096").start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    (relay, redis)
}

// CRASH-17
#[tokio::test]
async fn killed_after_the_claim_nothing_is_on_the_stream_and_the_next_relay_takes_the_events_after_the_lease()
{
    let outbox = Outbox::new().await;
    let (relay, redis) = relay_via_redis_proxy(&outbox).await;
    let at_append = redis.hold_request(MARKERS);
    outbox.insert(1..4).await;
    at_append.reached(BOUND).await;
    relay.kill().await;
    assert_eq!((outbox.count("DELIVERING").await, outbox.count("DELIVERED").await), (3, 1));

    let _next = outbox.relay().start().await;
    outbox.drained().await;
    outbox.check_stream(0..4).await;
    let reaped = "SELECT count(*) FROM openoutbox_events WHERE attempts = 1 AND status = 'DELIVERED'";
    assert_eq!(outbox.number(reaped).await, 3, "the end of a lease counts as an attempt");
}

// CRASH-18
#[tokio::test]
async fn killed_after_the_append_the_next_relay_finds_the_markers_and_adds_no_second_entry() {
    let outbox = Outbox::new().await;
    let (relay, redis) = relay_via_redis_proxy(&outbox).await;
    let appended = redis.hold_reply(MARKERS);
    outbox.insert(1..4).await;
    appended.reached(BOUND).await;
    wait_for("the entries are on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() == 4).then_some(())
    })
    .await;
    relay.kill().await;
    assert_eq!(outbox.count("DELIVERING").await, 3);

    let _next = outbox.relay().start().await;
    outbox.drained().await;
    assert_eq!(outbox.count("DELIVERED").await, 4);
    outbox.check_stream(0..4).await;
}

#[tokio::test]
async fn an_append_whose_reply_is_lost_is_not_repeated() {
    let outbox = Outbox::new().await;
    let (_relay, redis) = relay_via_redis_proxy(&outbox).await;
    let lost = redis.lose_reply(MARKERS);
    outbox.insert(1..4).await;
    lost.reached(BOUND).await;
    outbox.drained().await;
    outbox.check_stream(0..4).await;
    assert_eq!(
        outbox.number("SELECT sum(attempts) FROM openoutbox_events").await,
        0,
        "an outage is no attempt"
    );
}

// CRASH-19
#[tokio::test]
async fn killed_after_the_mark_a_restart_does_nothing_again() {
    let outbox = Outbox::new().await;
    let (relay, _redis) = relay_via_redis_proxy(&outbox).await;
    outbox.insert(1..20).await;
    outbox.drained().await;
    relay.kill().await;
    let before = outbox.entries(INTENTS).await.len();
    let _next = outbox.relay().start().await;
    outbox.insert(20..21).await;
    outbox.drained().await;
    assert_eq!(outbox.entries(INTENTS).await.len(), before + 1);
    outbox.check_stream(0..21).await;
}

// CRASH-20
#[tokio::test]
async fn an_event_that_is_committed_late_is_found_while_the_relay_drains_and_when_it_is_idle() {
    let outbox = Outbox::new().await;
    let _relay = outbox.relay().env("NOTIFICATION_OUTBOX_BATCH_SIZE", "10").start().await;
    let late = [outbox.database.client().await, outbox.database.client().await];
    for (n, client) in (0..).zip(&late) {
        client.batch_execute(&format!("BEGIN; {INSERT} {}", event_row(n))).await.expect("it is inserted");
    }
    outbox.insert(2..1_000).await;
    wait_for("the relay is past the place of the first", BOUND, async || {
        (outbox.count("DELIVERED").await > 100).then_some(())
    })
    .await;
    late[0].batch_execute("COMMIT").await.expect("it is committed");
    outbox.drained().await;
    late[1].batch_execute("COMMIT").await.expect("it is committed");
    outbox.becomes(&event_id(1), "DELIVERED").await;
    outbox.check_stream(0..1_000).await;
}

// O-23
#[tokio::test]
async fn killed_in_the_middle_of_a_claim_nothing_is_lost_and_nothing_is_there_twice() {
    let outbox = Outbox::new().await;
    let (relay, redis) = relay_via_redis_proxy(&outbox).await;
    redis.delay(Duration::from_millis(40));
    outbox.insert(1..1_500).await;
    wait_for("a part is on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() > 1).then_some(())
    })
    .await;
    relay.kill().await;
    let _next = outbox.relay().start().await;
    outbox.drained().await;
    assert_eq!(outbox.count("DELIVERED").await, 1_500);
    outbox.check_stream(0..1_500).await;
}

// CRASH-21
#[tokio::test]
async fn a_lease_that_ends_in_the_middle_of_a_claim_lets_the_late_relay_settle_nothing() {
    let outbox = Outbox::new().await;
    let (relay, redis) = relay_via_redis_proxy(&outbox).await;
    redis.delay(Duration::from_millis(40));
    outbox.insert(1..1_500).await;
    wait_for("a part is on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() > 1).then_some(())
    })
    .await;
    relay.signal("STOP");
    let claimed = outbox.count("DELIVERING").await;
    assert!(claimed > 0, "it holds a claim");
    let next = outbox.relay().start().await;
    outbox.drained().await;
    let settled = "SELECT string_agg(event_id || status || attempts || delivered_at, ' ' ORDER BY event_id) FROM openoutbox_events";
    let before = outbox.text(settled).await;
    drop(next);

    // It wakes up with the rest of its claim, unaware of the delay.
    redis.delay(Duration::ZERO);
    relay.signal("CONT");
    works_again(&outbox, 1_500).await;
    outbox.execute(&format!("DELETE FROM openoutbox_events WHERE event_id = '{}'", event_id(1_500))).await;
    assert_eq!(outbox.text(settled).await, before, "the late relay changed nothing");
    outbox.check_stream(0..1_501).await;
}

/// Waits until the only relay has delivered another event.
async fn works_again(outbox: &Outbox, n: u32) {
    outbox.insert(n..n + 1).await;
    outbox.becomes(&event_id(n), "DELIVERED").await;
}

// CRASH-22
#[tokio::test]
async fn a_relay_that_was_paused_beyond_its_lease_before_the_append_appends_nothing() {
    let outbox = Outbox::new().await;
    let postgres = Proxy::start(outbox.database.port()).await;
    let relay = outbox.relay_via(outbox.world.redis.port(), postgres.port()).start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    // The response to the claim is on its way when the relay is paused.
    postgres.delay(Duration::from_millis(400));
    outbox.insert(1..4).await;
    wait_for("the events are claimed", BOUND, async || (outbox.count("DELIVERING").await == 3).then_some(()))
        .await;
    relay.signal("STOP");
    assert_eq!(outbox.entries(INTENTS).await.len(), 1, "it was paused before the append");
    let next = outbox.relay().start().await;
    outbox.drained().await;
    drop(next);

    // Without markers, only the deadline of its claim prevents it from appending them again.
    let mut redis = outbox.world.redis().await;
    let markers: Vec<String> = redis::cmd("KEYS")
        .arg("notification:outbox_receipts:*")
        .query_async(&mut redis)
        .await
        .expect("is there");
    assert_eq!(markers.len(), 8, "each under two names, because the relay has just started");
    redis::cmd("DEL").arg(markers).query_async::<()>(&mut redis).await.expect("Redis is there");
    postgres.delay(Duration::ZERO);
    relay.signal("CONT");
    works_again(&outbox, 4).await;
    outbox.check_stream(0..5).await;
}

/// The time that an append is on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(12);

/// The number of scripts that Redis has run by their digest.
async fn scripts_run(outbox: &Outbox) -> u64 {
    let mut info = redis::cmd("INFO");
    let info: String =
        info.arg("commandstats").query_async(&mut outbox.world.redis().await).await.expect("Redis is there");
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or_default()
}

/// Delivers an event, an earlier append of which arrives long after, and returns how often the event is then
/// on the stream.
async fn entries_after_a_late_append(lease: &str) -> usize {
    let outbox = Outbox::new().await;
    let redis = Proxy::start(outbox.world.redis.port()).await;
    let relay = outbox.relay_via(redis.port(), outbox.database.port());
    // Without a window it runs no script except appends, which are counted below.
    let relay = relay.env("NOTIFICATION_REPUBLISH_WINDOW", "0");
    let _relay = relay.env("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", lease).start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    let on_its_way = redis.delay_request(MARKERS, ON_ITS_WAY);
    outbox.insert(1..2).await;
    on_its_way.reached(BOUND).await;
    // The relay receives no response, returns the event and claims it again.
    outbox.drained().await;
    // Without markers, only its deadline prevents the late append from adding the event again.
    let mut direct = outbox.world.redis().await;
    let markers: Vec<String> = redis::cmd("KEYS")
        .arg("notification:outbox_receipts:*")
        .query_async(&mut direct)
        .await
        .expect("is there");
    assert_eq!(markers.len(), 4, "each under two names, because the relay has just started");
    redis::cmd("DEL").arg(markers).query_async::<()>(&mut direct).await.expect("Redis is there");
    let before = scripts_run(&outbox).await;
    wait_for("the late append arrives", BOUND, async || (scripts_run(&outbox).await > before).then_some(()))
        .await;
    let keys = outbox.keys().await;
    keys.iter().filter(|key| **key == event_id(1)).count()
}

// CRASH-22
#[tokio::test]
async fn an_append_that_arrives_after_the_end_of_its_lease_is_refused_by_redis_itself() {
    assert_eq!(entries_after_a_late_append("10s").await, 1);
}

#[tokio::test]
async fn an_append_that_arrives_within_its_lease_is_carried_out_which_shows_that_the_deadline_refuses_it() {
    assert_eq!(entries_after_a_late_append("60s").await, 2);
}
