//! The HTTP API of the real service: accepted, replayed and rejected requests, and reads.

use harness::{HttpResponse, request, turn_ready, wait_for};
use serde_json::{Value, json};

pub(crate) use crate::api_client::*;
use crate::world::*;

fn problem(answer: &HttpResponse) -> (u16, String, String) {
    let json = answer.json();
    let text = |member: &str| json[member].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", answer.body);
    (answer.status, text("type"), text("code"))
}

pub(crate) fn is(answer: &HttpResponse, status: u16, name: &str, code: &str) {
    assert_eq!(problem(answer), (status, format!("/problems/{name}"), code.to_owned()), "{}", answer.body);
}

#[tokio::test]
async fn an_intent_is_accepted_published_and_replayed_byte_for_byte() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let first = send(&service, "k-1", &body(54)).await;
    assert_eq!(first.status, 202, "{}", first.body);
    let accepted = first.json();
    assert_eq!(
        (accepted["outcome"].as_str(), accepted["routes"].as_array().map(Vec::len)),
        (Some("accepted"), Some(4))
    );
    let again = send(&service, "k-1", &body(54)).await;
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(
        (first.header("idempotency-replayed"), again.header("idempotency-replayed")),
        (None, Some("true"))
    );
    world.settled(1).await;
    let outbound = world.outbound().await;
    assert_eq!(outbound.len(), 4);
    assert!(outbound.values().all(|entries| entries.len() == 1), "{outbound:?}");
}

#[tokio::test]
async fn another_intent_under_a_key_is_a_conflict_that_names_what_differs() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    let mut other = body(55);
    other["recipient_user_ids"] = json!(["u-1"]);
    let refused = send(&service, "k-1", &other).await;
    is(&refused, 422, "idempotency-conflict", "idempotency_conflict");
    assert_eq!(refused.json()["differs"], json!(["recipient_user_ids", "payload"]));
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
}

#[tokio::test]
async fn what_is_malformed_leaves_its_key_free() {
    let world = World::new().await;
    world.directory.remove_user("u-9");
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let mut unknown_user = body(54);
    unknown_user["recipient_user_ids"] = json!(["u-9"]);
    is(&send(&service, "k-1", &unknown_user).await, 422, "malformed-intent", "recipient_not_found");
    let mut wrong = body(54);
    wrong["colour"] = json!("red");
    is(&send(&service, "k-1", &wrong).await, 422, "malformed-intent", "unknown_field");
    // The claim is abandoned concurrently with the response.
    wait_for("the key is free", BOUND, async || {
        (send(&service, "k-1", &body(54)).await.status == 202).then_some(())
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
}

//
#[tokio::test]
async fn one_key_through_the_stream_and_the_api_is_one_notification_in_both_orders() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    world.add_draft(turn_ready(["u-1", "u-2"], "by-stream", 54)).await;
    world.settled(1).await;
    let duplicate = send(&service, "by-stream", &body(54)).await;
    assert_eq!((duplicate.status, duplicate.json()["outcome"].as_str()), (202, Some("duplicate")));
    assert_eq!(duplicate.json()["routes"].as_array().map(Vec::len), Some(4));
    is(&send(&service, "by-stream", &body(55)).await, 422, "idempotency-conflict", "idempotency_conflict");

    assert_eq!(send(&service, "by-api", &body(54)).await.status, 202);
    world.add_draft(turn_ready(["u-1", "u-2"], "by-api", 54)).await;
    let conflict = world.add_draft(turn_ready(["u-1", "u-2"], "by-api", 55)).await;
    wait_for("the stream's conflict is decided", BOUND, async || {
        let ids = world.column("SELECT stream_entry_id FROM malformed_intents").await;
        (ids == [conflict.clone()]).then_some(())
    })
    .await;
    world.settled(2).await;
    assert_eq!(world.outbound().await.len(), 8);
}

#[tokio::test]
async fn each_element_of_a_batch_is_decided_by_itself_and_a_repeat_is_a_duplicate() {
    let world = World::new().await;
    world.directory.remove_user("u-9");
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let element = |key: &str, turn: u32| {
        let mut element = body(turn);
        element["idempotency_key"] = json!(key);
        element
    };
    let mut unknown_user = element("k-3", 54);
    unknown_user["recipient_user_ids"] = json!(["u-9"]);
    let batch = json!({"intents": [
        element("k-1", 54), element("k-2", 54), unknown_user, body(54), element("k-1", 54), element("k-1", 55),
    ]});
    let answer = ask(&service, PRODUCER, "POST", "/v1/intents:batch", None, &batch.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.json()["results"].as_array().expect("results").clone();
    let told: Vec<_> = results
        .iter()
        .map(|result| {
            let word = result["outcome"].as_str().or(result["code"].as_str()).unwrap_or_default();
            (result["status"].as_u64().unwrap_or_default(), word.to_owned())
        })
        .collect();
    let expected = [
        (202, "accepted"),
        (202, "accepted"),
        (422, "recipient_not_found"),
        (422, "missing_field"),
        (202, "duplicate"),
        (422, "idempotency_conflict"),
    ];
    assert_eq!(told, expected.map(|(status, word)| (status, word.to_owned())));
    assert_eq!((&results[0]["routes"], &results[4]["routes"]), (&json!(4), &json!(4)));
    assert_eq!(results[0]["notification_id"], results[4]["notification_id"]);
    let again = ask(&service, PRODUCER, "POST", "/v1/intents:batch", None, &batch.to_string()).await;
    assert_eq!(again.json()["results"][0]["outcome"], "duplicate");
    world.settled(2).await;
}

#[tokio::test]
async fn a_batch_with_a_key_is_answered_once() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let mut element = body(54);
    element["idempotency_key"] = json!("k-1");
    let text = json!({"intents": [element]}).to_string();
    let batch = |text: String| {
        let service = &service;
        async move { ask(service, PRODUCER, "POST", "/v1/intents:batch", Some("b-1"), &text).await }
    };
    let first = batch(text.clone()).await;
    let again = batch(text).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    is(&batch(json!({"intents": [{}]}).to_string()).await, 422, "idempotency-conflict", "");
}

#[tokio::test]
async fn a_notification_is_read_back_whole_by_its_producer_and_by_operators_only() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let id =
        send(&service, "k-1", &body(54)).await.json()["notification_id"].as_str().expect("an id").to_owned();
    world.settled(1).await;
    let path = format!("/v1/notifications/{id}");
    let own = read(&service, PRODUCER, &path).await.json();
    assert_eq!(
        (own["payload"]["turn_number"].as_u64(), own["idempotency_key"].as_str()),
        (Some(54), Some("k-1"))
    );
    let routes = own["routes"].as_array().expect("routes").clone();
    assert!(routes.iter().all(|route| route["status"] == "published" && route["resolved_email"].is_null()));
    assert!(
        routes
            .iter()
            .all(|route| route["explanation"].as_str().is_some_and(|text| text.starts_with("Published at "))),
        "{routes:?}"
    );
    let whole = read(&service, OPERATOR, &path).await.json();
    assert!(
        whole["routes"].as_array().expect("routes").iter().any(|route| !route["resolved_email"].is_null())
    );
    is(&read(&service, OTHER, &path).await, 404, "not-found", "");
    is(&read(&service, OPERATOR, "/v1/notifications/none").await, 404, "not-found", "");

    let listed = read(&service, PRODUCER, "/v1/notifications?recipient=u-1&status=published").await.json();
    assert_eq!(listed["notifications"][0]["notification_id"], json!(id));
    assert_eq!(listed["notifications"][0]["routes"], json!({"published": 4}));
    let others = read(&service, OTHER, "/v1/notifications").await.json();
    assert_eq!(others, json!({"notifications": [], "next_cursor": null}));
    is(&read(&service, PRODUCER, "/v1/notifications?producer=geoprofile").await, 403, "forbidden", "");
    is(&read(&service, PRODUCER, "/v1/notifications?colour=red").await, 400, "bad-request", "");
    is(&read(&service, PRODUCER, "/v1/dead-letters").await, 403, "forbidden", "");
}

#[tokio::test]
async fn a_dead_letter_is_listed_replayed_once_and_published() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    let list = async || read(&service, OPERATOR, "/v1/dead-letters?channel=push").await.json();
    let letters = wait_for("the push routes are dead letters", BOUND, async || {
        let letters = list().await["dead_letters"].as_array().expect("a list").clone();
        (letters.len() == 2).then_some(letters)
    })
    .await;
    redis::cmd("DEL").arg(PUSH).query_async::<()>(&mut redis).await.expect("Redis is there");

    let change = |path: &'static str, key: Option<&'static str>, body: Value| {
        let service = &service;
        async move { ask(service, OPERATOR, "POST", path, key, &body.to_string()).await }
    };
    let plan =
        change("/v1/dead-letters:replay", None, json!({"filter": {"channel": "push"}, "dry_run": true}))
            .await;
    assert_eq!((plan.status, plan.json()["count"].as_u64()), (200, Some(2)), "{}", plan.body);
    let discarded = json!({"ids": [letters[0]["id"]], "reason": "the game is over"});
    let answer = change("/v1/dead-letters:discard", Some("d-1"), discarded).await;
    assert_eq!((answer.status, answer.json()["discarded"].as_u64()), (200, Some(1)), "{}", answer.body);
    let by_filter = json!({"filter": {"channel": "push"}});
    let first = change("/v1/dead-letters:replay", Some("r-1"), by_filter.clone()).await;
    assert_eq!((first.status, first.json()["replayed"].as_u64()), (200, Some(1)), "{}", first.body);
    let again = change("/v1/dead-letters:replay", Some("r-1"), by_filter).await;
    assert_eq!((again.header("idempotency-replayed"), &again.body), (Some("true"), &first.body));
    is(&change("/v1/dead-letters:replay", None, json!({"ids": ["x"]})).await, 400, "bad-request", "");
    wait_for("the replayed route is published", BOUND, async || {
        let published =
            world.number("SELECT count(*) FROM routes WHERE channel = 'push' AND status = 'published'").await;
        (published == 1).then_some(())
    })
    .await;
    assert_eq!(list().await["dead_letters"], json!([]));
    let kept = read(&service, OPERATOR, "/v1/dead-letters?discarded=true").await.json();
    assert_eq!(kept["dead_letters"][0]["discard_reason"], "the game is over");
    let actions = world
        .column("SELECT action || ' by ' || actor || ': ' || affected FROM operator_actions ORDER BY at")
        .await;
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert!(actions.iter().all(|action| action.contains(" by ops: 1")), "{actions:?}");
}

#[tokio::test]
async fn operators_read_the_state_of_the_service_and_malformed_intents() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let entry = world.add(&[(b"colour", b"red")]).await;
    wait_for("it is decided", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 1).then_some(())
    })
    .await;
    let path = format!("/v1/malformed-intents/{entry}");
    let found = read(&service, OPERATOR, &path).await.json();
    assert_eq!(found["malformed_intents"][0]["raw_fields"], json!([["colour", "red"]]));
    let listed = read(&service, OPERATOR, "/v1/malformed-intents?code=unknown_field").await.json();
    assert_eq!(listed["malformed_intents"][0]["stream_entry_id"], json!(entry));
    let status = wait_for("the leader is known", BOUND, async || {
        let status = read(&service, OPERATOR, "/v1/status").await.json();
        status["leader"]["replica"].is_string().then_some(status)
    })
    .await;
    assert_eq!(status["intake"]["checkpoint"], json!(entry));
    assert_eq!(status["intake"]["entries_behind"], json!(0));
    assert_eq!(status["channels"]["push"]["due"], json!(0));
    assert_eq!(status["malformed_intents"]["last_day"], json!([{"code": "unknown_field", "count": 1}]));
    assert_eq!(status["replicas"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn requests_that_break_a_rule_of_the_interface_are_refused_in_its_order() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let addr = service.api_addr();
    let intent = body(54).to_string();
    let json = ("Content-Type", "application/json");
    let bearer = ("Authorization", "Bearer producer-token");
    let ask = |method: &'static str,
               path: &'static str,
               headers: Vec<(&'static str, &'static str)>,
               body: String| {
        let addr = addr.clone();
        async move { request(&addr, method, path, &headers, &body).await.expect("the API answers") }
    };
    is(&ask("POST", "/v1/nothing", vec![], String::new()).await, 404, "not-found", "");
    let wrong_method = ask("PUT", "/v1/intents", vec![], String::new()).await;
    is(&wrong_method, 405, "method-not-allowed", "");
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    let anonymous = ask("POST", "/v1/intents", vec![json], intent.clone()).await;
    is(&anonymous, 401, "unauthorized", "");
    assert_eq!(anonymous.header("www-authenticate"), Some("Bearer"));
    let operator = vec![("Authorization", "Bearer operator-token"), json];
    is(&ask("POST", "/v1/intents", operator, intent.clone()).await, 403, "forbidden", "");
    let text = vec![bearer, ("Content-Type", "text/plain"), ("Idempotency-Key", "k")];
    is(&ask("POST", "/v1/intents", text, intent.clone()).await, 415, "unsupported-media-type", "");
    is(&ask("POST", "/v1/intents", vec![bearer, json], intent.clone()).await, 400, "bad-request", "");
    let empty = vec![bearer, json, ("Idempotency-Key", "")];
    is(&ask("POST", "/v1/intents", empty, intent.clone()).await, 400, "bad-request", "");
    let key = vec![bearer, json, ("Idempotency-Key", "k")];
    is(&ask("POST", "/v1/intents", key.clone(), "[]".into()).await, 400, "bad-request", "");
    let large = format!("{}{intent}", " ".repeat(1 << 20));
    is(&ask("POST", "/v1/intents", key.clone(), large).await, 413, "body-too-large", "");
    let padded = vec![bearer, json, ("Idempotency-Key", "\" k\"")];
    is(&ask("POST", "/v1/intents", padded, intent.clone()).await, 422, "malformed-intent", "invalid_field");
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);
    let quoted = vec![bearer, json, ("Idempotency-Key", "\"k\""), ("X-Request-Id", "r-1")];
    let accepted = ask("POST", "/v1/intents", quoted, intent.clone()).await;
    assert_eq!((accepted.status, accepted.header("x-request-id")), (202, Some("r-1")));
    let replayed = ask("POST", "/v1/intents", key, intent).await;
    assert_eq!(replayed.body, accepted.body, "quoted and bare are one key");
    assert_eq!(world.column("SELECT request_id FROM records").await, ["r-1"]);
}
