//! Resends, by the command and by HTTP: each published route that is sent again has one new entry, with the
//! same id and the next number of attempt, also after a crash.

use std::collections::BTreeMap;

use harness::{Finished, Proxy, wait_for};
use redis::streams::StreamRangeReply;
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

/// Runs a command with the environment of the service.
async fn run(world: &World, arguments: &[&str]) -> Finished {
    unhurried(world.service()).env("USER", "ada").arguments(arguments.iter().copied()).run().await
}

async fn done(world: &World, arguments: &[&str]) -> Value {
    let done = run(world, arguments).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("JSON")
}

/// The numbers of attempts of the client events of each route.
async fn attempts(world: &World) -> BTreeMap<String, Vec<String>> {
    let mut redis = world.redis().await;
    let entries: StreamRangeReply = redis::cmd("XRANGE")
        .arg(PUSH)
        .arg("-")
        .arg("+")
        .query_async(&mut redis)
        .await
        .expect("Redis is there");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in entries.ids {
        let text = |name: &str| entry.get::<String>(name).expect("a field");
        found.entry(text("event_id")).or_default().push(text("attempt"));
    }
    found
}

/// Waits until each client event has these attempts.
async fn attempted(world: &World, expected: &[&str]) {
    wait_for(&format!("each client event has the attempts {expected:?}"), BOUND, async || {
        let found = attempts(world).await;
        let is_done = found.values().all(|attempts| attempts == expected);
        (is_done && world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await == 0)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn published_routes_are_sent_again_once_by_the_time_of_publication_beside_holds_and_cancellations() {
    let world = World::new().await;
    let service = unhurried(world.service()).start().await;
    world.send(1..=10).await;
    world.settled(10).await;
    let none =
        done(&world, &["resend", "--channel", "push", "--until", "2000-01-01T00:00:00Z", "--yes", "--json"])
            .await;
    assert_eq!((&none["resent"], &none["request_id"]), (&json!(0), &json!(null)));
    let line = ["resend", "--channel", "push", "--since", "2000-01-01T00:00:00Z", "--reason", "it lost them"];
    let plan = done(&world, &[&line[..], &["--dry-run", "--json"]].concat()).await;
    let by = json!([{"channel": "push", "notification_type": "game.turn.ready", "count": 20}]);
    assert_eq!((&plan["count"], &plan["by"]), (&json!(20), &by));
    let report = done(&world, &[&line[..], &["--yes", "--json"]].concat()).await;
    assert_eq!((&report["resent"], &report["finished"]), (&json!(20), &json!(true)), "{report}");
    attempted(&world, &["1", "2"]).await;
    assert!(
        world
            .outbound()
            .await
            .iter()
            .all(|(id, entries)| entries.len() == if id.contains("/push:") { 2 } else { 1 })
    );
    let sql = "SELECT count(*) FROM routes WHERE channel = 'push' AND published_at > resent_at AND published_entry_id <> replaced_entry_id
        AND attempt_count = 1 AND resent_by LIKE 'ada@%' AND resend_reason = 'it lost them'";
    assert_eq!(world.number(sql).await, 20);
    world.check_audit().await;
    let id = world.column("SELECT notification_id FROM records LIMIT 1").await.remove(0);
    let shown = run(&world, &["show", &id]).await;
    assert!(
        shown.stdout.contains("sent again by ada@") && shown.stdout.contains("because: it lost them"),
        "{shown:?}"
    );
    // What is sent again is held and cancelled like anything else.
    let held = run(&world, &["hold", "--channel", "push", "--reason", "a move", "--yes"]).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    let report =
        done(&world, &["resend", "--recipient", "u-1", "--channel", "push", "--yes", "--json"]).await;
    let resent = report["resent"].as_i64().expect("a number");
    assert!(resent > 0, "{report}");
    wait_for("the routes are held", BOUND, async || {
        (world.number("SELECT count(*) FROM held_routes").await == resent).then_some(())
    })
    .await;
    let report =
        done(&world, &["cancel", "--recipient", "u-1", "--reason", "enough", "--yes", "--json"]).await;
    assert_eq!(report["cancelled"].as_i64(), Some(resent), "{report}");
    let released = run(&world, &["release", "--channel", "push", "--yes"]).await;
    assert_eq!(released.code, Some(0), "{released:?}");
    attempted(&world, &["1", "2"]).await;
    world.check_audit().await;
    drop(service);
}

#[tokio::test]
async fn killed_between_the_new_append_and_its_completion_the_resend_has_one_entry() {
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
    world.send(1..=3).await;
    world.settled(3).await;
    let appended = redis.hold_reply(PUSH_APPEND.as_bytes());
    let report =
        done(&world, &["resend", "--channel", "push", "--since", "2000-01-01T00:00:00Z", "--yes", "--json"])
            .await;
    assert_eq!(report["resent"], json!(6), "{report}");
    appended.reached(BOUND).await;
    wait_for("an entry was appended again", BOUND, async || {
        attempts(&world).await.values().any(|attempts| attempts.len() == 2).then_some(())
    })
    .await;
    service.kill().await;
    assert!(world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await > 0);
    let _next = world.service().start().await;
    attempted(&world, &["1", "2"]).await;
    world.check_audit().await;
}

#[tokio::test]
async fn a_resend_by_http_is_planned_and_made_once_however_often_it_is_sent() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    world.send(1..=3).await;
    world.settled(3).await;
    let until = world
        .column("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        .await
        .remove(0);
    let body = |dry_run: bool| {
        json!({"filter": {"channel": "push", "until": until}, "reason": "it lost them", "dry_run": dry_run})
            .to_string()
    };
    let plan = ask(&service, OPERATOR, "POST", "/v1/routes:resend", None, &body(true)).await;
    assert_eq!((plan.status, &plan.json()["count"]), (200, &json!(6)), "{}", plan.body);
    for replayed in [None, Some("true")] {
        let done = ask(&service, OPERATOR, "POST", "/v1/routes:resend", Some("r-1"), &body(false)).await;
        assert_eq!((done.status, &done.json()["resent"]), (200, &json!(6)), "{}", done.body);
        assert_eq!(done.header("idempotency-replayed"), replayed);
    }
    attempted(&world, &["1", "2"]).await;
    // What was sent again meanwhile is not in the same selection.
    let again = ask(&service, OPERATOR, "POST", "/v1/routes:resend", Some("r-2"), &body(false)).await;
    assert_eq!((again.status, &again.json()["resent"]), (200, &json!(0)), "{}", again.body);
    let id = world.column("SELECT notification_id FROM records LIMIT 1").await.remove(0);
    let shown = ask(&service, PRODUCER, "GET", &format!("/v1/notifications/{id}"), None, "").await;
    assert!(
        shown.body.contains("sent again by an operator") && !shown.body.contains("it lost them"),
        "{}",
        shown.body
    );
    let refused = ask(&service, PRODUCER, "POST", "/v1/routes:resend", Some("w"), &body(false)).await;
    assert_eq!(refused.status, 403);
    world.check_audit().await;
}

#[tokio::test]
async fn a_resend_that_was_killed_continues_by_the_command_that_it_printed() {
    let world = World::new().await;
    let _service = unhurried(world.service()).start().await;
    world.send(1..=260).await;
    world.settled(260).await;
    let postgres = Proxy::start(world.database.port()).await;
    let changing = postgres.hold_request(b"lost-by-the-gateway");
    let line = ["resend", "--channel", "push", "--since", "2000-01-01T00:00:00Z"];
    let resending = world
        .service_via(world.redis.port(), postgres.port())
        .arguments([&line[..], &["--reason", "lost-by-the-gateway", "--yes"]].concat())
        .spawn();
    changing.reached(BOUND).await;
    let output = resending.output();
    let next = output.iter().find_map(|line| line.trim().strip_prefix("notification resend "));
    let next = format!("resend {} --json", next.expect("the command that continues"));
    resending.kill().await;
    // What is published after it began is left alone.
    world.send(261..=262).await;
    world.settled(262).await;
    let report = done(&world, &next.split(' ').collect::<Vec<_>>()).await;
    assert_eq!((&report["resent"], &report["finished"]), (&json!(520), &json!(true)), "{report}");
    wait_for("they are published again", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await == 0)
            .then_some(())
    })
    .await;
    let counts = attempts(&world).await.into_values().fold(BTreeMap::new(), |mut counts, attempts| {
        *counts.entry(attempts.join(" ")).or_insert(0) += 1;
        counts
    });
    assert_eq!(counts, BTreeMap::from([("1 2".to_owned(), 520), ("1".to_owned(), 4)]));
    world.check_audit().await;
}
