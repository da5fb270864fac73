//! Operators' searches by HTTP: results and rejections, the permission to search, and searches that take too
//! long.

use harness::{HttpResponse, Service, ServiceBuilder, wait_for};
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

const PATH: &str = "/v1/notifications:query";

async fn search(service: &Service, body: &str) -> HttpResponse {
    ask(service, OPERATOR, "POST", PATH, None, body).await
}

/// The idempotency keys of the results of a filter.
async fn keys(service: &Service, filter: &Value) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    for _ in 0..100 {
        let body = json!({"filter": filter, "limit": 2, "cursor": cursor}).to_string();
        let answer = search(service, &body).await;
        assert_eq!(answer.status, 200, "{filter}: {}", answer.body);
        let page = answer.json();
        let items = page["notifications"].as_array().expect("a page").clone();
        found.extend(items.iter().map(|item| item["idempotency_key"].as_str().expect("a key").to_owned()));
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            return found;
        }
    }
    panic!("the pages do not end: {filter}");
}

async fn started(
    world: &World,
    tokens: &TokensFile,
    configure: impl Fn(ServiceBuilder) -> ServiceBuilder,
) -> Service {
    configure(with_api(world.service(), tokens)).start().await
}

#[tokio::test]
async fn an_operator_searches_by_the_notification_its_routes_and_its_payload() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = started(&world, &tokens, |service| service).await;
    for turn in 1..=5 {
        let answer = send(&service, &format!("k-{turn}"), &body(turn)).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    world.settled(5).await;
    let all = ["k-5", "k-4", "k-3", "k-2", "k-1"];
    for (filter, expected) in [
        (json!({}), &all[..]),
        (Value::Null, &all[..]),
        (json!({"payload.turn_number": {"$gt": 3}}), &all[..2]),
        (json!({"recipient": "u-2", "route.channel": "push", "route.status": "published"}), &all[..]),
        (json!({"recipient": "u-2", "route.status": {"$ne": "published"}}), &[]),
        (json!({"idempotency_key": "k-3"}), &all[2..3]),
        (
            json!({"idempotency_key": {"$in": ["k-1", "k-2"]}, "accepted_at": {"$after": "2026-01-01T00:00:00Z"}}),
            &all[3..],
        ),
        (json!({"route.published_at": {"$before": "2020-01-01T00:00:00Z"}}), &[]),
        (json!({"$not": {"payload.game_name": "Nova"}}), &[]),
    ] {
        assert_eq!(keys(&service, &filter).await, expected, "{filter}");
    }
    let listed = read(&service, OPERATOR, "/v1/notifications?limit=3").await.json();
    let searched = search(&service, r#"{"limit": 3}"#).await.json();
    assert_eq!(searched["notifications"], listed["notifications"], "both show the same");
    let token = searched["next_cursor"].as_str().expect("there are more");
    let of_another = json!({"filter": {"producer": "game_master"}, "cursor": token}).to_string();
    is(&search(&service, &of_another).await, 400, "bad-request", "");
    is(
        &search(&service, &json!({"cursor": listed["next_cursor"]}).to_string()).await,
        400,
        "bad-request",
        "",
    );
}

#[tokio::test]
async fn only_an_operator_searches_and_what_is_no_search_is_refused_with_its_place() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = started(&world, &tokens, |service| service).await;
    is(&ask(&service, PRODUCER, "POST", PATH, None, "{}").await, 403, "forbidden", "");
    is(&ask(&service, "unknown", "POST", PATH, None, "{}").await, 401, "unauthorized", "");
    is(
        &ask(&service, OPERATOR, "POST", "/v1/notifications:query?limit=1", None, "{}").await,
        400,
        "bad-request",
        "",
    );
    is(&ask(&service, OPERATOR, "GET", PATH, None, "").await, 405, "method-not-allowed", "");
    for (body, place) in [
        ("{\"filter\": {\"colour\": 1}}", "line 1 column 13"),
        ("{\"limit\": 7,\n \"filter\": {\"accepted_at\": 1}}", "line 2 column 13"),
        ("{\"filter\": {\n\"producer\": {\"$gt\": []}}}", "line 2 column 21"),
        ("{\"filter\": 7}", "line 1 column 12"),
        ("{\"filter\": {\"$and\": []}}", "line 1 column 21"),
        ("{\"limit\": 0}", "line 1 column 12"),
        ("{\"limit\": 201}", "line 1 column 14"),
        ("{\"limit\": \"1\"}", "line 1 column 13"),
        ("{\"sort\": [\"key\"]}", "line 1 column"),
        ("{\"filter\": {}", "line 1 column 13"),
    ] {
        let answer = search(&service, body).await;
        is(&answer, 400, "bad-request", "");
        let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains(place), "{body}: {detail}");
    }
}

#[tokio::test]
async fn a_search_that_takes_too_long_is_told_what_narrows_it_and_the_narrower_one_is_answered() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service =
        started(&world, &tokens, |service| service.env("NOTIFICATION_API_QUERY_TIMEOUT", "60ms")).await;
    world
        .execute(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
                idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             SELECT n || '-0', 't', 'p', 'user', jsonb_build_array('u-' || n % 1000), '{\"n\":' || n || '}', n::text, 'v1:', t, t, t, t
             FROM (SELECT n, now() + n * interval '1 ms' AS t FROM generate_series(1, 100000) n) r",
        )
        .await;
    let answer = search(&service, r#"{"filter": {"payload.n": -1}}"#).await;
    is(&answer, 422, "query-too-expensive", "");
    let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
    for advice in
        ["NOTIFICATION_API_QUERY_TIMEOUT", "accepted_at", "recipient", "idempotency_key", "route.status"]
    {
        assert!(detail.contains(advice), "{detail}");
    }
    // This machine may be busy for longer than such a short time.
    let narrow = r#"{"filter": {"payload.n": 7, "idempotency_key": "7"}}"#;
    let found = wait_for("the narrower search is answered", BOUND, async || {
        let answer = search(&service, narrow).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(found.json()["notifications"][0]["notification_id"], "7-0", "{}", found.body);
}
