//! Tests of signing in and out: permission, lifetime, the limit on attempts, and the page that follows.

use std::time::Duration;

use axum::http::StatusCode;

use crate::support::*;

const SESSION: &str = "notification_console";

#[tokio::test]
async fn nothing_is_shown_without_a_session() {
    let world = World::new().await;
    for path in ["/console/", "/console/notifications", "/console/no-such-page", "/console/sign-in/x"] {
        let answer = world.browser().get(path).await;
        assert!(answer.asks_to_sign_in(), "{path}: {}", answer.status);
        assert!(!answer.body.contains("Overview"), "{path}");
    }
    let answer = world.browser().post("/console/sign-out", &[]).await;
    assert!(answer.asks_to_sign_in());
}

#[tokio::test]
async fn an_operators_token_opens_the_console_and_the_page_that_was_asked_for() {
    let world = World::new().await;
    let mut browser = world.browser();
    let answer = browser.get("/console/dead-letters?channel=push").await;
    let sign_in = answer.header("location").to_owned();
    let answer = browser.sign_in_at(&sign_in, &format!(" {OPERATOR}\n")).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    assert_eq!(answer.header("location"), "/console/dead-letters?channel=push");
    let answer = browser.get("/console/").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.body.contains("Signed in as </span><strong>operator</strong>"), "{}", answer.body);
}

#[tokio::test]
async fn a_form_of_a_client_that_is_not_signed_in_has_four_kibibytes_at_most() {
    let world = World::new().await;
    let answer = world.browser().sign_in(&"x".repeat(4_096)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn no_other_token_opens_it_and_the_answer_does_not_say_why() {
    let world = World::new().await;
    let mut answers = Vec::new();
    for token in [PRODUCER, "unknown", "", &"x".repeat(1_000)] {
        let mut browser = world.browser();
        let answer = browser.sign_in(token).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", token.len());
        assert!(!browser.cookies.contains_key(SESSION));
        let form = answer.hidden("form_token").expect("a form");
        answers.push(answer.body.replace(&form, ""));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
    assert!(answers[0].contains("That is not the token of an operator or a viewer."));
    assert_eq!(world.sessions.ids(), []);
}

#[tokio::test]
async fn the_sixth_failure_of_an_address_within_a_minute_is_refused_even_with_the_right_token() {
    let world = World::new().await;
    let mut browser = world.browser();
    for _ in 0..5 {
        assert_eq!(browser.sign_in("guess").await.status, StatusCode::FORBIDDEN);
        world.advance(Duration::from_secs(2));
    }
    let answer = browser.sign_in(OPERATOR).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "51"));
    assert!(answer.body.contains("Try again in 51 s"), "{}", answer.body);
    let mut other = browser.clone().at("198.51.100.8");
    assert_eq!(other.sign_in(OPERATOR).await.status, StatusCode::SEE_OTHER);
    world.advance(Duration::from_secs(50));
    assert_eq!(browser.sign_in(OPERATOR).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn attempts_that_succeed_are_not_counted() {
    let world = World::new().await;
    for _ in 0..20 {
        world.signed_in().await;
    }
}

#[tokio::test]
async fn a_client_cannot_choose_its_address_but_a_trusted_proxy_says_it() {
    let world = World::new().await;
    let tokens = tokens_file(&[(OPERATOR, OPERATES)]);
    let console = world.console_with(&tokens, "10.0.0.0/8");
    for number in 0..5 {
        let forged = format!("192.0.2.{number}");
        let mut browser = Browser::of(console.clone()).with("x-forwarded-for", &forged);
        assert_eq!(browser.sign_in("guess").await.status, StatusCode::FORBIDDEN);
    }
    let mut spoofing = Browser::of(console.clone()).with("x-forwarded-for", "192.0.2.99");
    assert_eq!(spoofing.sign_in("guess").await.status, StatusCode::TOO_MANY_REQUESTS);

    let behind = |header: &str| Browser::of(console.clone()).at("10.0.0.1").with("x-forwarded-for", header);
    for _ in 0..5 {
        assert_eq!(behind("192.0.2.1").sign_in("guess").await.status, StatusCode::FORBIDDEN);
    }
    let refused = behind("203.0.113.5, 192.0.2.1").sign_in(OPERATOR).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(behind("192.0.2.2").sign_in(OPERATOR).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_session_begins_with_a_new_id_and_an_id_that_a_client_brought_opens_nothing() {
    let world = World::new().await;
    let mut browser = world.browser();
    let planted = "a".repeat(64);
    browser.cookies.insert(SESSION.to_owned(), planted.clone());
    assert!(browser.get("/console/").await.asks_to_sign_in());
    browser.sign_in(OPERATOR).await;
    let first = browser.cookies[SESSION].clone();
    assert_ne!(first, planted);
    let mut attacker = world.browser();
    attacker.cookies.insert(SESSION.to_owned(), planted);
    assert!(attacker.get("/console/").await.asks_to_sign_in());
}

#[tokio::test]
async fn signing_in_again_ends_the_session_that_the_browser_had() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let before = browser.clone();
    // This is a second tab whose sign-in was opened before.
    let mut tab = world.browser();
    let page = tab.get("/console/sign-in").await;
    browser.cookies.extend(tab.cookies);
    let form_token = page.hidden("form_token").expect("a form");
    let answer = browser.post("/console/sign-in", &[("form_token", &form_token), ("token", COLLEAGUE)]).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    assert!(before.clone().get("/console/").await.asks_to_sign_in());
    assert!(browser.get("/console/").await.body.contains("colleague"));
    assert_eq!(world.sessions.ids().len(), 1);
}

#[tokio::test]
async fn a_session_ends_after_eight_hours() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    world.advance(Duration::from_secs(8 * 3_600 - 1));
    assert_eq!(browser.get("/console/").await.status, StatusCode::OK);
    world.advance(Duration::from_secs(1));
    assert!(browser.get("/console/").await.asks_to_sign_in());
}

#[tokio::test]
async fn a_sign_out_ends_the_session_on_every_replica_at_once() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let mut copy = browser.elsewhere(world.console());
    let form_token = copy.get("/console/").await.hidden("form_token").expect("a form");
    let answer = browser.post("/console/sign-out", &[("form_token", &form_token)]).await;
    assert!(answer.asks_to_sign_in());
    assert_eq!(answer.header("clear-site-data"), "\"cache\"");
    assert!(!browser.cookies.contains_key(SESSION));
    assert!(copy.get("/console/").await.asks_to_sign_in());
    let page = browser.get("/console/sign-in?signed-out=1").await;
    assert!(page.body.contains("You are signed out"), "{}", page.body);
}

#[tokio::test]
async fn a_session_ends_where_its_token_is_removed_or_is_no_operators_any_more() {
    let world = World::new().await;
    let browser = world.signed_in().await;
    let without = tokens_file(&[(COLLEAGUE, OPERATES)]);
    let demoted = tokens_file(&[(OPERATOR, "producer = \"game_master\"")]);
    for tokens in [without, demoted] {
        assert!(browser.elsewhere(world.console_with(&tokens, "")).get("/console/").await.asks_to_sign_in());
    }
    let kept = tokens_file(&[(OPERATOR, OPERATES)]);
    let answer = browser.elsewhere(world.console_with(&kept, "")).get("/console/").await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_sign_in_leads_to_no_other_site_and_to_no_other_part_of_the_service() {
    let world = World::new().await;
    for wrong in [
        "https://evil.example/console/",
        "//evil.example/console/",
        "/\\evil.example/console/",
        "\\\\evil.example/console/",
        "/console/../v1/status",
        "/console/%2e%2e/v1/status",
        "/console/%2E%2E/%2e./v1/status",
        "/console/\\..\\..\\v1",
        "/console",
        "/consolex/",
        "javascript:alert(1)",
        "\t//evil.example",
        "/\t/evil.example/console/",
        "console/",
        "",
    ] {
        let mut browser = world.browser();
        let page = browser.get("/console/sign-in").await;
        let form_token = page.hidden("form_token").expect("a form");
        let fields = [("form_token", &*form_token), ("next", wrong), ("token", OPERATOR)];
        let answer = browser.post("/console/sign-in", &fields).await;
        assert_eq!(
            (answer.status, answer.header("location")),
            (StatusCode::SEE_OTHER, "/console/"),
            "{wrong:?}"
        );
        let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("next", wrong).finish();
        let answer = browser.get(&format!("/console/sign-in?{query}")).await;
        assert_eq!(answer.header("location"), "/console/", "{wrong:?}");
        let answer = world.browser().get(&format!("/console/sign-in?{query}")).await;
        assert_eq!(answer.hidden("next"), None, "{wrong:?}");
    }
    let mut browser = world.browser();
    let right = "/console/notifications?recipient=%22%3E%3Cscript%3E&limit=5";
    let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("next", right).finish();
    let answer = browser.sign_in_at(&format!("/console/sign-in?{query}"), OPERATOR).await;
    assert_eq!(answer.header("location"), right);
}

#[tokio::test]
async fn a_sign_in_whose_form_is_too_old_still_leads_to_the_page_that_was_asked_for() {
    let world = World::new().await;
    let mut browser = world.browser();
    for (next, kept) in [
        ("/console/malformed?limit=5", Some("/console/malformed?limit=5")),
        ("https://evil.example/console/", None),
    ] {
        browser.cookies.clear();
        let fields = [("form_token", "old"), ("next", next), ("token", OPERATOR)];
        let answer = browser.post("/console/sign-in", &fields).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert!(answer.body.contains("The form was too old"), "{}", answer.body);
        assert_eq!(answer.hidden("next").as_deref(), kept);
    }
    assert_eq!(world.sessions.ids(), []);
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_the_page_without_a_second_sign_in() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    // A browser does not send the cookie when the link is on another site.
    let mut followed = Browser::of(world.console()).with("sec-fetch-site", "cross-site");
    let answer = followed.get("/console/notifications?limit=5").await;
    let page = followed.get(answer.header("location")).await;
    assert!(
        page.body.contains("<a href=\"/console/notifications?limit=5\">Continue to the page</a>"),
        "{}",
        page.body
    );
    assert_eq!(
        browser.get("/console/sign-in?next=/console/malformed").await.header("location"),
        "/console/malformed"
    );
}

#[tokio::test]
async fn a_cookie_is_for_this_console_alone_and_not_for_scripts() {
    let world = World::new().await;
    let answer = world.browser().sign_in(OPERATOR).await;
    let cookies = answer.set_cookies();
    let session =
        cookies.iter().find(|cookie| cookie.starts_with("notification_console=")).expect("a session");
    let (_, attributes) = session.split_once(';').expect("attributes");
    assert_eq!(attributes, " Path=/console/; Max-Age=28800; HttpOnly; SameSite=Strict");
}

#[tokio::test]
async fn over_https_a_cookie_is_secure_and_bound_to_the_host() {
    let world = World::new().await;
    let console = world.console_with(&tokens_file(&[(OPERATOR, OPERATES)]), "10.0.0.1");
    let behind = Browser::of(console.clone()).at("10.0.0.1").with("x-forwarded-proto", "https");
    let mut browser = behind.clone();
    let answer = browser.sign_in(OPERATOR).await;
    let cookies = answer.set_cookies();
    let session =
        cookies.iter().find(|cookie| cookie.starts_with("__Host-notification_console=")).expect("a session");
    let (_, attributes) = session.split_once(';').expect("attributes");
    assert_eq!(attributes, " Path=/; Max-Age=28800; HttpOnly; SameSite=Strict; Secure");
    assert_eq!(browser.get("/console/").await.status, StatusCode::OK);
    // A cookie that a page without HTTPS can set is ignored with HTTPS.
    let mut planted = behind;
    planted.cookies.insert(SESSION.to_owned(), browser.cookies["__Host-notification_console"].clone());
    assert!(planted.get("/console/").await.asks_to_sign_in());
    // A client that is not a trusted proxy cannot claim HTTPS.
    let mut forged = Browser::of(console).with("x-forwarded-proto", "https");
    let answer = forged.sign_in(OPERATOR).await;
    assert!(answer.set_cookies().iter().all(|cookie| !cookie.contains("Secure")), "{answer:?}");
}
