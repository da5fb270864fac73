//! Tests of the headers of every response, and of the content of pages.

use axum::http::StatusCode;

use crate::support::*;

const EXPECTED: [(&str, &str); 9] = [
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("x-permitted-cross-domain-policies", "none"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-embedder-policy", "require-corp"),
    ("cache-control", "no-store"),
];

fn check(answer: &Answer, of: &str) {
    for (name, expected) in EXPECTED {
        assert_eq!(answer.header(name), expected, "{of}: {name}");
    }
    assert!(answer.header("permissions-policy").contains("camera=()"), "{of}");
    assert_eq!(answer.header("server"), "", "{of}");
}

#[tokio::test]
async fn every_answer_has_the_headers_against_scripts_framing_and_caches() {
    let world = World::new().await;
    let mut browser = world.browser();
    for path in ["/console/sign-in", "/console/", "/console/sign-in?colour=red", "/console/assets/none.css"] {
        check(&browser.get(path).await, path);
    }
    check(&browser.sign_in("wrong").await, "a failed sign-in");
    check(&browser.sign_in(OPERATOR).await, "a sign-in");
    for path in
        ["/console/", "/console/none", "/console/?colour=red", "/console/sign-out", "/console/sign-in"]
    {
        check(&browser.get(path).await, path);
    }
    check(&browser.post("/console/sign-out", &[]).await, "a forged form");
    check(&browser.send("PUT", "/console/sign-in", None).await, "another method");
}

#[tokio::test]
async fn an_asset_is_kept_for_ever_under_the_name_of_its_content() {
    let world = World::new().await;
    let page = world.browser().get("/console/sign-in").await.body;
    let paths: Vec<&str> = page.split('"').filter(|text| text.starts_with("/console/assets/")).collect();
    assert_eq!(paths.len(), 3, "{page}");
    for (path, media_type) in paths.into_iter().zip(["text/css", "image/svg+xml", "text/javascript"]) {
        let answer = world.browser().get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert!(answer.header("content-type").starts_with(media_type), "{path}");
        assert_eq!(answer.header("cache-control"), "public, max-age=31536000, immutable");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    let none = world.browser().get("/console/assets/0000000000000000000.css").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn with_https_the_browser_is_told_to_use_nothing_else() {
    let world = World::new().await;
    let console = world.console_with("", "10.0.0.1");
    let mut https = Browser::of(console.clone()).at("10.0.0.1").with("x-forwarded-proto", "https");
    let answer = https.get("/console/sign-in").await;
    assert_eq!(answer.header("strict-transport-security"), "max-age=31536000");
    let mut http = Browser::of(console).with("x-forwarded-proto", "https");
    assert_eq!(http.get("/console/sign-in").await.header("strict-transport-security"), "");
}

#[tokio::test]
async fn a_page_has_no_inline_style_script_or_handler_and_nothing_from_elsewhere() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    for path in ["/console/", "/console/notifications", "/console/none"] {
        let page = browser.get(path).await.body;
        for forbidden in
            ["style=", "<style", "onclick", "onload", "javascript:", "http://", "https://", "data:"]
        {
            assert!(!page.contains(forbidden), "{path}: {forbidden}");
        }
        assert!(
            page.split("<script").skip(1).all(|script| script.starts_with(" src=\"/console/assets/")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn other_paths_are_not_the_consoles() {
    let world = World::new().await;
    let answer = world.browser().get("/console").await;
    assert_eq!((answer.status, answer.header("location")), (StatusCode::PERMANENT_REDIRECT, "/console/"));
    assert_eq!(world.browser().get("/v1/status").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_unknown_path_and_a_wrong_parameter_are_pages_with_the_navigation() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    for (path, status) in
        [("/console/none", StatusCode::NOT_FOUND), ("/console/?x=1", StatusCode::BAD_REQUEST)]
    {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.header("content-type").starts_with("text/html"), "{path}");
        assert!(answer.body.contains("<nav") && answer.body.contains("role=\"alert\""), "{path}");
    }
}
