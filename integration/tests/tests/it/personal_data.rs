//! Errors of PostgreSQL are reported without the data in them: the server quotes the whole row, and the
//! service must not.

use std::time::Duration;

use domain::intent::{IntentDraft, Recipients};
use harness::{Service, turn_ready, wait_for};
use serde_json::{Value, json};

use crate::world::*;

const PAYLOAD: &str = "markpayload";
const ADDRESS: &str = "markaddress";
const ADMIN: &str = "markadmin";
const RECIPIENT: &str = "markrecipient";

/// A trigger function that raises an error with all values of the row, under a code that normally reports
/// only names.
const LOUD: &str = "CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'no % here', NEW USING DETAIL = NEW::text, HINT = NEW::text, ERRCODE = TG_ARGV[0]; END $$";

async fn world(sql: &[&str]) -> World {
    let world = World::new().await;
    world.directory.set_user(RECIPIENT, &format!("{ADDRESS}@example.com"), "en");
    change(&world, sql).await;
    world
}

async fn change(world: &World, sql: &[&str]) {
    for statement in sql {
        world.database.client().await.batch_execute(statement).await.expect("the statement is right");
    }
}

async fn start(world: &World) -> Service {
    let service = world
        .service()
        .env("NOTIFICATION_LOG_LEVEL", "debug")
        .env("NOTIFICATION_ROUTE_BACKOFF_MIN", "100ms")
        .env("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED", format!("{ADMIN}@example.com"))
        .start()
        .await;
    reads(&service).await;
    service
}

/// An intent for a user, and one for administrators, both marked.
async fn send(world: &World, key: &str) {
    let payload = json!({"game_id": "game-1", "game_name": PAYLOAD, "turn_number": 1}).to_string();
    let to_user = IntentDraft { payload_json: payload, ..turn_ready([RECIPIENT], key, 1) };
    let review = json!({
        "user_id": RECIPIENT, "user_email": format!("{ADDRESS}@example.com"), "observed_country": PAYLOAD,
        "usual_connection_country": "DE", "review_reason": PAYLOAD,
    })
    .to_string();
    let to_admins = IntentDraft {
        notification_type: "geo.review_recommended".to_owned(),
        producer: "geoprofile".to_owned(),
        recipients: Recipients::Administrators,
        payload_json: review,
        ..to_user.clone()
    };
    for draft in [to_user, to_admins] {
        world.add_draft(draft).await;
    }
}

/// Everything that an operator or a supervisor can see, except data that is kept on purpose (raw fields,
/// route ids).
async fn outputs(world: &World, service: &Service) -> String {
    let mut seen: Vec<String> = Vec::new();
    for line in service.output() {
        // The route id of a user contains the user's id, so that the line can be looked up; everything else
        // is searched.
        seen.push(match serde_json::from_str::<Value>(&line) {
            Ok(Value::Object(mut fields)) => {
                let route = fields.remove("route_id").unwrap_or_default().to_string();
                Value::Object(fields).to_string() + &route.replace(RECIPIENT, "")
            }
            _ => line,
        });
    }
    seen.push(service.get("/readyz").await.1.to_string());
    for (table, column) in [
        ("malformed_intents", "failure_message"),
        ("dead_letters", "failure_message"),
        ("routes", "last_error_message"),
    ] {
        seen.extend(world.column(&format!("SELECT {column} FROM {table}")).await);
    }
    seen.join("\n")
}

/// Waits until the rejection is reported, and searches all outputs for values.
async fn reported_without_values(world: &World, service: &Service, state: &str, what: &str) {
    let reported = format!("SQLSTATE {state}");
    let seen = wait_for(&format!("{what}: {reported} is reported"), BOUND, async || {
        let seen = outputs(world, service).await;
        seen.contains(&reported).then_some(seen)
    })
    .await;
    for mark in [PAYLOAD, ADDRESS, ADMIN, RECIPIENT] {
        let found = seen.lines().find(|line| line.contains(mark));
        assert!(found.is_none(), "{what}: {mark} is in {found:?}");
    }
}

// INV-16
#[tokio::test]
async fn an_intent_that_postgresql_refuses_is_reported_without_what_it_holds() {
    for (what, state, sql) in [
        (
            "a check on records",
            "23514",
            &["ALTER TABLE records ADD CHECK (payload_json NOT LIKE '%markpayload%')"][..],
        ),
        ("a check on routes", "23514", &["ALTER TABLE routes ADD CHECK (resolved_email NOT LIKE '%mark%')"]),
        (
            "another column that must not be null",
            "23502",
            &["ALTER TABLE records ADD COLUMN tenant text NOT NULL"],
        ),
        (
            "a trigger that quotes the row",
            "P0001",
            &[
                LOUD,
                "CREATE TRIGGER loud BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION loud('P0001')",
            ],
        ),
        (
            "a trigger that quotes the row as a missing right",
            "42501",
            &[
                LOUD,
                "CREATE TRIGGER loud BEFORE INSERT ON routes FOR EACH ROW EXECUTE FUNCTION loud('42501')",
            ],
        ),
        (
            "an address that is too long",
            "22001",
            &["ALTER TABLE routes ALTER COLUMN resolved_email TYPE varchar(5)"],
        ),
    ] {
        let world = world(&[]).await;
        let service = start(&world).await;
        change(&world, sql).await;
        send(&world, "1").await;
        reported_without_values(&world, &service, state, what).await;
    }
}

#[tokio::test]
async fn a_second_row_with_a_unique_value_is_reported_without_the_value() {
    let world = world(&["CREATE UNIQUE INDEX ON routes (resolved_email, channel, recipient_ref)"]).await;
    let service = start(&world).await;
    send(&world, "1").await;
    world.settled(2).await;
    send(&world, "2").await;
    reported_without_values(&world, &service, "23505", "a unique index").await;
}

#[tokio::test]
async fn a_malformed_intent_that_postgresql_refuses_is_reported_without_what_it_holds() {
    for (what, state, sql) in [
        (
            "a check",
            "23514",
            &["ALTER TABLE malformed_intents ADD CHECK (failure_code <> 'unknown_field')"][..],
        ),
        (
            "a trigger that quotes the row",
            "P0001",
            &[
                LOUD,
                "CREATE TRIGGER loud BEFORE INSERT ON malformed_intents FOR EACH ROW EXECUTE FUNCTION loud('P0001')",
            ],
        ),
    ] {
        let world = world(sql).await;
        let service = start(&world).await;
        let address = format!("{ADDRESS}@example.com");
        world
            .add(&[
                (b"unknown", PAYLOAD.as_bytes()),
                (b"recipient_user_ids_json", RECIPIENT.as_bytes()),
                (b"payload_json", address.as_bytes()),
            ])
            .await;
        reported_without_values(&world, &service, state, what).await;
    }
}

// INV-16
#[tokio::test]
async fn a_completion_that_postgresql_refuses_is_reported_without_what_the_route_holds() {
    for (what, state, outbound_fails, sql) in [
        (
            "a publication, by a check",
            "23514",
            false,
            &["ALTER TABLE routes ADD CHECK (status <> 'published')"][..],
        ),
        (
            "a failed attempt, by a check",
            "23514",
            true,
            &["ALTER TABLE routes ADD CHECK (attempt_count = 0)"],
        ),
        (
            "a publication, by a trigger that quotes the row",
            "P0001",
            false,
            &[
                LOUD,
                "CREATE TRIGGER loud BEFORE UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION loud('P0001')",
            ],
        ),
        (
            "a failed attempt, by a trigger that quotes the row as a missing right",
            "42501",
            true,
            &[
                LOUD,
                "CREATE TRIGGER loud BEFORE UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION loud('42501')",
            ],
        ),
    ] {
        let world = world(sql).await;
        let mut redis = world.redis().await;
        if outbound_fails {
            for stream in [PUSH, MAIL] {
                redis::cmd("SET")
                    .arg(stream)
                    .arg("x")
                    .query_async::<()>(&mut redis)
                    .await
                    .expect("Redis is there");
            }
        }
        let service = start(&world).await;
        send(&world, "1").await;
        wait_for("they are accepted", Duration::from_secs(20), async || {
            (world.number("SELECT count(*) FROM records").await == 2).then_some(())
        })
        .await;
        reported_without_values(&world, &service, state, what).await;
    }
}
