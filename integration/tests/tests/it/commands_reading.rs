//! The commands that read: their output for a running service, and for one that is unavailable.

use harness::{Finished, Service, TestDatabase, UserFault, turn_ready, wait_for};
use serde_json::{Value, json};

use crate::api::{TokensFile, body, send, with_api};
use crate::world::*;

/// Runs an operator's command in the environment of the service.
async fn run(world: &World, line: &str) -> Finished {
    world.service().arguments(line.split_whitespace()).run().await
}

/// The output of a command that succeeds and prints no error.
async fn fine(world: &World, line: &str) -> String {
    let finished = run(world, line).await;
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{line}: {finished:?}");
    finished.stdout
}

async fn document(world: &World, line: &str) -> Value {
    let finished = run(world, &format!("{line} --json")).await;
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {finished:?}"))
}

/// A service whose push routes become dead letters at their first attempt.
async fn service(world: &World, tokens: &TokensFile) -> Service {
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    world.directory.remove_user("u-9");
    with_api(world.service(), tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await
}

/// Waits until `count` intents are malformed.
async fn malformed(world: &World, count: i64) {
    wait_for("the malformed intents are stored", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == count).then_some(())
    })
    .await;
}

/// Exit code, outcome and sentence of the first result of `explain`.
async fn explained(world: &World, line: &str) -> (Option<i32>, String, String) {
    let finished = run(world, &format!("explain {line} --json")).await;
    let document: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}"));
    let found = &document["found"][0];
    let text = |member: &str| found[member].as_str().unwrap_or_default().to_owned();
    assert!(!document["searched"].as_array().expect("a list").is_empty(), "{document}");
    (finished.code, text("outcome"), text("sentence"))
}

#[tokio::test]
async fn an_intent_is_explained_by_every_name_whatever_became_of_it() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = service(&world, &tokens).await;
    let accepted = world.add_draft(turn_ready(["u-1"], "k-1", 1)).await;
    let duplicate = world.add_draft(turn_ready(["u-1"], "k-1", 1)).await;
    let conflict = world.add_draft(turn_ready(["u-1"], "k-1", 2)).await;
    let broken = world.add(&[(b"colour", b"red\x1b[31m")]).await;
    let no_user = world.add_draft(turn_ready(["u-9"], "k-9", 9)).await;
    let over_http = send(&service, "k-http", &body(54)).await.json();
    let over_http = over_http["notification_id"].as_str().expect("an id");
    world.settled(2).await;
    malformed(&world, 3).await;
    world.directory.set_fault("u-slow", UserFault::Answer(503, String::new()));
    let waiting = world.add_draft(turn_ready(["u-slow"], "k-slow", 3)).await;
    let behind = world.add_draft(turn_ready(["u-1"], "k-1", 1)).await;
    intake_waits(&service).await;
    wait_for("the replica has reported what it waits for", BOUND, async || {
        let found = explained(&world, &waiting).await.2;
        found.contains("status 503").then_some(())
    })
    .await;

    let of = format!("the notification {accepted}");
    for (line, code, outcome, part) in [
        (accepted.clone(), 0, "accepted", of.as_str()),
        ("k-1 --producer game_master".to_owned(), 0, "accepted", &of),
        ("k-1".to_owned(), 0, "accepted", &of),
        (format!("{accepted}/push:user:u-1"), 0, "accepted", &of),
        (format!("notification:{accepted}/email:user:u-1"), 0, "accepted", &of),
        (over_http.to_owned(), 0, "accepted", over_http),
        ("k-http --producer game_master".to_owned(), 0, "accepted", over_http),
        (duplicate, 0, "duplicate", &of),
        (conflict, 0, "conflict", &of),
        (broken.clone(), 0, "malformed", "unknown_field: "),
        (no_user, 0, "malformed", "the user directory knows every recipient"),
        ("k-9".to_owned(), 0, "malformed", "recipient_not_found: "),
        (waiting.clone(), 0, "unread", "it is the next; intake has waited for"),
        ("k-slow --producer game_master".to_owned(), 0, "unread", &waiting),
        (behind, 0, "unread", "1 entry before it; intake has waited for"),
        ("1-0".to_owned(), 1, "trimmed", "the stream begins after it"),
        ("9999999999999-0".to_owned(), 1, "unknown", "its last id is"),
        (format!("{accepted}/push:user:u-2"), 1, "no_route", "it has no route push:user:u-2"),
        ("k-2 --producer game_master".to_owned(), 1, "unknown", "by the name k-2"),
        ("k-1 --producer geoprofile".to_owned(), 1, "unknown", "by the name k-1"),
    ] {
        let found = explained(&world, &line).await;
        assert_eq!((found.0, found.1.as_str()), (Some(code), outcome), "{line}: {found:?}");
        assert!(found.2.contains(part), "{line}: {found:?}");
    }
    let text = fine(&world, &format!("explain {accepted}")).await;
    assert!(text.contains("\n  push:user:u-1: The service gave up at "), "{text}");
    assert!(text.contains("\nsearched\n  the entry "), "{text}");
    let mut redis = world.redis().await;
    let trimmed: i64 = redis::cmd("XTRIM")
        .arg(INTENTS)
        .arg("MINID")
        .arg(&waiting)
        .query_async(&mut redis)
        .await
        .expect("Redis is there");
    assert_eq!(trimmed, 5);
    assert_eq!(explained(&world, &accepted).await.1, "accepted", "the record tells it without the entry");
    assert_eq!(explained(&world, &broken).await.1, "malformed");
}

#[tokio::test]
async fn notifications_and_malformed_intents_are_listed_and_shown() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = service(&world, &tokens).await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(world.add_draft(turn_ready(["u-1"], &key(n), n)).await);
    }
    let broken = world.add(&[(b"producer", b"a\nb"), (b"colour", b"red\x1b[31m")]).await;
    world.settled(3).await;
    malformed(&world, 1).await;

    let page = run(&world, "list --since 1h --limit 2").await;
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.starts_with("NOTIFICATION"), "{page:?}");
    assert_eq!(page.stdout.lines().count(), 3, "{page:?}");
    assert!(page.stdout.contains("1 published, 1 dead_letter"), "{page:?}");
    let next = page.stderr.strip_prefix("next page: notification ").expect("there is a next page").to_owned();
    let rest = run(&world, &next).await;
    assert_eq!((rest.stdout.lines().count(), rest.stderr.as_str()), (2, ""), "{next}: {rest:?}");
    assert!(rest.stdout.contains(&ids[0]), "{rest:?}");
    let other = run(&world, &next.replace("list", "list --producer game_master")).await;
    assert_eq!(other.code, Some(2), "{other:?}");
    let listed = document(&world, "list --recipient u-1 --status dead_letter --type game.turn.ready").await;
    let found: Vec<&str> = listed["notifications"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|item| item["notification_id"].as_str())
        .collect();
    assert_eq!(found, [&ids[2], &ids[1], &ids[0]]);
    assert_eq!(listed["notifications"][0]["routes"], json!({"dead_letter": 1, "published": 1}));
    assert_eq!(fine(&world, "list --until 1h").await, "no notification is found\n");

    let shown = document(&world, &format!("show {}", ids[0])).await;
    assert_eq!((&shown["notification_id"], &shown["payload"]["turn_number"]), (&json!(ids[0]), &json!(1)));
    let text = fine(&world, &format!("show {}", ids[0])).await;
    for part in [
        "idempotency_key         game-1:turn-1\n",
        "    \"turn_number\": 1\n",
        "push:user:u-1: The service gave up at ",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let missing = run(&world, "show 1-0").await;
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""), "{missing:?}");
    assert!(missing.stderr.starts_with("error: there is no notification 1-0; "), "{missing:?}");

    let listed = document(&world, "malformed list --code unknown_field").await;
    assert_eq!(listed["malformed_intents"][0]["stream_entry_id"], json!(broken));
    assert_eq!(fine(&world, "malformed list --producer other").await, "no malformed intent is found\n");
    let text = fine(&world, &format!("malformed show {broken}")).await;
    assert!(
        text.contains("rule                an entry has the fields of the envelope and no others\n"),
        "{text}"
    );
    assert!(text.ends_with("  producer  a\\nb\n  colour    red\\u{1b}[31m\n"), "{text}");
    let raw = fine(&world, &format!("malformed show {broken} --raw")).await;
    assert_eq!(raw, "producer\na\nb\ncolour\nred\u{1b}[31m\n");
    let field = fine(&world, &format!("malformed show {broken} --raw --field colour")).await;
    assert_eq!(field, "red\u{1b}[31m");
    let shown = document(&world, &format!("malformed show {broken}")).await;
    assert_eq!(shown["malformed_intents"][0]["raw_fields"][0], json!(["producer", "a\nb"]));
    assert_eq!(run(&world, "malformed show 1-0").await.code, Some(1));

    wait_for("the replica has reported itself", BOUND, async || {
        let status = document(&world, "status").await;
        status["leader"]["replica"].is_string().then_some(())
    })
    .await;
    let status = document(&world, "status").await;
    // Three routes are new dead letters, and nothing is stuck.
    assert_eq!((&status["intake"]["checkpoint"], &status["state"]), (&json!(broken), &json!("failing")));
    assert_eq!(status["intake"]["entries_behind"], 0);
    assert_eq!(
        (&status["malformed_intents"]["last_day"], &status["dead_letters"]["last_day"][0]["count"]),
        (&json!([{"code": "unknown_field", "count": 1}]), &json!(3))
    );
    let failing = run(&world, "status").await;
    assert_eq!((failing.code, failing.stderr.as_str()), (Some(3), ""), "{failing:?}");
    let text = failing.stdout;
    for part in ["fence 1\n", "nothing is unread\n", "\n  push     0", "  unknown_field  1\n"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    service.kill().await;
    let expired = "UPDATE locks SET acquired_at_ms = 0, expires_at_ms = floor(extract(epoch FROM now()) * 1000)::bigint - 60000
        WHERE user_key LIKE 'intake:%'";
    assert_eq!(world.execute(expired).await, 1);
    let stuck = run(&world, "status").await;
    assert_eq!((stuck.code, stuck.stderr.as_str()), (Some(1), ""), "{stuck:?}");
    assert!(stuck.stdout.starts_with("STUCK  No replica has led for 1 min"), "{stuck:?}");
    let stuck = document(&world, "status").await;
    let finding = &stuck["findings"][0];
    assert_eq!((&stuck["leader"], &finding["state"]), (&Value::Null, &json!("stuck")));
    assert_eq!(finding["parts"], json!(["intake"]));
}

#[tokio::test]
async fn without_redis_the_tables_tell_what_they_know() {
    let world = World::new().await;
    let service = world.service().start().await;
    let accepted = world.add_draft(turn_ready(["u-1"], "k-1", 1)).await;
    world.settled(1).await;
    let without = |line: &str| {
        world
            .service()
            .env("NOTIFICATION_REDIS_MASTER_ADDR", "127.0.0.1:1")
            .arguments(
                line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().iter().map(String::as_str),
            )
            .run()
    };
    let status = without("status").await;
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.stdout.contains("the stream could not be asked"), "{status:?}");
    assert!(status.stderr.starts_with("error: the entries of the stream are not known: "), "{status:?}");
    let found = without(&format!("explain {accepted}")).await;
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(found.stdout.starts_with("accepted: Accepted at "), "{found:?}");
    assert!(found.stderr.starts_with("warning: Redis could not be asked: "), "{found:?}");
    let unknown = without("explain 1-0").await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stdout.starts_with("stream_unavailable: PostgreSQL has neither"), "{unknown:?}");
    drop(service);
}

#[tokio::test]
async fn tables_that_cannot_be_used_are_said_with_what_to_do() {
    let database = TestDatabase::empty().await;
    let world = World::with(database, None).await;
    let commands = ["status", "list", "show 1-0", "explain 1-0", "malformed list", "malformed show 1-0"];
    let all = async |code: i32, part: &str, variable: Option<(&str, &str)>| {
        for line in commands {
            let mut command = world.service().arguments(line.split_whitespace());
            if let Some((name, value)) = variable {
                command = command.env(name, value);
            }
            let finished = command.run().await;
            assert_eq!((finished.code, finished.stdout.as_str()), (Some(code), ""), "{line}: {finished:?}");
            assert!(finished.stderr.contains(part), "{line}: {finished:?}");
        }
    };
    all(1, "has no tables of the service: ", None).await;
    let down = ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me@127.0.0.1:1/nowhere");
    all(1, "error: the tables at postgres://me@127.0.0.1:1/nowhere cannot be used: ", Some(down)).await;
    let migrated = run(&world, "migrate").await;
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    world.execute("INSERT INTO installation (id, intents_stream, created_at) VALUES ('i', 'notification:intents', now())").await;
    all(2, "the schema at ", Some(("NOTIFICATION_INTENTS_STREAM", "others"))).await;
    let newest = world.number("SELECT max(version)::bigint FROM refinery_schema_history").await;
    world.execute(&format!("DELETE FROM refinery_schema_history WHERE version = {newest}")).await;
    all(1, &format!("has migration {}, and this program needs {newest}: run", newest - 1), None).await;
}

#[tokio::test]
async fn after_an_orderly_stop_the_status_waits_until_no_replica_has_led_for_15_seconds() {
    let world = World::new().await;
    let mut service = world.service().start().await;
    reads(&service).await;
    service.signal("TERM");
    assert_eq!(service.wait_exit(BOUND).await.code(), Some(0));
    assert_eq!(world.number("SELECT count(*) FROM locks WHERE user_key LIKE 'intake:%'").await, 0);
    let stuck = run(&world, "status").await;
    assert_eq!(stuck.code, Some(1), "{stuck:?}");
    assert_eq!(stuck.stderr, "no replica leads at present; looking for one for up to 15 s\n");
    assert!(stuck.stdout.starts_with("STUCK  No replica has led for 15 s"), "{stuck:?}");
}
