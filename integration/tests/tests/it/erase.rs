//! Erasing a person: nothing that names the user is left in any table or stream, others keep their
//! notifications, and the rest of the service still agrees with itself.

use harness::{Finished, HttpResponse, Service, ServiceBuilder, turn_ready, wait_for};
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

/// The erased user, whose id and address are nowhere else in the tests.
const USER: &str = "erased-7";
const ADDRESS: &str = "erasedaddress@example.com";
const PATH: &str = "/v1/users:erase";

fn command(world: &World, arguments: &[&str]) -> ServiceBuilder {
    world.service().env("USER", "ada").arguments(arguments.iter().copied())
}

async fn run(world: &World, arguments: &[&str]) -> Finished {
    command(world, arguments).run().await
}

/// An intent for these users, as a body.
fn intent_to(users: &[&str], turn: u32) -> Value {
    let mut intent = body(turn);
    intent["recipient_user_ids"] = json!(users);
    intent
}

async fn erase(service: &Service, key: Option<&str>, body: &Value) -> HttpResponse {
    ask(service, OPERATOR, "POST", PATH, key, &body.to_string()).await
}

/// The tables with a row that contains this text, except operators' actions.
async fn tables_with(world: &World, text: &str) -> Vec<String> {
    let sql = "SELECT c.table_name::text FROM information_schema.tables c
        WHERE c.table_schema = current_schema() AND c.table_type = 'BASE TABLE' ORDER BY 1";
    let mut found = Vec::new();
    for table in world.column(sql).await {
        let rows = format!(
            "SELECT count(*) FROM {table} t WHERE t::text LIKE '%{text}%'
            OR encode(t::text::bytea, 'escape') LIKE '%{text}%'"
        );
        if world.number(&rows).await > 0 {
            found.push(table);
        }
    }
    let in_answers =
        format!("SELECT count(*) FROM idempotency_keys WHERE position('{text}'::bytea IN response_body) > 0");
    if world.number(&in_answers).await > 0 {
        found.push("response_body".to_owned());
    }
    found
}

/// The streams with an entry that contains this text.
async fn streams_with(world: &World, text: &str) -> Vec<&'static str> {
    let mut redis = world.redis().await;
    let mut found = Vec::new();
    for stream in [INTENTS, PUSH, MAIL] {
        let entries: redis::Value = redis::cmd("XRANGE")
            .arg(stream)
            .arg("-")
            .arg("+")
            .query_async(&mut redis)
            .await
            .expect("Redis is there");
        // Bytes are shown as text in this form.
        if format!("{entries:?}").contains(text) {
            found.push(stream);
        }
    }
    found
}

/// Sends notifications to the user alone, to the user and another, and to another with a payload that
/// mentions the user; a malformed intent that names the user, and one that mentions the user.
async fn populate(world: &World, service: &Service) {
    world.directory.set_user(USER, ADDRESS, "en");
    for (key, users, turn) in [("alone", &[USER][..], 1), ("both", &[USER, "u-1"], 2)] {
        let answer = send(service, key, &intent_to(users, turn)).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    world.add_draft(turn_ready([USER.to_owned()], "by-stream", 3)).await;
    let mut mention = intent_to(&["u-1"], 4);
    mention["payload"]["game_name"] = USER.into();
    assert_eq!(send(service, "mention", &mention).await.status, 202);
    let list = json!([USER, "nobody"]).to_string();
    world.add(&[(b"recipient_user_ids_json", list.as_bytes()), (b"colour", b"red")]).await;
    world.add(&[(b"colour", USER.as_bytes())]).await;
    wait_for("the entries are processed", BOUND, async || {
        let malformed = world.number("SELECT count(*) FROM malformed_intents").await;
        let records = world.number("SELECT count(*) FROM records").await;
        (malformed == 2 && records == 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_erased_person_is_in_no_table_and_no_stream_and_others_keep_what_is_theirs() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    populate(&world, &service).await;
    world.settled(4).await;
    let report = json!({"receipts": [{"id": world.column(&format!(
        "SELECT notification_id || '/' || route_id FROM routes WHERE route_id = 'email:user:{USER}' LIMIT 1"
    )).await[0], "status": "bounced", "at": "2026-04-02T09:21:40Z", "detail": ADDRESS}]});
    let answer = ask(&service, OPERATOR, "POST", "/v1/receipts", None, &report.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);

    let former = json!({"ids": [format!("1-0/push:user:{USER}")], "reason": format!("{USER} asked")});
    let action = format!(
        "INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
         VALUES (now(), 'ops', 'discard_dead_letters', '{former}', 1, 'r') RETURNING action"
    );
    assert_eq!(world.column(&action).await, ["discard_dead_letters"]);

    let plan = erase(&service, None, &json!({"user_id": USER, "dry_run": true})).await;
    assert_eq!(plan.status, 200, "{}", plan.body);
    let plan = plan.json();
    assert_eq!((&plan["notifications"], &plan["malformed_intents"]), (&json!(3), &json!(1)), "{plan}");
    assert_eq!(plan["mentions"], 2, "a payload and a field: {plan}");
    assert_eq!(plan["stream_entries"], 8, "{plan}");
    assert!(tables_with(&world, USER).await.contains(&"routes".to_owned()));

    let done = erase(&service, Some("k-1"), &json!({"user_id": USER})).await;
    assert_eq!(done.status, 200, "{}", done.body);
    let report = done.json();
    assert!(!done.body.contains(USER) && !done.body.contains(ADDRESS), "{report}");
    for (member, expected) in [
        ("records_deleted", 2),
        ("records_changed", 1),
        ("routes", 6),
        ("receipts", 1),
        ("responses", 2),
        ("malformed_intents", 1),
        ("actions", 1),
        ("unread_entries", 0),
        ("mentions", 2),
    ] {
        assert_eq!(report[member], expected, "{member}: {report}");
    }
    // Six outbound entries, and three entries of the intents stream: one accepted, one malformed.
    assert_eq!((&report["stream_entries"], &report["complete"]), (&json!(8), &json!(true)), "{report}");
    assert_eq!(tables_with(&world, USER).await, ["malformed_intents", "records"], "only the mentions");
    assert_eq!(tables_with(&world, ADDRESS).await, [""; 0]);
    assert_eq!(streams_with(&world, ADDRESS).await, [""; 0]);
    let recipients = world.column("SELECT recipient_user_ids::text FROM records ORDER BY 1").await;
    assert_eq!(recipients, [r#"["u-1"]"#, r#"["u-1"]"#]);
    assert_eq!(world.number("SELECT count(*) FROM routes").await, 4, "those of the other user");
    let actions = "SELECT arguments ->> 'user_hash' FROM operator_actions WHERE action = 'erase_user'";
    let actions = world.column(actions).await;
    assert!(!actions.is_empty() && actions.iter().all(|hash| *hash == report["user_hash"]), "{actions:?}");

    let again = send(&service, "both", &intent_to(&[USER, "u-1"], 2)).await;
    assert_eq!((again.status, &again.json()["outcome"]), (202, &json!("duplicate")), "{}", again.body);
    assert_eq!(world.number("SELECT count(*) FROM routes").await, 4);
    let nothing = erase(&service, Some("k-2"), &json!({"user_id": USER})).await.json();
    for member in ["records_deleted", "records_changed", "routes", "malformed_intents", "stream_entries"] {
        assert_eq!(nothing[member], 0, "{member}: {nothing}");
    }
    let repeated = erase(&service, Some("k-1"), &json!({"user_id": USER})).await;
    assert_eq!(repeated.body, done.body, "the stored receipt");
    world.check_audit().await;
    world.check_tables().await;
}

#[tokio::test]
async fn live_routes_of_an_erased_person_are_never_published() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    // Neither stream takes entries, so that all routes are live.
    let mut redis = world.redis().await;
    for stream in [PUSH, MAIL] {
        redis::cmd("SET").arg(stream).arg("x").query_async::<()>(&mut redis).await.expect("Redis is there");
    }
    let service = with_api(world.service(), &tokens)
        .env("NOTIFICATION_ROUTE_BACKOFF_MIN", "100ms")
        .env("NOTIFICATION_ROUTE_BACKOFF_MAX", "300ms")
        .env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "100")
        .env("NOTIFICATION_EMAIL_MAX_ATTEMPTS", "100")
        .start()
        .await;
    populate(&world, &service).await;
    let erased = run(&world, &["erase", "--user", USER, "--yes", "--json"]).await;
    assert_eq!(erased.code, Some(0), "{erased:?}");
    let report: Value = serde_json::from_str(&erased.stdout).expect("JSON");
    assert_eq!((&report["routes"], &report["records_changed"]), (&json!(6), &json!(1)), "{report}");
    for stream in [PUSH, MAIL] {
        redis::cmd("DEL").arg(stream).query_async::<()>(&mut redis).await.expect("Redis is there");
    }
    world.settled(2).await;
    assert_eq!(streams_with(&world, ADDRESS).await, [""; 0]);
    let out = world.outbound().await;
    assert!(out.len() == 4 && out.keys().all(|id| !id.contains(USER)), "{out:?}");
}

#[tokio::test]
async fn the_command_shows_the_plan_erases_nothing_unasked_and_deletes_the_document_of_the_directory() {
    let world = World::new().await;
    let service = world
        .service()
        .env("NOTIFICATION_USER_DIRECTORY", "state")
        .env("NOTIFICATION_USER_SERVICE_BASE_URL", "")
        .start()
        .await;
    reads(&service).await;
    let in_state = |arguments: &[&str]| {
        command(&world, arguments)
            .env("NOTIFICATION_USER_DIRECTORY", "state")
            .env("NOTIFICATION_USER_SERVICE_BASE_URL", "")
    };
    for user in [USER, "erased-77"] {
        let added = run(&world, &["users", "add", user, "--email", ADDRESS]).await;
        assert_eq!(added.code, Some(0), "{added:?}");
    }
    world.add_draft(turn_ready([USER.to_owned(), "erased-77".to_owned()], "k-1", 1)).await;
    world.settled(1).await;
    let planned = in_state(&["erase", "--user", USER, "--dry-run"]).run().await;
    assert!(planned.code == Some(0) && planned.stdout.contains("1 notifications name"), "{planned:?}");
    assert!(planned.stdout.contains("the user directory has a document"), "{planned:?}");
    let unasked = in_state(&["erase", "--user", USER]).run().await;
    assert_eq!(unasked.code, Some(2), "{unasked:?}");
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);
    let erased = in_state(&["erase", "--user", USER, "--yes"]).run().await;
    assert_eq!(erased.code, Some(0), "{erased:?}");
    assert_eq!(world.column("SELECT key FROM kv").await, ["users/erased-77"]);
    assert_eq!(world.column("SELECT recipient_user_ids::text FROM records").await, [r#"["erased-77"]"#]);
    world.check_audit().await;
}
