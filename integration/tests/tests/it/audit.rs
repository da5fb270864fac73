//! `notification audit`: it reports all contradictions and nothing else, and has no false alarm during
//! traffic.

mod broken;

use std::time::{Duration, Instant};

use domain::intent::{IntentDraft, Recipients};
use harness::wait_for;

use crate::world::*;

/// The duration of the traffic during the audits.
const TRAFFIC: Duration = Duration::from_secs(20);

/// An intent to administrators, none of whom is configured.
fn to_no_user() -> IntentDraft {
    IntentDraft {
        notification_type: "lobby.runtime_paused_after_start".into(),
        producer: "game_lobby".into(),
        recipients: Recipients::Administrators,
        payload_json: r#"{"game_id":"game-1","game_name":"Nova"}"#.into(),
        ..intent_draft(900)
    }
}

/// A world that contains every outcome and every status, and whose service has stopped.
async fn prepared() -> World {
    let world = World::new().await;
    let mut service = world.service().start().await;
    world.send(0..5).await;
    world.send(0..1).await;
    world.add_draft(IntentDraft { payload_json: intent_draft(7).payload_json, ..intent_draft(1) }).await;
    world.add(&[(b"x", b"y")]).await;
    world.add_draft(to_no_user()).await;
    world.settled(6).await;
    service.signal("TERM");
    assert!(service.wait_exit(BOUND).await.success());
    // The outbound stream rejected the first route until its budget was spent.
    let dead = "notification_id = (SELECT notification_id FROM records WHERE idempotency_key = 'game-1:turn-0') \
                AND route_id = 'push:user:u-0'";
    let entry = world.column(&format!("SELECT published_entry_id FROM routes WHERE {dead}")).await;
    redis::cmd("XDEL")
        .arg(PUSH)
        .arg(&entry)
        .exec_async(&mut world.redis().await)
        .await
        .expect("Redis is there");
    world
        .execute(&format!(
            "UPDATE routes SET status = 'dead_letter', attempt_count = max_attempts, dead_lettered_at = now(), published_at = NULL,
                published_entry_id = '' WHERE {dead}"
        ))
        .await;
    world
        .execute(&format!(
            "INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
                failure_classification, failure_message, recovery_hint, created_at)
             SELECT notification_id, route_id, channel, recipient_ref, attempt_count, max_attempts, 'c', 'm', 'h', now()
             FROM routes WHERE {dead}"
        ))
        .await;
    world
}

// INV-01
#[tokio::test]
async fn an_audit_counts_entries_by_outcome_and_routes_by_status() {
    let world = prepared().await;
    world.send(50..52).await;
    let figures = world.check_audit().await;
    let expected = serde_json::json!({
        "accepted": 6, "duplicate": 1, "conflict": 1, "malformed": 1, "not_read": 2, "expired": 0, "not_compared": 0,
    });
    assert_eq!(figures["entries"], expected);
    assert_eq!(figures["records"], 6);
    let routes = serde_json::json!({
        "pending": 0, "failed": 0, "published": 19, "dead_letter": 1, "skipped": 1,
    });
    assert_eq!(figures["routes"], routes);
    assert_eq!((&figures["published_entries"]["present"], &figures["stuck"]), (&19.into(), &0.into()));
    assert_eq!(figures["outbound_entries"]["published"], 19);

    let text = world.audit().arguments(["audit"]).run().await;
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert!(text.stdout.contains("not read yet") && text.stdout.contains("discrepancies"), "{}", text.stdout);
}

#[tokio::test]
async fn times_limit_what_is_compared_and_wrong_ones_are_wrong_usage() {
    let world = prepared().await;
    let figures = |stdout: &str| -> serde_json::Value {
        serde_json::from_str(stdout.lines().last().expect("figures")).expect("JSON")
    };
    let recent = world.audit().arguments(["audit", "--json", "--since", "1h"]).run().await;
    assert_eq!((recent.code, &figures(&recent.stdout)["records"]), (Some(0), &6.into()), "{}", recent.stderr);
    let old = world.audit().arguments(["audit", "--json", "--until", "1h"]).run().await;
    let seen = figures(&old.stdout);
    assert_eq!((old.code, &seen["records"], &seen["entries"]["accepted"]), (Some(0), &0.into(), &0.into()));
    assert_eq!(seen["outbound_entries"]["published"], 0);
    let crossed = world.audit().arguments(["audit", "--since", "1h", "--until", "2h"]).run().await;
    assert_eq!(crossed.code, Some(2), "{}", crossed.stderr);
}

#[tokio::test]
async fn what_waits_for_a_service_is_stuck_or_not_read_and_no_discrepancy() {
    let world = prepared().await;
    world
        .execute(
            "UPDATE routes SET status = 'pending', next_attempt_at = now() - interval '5 min', published_at = NULL,
                published_entry_id = '' WHERE route_id = 'push:user:u-3'",
        )
        .await;
    let figures = world.check_audit().await;
    assert_eq!((&figures["stuck"], &figures["routes"]["pending"]), (&1.into(), &1.into()));
    assert_eq!(figures["outbound_entries"]["uncommitted"], 1, "its publisher would find the marker");
}

/// Two replicas, retries, an append-only Redis that restarts, and consecutive audits.
#[tokio::test]
async fn beside_traffic_an_audit_has_no_false_alarm() {
    let mut world = World::new().await;
    // The first attempts on e-mail fail.
    redis::cmd("SET").arg(MAIL).arg("x").exec_async(&mut world.redis().await).await.expect("Redis is there");
    let services = [world.service().start().await, world.service().start().await];
    world.send(0..50).await;
    wait_for("attempts fail", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE attempt_count > 0").await > 0).then_some(())
    })
    .await;
    redis::cmd("DEL").arg(MAIL).exec_async(&mut world.redis().await).await.expect("Redis is there");

    let begin = Instant::now();
    let (mut sent, mut audits, mut restarts) = (50_u32, 0, 0);
    while begin.elapsed() < TRAFFIC || audits < 3 {
        let range = sent..sent + 400;
        sent = range.end;
        // Every tenth is sent again, and is a duplicate.
        world.send(range.clone()).await;
        world.send(range.step_by(10)).await;
        world.check_audit().await;
        audits += 1;
        if audits == 2 {
            world.redis.stop().await;
            world.redis.start_again().await.expect("Redis starts again");
            restarts += 1;
        }
    }
    assert!(restarts == 1 && audits >= 3, "{audits} audits, {restarts} restarts");
    world.settled(sent.into()).await;
    // The duplicates were sent last.
    world.caught_up().await;
    let figures = world.check_audit().await;
    assert_eq!(figures["records"], sent);
    assert_eq!(figures["entries"]["duplicate"], (sent - 50) / 10);
    drop(services);
}

#[tokio::test]
async fn an_audit_without_a_server_fails_and_names_it() {
    let mut world = World::new().await;
    world.redis.stop().await;
    let audit = world.audit().run().await;
    assert_eq!(audit.code, Some(1));
    assert!(audit.stderr.contains("Redis at"), "{}", audit.stderr);
}
