//! Delivery receipts: consumers' reports through the API of the real service.

use std::fmt::Write;

use harness::{HttpResponse, Proxy, Service, wait_for};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::*;
use crate::world::*;

pub(crate) const MAIL_TOKEN: &str = "mail-token";
pub(crate) const GATEWAY_TOKEN: &str = "gateway-token";
const PAGE: &str = include_str!("../../../../docs/consumers.md");
const PATH: &str = "/v1/receipts";
const AT: &str = "2026-04-02T09:21:40.5+02:00";
/// The time [`AT`] in the format of responses.
const SHOWN_AT: &str = "2026-04-02T07:21:40.500000Z";
const STATUSES: [&str; 5] = ["failed", "delivered", "opened", "complained", "bounced"];
/// The seed: the orders of a race are the same in every run. Another number gives others.
const SEED: u64 = 20_261_122;

/// The tokens of the tests, and one of each consumer.
pub(crate) fn with_consumers(world: &World) -> TokensFile {
    let tokens = TokensFile::new(world);
    let mut text = TOKENS.to_owned();
    for (consumer, token) in [("mail", MAIL_TOKEN), ("gateway", GATEWAY_TOKEN)] {
        let hash = hex::encode(Sha256::digest(token));
        write!(text, "[[token]]\nname = \"{consumer}\"\nsha256 = \"{hash}\"\nconsumer = \"{consumer}\"\n")
            .expect("memory takes it");
    }
    std::fs::write(&tokens.0, text).expect("it is there");
    tokens
}

fn report(id: &str, status: &str) -> Value {
    json!({"id": id, "status": status, "at": AT, "detail": format!("{status} as it is")})
}

async fn post(service: &Service, token: &str, reports: &[Value]) -> HttpResponse {
    ask(service, token, "POST", PATH, None, &json!({"receipts": reports}).to_string()).await
}

/// The outcomes of reports, in their order.
async fn outcomes(service: &Service, token: &str, reports: &[Value]) -> Vec<String> {
    let answer = post(service, token, reports).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.json()["results"].as_array().expect("results").clone();
    let ids = results.iter().map(|result| &result["id"]);
    assert!(ids.eq(reports.iter().map(|report| &report["id"])), "{results:?}");
    results.iter().map(|result| result["outcome"].as_str().expect("an outcome").to_owned()).collect()
}

/// Sends an intent for two users and returns the ids of its routes: two of the mail service, then two of the
/// gateway.
pub(crate) async fn published(world: &World, service: &Service) -> Vec<String> {
    assert_eq!(send(service, "k-1", &body(54)).await.status, 202);
    world.settled(1).await;
    let mut ids: Vec<String> = world.outbound().await.into_keys().collect();
    ids.sort_unstable();
    ids
}

/// The route with this id, as the notification shows it.
async fn route(service: &Service, token: &str, id: &str) -> Value {
    let (notification_id, route_id) = id.split_once('/').expect("the id of a route");
    let notification = read(service, token, &format!("/v1/notifications/{notification_id}")).await.json();
    let routes = notification["routes"].as_array().expect("routes").iter();
    routes.clone().find(|route| route["route_id"] == route_id).expect("it has this route").clone()
}

#[tokio::test]
async fn a_consumer_reports_of_its_own_routes_and_the_notification_shows_it() {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let ids = published(&world, &service).await;
    let (mail, push) = (&ids[0], &ids[2]);
    assert_eq!(route(&service, PRODUCER, mail).await["receipt"], Value::Null);

    let both = [report(mail, "delivered"), report(push, "delivered")];
    assert_eq!(outcomes(&service, MAIL_TOKEN, &both).await, ["recorded", "unknown_route"]);
    assert_eq!(world.column("SELECT key FROM receipts").await, std::slice::from_ref(mail));
    assert_eq!(outcomes(&service, GATEWAY_TOKEN, &both).await, ["unknown_route", "recorded"]);
    assert_eq!(outcomes(&service, OPERATOR, &both).await, ["stale", "stale"]);
    let rising = [report(mail, "bounced"), report(mail, "opened"), report("1-0/push:user:u-1", "opened")];
    assert_eq!(outcomes(&service, MAIL_TOKEN, &rising).await, ["recorded", "stale", "unknown_route"]);

    let past = |status: &str, outcome: &str| json!({"status": status, "at": SHOWN_AT, "detail": format!("{status} as it is"), "outcome": outcome});
    let expected = json!({
        "status": "bounced", "at": SHOWN_AT, "detail": "bounced as it is",
        "history": [
            past("opened", "stale"), past("bounced", "recorded"), past("delivered", "stale"),
            past("delivered", "recorded"),
        ],
    });
    for token in [PRODUCER, OPERATOR] {
        let shown = route(&service, token, mail).await;
        assert_eq!(shown["receipt"], expected);
        let explanation = shown["explanation"].as_str().unwrap_or_default();
        let ending = format!("; its consumer reported: bounced at {SHOWN_AT}");
        assert!(explanation.starts_with("Published at ") && explanation.ends_with(&ending), "{explanation}");
    }
    assert_eq!(route(&service, OPERATOR, &ids[1]).await["receipt"], Value::Null);
    // The state of the route is independent of its reports.
    assert_eq!(world.column("SELECT DISTINCT status FROM routes").await, ["published"]);
}

#[tokio::test]
async fn what_is_wrong_with_a_report_is_its_outcome_and_what_is_wrong_with_the_request_refuses_it() {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let ids = published(&world, &service).await;
    let with = |name: &str, value: Value| {
        let mut report = report(&ids[0], "delivered");
        report[name] = value;
        report
    };
    let without = |name: &str| {
        let mut report = report(&ids[0], "delivered");
        report.as_object_mut().expect("an object").remove(name);
        report
    };
    let elements = [
        (with("id", json!(7)), "invalid", "id takes"),
        (without("id"), "invalid", "id takes"),
        (with("id", json!("")), "unknown_route", ""),
        (json!("x"), "invalid", "The element is not as expected"),
        (json!([]), "invalid", "The element is not as expected"),
        (with("colour", json!("red")), "invalid", "The element is not as expected"),
        (with("id", json!("no route")), "unknown_route", ""),
        (with("id", json!(format!("{}\u{0}", ids[0]))), "unknown_route", ""),
        (with("id", json!("x/".repeat(1_000))), "unknown_route", ""),
        (with("status", json!("Delivered")), "invalid", "status takes one of failed, delivered"),
        (with("status", json!(null)), "invalid", "status takes"),
        (without("status"), "invalid", "status takes"),
        (with("at", json!("yesterday")), "invalid", "at takes a time"),
        (with("at", json!(1_775_121_700_000_i64)), "invalid", "at takes a time"),
        (with("at", json!("2026-04-02 09:21")), "invalid", "at takes a time"),
        (without("at"), "invalid", "at takes a time"),
        (with("detail", json!("ä".repeat(1_001))), "invalid", "detail takes at most 1000 characters"),
        (with("detail", json!("a\u{0}b")), "invalid", "detail takes no U+0000"),
        (with("detail", json!(["x"])), "invalid", "detail takes a string"),
        (with("detail", json!("🦀".repeat(1_000))), "recorded", ""),
        (without("detail"), "stale", ""),
        (with("detail", json!(null)), "stale", ""),
    ];
    let reports: Vec<Value> = elements.iter().map(|(report, ..)| report.clone()).collect();
    let answer = post(&service, MAIL_TOKEN, &reports).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.json()["results"].as_array().expect("results").clone();
    assert_eq!(results.len(), elements.len());
    for ((report, outcome, detail), result) in elements.iter().zip(&results) {
        let id = if report["id"].is_string() { &report["id"] } else { &Value::Null };
        assert_eq!((&result["id"], result["outcome"].as_str()), (id, Some(*outcome)), "{report}");
        let said = result["detail"].as_str().unwrap_or_default();
        assert!(said.starts_with(detail) && (said.is_empty() == detail.is_empty()), "{report}: {said}");
    }
    let shown = route(&service, OPERATOR, &ids[0]).await;
    let details: Vec<usize> = shown["receipt"]["history"]
        .as_array()
        .expect("a history")
        .iter()
        .map(|past| past["detail"].as_str().unwrap_or_default().chars().count())
        .collect();
    assert_eq!(details, [0, 0, 1_000]);

    // The maximum number of reports of a request, each of the maximum length: more bytes than other requests
    // may have.
    let largest = vec![with("detail", json!("🦀".repeat(1_000))); 1_000];
    assert_eq!(outcomes(&service, MAIL_TOKEN, &largest).await, ["stale"; 1_000]);

    let fine = report(&ids[0], "opened");
    for wrong in [
        json!({"receipts": []}),
        json!({"receipts": vec![&fine; 1_001]}),
        json!({"receipts": [fine], "colour": "red"}),
        json!({"receipts": fine}),
        json!([fine]),
        json!({}),
    ] {
        let answer = ask(&service, MAIL_TOKEN, "POST", PATH, None, &wrong.to_string()).await;
        is(&answer, 400, "bad-request", "");
    }
    let twice = format!(r#"{{"receipts":[{{"id":"x","id":"{}","status":"opened","at":"{AT}"}}]}}"#, ids[0]);
    let answer = ask(&service, MAIL_TOKEN, "POST", PATH, None, &twice).await;
    assert_eq!(
        (answer.status, &answer.json()["results"][0]["outcome"]),
        (200, &json!("invalid")),
        "{}",
        answer.body
    );
    is(&ask(&service, PRODUCER, "POST", PATH, None, "{}").await, 403, "forbidden", "");
    is(&read(&service, MAIL_TOKEN, "/v1/notifications").await, 403, "forbidden", "");
    // None of them was recorded.
    assert_eq!(outcomes(&service, MAIL_TOKEN, &[report(&ids[0], "opened")]).await, ["recorded"]);
}

#[tokio::test]
async fn a_thousand_reports_of_drawn_orders_at_two_replicas_end_at_the_highest() {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let replicas =
        [with_api(world.service(), &tokens).start().await, with_api(world.service(), &tokens).start().await];
    world.send(0..25).await;
    world.settled(25).await;
    let ids: Vec<String> = world.outbound().await.into_keys().collect();
    assert_eq!(ids.len(), 100);
    let mut random = StdRng::seed_from_u64(SEED);
    // Ten reports of each route; the highest of a route is drawn.
    let mut reports: Vec<Value> = Vec::new();
    let mut highest: Vec<usize> = Vec::new();
    for id in &ids {
        let most = random.random_range(0..STATUSES.len());
        highest.push(most);
        reports.push(report(id, STATUSES[most]));
        reports.extend((1..10).map(|_| report(id, STATUSES[random.random_range(0..=most)])));
    }
    reports.shuffle(&mut random);
    let requests = reports.chunks(100).enumerate();
    let told = futures_util::future::join_all(
        requests.map(|(place, part)| outcomes(&replicas[place % 2], OPERATOR, part)),
    )
    .await;
    assert!(told.iter().flatten().all(|outcome| ["recorded", "stale"].contains(&&**outcome)), "{told:?}");
    for (id, most) in ids.iter().zip(highest) {
        let receipt = route(&replicas[0], OPERATOR, id).await["receipt"].clone();
        assert_eq!(receipt["status"], STATUSES[most], "{receipt:#}");
        let history = receipt["history"].as_array().expect("a history");
        assert_eq!(history.len(), 10);
        let recorded: Vec<usize> = history
            .iter()
            .rev()
            .filter(|past| past["outcome"] == "recorded")
            .map(|past| STATUSES.iter().position(|status| past["status"] == *status).expect("a status"))
            .collect();
        assert!(recorded.is_sorted_by(|one, next| one < next), "{receipt:#}");
    }
}

#[tokio::test]
async fn receipts_outlive_a_crash_and_go_with_their_record() {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let ids = published(&world, &service).await;
    let reports: Vec<Value> = ids.iter().map(|id| report(id, "opened")).collect();
    assert_eq!(outcomes(&service, OPERATOR, &reports).await, ["recorded"; 4]);
    service.kill().await;

    let next = with_api(world.service(), &tokens).env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    assert_eq!(outcomes(&next, OPERATOR, &reports).await, ["stale"; 4]);
    assert_eq!(route(&next, OPERATOR, &ids[0]).await["receipt"]["status"], "opened");
    world.send([7]).await;
    world.settled(2).await;
    let all: Vec<String> = world.outbound().await.into_keys().collect();
    let young: Vec<String> = all.into_iter().filter(|id| !ids.contains(id)).collect();
    assert_eq!(outcomes(&next, OPERATOR, &[report(&young[0], "delivered")]).await, ["recorded"]);
    world
        .execute(
            "UPDATE records SET accepted_at = accepted_at - interval '31 days', idempotency_expires_at = idempotency_expires_at - interval '31 days' WHERE idempotency_key = 'k-1'",
        )
        .await;
    wait_for("retention has deleted the old record", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await == 1).then_some(())
    })
    .await;
    assert_eq!(world.column("SELECT key FROM receipts").await, young[..1]);
    assert_eq!(outcomes(&next, OPERATOR, &reports).await, ["unknown_route"; 4]);
    assert_eq!(world.column("SELECT key FROM receipts").await, young[..1]);
}

#[tokio::test]
async fn while_postgresql_is_down_a_consumer_is_told_to_come_back_and_then_its_reports_are_taken() {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let proxy = Proxy::start(world.database.port()).await;
    let service = with_api(world.service_via(world.redis.port(), proxy.port()), &tokens).start().await;
    let ids = published(&world, &service).await;
    let reports = [report(&ids[0], "delivered")];
    proxy.cut();
    let answer = post(&service, MAIL_TOKEN, &reports).await;
    is(&answer, 503, "unavailable", "");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(world.column("SELECT key FROM receipts").await, [""; 0]);
    proxy.heal();
    let told = wait_for("PostgreSQL is back", BOUND, async || {
        let answer = post(&service, MAIL_TOKEN, &reports).await;
        (answer.status == 200).then(|| answer.json()["results"][0]["outcome"].clone())
    })
    .await;
    assert_eq!(told, "recorded");
}

/// The example of the page for consumers.
fn example() -> &'static str {
    let (_, rest) = PAGE.split_once("<!-- example: receipts -->\n```sh\n").expect("the page has the example");
    rest.split("```").next().unwrap_or_default()
}

#[tokio::test]
async fn the_example_of_the_page_is_recorded_and_stale_when_it_is_run_again() {
    let names = PAGE.split("<!-- example: ").skip(1).filter_map(|rest| rest.split(" -->").next());
    // `consumers.rs` runs the others.
    let tested = ["python consumer", "typescript consumer", "rust consumer", "receipts"];
    assert_eq!(names.collect::<Vec<_>>(), tested, "another example needs a test");
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let ids = published(&world, &service).await;
    for expected in ["recorded", "stale"] {
        let output = tokio::process::Command::new("sh")
            .args(["-c", example()])
            .env("API_URL", format!("http://{}", service.api_addr()))
            .env("TOKEN", MAIL_TOKEN)
            .env("DELIVERY_ID", &ids[0])
            // Bypasses a proxy of the machine.
            .env("no_proxy", "127.0.0.1")
            .env("NO_PROXY", "127.0.0.1")
            .output();
        let output = output.await.expect("there is a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer, json!({"results": [{"id": ids[0], "outcome": expected}]}));
    }
    assert_eq!(route(&service, OPERATOR, &ids[0]).await["receipt"]["status"], "bounced");
}
