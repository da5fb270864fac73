//! Least rights: a role that owns nothing and has what `notification migrate --print-grants` prints, in every
//! mode and with every command.

use std::io::Write;
use std::time::Duration;

use harness::{Finished, ServiceBuilder, TestDatabase, turn_ready, wait_for};
use serde_json::json;

use crate::api::{OPERATOR, ask, body, send, with_api};
use crate::dead_letters::insert_dead_letters;
use crate::outbox::Outbox;
use crate::receipts::{MAIL_TOKEN, with_consumers};
use crate::state::State;
use crate::world::*;

/// A role that owns nothing, named after its database.
fn role(database: &TestDatabase) -> String {
    format!("least_{}", database.name())
}

/// The connection string of that role.
fn dsn(database: &TestDatabase) -> String {
    database.dsn().replacen("notificationservice@", &format!("{}@", role(database)), 1)
}

async fn printed(arguments: &[&str]) -> String {
    let all = ["migrate", "--print-grants"].into_iter().chain(arguments.iter().copied());
    let printed = ServiceBuilder::default().arguments(all).run().await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    printed.stdout
}

/// Creates the role with the printed grants, and no other right.
async fn grant(database: &TestDatabase, mode: &str) {
    let role = role(database);
    let grants = printed(&["--for", mode, "--role", &role, "--schema", "notification"]).await;
    let client = database.client().await;
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.expect("a role");
    client.batch_execute(&grants).await.unwrap_or_else(|error| panic!("{error}\n{grants}"));
}

/// A service or a command with the role.
fn with_role(world: &World, service: ServiceBuilder) -> ServiceBuilder {
    let dsn = dsn(&world.database);
    service
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn)
        .env("NOTIFICATION_USER_DIRECTORY", "state")
        .env("USER", "ada")
}

async fn run(world: &World, line: &str) -> Finished {
    with_role(world, unhurried(world.service())).arguments(line.split_whitespace()).run().await
}

/// Runs a command that must succeed.
async fn done(world: &World, line: &str) -> String {
    let finished = run(world, line).await;
    assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
    finished.stdout
}

#[tokio::test]
async fn a_role_with_the_printed_grants_serves_and_runs_every_command() {
    let world = World::new().await;
    grant(&world.database, "service").await;
    let mut users = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a file");
    for n in 0..200 {
        writeln!(users, r#"{{"user_id":"u-{n}","email":"u-{n}@example.com"}}"#).expect("written");
    }
    done(&world, &format!("users import {}", users.path().display())).await;
    done(&world, "users list").await;
    insert_dead_letters(&world, 3).await;
    let tokens = with_consumers(&world);
    let serve =
        |more: ServiceBuilder| with_api(with_role(&world, more), &tokens).env("NOTIFICATION_CONSOLE", "on");
    let service = serve(unhurried(world.service())).start().await;
    reads(&service).await;
    world.send(0..5).await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    world.settled(9).await;
    let malformed = world.add_draft(turn_ready(["u-999"], "nobody", 1)).await;
    wait_for("it is malformed", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 1).then_some(())
    })
    .await;
    let id =
        world.column("SELECT notification_id FROM records WHERE idempotency_key = 'game-1:turn-1'").await;
    let id = &id[0];
    for line in [
        "status",
        "list --since 2h",
        &format!("show {id}"),
        &format!("explain {id}"),
        "malformed list",
        &format!("malformed show {malformed}"),
        "users add u-999 --email u-999@example.com",
        "users get u-999",
        "malformed resubmit --code recipient_not_found --since 1h --reason imported --yes",
        "dead-letters list",
        "dead-letters replay --channel email --yes",
        "dead-letters discard --all --reason lost --yes",
        &format!("resend --notification {id} --reason lost --yes"),
        "hold --channel email --reason move --yes",
        "holds list",
        "leader",
    ] {
        done(&world, line).await;
    }
    world.send(5..6).await;
    wait_for("a route is held", BOUND, async || {
        (world.number("SELECT count(*) FROM held_routes").await > 0).then_some(())
    })
    .await;
    done(&world, "cancel --producer game_master --reason wrong --yes").await;
    done(&world, "release --channel email --yes").await;
    done(&world, "erase --user u-999 --yes").await;
    let receipt =
        json!({"id": format!("{id}/email:user:u-1"), "status": "delivered", "at": "2026-04-02T09:21:40Z"});
    let receipts = json!({"receipts": [receipt]}).to_string();
    let reported = ask(&service, MAIL_TOKEN, "POST", "/v1/receipts", None, &receipts).await;
    assert_eq!(reported.status, 200, "{}", reported.body);
    assert_eq!(world.number("SELECT count(*) FROM receipts").await, 1, "{}", reported.body);
    for path in [
        "/v1/status",
        "/v1/activity",
        "/v1/actions",
        "/v1/dead-letters",
        "/v1/malformed-intents",
        "/v1/holds",
    ] {
        let read = ask(&service, OPERATOR, "GET", path, None, "").await;
        assert_eq!(read.status, 200, "{path}: {}", read.body);
    }
    assert!(done(&world, "actions --json").await.contains("erase_user"));
    done(&world, "users delete u-3").await;
    let stepped = run(&world, "leader --step-down").await;
    assert!(!stepped.stderr.contains("permission denied"), "{stepped:?}");
    world.settled(world.number("SELECT count(*) FROM records").await).await;
    let audit = run(&world, "audit").await;
    assert!(!audit.stderr.contains("permission denied"), "{audit:?}");
    let denied: Vec<String> =
        service.output().into_iter().filter(|line| line.contains("permission denied")).collect();
    assert_eq!(denied, [""; 0]);
    service.kill().await;

    world
        .execute("UPDATE records SET accepted_at = accepted_at - interval '31 days', idempotency_expires_at = now()")
        .await;
    world.execute("UPDATE malformed_intents SET recorded_at = recorded_at - interval '31 days'").await;
    let service = serve(unhurried(world.service())).env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    wait_for("everything is deleted", BOUND, async || {
        let left = world
            .number("SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM malformed_intents)")
            .await;
        (left == 0).then_some(())
    })
    .await;
    assert!(service.logged("permission denied").is_none(), "{:?}", service.output());
}

#[tokio::test]
async fn the_start_names_each_grant_that_is_missing() {
    let world = World::new().await;
    grant(&world.database, "service").await;
    let role = role(&world.database);
    for (revoked, named) in [
        ("SELECT, DELETE ON TABLE records", "lacks SELECT, DELETE on records;"),
        ("USAGE ON SEQUENCE receipts_version_seq", "lacks USAGE on SEQUENCE receipts_version_seq;"),
        ("UPDATE ON TABLE fence_counters", "lacks UPDATE on fence_counters"),
        ("INSERT ON TABLE kv", "lacks INSERT on kv;"),
        ("SELECT ON TABLE refinery_schema_history", "permission denied for table refinery_schema_history"),
        ("USAGE ON SCHEMA notification", "names no schema that exists and that the role"),
    ] {
        world.execute(&format!("REVOKE {revoked} FROM {role}")).await;
        let mut service = with_role(&world, world.service()).spawn();
        assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
        let output = service.output().join("\n");
        assert!(output.contains(named), "{named}: {output}");
        world.execute(&format!("GRANT {revoked} TO {role}")).await;
    }
}

#[tokio::test]
async fn migrations_take_the_owner_who_can_grant_the_rights_with_them() {
    let world = World::with(TestDatabase::empty().await, None).await;
    let role = role(&world.database);
    world.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    world.execute(&format!("GRANT USAGE ON SCHEMA notification TO {role}")).await;
    for line in ["serve", "migrate"] {
        let refused = run(&world, line).await;
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert_eq!(refused.code, Some(1), "{said}");
        assert!(said.contains("run `notification migrate` with the role that owns the schema"), "{said}");
    }
    assert_eq!(
        world.column("SELECT tablename::text FROM pg_tables WHERE schemaname = 'notification'").await,
        [""; 0]
    );
    let owner = ServiceBuilder::default().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn());
    for _ in 0..2 {
        let granted = owner.clone().arguments(["migrate", "--grant-to", &role]).run().await;
        assert_eq!(granted.code, Some(0), "{granted:?}");
    }
    assert!(done(&world, "migrate").await.contains("every migration already"));
    let service = with_role(&world, world.service()).start().await;
    reads(&service).await;
}

#[tokio::test]
async fn an_installation_whose_role_owned_the_schema_is_divided_by_the_documented_statements() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let owner = format!("owner_{}", world.database.name());
    world.execute(&format!("CREATE ROLE {owner} LOGIN")).await;
    let page = include_str!("../../../../docs/operations.md");
    let (_, statement) = page.split_once("`REASSIGN OWNED").expect("the page has the statement");
    let statement = format!("REASSIGN OWNED{}", statement.split('`').next().unwrap_or_default());
    world.execute(&statement.replace("notificationowner", &owner)).await;
    let dsn = world.database.dsn().replacen("notificationservice@", &format!("{owner}@"), 1);
    let migrate = ServiceBuilder::default().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn);
    let granted = migrate.arguments(["migrate", "--grant-to", "notificationservice"]).run().await;
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let owners = "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'notification'";
    assert_eq!(world.column(owners).await, [owner]);
    world.send(3..5).await;
    world.settled(5).await;
    service.kill().await;
    let _next = world.service().start().await;
    world.send(5..7).await;
    world.settled(7).await;
    world.check(0..7).await;
}

#[tokio::test]
async fn a_relay_moves_events_with_the_printed_grants() {
    let outbox = Outbox::new().await;
    grant(&outbox.database, "relay").await;
    let role = role(&outbox.database);
    let _service = outbox.world.service().start().await;
    let _relay = outbox.relay().env("NOTIFICATION_OUTBOX_DSN", dsn(&outbox.database)).start().await;
    outbox.insert(0..3).await;
    outbox.drained().await;
    outbox.world.settled(3).await;
    for line in
        ["outbox stats", "outbox dead list", "outbox requeue --dead --yes", "outbox prune --delivered-age 1m"]
    {
        let command = ServiceBuilder::default().arguments(line.split_whitespace());
        let finished = command.env("NOTIFICATION_OUTBOX_DSN", dsn(&outbox.database)).run().await;
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
    }
    outbox.execute(&format!("REVOKE DELETE ON openoutbox_events FROM {role}")).await;
    let refused = outbox.relay().env("NOTIFICATION_OUTBOX_DSN", dsn(&outbox.database)).run().await;
    assert_eq!(refused.code, Some(1));
    let said = refused.stdout + &refused.stderr;
    assert!(said.contains("lacks rights on the outbox: DELETE on openoutbox_events"), "{said}");
}

#[tokio::test]
async fn the_state_store_serves_a_table_with_the_printed_grants() {
    let state = State::new().await;
    let owner = state.process().env("STATE_PROXY_PG_INDEXES", "status").start().await;
    owner.kill().await;
    grant(&state.database, "state").await;
    let process = || {
        state
            .process()
            .env("STATE_PROXY_PG_URL", dsn(&state.database))
            .env("STATE_PROXY_PG_INDEXES", "status")
    };
    let service = process().start().await;
    for (method, path, body) in [
        ("PUT", "/keys/a", r#"{"status":"new"}"#),
        ("GET", "/keys/a", ""),
        ("GET", "/keys/?prefix=a", ""),
        ("DELETE", "/keys/a", ""),
    ] {
        let answer = state.ask(method, path, body).await;
        assert!((200..300).contains(&answer.status), "{method}: {} {}", answer.status, answer.body);
    }
    service.kill().await;
    let client = state.database.client().await;
    client
        .batch_execute(&format!("REVOKE UPDATE ON kv FROM {}", role(&state.database)))
        .await
        .expect("revoked");
    let refused = process().run().await;
    let said = refused.stdout + &refused.stderr;
    assert!(refused.code == Some(1) && said.contains("lacks UPDATE on kv"), "{said}");
}
