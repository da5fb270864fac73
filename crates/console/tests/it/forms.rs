//! Tests that a form which this session did not make changes nothing.

use axum::http::StatusCode;

use crate::support::*;

/// The form token of the overview.
async fn form_token(browser: &mut Browser) -> String {
    browser.get("/console/").await.hidden("form_token").expect("a form")
}

/// Returns true if the browser is still signed in.
async fn is_signed_in(browser: &Browser) -> bool {
    browser.clone().get("/console/").await.status == StatusCode::OK
}

#[tokio::test]
async fn a_form_without_the_token_of_its_session_is_refused() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let mut other = world.signed_in().await;
    let of_other = form_token(&mut other).await;
    let own = form_token(&mut browser).await;
    let twice = [("form_token", own.as_str()), ("form_token", of_other.as_str())];
    let forms: [&[(&str, &str)]; 5] =
        [&[], &[("form_token", "")], &[("form_token", &of_other)], &[("form_token", &own[1..])], &twice];
    for fields in forms {
        let answer = browser.post("/console/sign-out", fields).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{fields:?}");
        assert!(answer.body.contains("Nothing was changed"), "{}", answer.body);
        assert!(is_signed_in(&browser).await);
    }
    let in_address = browser.post(&format!("/console/sign-out?form_token={own}"), &[]).await;
    assert_eq!(in_address.status, StatusCode::FORBIDDEN);
    assert!(browser.post("/console/sign-out", &[("form_token", &own)]).await.asks_to_sign_in());
}

#[tokio::test]
async fn a_form_of_an_earlier_session_is_refused() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let old = form_token(&mut browser).await;
    browser.post("/console/sign-out", &[("form_token", &old)]).await;
    browser.sign_in(OPERATOR).await;
    assert_eq!(
        browser.post("/console/sign-out", &[("form_token", &old)]).await.status,
        StatusCode::FORBIDDEN
    );
    assert!(is_signed_in(&browser).await);
}

#[tokio::test]
async fn a_form_that_another_site_sends_is_refused_even_with_the_token() {
    let world = World::new().await;
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
        ("origin", "https://evil.example"),
        ("origin", "http://console.example:81"),
        ("origin", "http://console.example.evil.example"),
        ("origin", "console.example"),
        ("origin", "null://"),
    ] {
        let mut browser = world.signed_in().await;
        let own = form_token(&mut browser).await;
        let mut foreign = browser.clone().with(name, value);
        let answer = foreign.post("/console/sign-out", &[("form_token", &own)]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{name}: {value}");
        assert!(is_signed_in(&browser).await, "{name}: {value}");
    }
    for (name, value) in
        [("sec-fetch-site", "same-origin"), ("origin", "http://console.example"), ("origin", "null")]
    {
        let mut browser = world.signed_in().await.with(name, value);
        let own = form_token(&mut browser).await;
        let answer = browser.post("/console/sign-out", &[("form_token", &own)]).await;
        assert!(answer.asks_to_sign_in(), "{name}: {value}");
    }
}

#[tokio::test]
async fn no_other_site_can_sign_someone_in() {
    let world = World::new().await;
    let mut attacker = world.browser();
    let theirs = attacker.get("/console/sign-in").await.hidden("form_token").expect("a form");
    let mut victim = world.browser();
    let fields = [("form_token", theirs.as_str()), ("token", OPERATOR)];
    assert_eq!(victim.post("/console/sign-in", &fields).await.status, StatusCode::FORBIDDEN);
    victim.get("/console/sign-in").await;
    assert_eq!(victim.post("/console/sign-in", &fields).await.status, StatusCode::FORBIDDEN);
    let mut foreign = attacker.with("sec-fetch-site", "cross-site");
    assert_eq!(foreign.post("/console/sign-in", &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(world.sessions.ids(), []);
}

#[tokio::test]
async fn a_body_that_is_no_form_or_too_large_is_refused() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let own = form_token(&mut browser).await;
    for media_type in ["text/plain", "application/json", "multipart/form-data; boundary=x"] {
        let mut other = browser.clone().with("content-type", media_type);
        let answer = other.post("/console/sign-out", &[("form_token", &own)]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{media_type}");
    }
    let large = "x".repeat(300_000);
    let answer = browser.post("/console/sign-out", &[("form_token", &own), ("large", &large)]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let many = vec![("id", "1"); 1_001];
    let answer = browser.post("/console/sign-out", &many).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(is_signed_in(&browser).await);
}

#[tokio::test]
async fn every_method_that_may_change_something_is_checked() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
        let answer = browser.send(method, "/console/", Some(String::new())).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method}");
    }
    let answer = browser.get("/console/sign-out").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(is_signed_in(&browser).await);
}
