//! The API responds as its OpenAPI document describes: requests are drawn from the document, valid and broken
//! in one place, and every response is compared with it.

mod answers;
mod broken;
mod requests;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write;

use domain::catalog::Catalog;
use harness::{HttpResponse, Proxy, Service, request, wait_for};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::*;
use crate::schemas::read_json;
use crate::world::*;
use answers::Documented;
use requests::{Ask, Expected, Known, Operation, operations};

/// The number of valid requests that are drawn for each operation.
const VALID_REQUESTS: usize = 12;
/// The seed: the requests are the same in every run. Another number gives others.
const SEED: u64 = 20_261_122;

/// The maximum number of failures that are shown.
const MAX_SHOWN: usize = 30;

const OPERATOR_TOKEN: &str = "the-operator";
const VIEWER_TOKEN: &str = "the-viewer";

/// A tokens file with a token for each producer of the catalogue, and one each of a viewer and an operator;
/// returns those of the producers.
fn write_tokens(tokens: &TokensFile) -> BTreeMap<String, String> {
    let catalog = Catalog::built_in();
    let names = catalog.types().flat_map(|known| known.producers().to_vec());
    let producers: BTreeMap<String, String> =
        names.map(|name| (name.clone(), format!("{name}-token"))).collect();
    let mut text = String::new();
    let mut entry = |name: &str, token: &str, grant: &str| {
        let hash = hex::encode(Sha256::digest(token));
        write!(text, "[[token]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n{grant}\n")
            .expect("memory takes it");
    };
    for (name, token) in &producers {
        entry(name, token, &format!("producer = \"{name}\""));
    }
    entry("operator", OPERATOR_TOKEN, "role = \"operator\"");
    entry("viewer", VIEWER_TOKEN, "role = \"viewer\"");
    std::fs::write(&tokens.0, text).expect("it is there");
    producers
}

async fn answer_to(addr: &str, ask: &Ask) -> HttpResponse {
    let headers: Vec<(&str, &str)> =
        ask.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = request(addr, &ask.method, &ask.target(), &headers, &ask.body).await;
    answer.unwrap_or_else(|error| panic!("no answer to {ask:?}: {error}"))
}

/// The errors in the response to a request for this operation.
fn errors(
    documented: &Documented,
    document: &Value,
    operation: &Operation<'_>,
    ask: &Ask,
    answer: &HttpResponse,
) -> Vec<String> {
    let components = &document["components"]["responses"];
    let (response, is_expected) = match &ask.expected {
        Expected::NoOperation(404) => (&components["NotFound"], answer.status == 404),
        Expected::NoOperation(_) => (&components["MethodNotAllowed"], answer.status == 405),
        Expected::Status(expected) => (operation.response(answer.status), expected.contains(&answer.status)),
        Expected::RefusedElement => {
            let results = answer.json()["results"].as_array().cloned().unwrap_or_default();
            let is_refused =
                results.iter().any(|result| result["status"] == 422 || result["outcome"] == "invalid");
            (operation.response(answer.status), answer.status == 200 && is_refused)
        }
    };
    let mut found = documented.errors(response, &ask.method, answer);
    if !is_expected {
        found.push(format!("{:?} was expected", ask.expected));
    }
    let ids: Vec<&str> = ask.header_values("X-Request-Id").collect();
    let is_valid = |id: &str| (1..=255).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    if let [id] = ids[..]
        && is_valid(id) != (answer.header("x-request-id") == Some(id))
    {
        found.push("X-Request-Id is echoed if and only if it is valid".to_owned());
    }
    if answer.status >= 400 && ask.method != "HEAD" && answer.json()["instance"] != json!(ask.path) {
        found.push("instance is not the path of the request".to_owned());
    }
    found
}

/// Sends a request, and describes the request and the response if there is an error.
async fn check(
    addr: &str,
    documented: &Documented,
    document: &Value,
    operation: &Operation<'_>,
    ask: &Ask,
) -> (HttpResponse, Option<String>) {
    let answer = answer_to(addr, ask).await;
    let found = errors(documented, document, operation, ask, &answer);
    let wrong = (!found.is_empty()).then(|| {
        let body = String::from_utf8_lossy(&ask.body[..ask.body.len().min(2_000)]);
        format!(
            "{} {} with {} broken: {found:#?}\nheaders: {:?}\nbody: {body}\nanswer: {} {:?}\n{}",
            ask.method,
            ask.target(),
            ask.what,
            ask.headers,
            answer.status,
            answer.headers,
            answer.body,
        )
    });
    (answer, wrong)
}

/// Repeats a request, and sends another one with the same key.
async fn repeated(
    addr: &str,
    documented: &Documented,
    document: &Value,
    operation: &Operation<'_>,
    ask: &Ask,
    first: &HttpResponse,
) -> Vec<String> {
    let is_plan = ask.body_json()["dry_run"] == true;
    let (again, wrong) = check(addr, documented, document, operation, ask).await;
    let mut failures = Vec::from_iter(wrong);
    let is_replayed = again.header("idempotency-replayed") == Some("true") && again.body == first.body;
    if is_replayed == is_plan {
        failures.push(format!("{} {} with a key was repeated: {again:?}", ask.method, ask.path));
    }
    if !is_plan {
        failures.extend(check(addr, documented, document, operation, &ask.with_other_content()).await.1);
    }
    failures
}

/// Creates a notification, dead letters of both states, and malformed intents. The gateway's key is not a
/// stream, so that push routes become dead letters repeatedly.
async fn prepare(world: &World, service: &Service, producer: &str) -> BTreeMap<String, Vec<String>> {
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for n in 0..5 {
        let key = format!("prepared-{n}");
        let answer = ask(service, producer, "POST", "/v1/intents", Some(&key), &body(n).to_string()).await;
        let id = answer.json()["notification_id"].as_str().expect("an id").to_owned();
        ids.entry("notification_id".to_owned()).or_default().push(id);
        ids.entry("idempotency_key".to_owned()).or_default().push(key);
    }
    let entries: [&[(&[u8], &[u8])]; 3] =
        [&[(b"colour", b"red")], &[(b"producer", b"\xff\0"), (b"", b"")], &[(b"long", &[b'x'; 300_000])]];
    for fields in entries {
        ids.entry("stream_entry_id".to_owned()).or_default().push(world.add(fields).await);
    }
    wait_for("there are dead letters and malformed intents", BOUND, async || {
        let letters = world.number("SELECT count(*) FROM dead_letters").await;
        let malformed = world.number("SELECT count(*) FROM malformed_intents").await;
        (letters == 10 && malformed == 3).then_some(())
    })
    .await;
    let letters = ask(service, OPERATOR_TOKEN, "GET", "/v1/dead-letters?limit=1", None, "").await.json();
    let discard = json!({"ids": [letters["dead_letters"][0]["id"]], "reason": "obsolete"}).to_string();
    let answer = ask(service, OPERATOR_TOKEN, "POST", "/v1/dead-letters:discard", Some("d"), &discard).await;
    assert_eq!(answer.json()["discarded"], 1, "{}", answer.body);
    ids
}

#[tokio::test]
async fn every_answer_to_a_request_of_the_document_valid_or_broken_in_one_place_is_documented() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let producers = write_tokens(&tokens);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    let addr = service.api_addr();
    let document = request(&addr, "GET", "/openapi.json", &[], "").await.expect("the API answers").json();
    assert_eq!(document, read_json("docs/openapi.json"), "the served document is that of docs");
    let documented = Documented::new(&document);
    let known = Known {
        ids: prepare(&world, &service, &producers["game_master"]).await,
        producers,
        operator: OPERATOR_TOKEN.to_owned(),
        viewer: VIEWER_TOKEN.to_owned(),
        catalog: Catalog::built_in(),
    };
    let mut random = StdRng::seed_from_u64(SEED);
    let mut failures: Vec<String> = Vec::new();
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for operation in operations(&document) {
        let valid = (0..VALID_REQUESTS).map(|_| operation.valid(&known, &mut random)).collect::<Vec<_>>();
        for ask in valid.into_iter().chain(operation.broken(&known, &mut random)) {
            let (answer, wrong) = check(&addr, &documented, &document, &operation, &ask).await;
            failures.extend(wrong);
            *statuses.entry(answer.status).or_default() += 1;
            let has_key = ask.header_values("Idempotency-Key").next().is_some();
            if answer.status < 300 && has_key {
                failures.extend(repeated(&addr, &documented, &document, &operation, &ask, &answer).await);
            }
            if let Some(cursor) = answer.json()["next_cursor"].as_str() {
                let next = operation.with_cursor(&ask, cursor);
                failures.extend(check(&addr, &documented, &document, &operation, &next).await.1);
            }
        }
    }
    let shown = failures.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} answers are not as documented:\n{shown}", failures.len());
    for status in [200, 202, 400, 401, 403, 404, 405, 413, 415, 422] {
        assert!(statuses.contains_key(&status), "{status} was not met: {statuses:?}");
    }
    world.check_tables().await;
}

#[tokio::test]
async fn refusals_that_need_a_fault_are_documented() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let producers = write_tokens(&tokens);
    let postgres = Proxy::start(world.database.port()).await;
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens)
        .env("NOTIFICATION_API_REQUEST_TIMEOUT", "2s")
        .start()
        .await;
    let limited = with_api(world.service(), &tokens).env("NOTIFICATION_API_RATE_LIMIT", "1").start().await;
    let document = read_json("docs/openapi.json");
    let documented = Documented::new(&document);
    let token = &producers["game_master"];
    let is_documented = |method: &str, path: &str, status: u16, answer: &HttpResponse| {
        assert_eq!(answer.status, status, "{answer:?}");
        let response = &document["paths"][path][method]["responses"][status.to_string()];
        assert_eq!(documented.errors(response, method, answer), [""; 0], "{answer:?}");
    };

    let too_many = wait_for("the rate limit is exceeded", BOUND, async || {
        let answer = read(&limited, token, "/v1/notifications").await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    is_documented("get", "/v1/notifications", 429, &too_many);

    let held = postgres.hold_request(b"Nova");
    let (addr, intent) = (service.api_addr(), body(54).to_string());
    let asking = try_ask(&addr, token, "POST", "/v1/intents", Some("k-1"), &intent);
    let meanwhile = async {
        held.reached(BOUND).await;
        ask(&service, token, "POST", "/v1/intents", Some("k-1"), &intent).await
    };
    let (unanswered, in_progress) = tokio::join!(asking, meanwhile);
    is_documented("post", "/v1/intents", 409, &in_progress);
    is_documented("post", "/v1/intents", 503, &unanswered.expect("the API answers"));

    postgres.cut();
    let unavailable = ask(&service, token, "GET", "/v1/notifications", None, "").await;
    is_documented("get", "/v1/notifications", 503, &unavailable);
    let unavailable = ask(&service, OPERATOR_TOKEN, "GET", "/v1/status", None, "").await;
    is_documented("get", "/v1/status", 503, &unavailable);

    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &*bearer),
        ("Idempotency-Key", "k-2"),
        ("Content-Type", "application/json"),
        ("Content-Length", "9"),
    ];
    let incomplete = request(&addr, "POST", "/v1/intents", &headers, "").await.expect("the API answers");
    is_documented("post", "/v1/intents", 408, &incomplete);
}

// A regression: a parameter was ignored on operations that have none.
#[tokio::test]
async fn a_replay_whose_dry_run_is_in_the_query_string_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let producers = write_tokens(&tokens);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    prepare(&world, &service, &producers["game_master"]).await;
    let all = json!({"filter": {}}).to_string();
    let path = "/v1/dead-letters:replay?dry_run=true";
    is(&ask(&service, OPERATOR_TOKEN, "POST", path, Some("r"), &all).await, 400, "bad-request", "");
    let intent = body(54).to_string();
    for (token, method, path, text) in [
        (&*producers["game_master"], "POST", "/v1/intents?colour=red", &*intent),
        (OPERATOR_TOKEN, "GET", "/v1/notifications/none?colour=red", ""),
        (OPERATOR_TOKEN, "GET", "/openapi.json?colour=red", ""),
    ] {
        is(&ask(&service, token, method, path, Some("k"), text).await, 400, "bad-request", "");
    }
    assert_eq!(world.number("SELECT count(*) FROM dead_letters").await, 10);
    assert_eq!(world.number("SELECT count(*) FROM records").await, 5);
}

// A regression: the member was called occurred_at.
#[tokio::test]
async fn the_members_that_differ_are_called_as_in_the_request() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    let mut later = body(54);
    later["occurred_at_ms"] = json!(1_775_121_700_001_i64);
    assert_eq!(send(&service, "k-1", &later).await.json()["differs"], json!(["occurred_at_ms"]));
}
