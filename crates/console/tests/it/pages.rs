//! Tests of the content of pages.

use axum::http::StatusCode;

use crate::operations::with_dead_letters;
use crate::rows::{accepted, draft, malformed};
use crate::support::*;

/// A text that a producer may write to harm a reader.
pub(crate) const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";

#[tokio::test]
async fn the_state_of_the_list_is_in_its_address_and_pages_follow_each_other() {
    let world = World::new().await;
    for number in 1..=5 {
        accepted(&world.store, number, draft("u-1", &format!("key-{number}")), start()).await;
    }
    let mut browser = world.signed_in().await;
    let mut path =
        "/console/notifications?limit=2&producer=game_master&accepted_after=2026-04-01T00:00".to_owned();
    let mut seen = Vec::new();
    for expected in [2, 2, 1] {
        let page = browser.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        assert!(
            page.body.contains("value=\"game_master\"")
                && page.body.contains("value=\"2026-04-01T00:00:00\"")
        );
        let ids = page.body.split("href=\"/console/notifications/").skip(1);
        let ids: Vec<String> =
            ids.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(ids.len(), expected);
        seen.extend(ids);
        let next =
            page.body.split_once("\" rel=\"next\"").and_then(|(before, _)| before.rsplit_once("href=\""));
        path = next.map(|(_, path)| path.replace("&amp;", "&")).unwrap_or_default();
    }
    assert_eq!(seen, ["5-0", "4-0", "3-0", "2-0", "1-0"]);
    assert_eq!(path, "");
}

#[tokio::test]
async fn a_search_that_is_wrong_says_where_and_keeps_what_was_typed() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let page = browser.get("/console/notifications?filter=%7B%22producer%22").await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    for expected in ["The filter is wrong", "line 1", "{&quot;producer&quot;", "aria-invalid=\"true\""] {
        assert!(page.body.contains(expected), "{expected}: {}", page.body);
    }
}

#[tokio::test]
async fn what_a_producer_writes_is_text_on_every_page() {
    let world = World::new().await;
    let mut hostile = draft(HOSTILE, HOSTILE);
    hostile.payload_json =
        serde_json::json!({"game_id": HOSTILE, "game_name": "a\u{202e}b", "turn_number": 1}).to_string();
    hostile.request_id = Some(HOSTILE.to_owned());
    hostile.trace_id = Some(HOSTILE.to_owned());
    for route in accepted(&world.store, 1, hostile.clone(), start()).await {
        assert!(route.recipient_ref.contains(HOSTILE));
    }
    let fields: [(&[u8], &[u8]); 4] = [
        (b"producer", HOSTILE.as_bytes()),
        (b"notification_type", HOSTILE.as_bytes()),
        (HOSTILE.as_bytes(), HOSTILE.as_bytes()),
        (b"\xff", b"\xfe<script>"),
    ];
    malformed(&world.store, 2, &fields, start()).await;
    malformed(&world.store, 3, &fields[..3], start()).await;
    let mut browser = world.signed_in().await;
    for path in [
        "/console/notifications",
        "/console/notifications/1-0",
        "/console/malformed",
        "/console/malformed/2-0",
        "/console/malformed/3-0",
        "/console/notifications?producer=%3Cscript%3Ealert(1)%3C/script%3E",
        "/console/notifications/%3Cscript%3E",
        "/console/catalogue/%3Cscript%3E",
    ] {
        let page = browser.get(path).await;
        assert!(!page.body.contains("<script>alert") && !page.body.contains("<img"), "{path}: {}", page.body);
        assert!(!page.body.contains('\u{202e}'), "{path} runs backwards");
    }
    let page = browser.get("/console/notifications/1-0").await;
    assert!(page.body.contains("&lt;script&gt;") && page.body.contains("U+202E"), "{}", page.body);
    let page = browser.get("/console/malformed/2-0").await;
    assert!(page.body.contains("not UTF-8") && page.body.contains("breaks the rule"), "{}", page.body);
}

#[tokio::test]
async fn a_notification_shows_what_became_of_each_route_and_leads_to_its_dead_letters() {
    let (_world, mut browser) = with_dead_letters(1).await;
    let page = browser.get("/console/notifications/1-0").await;
    for expected in [
        "user:u-1",
        "WRONGTYPE",
        "The service gave up at",
        "Dead letter",
        "3 of 3",
        "&quot;turn_number&quot;: 54",
        "Replay…",
    ] {
        assert!(page.body.contains(expected), "{expected}: {}", page.body);
    }
    let push = browser.get("/console/notifications/1-0?status=published").await;
    assert!(!push.body.contains("user:u-1</h3>"));
    assert_eq!(browser.get("/console/notifications/9-0").await.status, StatusCode::NOT_FOUND);
    assert_eq!(browser.get("/console/notifications/%FF").await.status, StatusCode::NOT_FOUND);
    assert_eq!(browser.get("/console/notifications/a%00").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn malformed_intents_are_counted_by_code_and_producer() {
    let world = World::new().await;
    for number in 1..=3 {
        malformed(&world.store, number, &[(b"producer", b"game_master"), (b"colour", b"red")], start()).await;
    }
    let mut browser = world.signed_in().await;
    let page = browser.get("/console/malformed").await;
    for expected in ["unknown_field", "?code=unknown_field&amp;producer=game_master", ">3<"] {
        assert!(page.body.contains(expected), "{expected}: {}", page.body);
    }
    let page = browser.get("/console/malformed?code=missing_field").await;
    assert!(page.body.contains("No malformed intent matches"), "{}", page.body);
    assert_eq!(browser.get("/console/malformed/7-0").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_catalogue_has_a_page_for_each_type_with_examples_for_its_audiences() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let list = browser.get("/console/catalogue").await;
    let names: Vec<&str> = list
        .body
        .split("href=\"/console/catalogue/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(names.len(), 18);
    for name in names {
        let page = browser.get(&format!("/console/catalogue/{name}")).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.body.contains("curl --fail-with-body") && page.body.contains("redis-cli"), "{name}");
    }
    let both = browser.get("/console/catalogue/lobby.application.submitted").await;
    assert!(both.body.contains("An intent for users") && both.body.contains("An intent for administrators"));
    assert_eq!(browser.get("/console/catalogue/none").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn every_page_refuses_a_parameter_that_it_does_not_have_and_shows_what_it_hides() {
    let (_world, mut browser) = with_dead_letters(1).await;
    for path in [
        "/console/",
        "/console/notifications",
        "/console/notifications/1-0",
        "/console/dead-letters",
        "/console/malformed",
        "/console/malformed/1-0",
        "/console/catalogue",
        "/console/runbook",
        "/console/catalogue/lobby.application.submitted",
        "/console/sign-in",
    ] {
        let page = browser.get(&format!("{path}?col%E2%80%AEour=red")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(
            page.body.contains("col<span class=\"hidden-char\">U+202E</span>our"),
            "{path}: {}",
            page.body
        );
    }
}

#[tokio::test]
async fn a_filter_keeps_the_size_of_the_page_that_its_address_had() {
    let (_world, mut browser) = with_dead_letters(1).await;
    for path in ["/console/notifications", "/console/dead-letters", "/console/malformed"] {
        let page = browser.get(&format!("{path}?limit=7")).await;
        assert!(page.body.contains("<option value=\"7\" selected>"), "{path}: {}", page.body);
    }
}
