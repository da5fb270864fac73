//! Holds, by the command and by HTTP, on several replicas: nothing that is held goes out, and after the
//! release everything does, once.

use harness::{Finished, ServiceBuilder, wait_for};
use serde_json::json;

use crate::api::*;
use crate::world::*;

async fn run(world: &World, arguments: &[&str]) -> Finished {
    let dsn = world.database.dsn();
    let builder = ServiceBuilder::default().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn).env("USER", "ada");
    builder.arguments(arguments.iter().copied()).run().await
}

/// Waits until this many routes are held.
async fn held(world: &World, routes: i64) {
    wait_for(&format!("{routes} routes are held"), BOUND, async || {
        (world.number("SELECT count(*) FROM held_routes").await == routes).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_held_channel_keeps_its_routes_over_kills_and_publishes_each_once_after_the_release() {
    let world = World::new().await;
    let (one, two) = (world.service().start().await, world.service().start().await);
    let made = run(&world, &["hold", "--channel", "email", "--reason", "a move", "--yes"]).await;
    assert!(made.code == Some(0) && made.stdout.contains("the channel email is held"), "{made:?}");
    let again = run(&world, &["hold", "--channel", "email", "--reason", "a move", "--yes"]).await;
    assert!(again.code == Some(0) && again.stdout.contains("is held already"), "{again:?}");
    world.send(1..=60).await;
    held(&world, 120).await;
    one.kill().await;
    world.send(61..=100).await;
    held(&world, 200).await;
    wait_for("the other channel is published", BOUND, async || {
        let sql = "SELECT count(*) FROM routes WHERE channel = 'push' AND status = 'published'";
        (world.number(sql).await == 200).then_some(())
    })
    .await;
    let out = world.outbound().await;
    assert!(out.keys().all(|id| id.contains("/push:")), "{out:?}");
    assert_eq!(world.number("SELECT max(attempt_count)::bigint FROM routes").await, 0);
    let list = run(&world, &["holds", "list", "--json"]).await;
    let list: serde_json::Value = serde_json::from_str(&list.stdout).expect("JSON");
    let hold = &list["holds"][0];
    assert_eq!(
        (&hold["scope"], &hold["name"], &hold["routes"]),
        (&json!("channel"), &json!("email"), &json!(200))
    );
    assert_eq!((&hold["reason"], &hold["released_at"]), (&json!("a move"), &json!(null)));
    let id = world.column("SELECT notification_id FROM held_routes LIMIT 1").await.remove(0);
    let shown = run(&world, &["show", &id]).await;
    assert!(shown.stdout.contains("held: an operator holds the channel email since"), "{shown:?}");
    world.check_audit().await;
    let _three = world.service().start().await;
    let released = run(&world, &["release", "--channel", "email", "--yes", "--json"]).await;
    let released: serde_json::Value = serde_json::from_str(&released.stdout).expect("JSON");
    assert_eq!(released["changed"], true);
    two.kill().await;
    world.settled(100).await;
    world.check(1..=100).await;
    wait_for("the hold is gone", BOUND, async || {
        (world.number("SELECT count(*) FROM holds").await == 0).then_some(())
    })
    .await;
    let actions = world.column("SELECT action || ' ' || affected FROM operator_actions ORDER BY id").await;
    assert_eq!(actions, ["hold 1", "release 1"]);
}

#[tokio::test]
async fn a_producer_is_held_and_released_by_http_and_others_are_not() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let hold = json!({"scope": "producer", "name": "game_master", "reason": "sends twice"});
    let plan = json!({"scope": "producer", "name": "game_master", "reason": "sends twice", "dry_run": true});
    let plan = ask(&service, OPERATOR, "POST", "/v1/holds:hold", None, &plan.to_string()).await;
    assert_eq!((plan.status, &plan.json()["routes"], &plan.json()["hold"]), (200, &json!(0), &json!(null)));
    let refused = ask(&service, PRODUCER, "POST", "/v1/holds:hold", Some("k"), &hold.to_string()).await;
    assert_eq!(refused.status, 403);
    for (key, changed, replayed) in [("h-1", true, None), ("h-1", true, Some("true")), ("h-2", false, None)] {
        let made = ask(&service, OPERATOR, "POST", "/v1/holds:hold", Some(key), &hold.to_string()).await;
        assert_eq!((made.status, &made.json()["changed"]), (200, &json!(changed)), "{}", made.body);
        assert_eq!(made.header("idempotency-replayed"), replayed);
        assert_eq!(made.json()["hold"]["reason"], "sends twice");
    }
    world.send(1..=10).await;
    held(&world, 40).await;
    assert_eq!(world.outbound().await.len(), 0);
    let status = ask(&service, OPERATOR, "GET", "/v1/status", None, "").await.json();
    assert_eq!(
        (&status["holds"][0]["name"], &status["holds"][0]["routes"]),
        (&json!("game_master"), &json!(40))
    );
    let release = json!({"scope": "producer", "name": "game_master"}).to_string();
    let released = ask(&service, OPERATOR, "POST", "/v1/holds:release", Some("r-1"), &release).await;
    assert_eq!((released.status, &released.json()["changed"]), (200, &json!(true)), "{}", released.body);
    world.settled(10).await;
    world.check(1..=10).await;
    for wrong in [
        json!({"scope": "channel", "name": "sms", "reason": "r"}),
        json!({"scope": "colour", "name": "red", "reason": "r"}),
        json!({"scope": "type", "name": "t", "reason": ""}),
        json!({"scope": "type", "name": "", "reason": "r"}),
        json!({"scope": "type", "name": "t"}),
    ] {
        let refused = ask(&service, OPERATOR, "POST", "/v1/holds:hold", Some("w"), &wrong.to_string()).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
}
