//! Cancellations, by the command and by HTTP, beside publishers: a route is cancelled or published, never
//! both.

use harness::{Finished, Proxy, wait_for};
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

/// Runs a command with the environment of the service.
async fn run(world: &World, arguments: &[&str]) -> Finished {
    unhurried(world.service()).env("USER", "ada").arguments(arguments.iter().copied()).run().await
}

async fn routes(world: &World, condition: &str, expected: i64) {
    wait_for(&format!("{expected} routes are {condition}"), BOUND, async || {
        let sql = format!("SELECT count(*) FROM routes WHERE {condition}");
        (world.number(&sql).await == expected).then_some(())
    })
    .await;
}

/// Checks that each cancelled route has no entry, and each other one exactly one.
async fn check_never_both(world: &World, cancelled: usize, published: usize) {
    let ids = world.column("SELECT notification_id || '/' || route_id FROM routes WHERE status = 'skipped' AND last_error_classification = 'cancelled'").await;
    let out = world.outbound().await;
    assert_eq!((ids.len(), out.len()), (cancelled, published), "{ids:?} {out:?}");
    assert!(ids.iter().all(|id| !out.contains_key(id)), "{ids:?} {out:?}");
    assert!(out.values().all(|entries| entries.len() == 1), "{out:?}");
}

#[tokio::test]
async fn held_and_failing_routes_are_cancelled_by_a_filter_and_never_published() {
    let world = World::new().await;
    let service = unhurried(world.service()).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "100").start().await;
    let held = run(&world, &["hold", "--channel", "email", "--reason", "a move", "--yes"]).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    world.send(1..=10).await;
    routes(&world, "status = 'failed'", 20).await;
    routes(&world, "next_attempt_at = 'infinity'", 20).await;
    let plan =
        run(&world, &["cancel", "--producer", "game_master", "--reason", "r", "--dry-run", "--json"]).await;
    let plan: Value = serde_json::from_str(&plan.stdout).expect("JSON");
    let group =
        |channel: &str| json!({"channel": channel, "notification_type": "game.turn.ready", "count": 20});
    assert_eq!((&plan["count"], &plan["by"]), (&json!(40), &json!([group("push"), group("email")])));
    assert_eq!(plan["first"].as_array().map(Vec::len), Some(20));
    let line = ["cancel", "--producer", "game_master", "--reason", "wrong template", "--yes", "--json"];
    let done = run(&world, &line).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&report["cancelled"], &report["published"]), (&json!(40), &json!(0)), "{report}");
    redis::cmd("DEL").arg(PUSH).query_async::<()>(&mut redis).await.expect("Redis is there");
    let released = run(&world, &["release", "--channel", "email", "--yes"]).await;
    assert_eq!(released.code, Some(0), "{released:?}");
    // What is accepted afterwards goes out.
    world.send(11..=12).await;
    world.settled(12).await;
    check_never_both(&world, 40, 8).await;
    world.check_audit().await;
    let id =
        world.column("SELECT notification_id FROM routes WHERE status = 'skipped' LIMIT 1").await.remove(0);
    let shown = run(&world, &["show", &id]).await;
    assert!(shown.stdout.contains("because it was cancelled by ada@"), "{shown:?}");
    assert!(shown.stdout.contains(": wrong template"), "{shown:?}");
    let nothing = run(&world, &line).await;
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    let actions = world
        .column("SELECT action || ' ' || sum(affected) FROM operator_actions GROUP BY action ORDER BY 1")
        .await;
    assert_eq!(actions, ["cancel_routes 40", "hold 1", "release 1"]);
    drop(service);
}

#[tokio::test]
async fn a_route_in_the_middle_of_its_append_is_published_or_cancelled_and_waited_for_if_it_is_leased() {
    // Routes that were just accepted have no leases, those that were released do.
    for (is_leased, is_killed) in [(true, false), (true, true), (false, false), (false, true)] {
        let world = World::new().await;
        let redis = Proxy::start(world.redis.port()).await;
        // It must still be waiting for the response when it is killed, however busy the machine is.
        let times = |service: harness::ServiceBuilder| {
            service
                .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "4800ms")
                .env("NOTIFICATION_ROUTE_LEASE_TTL", "9600ms")
                .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "3m")
                .env("NOTIFICATION_REPUBLISH_WINDOW", "0")
        };
        let service = times(world.service_via(redis.port(), world.database.port())).start().await;
        if is_leased {
            let held = run(&world, &["hold", "--channel", "push", "--reason", "r", "--yes"]).await;
            assert_eq!(held.code, Some(0), "{held:?}");
        }
        // Loads the scripts into Redis: otherwise it would respond to the first request with NOSCRIPT.
        world.send(0..1).await;
        if is_leased {
            routes(&world, "status = 'published' OR next_attempt_at = 'infinity'", 4).await;
        } else {
            world.settled(1).await;
        }
        let append = redis.hold_request(PUSH_APPEND.as_bytes());
        if is_leased {
            let released = run(&world, &["release", "--channel", "push", "--yes"]).await;
            assert_eq!(released.code, Some(0), "{released:?}");
        } else {
            world.send(1..2).await;
        }
        // What follows on the same connection, as e-mails may, waits too.
        append.reached(BOUND).await;
        let operator = Proxy::start(world.redis.port()).await;
        let command = times(world.service_via(operator.port(), world.database.port()));
        let line = [
            "cancel",
            "--channel",
            "push",
            "--since",
            "2000-01-01T00:00:00Z",
            "--reason",
            "r",
            "--yes",
            "--json",
        ];
        let mut command = tokio::spawn(command.arguments(line).run());
        if is_leased {
            let has_tried = wait_for("the command has tried the leases several times", BOUND, async || {
                (operator.requests() > 5).then_some(())
            });
            tokio::select! {
                () = has_tried => {}
                ended = &mut command => panic!("it does not wait: {ended:?}"),
            }
        } else {
            routes(&world, "status = 'skipped'", 2).await;
        }
        let skipped = world.number("SELECT count(*) FROM routes WHERE status = 'skipped'").await;
        assert_eq!(skipped, if is_leased { 0 } else { 2 });
        let mut service = Some(service);
        if is_killed && let Some(service) = service.take() {
            service.kill().await;
        } else {
            redis.heal();
        }
        let done = command.await.expect("the command ends");
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let (cancelled, published) = if is_leased && !is_killed { (0, 2) } else { (2, 0) };
        let (intents, others) = if is_leased { (1, 2) } else { (2, 6) };
        assert_eq!(
            (&report["cancelled"], &report["published"], &report["locked"]),
            (&json!(cancelled), &json!(published), &json!(0)),
            "{done:?}"
        );
        let next = world.service().start().await;
        world.settled(intents).await;
        check_never_both(&world, cancelled, others + published).await;
        world.check_audit().await;
        drop((service, next));
    }
}

#[tokio::test]
async fn a_cancellation_by_http_is_planned_and_made_once_however_often_it_is_sent() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let held = run(&world, &["hold", "--channel", "push", "--reason", "a move", "--yes"]).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    world.send(1..=3).await;
    routes(&world, "next_attempt_at = 'infinity'", 6).await;
    let body = |dry_run: bool| {
        let filter = json!({"channel": "push", "producer": "game_master"});
        json!({"filter": filter, "reason": "wrong template", "dry_run": dry_run}).to_string()
    };
    let plan = ask(&service, OPERATOR, "POST", "/v1/routes:cancel", None, &body(true)).await;
    assert_eq!((plan.status, &plan.json()["count"]), (200, &json!(6)), "{}", plan.body);
    for replayed in [None, Some("true")] {
        let done = ask(&service, OPERATOR, "POST", "/v1/routes:cancel", Some("c-1"), &body(false)).await;
        assert_eq!((done.status, &done.json()["cancelled"]), (200, &json!(6)), "{}", done.body);
        assert_eq!(done.header("idempotency-replayed"), replayed);
    }
    let id = world.column("SELECT notification_id FROM records LIMIT 1").await.remove(0);
    let shown = ask(&service, PRODUCER, "GET", &format!("/v1/notifications/{id}"), None, "").await;
    assert!(
        shown.body.contains("cancelled by an operator") && !shown.body.contains("wrong template"),
        "{}",
        shown.body
    );
    let listed = ask(&service, OPERATOR, "GET", "/v1/actions?action=cancel_routes", None, "").await.json();
    assert_eq!(listed["actions"][0]["affected"], json!(6));
    for (token, wrong, status) in [
        (PRODUCER, json!({"ids": ["1-0/push:user:u"], "reason": "r"}), 403),
        (OPERATOR, json!({"filter": {}, "reason": "r"}), 400),
        (OPERATOR, json!({"filter": {"channel": "sms"}, "reason": "r"}), 400),
        (OPERATOR, json!({"filter": {"producer": "p"}}), 400),
        (OPERATOR, json!({"filter": {"producer": "p"}, "reason": ""}), 400),
        (OPERATOR, json!({"reason": "r"}), 400),
    ] {
        let refused = ask(&service, token, "POST", "/v1/routes:cancel", Some("w"), &wrong.to_string()).await;
        assert_eq!(refused.status, status, "{wrong}: {}", refused.body);
    }
}
