//! Reading with a producer's token: the outcome for a key, and malformed intents.

use domain::intent::{IntentDraft, Recipients};
use harness::{HttpResponse, Proxy, Service, UserFault, turn_ready, wait_for};
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

/// The address in the service of a world for the type that `geoprofile` sends to administrators.
const ADMINISTRATOR: &str = "ops@example.com";

async fn outcome(service: &Service, token: &str, key: &str) -> HttpResponse {
    read(service, token, &format!("/v1/intents/{key}")).await
}

async fn state(service: &Service, token: &str, key: &str) -> String {
    let answer = outcome(service, token, key).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["state"].as_str().expect("a state").to_owned()
}

async fn becomes(service: &Service, key: &str, expected: &str) -> Value {
    wait_for(&format!("{key} is {expected}"), BOUND, async || {
        let found = outcome(service, PRODUCER, key).await.json();
        (found["state"] == expected).then_some(found)
    })
    .await
}

fn review(key: &str) -> IntentDraft {
    let payload = json!({
        "user_id": "u-1", "user_email": "u-1@example.com", "observed_country": "FR",
        "usual_connection_country": "DE", "review_reason": "another country",
    });
    IntentDraft {
        notification_type: "geo.review_recommended".to_owned(),
        producer: "geoprofile".to_owned(),
        recipients: Recipients::Administrators,
        payload_json: payload.to_string(),
        ..turn_ready(["u-1"], key, 1)
    }
}

#[tokio::test]
async fn a_key_tells_the_outcome_of_its_intents_whether_they_came_by_the_stream_or_over_http() {
    let world = World::new().await;
    world.directory.remove_user("u-9");
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(state(&service, PRODUCER, "by-http").await, "unknown");

    let accepted = send(&service, "by-http", &body(54)).await.json();
    let found = outcome(&service, PRODUCER, "by-http").await.json();
    assert_eq!(found["state"], "accepted");
    assert_eq!(
        (&found["notification_id"], &found["accepted_at"]),
        (&accepted["notification_id"], &accepted["accepted_at"])
    );
    assert_eq!((found["routes"].as_array().map(Vec::len), &found["code"]), (Some(4), &Value::Null));
    is(&send(&service, "by-http", &body(55)).await, 422, "idempotency-conflict", "idempotency_conflict");
    assert_eq!(state(&service, PRODUCER, "by-http").await, "accepted", "a conflict over HTTP has its answer");

    let entry = world.add_draft(turn_ready(["u-1", "u-2"], "by-stream", 54)).await;
    assert_eq!(becomes(&service, "by-stream", "accepted").await["notification_id"], json!(entry));
    let conflict = world.add_draft(turn_ready(["u-1"], "by-stream", 55)).await;
    let found = becomes(&service, "by-stream", "conflict").await;
    assert_eq!((&found["notification_id"], &found["stream_entry_id"]), (&json!(entry), &json!(conflict)));
    assert_eq!(found["code"], "idempotency_conflict");

    let malformed = world.add_draft(turn_ready(["u-9"], "wrong", 54)).await;
    let found = becomes(&service, "wrong", "malformed").await;
    assert_eq!(
        (&found["code"], &found["stream_entry_id"]),
        (&json!("recipient_not_found"), &json!(malformed))
    );
    assert!(found["detail"].is_string() && found["recorded_at"].is_string(), "{found}");
    assert_eq!((&found["notification_id"], &found["routes"]), (&Value::Null, &Value::Null));
    let mut wrong = body(54);
    wrong["colour"] = json!("red");
    is(&send(&service, "refused", &wrong).await, 422, "malformed-intent", "unknown_field");
    assert_eq!(state(&service, PRODUCER, "refused").await, "unknown", "the caller has the answer");
    assert_eq!(send(&service, "wrong", &body(54)).await.status, 202);
    let found = outcome(&service, PRODUCER, "wrong").await.json();
    assert_eq!((&found["state"], &found["code"]), (&json!("accepted"), &Value::Null), "it was corrected");

    assert_eq!(send(&service, "a/b %C3%A9?", &body(54)).await.status, 202);
    assert_eq!(state(&service, PRODUCER, "a%2Fb%20%25C3%25A9%3F").await, "accepted");
    is(&outcome(&service, PRODUCER, &"k".repeat(256)).await, 400, "bad-request", "");
    is(&outcome(&service, PRODUCER, "k?colour=red").await, 400, "bad-request", "");
}

#[tokio::test]
async fn a_key_is_read_by_its_producer_and_by_an_operator_who_names_the_producer() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    let malformed =
        world.add_draft(IntentDraft { payload_json: "[]".to_owned(), ..turn_ready(["u-1"], "k-2", 54) });
    malformed.await;
    becomes(&service, "k-2", "malformed").await;
    for key in ["k-1", "k-2"] {
        assert_eq!(state(&service, OTHER, key).await, "unknown");
    }
    is(&outcome(&service, OTHER, "k-1?producer=game_master").await, 403, "forbidden", "");
    assert_eq!(state(&service, PRODUCER, "k-1?producer=game_master").await, "accepted");
    assert_eq!(state(&service, OPERATOR, "k-1?producer=game_master").await, "accepted");
    assert_eq!(state(&service, OPERATOR, "k-1?producer=geoprofile").await, "unknown");
    is(&outcome(&service, OPERATOR, "k-1").await, 400, "bad-request", "");
    is(&outcome(&service, "unknown-token", "k-1").await, 401, "unauthorized", "");
}

#[tokio::test]
async fn no_administrators_address_is_shown_under_a_key() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    world.add_draft(review("k-1")).await;
    world.add_draft(IntentDraft { payload_json: "{}".to_owned(), ..review("k-1") }).await;
    let answer = wait_for("both are decided", BOUND, async || {
        let answer = outcome(&service, OTHER, "k-1").await;
        (answer.json()["state"] == "malformed").then_some(answer)
    })
    .await;
    let found = answer.json();
    assert_eq!(found["routes"][0]["route_number"], 1);
    assert_eq!(
        (&found["routes"][0]["route_id"], &found["routes"][0]["recipient_ref"]),
        (&Value::Null, &Value::Null)
    );
    let list = read(&service, OTHER, "/v1/malformed-intents").await;
    assert_eq!(list.json()["malformed_intents"].as_array().map(Vec::len), Some(1));
    assert!(!answer.body.contains(ADMINISTRATOR) && !list.body.contains(ADMINISTRATOR));
    let routes = world.column("SELECT route_id FROM routes").await;
    assert_eq!(routes, [format!("email:email:{ADMINISTRATOR}")], "there is one to hide");
}

#[tokio::test]
async fn a_key_is_in_progress_while_a_request_is_processed_and_unread_while_the_stream_waits() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let postgres = Proxy::start(world.database.port()).await;
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens)
        .env("NOTIFICATION_API_REQUEST_TIMEOUT", "2s")
        .start()
        .await;
    reads(&service).await;
    assert_eq!(send(&service, "k-0", &body(53)).await.status, 202);
    let held = postgres.hold_request(b"Nova");
    let intent = body(54);
    let asking = send(&service, "k-1", &intent);
    let meanwhile = async {
        held.reached(BOUND).await;
        let malformed = send(&service, "k-1", &json!({})).await;
        (state(&service, PRODUCER, "k-1").await, malformed)
    };
    let (unanswered, (found, malformed)) = tokio::join!(asking, meanwhile);
    assert_eq!((unanswered.status, found.as_str()), (503, "in_progress"));
    is(&malformed, 409, "in-progress", "");
    becomes(&service, "k-1", "unknown").await;

    world.directory.set_fault("u-8", UserFault::Answer(500, "{}".to_owned()));
    world.add_draft(turn_ready(["u-8"], "k-2", 54)).await;
    intake_waits(&service).await;
    for key in ["k-2", "k-3"] {
        assert_eq!(state(&service, PRODUCER, key).await, "unread", "one of the entries may have the key");
    }
    assert_eq!(state(&service, PRODUCER, "k-0").await, "accepted");
    world.directory.clear_faults();
    becomes(&service, "k-2", "accepted").await;
    assert_eq!(state(&service, PRODUCER, "k-3").await, "unknown");
}

#[tokio::test]
async fn without_redis_a_key_that_has_an_outcome_is_told_and_another_is_not() {
    let mut world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    world.redis.kill().await;
    assert_eq!(state(&service, PRODUCER, "k-1").await, "accepted");
    is(&outcome(&service, PRODUCER, "k-2").await, 503, "unavailable", "");
}

#[tokio::test]
async fn a_producer_reads_the_malformed_intents_that_name_it_and_of_no_type_that_it_may_not_send_the_content()
{
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let own = world
        .add_draft(IntentDraft { payload_json: "[]".to_owned(), ..turn_ready(["u-1"], "own", 54) })
        .await;
    let claimed =
        world.add_draft(IntentDraft { producer: "game_master".to_owned(), ..review("claimed") }).await;
    let untyped = world.add(&[(b"producer", b"game_master"), (b"colour", b"secret-red")]).await;
    let other = world.add_draft(IntentDraft { payload_json: "{}".to_owned(), ..review("other") }).await;
    wait_for("all are decided", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 4).then_some(())
    })
    .await;
    let rows = async |token: &str| {
        let list = read(&service, token, "/v1/malformed-intents").await;
        list.json()["malformed_intents"].as_array().expect("a list").clone()
    };
    let ids =
        |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["stream_entry_id"].clone()).collect() };
    let mine = rows(PRODUCER).await;
    assert_eq!(ids(&mine), [json!(untyped), json!(claimed), json!(own)]);
    assert_eq!(ids(&rows(OTHER).await), [json!(other)]);
    assert_eq!(rows(OPERATOR).await.len(), 4);
    assert_eq!(
        (&mine[2]["failure_code"], &mine[2]["idempotency_key"]),
        (&json!("invalid_payload_json"), &json!("own"))
    );
    assert_eq!(
        (&mine[1]["failure_code"], &mine[0]["failure_code"]),
        (&json!("producer_not_allowed"), &json!("unknown_field"))
    );
    for hidden in &mine[..2] {
        for member in ["notification_type", "idempotency_key", "failure_message"] {
            assert_eq!(hidden[member], Value::Null, "{member}: {hidden}");
        }
    }
    assert_eq!(state(&service, PRODUCER, "claimed").await, "malformed");
    let found = outcome(&service, PRODUCER, "claimed").await.json();
    assert_eq!((&found["code"], &found["detail"]), (&json!("producer_not_allowed"), &Value::Null));

    let show =
        async |token: &str, id: &str| read(&service, token, &format!("/v1/malformed-intents/{id}")).await;
    assert!(show(PRODUCER, &own).await.json()["malformed_intents"][0]["raw_fields"].is_array());
    for (id, content) in [(&claimed, "u-1@example.com"), (&untyped, "secret-red")] {
        let hidden = show(PRODUCER, id).await;
        assert_eq!(hidden.json()["malformed_intents"][0]["raw_fields"], Value::Null);
        assert!(!hidden.body.contains(content) && show(OPERATOR, id).await.body.contains(content));
    }
    is(&show(PRODUCER, &other).await, 404, "not-found", "");
    is(&show(OTHER, &own).await, 404, "not-found", "");
    is(&read(&service, PRODUCER, "/v1/malformed-intents?producer=geoprofile").await, 403, "forbidden", "");
}
