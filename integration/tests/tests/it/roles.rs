//! Viewers: every route of the API and every page of the console is tried with the token of one, over data
//! with recognisable addresses and payloads. None of them appears, and nothing is changed.

use std::collections::BTreeSet;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::intent::{IntentDraft, Recipients};
use harness::{HttpResponse, Service, request, turn_ready, wait_for};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::*;
use crate::console::{Browser, form_token};
use crate::world::*;

const VIEWER: &str = "viewer-token";
const AUDITOR: &str = "auditor-token";
/// Parts of the addresses and payloads of the tests.
const SECRETS: [&str; 4] = ["secretuser", "secretadmin", "secretpayload", "secretdetail"];
const ADMIN: &str = "secretadmin@example.com";

/// The tokens of the tests, and those of a viewer and of one who sees personal data.
fn with_viewers(world: &World) -> TokensFile {
    let tokens = TokensFile::new(world);
    let mut text = TOKENS.to_owned();
    for (token, see) in [(VIEWER, ""), (AUDITOR, "see = [\"personal\"]\n")] {
        let hash = hex::encode(Sha256::digest(token));
        write!(text, "[[token]]\nname = \"{token}\"\nsha256 = \"{hash}\"\nrole = \"viewer\"\n{see}")
            .expect("memory takes it");
    }
    std::fs::write(&tokens.0, text).expect("it is there");
    tokens
}

/// A service with dead letters of a user and of an administrator, a receipt, malformed intents, a hold, and
/// actions that name a route by its address.
async fn prepared(world: &World, tokens: &TokensFile) -> Service {
    world.directory.set_user("u-1", "secretuser@example.com", "en");
    let mut redis = world.redis().await;
    for stream in [PUSH, MAIL] {
        redis::cmd("SET").arg(stream).arg("x").query_async::<()>(&mut redis).await.expect("Redis is there");
    }
    let service = with_api(world.service(), tokens)
        .env("NOTIFICATION_CONSOLE", "on")
        .env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1")
        .env("NOTIFICATION_EMAIL_MAX_ATTEMPTS", "1")
        .env("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED", ADMIN)
        .start()
        .await;
    let payload = json!({"game_id": "game-1", "game_name": "secretpayload", "turn_number": 1}).to_string();
    let to_user = IntentDraft { payload_json: payload, ..turn_ready(["u-1"], "k-1", 1) };
    let review = json!({
        "user_id": "u-1", "user_email": "secretuser@example.com", "observed_country": "secretpayload",
        "usual_connection_country": "DE", "review_reason": "secretpayload",
    });
    let to_admins = IntentDraft {
        notification_type: "geo.review_recommended".to_owned(),
        producer: "geoprofile".to_owned(),
        recipients: Recipients::Administrators,
        payload_json: review.to_string(),
        ..to_user.clone()
    };
    for draft in [to_user, to_admins] {
        world.add_draft(draft).await;
    }
    for fields in [
        &[(&b"unknown"[..], &b"secretpayload"[..]), (b"payload_json", b"secretuser@example.com")][..],
        &[(b"secretuser@example.com", b"secretpayload"), (b"producer", b"game_master")],
    ] {
        world.add(fields).await;
    }
    wait_for("there are dead letters and malformed intents", BOUND, async || {
        let letters = world.number("SELECT count(*) FROM dead_letters").await;
        (letters == 3 && world.number("SELECT count(*) FROM malformed_intents").await == 2).then_some(())
    })
    .await;
    let ids = world.column("SELECT notification_id || '/' || route_id FROM dead_letters ORDER BY 1").await;
    for (path, body) in [
        ("/v1/dead-letters:discard", json!({"ids": ids, "reason": format!("asked by {ADMIN}")})),
        ("/v1/dead-letters:replay", json!({"ids": ids})),
        ("/v1/holds:hold", json!({"scope": "type", "name": "game.started", "reason": "tests"})),
        (
            "/v1/receipts",
            json!({"receipts": [{"id": ids[0], "status": "bounced", "at": "2026-04-02T09:21:40Z",
                "detail": "550 secretdetail secretuser@example.com"}]}),
        ),
    ] {
        let answer = ask(&service, OPERATOR, "POST", path, Some(path), &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    wait_for("the replayed routes are dead letters again", BOUND, async || {
        (world.number("SELECT count(*) FROM dead_letters").await == 3).then_some(())
    })
    .await;
    service
}

/// The secrets in a response, and in the cursors of its pages.
fn secrets_in(body: &str) -> Vec<String> {
    let decoded = body.split(['"', '&', '=', ' ']).filter(|part| part.len() > 20).map(|part| {
        let bytes = URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let texts: Vec<String> = decoded.chain([body.to_owned()]).collect();
    let mut found = SECRETS.to_vec();
    found.retain(|secret| texts.iter().any(|text| text.contains(secret)));
    found.into_iter().map(str::to_owned).collect()
}

/// The paths of an operation of the document with ids that exist.
async fn paths_of(world: &World, path: &str) -> Vec<String> {
    let (name, sql) = match path {
        path if path.contains("{notification_id}") => {
            ("{notification_id}", "SELECT notification_id FROM records")
        }
        path if path.contains("{stream_entry_id}") => {
            ("{stream_entry_id}", "SELECT stream_entry_id FROM malformed_intents")
        }
        path if path.contains("{idempotency_key}") => {
            ("{idempotency_key}", "SELECT DISTINCT idempotency_key || '?producer=' || producer FROM records")
        }
        path if path.ends_with("/find") => (
            "/find",
            "SELECT '/find?id=' || notification_id FROM records
             UNION ALL SELECT '/find?id=' || stream_entry_id FROM malformed_intents",
        ),
        path => return vec![path.to_owned()],
    };
    world.column(sql).await.iter().map(|id| path.replace(name, id)).collect()
}

async fn document(service: &Service) -> Value {
    request(&service.api_addr(), "GET", "/openapi.json", &[], "").await.expect("the API answers").json()
}

/// All operations of the document: method, path, and whether a viewer may use it.
fn operations(document: &Value) -> Vec<(String, String, bool)> {
    let paths = document["paths"].as_object().expect("paths");
    let items = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| {
            let security = operation["security"].as_array().expect("it says who may");
            let is_open = security.is_empty() || security.iter().any(|one| one["token"] == json!(["viewer"]));
            (method.to_ascii_uppercase(), path.clone(), is_open)
        })
    });
    items.collect()
}

#[tokio::test]
async fn a_viewer_reads_everything_by_the_api_without_personal_data_and_changes_nothing() {
    let world = World::new().await;
    let tokens = with_viewers(&world);
    let service = prepared(&world, &tokens).await;
    let before = world.column("SELECT id::text FROM operator_actions ORDER BY id").await;
    let mut shown = BTreeSet::new();
    for (method, path, is_open) in operations(&document(&service).await) {
        assert!(is_open || method != "GET", "{path} is read by a viewer");
        for path in paths_of(&world, &path).await {
            let body = if method == "POST" { "{}" } else { "" };
            let is_list =
                method == "GET" && ["s", "intents", "actions"].iter().any(|end| path.ends_with(end));
            let is_paged = is_list && !path.ends_with("status") && !path.ends_with("holds");
            let query = if is_paged { "?limit=1" } else { "" };
            let mut next = Some(format!("{path}{query}"));
            while let Some(target) = next.take() {
                let key = Some("k").filter(|_| method == "POST");
                let answer = ask(&service, VIEWER, &method, &target, key, body).await;
                if !is_open {
                    is(&answer, 403, "forbidden", "");
                    assert!(answer.json()["detail"].as_str().is_some_and(|text| text.contains("token")));
                    continue;
                }
                assert_eq!(answer.status, 200, "{target}: {}", answer.body);
                assert_eq!(secrets_in(&answer.body), [""; 0], "{target}: {}", answer.body);
                let whole = ask(&service, AUDITOR, &method, &target, None, body).await;
                if is_paged && target.contains("cursor") {
                    assert_eq!(whole.status, 200, "{target}");
                }
                shown.extend(secrets_in(&whole.body));
                let cursor = answer.json()["next_cursor"].as_str().map(str::to_owned);
                next = cursor.filter(|_| is_paged).map(|cursor| format!("{path}?limit=1&cursor={cursor}"));
            }
        }
    }
    assert_eq!(Vec::from_iter(shown), ["secretadmin", "secretdetail", "secretpayload", "secretuser"]);
    assert_eq!(world.column("SELECT id::text FROM operator_actions ORDER BY id").await, before);
    let dry = json!({"filter": {}, "dry_run": true}).to_string();
    is(&ask(&service, VIEWER, "POST", "/v1/dead-letters:replay", None, &dry).await, 403, "forbidden", "");
}

#[tokio::test]
async fn pages_of_a_viewer_list_every_dead_letter_once_and_its_cursors_cannot_be_made() {
    let world = World::new().await;
    let tokens = with_viewers(&world);
    let service = prepared(&world, &tokens).await;
    let page = async |token: &str, cursor: &str| {
        read(&service, token, &format!("/v1/dead-letters?limit=1{cursor}")).await
    };
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let found = page(VIEWER, &cursor).await.json();
        let letters = found["dead_letters"].as_array().expect("a list").iter();
        seen.extend(letters.map(|letter| letter["id"].as_str().expect("an id").to_owned()));
        let Some(next) = found["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    seen.sort();
    let ids = "SELECT notification_id || '/' || regexp_replace(route_id, 'secretadmin.*', '****')
        FROM dead_letters";
    let mut expected = world.column(ids).await;
    expected.sort();
    assert_eq!(seen, expected);
    let made = page(OPERATOR, "").await.json()["next_cursor"].as_str().expect("a next page").to_owned();
    is(&page(VIEWER, &format!("&cursor={made}")).await, 400, "bad-request", "");
}

#[tokio::test]
async fn a_search_by_an_address_or_a_payload_takes_a_token_that_sees_them() {
    let world = World::new().await;
    let tokens = with_viewers(&world);
    let service = prepared(&world, &tokens).await;
    let found = |answer: &HttpResponse| answer.json()["notifications"].as_array().map(Vec::len);
    for (path, counted) in [("?recipient=u-1", 1), ("?recipient=secretadmin", 0), ("?idempotency_key=k-1", 2)]
    {
        let answer = read(&service, VIEWER, &format!("/v1/notifications{path}")).await;
        assert_eq!(found(&answer), Some(counted), "{path}: {}", answer.body);
    }
    let by_address = format!("/v1/notifications?recipient={}", ADMIN.replace('@', "%40"));
    is(&read(&service, VIEWER, &by_address).await, 403, "forbidden", "");
    assert_eq!(found(&read(&service, AUDITOR, &by_address).await), Some(1));
    for (filter, is_personal) in [
        (json!({"payload.game_name": {"$exists": true}}), true),
        (json!({"$not": {"recipient": ADMIN}}), true),
        (json!({"route.status": "dead_letter"}), false),
    ] {
        let body = json!({ "filter": filter }).to_string();
        let answer = ask(&service, VIEWER, "POST", "/v1/notifications:query", None, &body).await;
        assert_eq!(answer.status, if is_personal { 403 } else { 200 }, "{filter}: {}", answer.body);
        let answer = ask(&service, AUDITOR, "POST", "/v1/notifications:query", None, &body).await;
        assert_eq!(answer.status, 200, "{filter}: {}", answer.body);
    }
}

/// The values of an attribute in a page.
fn attributes(page: &str, name: &str) -> Vec<String> {
    let start = format!(" {name}=\"");
    let values = page.split(&start).skip(1);
    values.filter_map(|rest| rest.split('"').next()).map(|value| value.replace("&amp;", "&")).collect()
}

/// Every page that links lead to from the overview, as far as they are pages of the console.
async fn crawl(browser: &mut Browser, addr: &str) -> Vec<(String, HttpResponse)> {
    let mut known = BTreeSet::from(["/console/".to_owned(), "/console/dead-letters?limit=1".to_owned()]);
    let mut open: Vec<String> = known.iter().cloned().collect();
    let mut pages = Vec::new();
    while let Some(path) = open.pop() {
        let page = browser.get(addr, &path).await;
        for link in attributes(&page.body, "href") {
            let is_page = link.starts_with("/console/") && !link.starts_with("/console/assets");
            if is_page && !link.contains('#') && known.insert(link.clone()) {
                open.push(link);
            }
        }
        pages.push((path, page));
    }
    pages
}

async fn signed_in(service: &Service, token: &str) -> Browser {
    let mut browser = Browser::default();
    let answer = browser.sign_in(&service.api_addr(), token).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    browser
}

#[tokio::test]
async fn a_viewer_sees_every_page_of_the_console_without_personal_data_and_without_a_form_to_change() {
    let world = World::new().await;
    let tokens = with_viewers(&world);
    let service = prepared(&world, &tokens).await;
    let addr = service.api_addr();
    let (mut viewer, mut operator) = (signed_in(&service, VIEWER).await, signed_in(&service, OPERATOR).await);
    let pages = crawl(&mut viewer, &addr).await;
    let paths: BTreeSet<&str> =
        pages.iter().map(|(path, _)| path.split('?').next().expect("a path")).collect();
    for path in ["dead-letters", "malformed", "holds", "actions", "notifications", "catalogue"] {
        assert!(paths.contains(&*format!("/console/{path}")), "{paths:?}");
    }
    assert!(
        paths.iter().filter(|path| path.starts_with("/console/notifications/")).count() == 2,
        "{paths:?}"
    );
    assert!(paths.iter().filter(|path| path.starts_with("/console/malformed/")).count() == 2, "{paths:?}");
    for (path, page) in &pages {
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert_eq!(secrets_in(&page.body), [""; 0], "{path}: {}", page.body);
        let forms = page.body.split("<form").skip(1).filter(|form| form.contains("method=\"post\""));
        let actions: Vec<String> = forms.flat_map(|form| attributes(form, "action")).take(2).collect();
        assert!(actions.iter().all(|action| action == "/console/sign-out"), "{path}: {actions:?}");
        assert!(!page.body.contains("checkbox"), "{path}");
    }
    let of_operator = crawl(&mut operator, &addr).await;
    let shown: BTreeSet<String> = of_operator.iter().flat_map(|(_, page)| secrets_in(&page.body)).collect();
    assert_eq!(shown.len(), SECRETS.len(), "{shown:?}");
    let mut posts: BTreeSet<String> =
        of_operator.iter().flat_map(|(_, page)| attributes(&page.body, "action")).collect();
    posts.retain(|path| path != "/console/sign-out");
    posts.extend(["/console/dead-letters/change", "/console/holds/change"].map(str::to_owned));
    assert!(posts.len() >= 4, "{posts:?}");
    let token = form_token(&pages[0].1);
    let before = world.number("SELECT count(*) FROM operator_actions").await;
    for path in posts {
        let answer = viewer.post(&addr, &path, &[("form_token", &token), ("change", "release")]).await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.body.contains("operator&#39;s token") || answer.body.contains("operator's token"));
    }
    assert_eq!(viewer.get(&addr, "/console/dead-letters/result?x=1&proof=1").await.status, 403);
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, before);
    let by_address = format!("/console/notifications?recipient={}", ADMIN.replace('@', "%40"));
    for path in [&*by_address, "/console/notifications?filter=%7B%22payload.x%22%3A1%7D"] {
        let page = viewer.get(&addr, path).await;
        assert_eq!((page.status, secrets_in(&page.body)), (403, Vec::new()), "{path}: {}", page.body);
    }
    let signed_out = viewer.post(&addr, "/console/sign-out", &[("form_token", &token)]).await;
    assert_eq!(signed_out.status, 303, "a viewer may sign out");
}

#[tokio::test]
async fn a_session_has_the_rights_that_its_token_has_now_and_ends_with_its_role() {
    let world = World::new().await;
    let tokens = with_viewers(&world);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_CONSOLE", "on").start().await;
    let addr = service.api_addr();
    let mut browser = signed_in(&service, OPERATOR).await;
    assert!(browser.get(&addr, "/console/holds").await.body.contains("Hold something"));
    for (role, expected) in [("role = \"viewer\"", 200), ("producer = \"game_master\"", 303)] {
        let text = TOKENS.replace("role = \"operator\"", role);
        std::fs::write(&tokens.0, text).expect("the file can be written");
        wait_for("the session has the rights of the file", BOUND, async || {
            let page = browser.get(&addr, "/console/holds").await;
            (page.status == expected && !page.body.contains("Hold something")).then_some(())
        })
        .await;
    }
}
