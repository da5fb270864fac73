//! Sessions in a browser: they begin and end on every replica at once, and no other page can use them.

use harness::{Browser, HttpResponse, Service, request};

use super::*;
use crate::console_browser::data;

const CHANGE: &str = "/console/dead-letters/change";

async fn post(service: &Service, headers: &[(&str, &str)], form: &str) -> HttpResponse {
    let headers = [headers, &[("Content-Type", "application/x-www-form-urlencoded")]].concat();
    request(&service.api_addr(), "POST", CHANGE, &headers, form).await.expect("the console answers")
}

#[tokio::test]
async fn a_session_ends_on_every_replica_and_no_other_page_can_use_it() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let build = || with_console(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1");
    let (one, other) = (build().start().await, build().start().await);
    data::ten_rows(&world, &one).await;
    let browser = Browser::start().await;

    // A wrong token, then the right one, and from there to the requested page.
    browser.open(&address(&one, "/console/malformed?code=unknown_field")).await;
    browser.fill("#token", "guess").await;
    browser.click("main button[type=submit]").await;
    assert!(browser.text("main").await.contains("That is not the token of an operator or a viewer"));
    browser.fill("#token", OPERATOR).await;
    browser.click("main button[type=submit]").await;
    heading(&browser, "Malformed intents").await;
    assert!(browser.url().await.contains("code=unknown_field"));
    forged(&browser, &world, &one).await;

    // Cookies ignore ports: the session is that of the other replica, too, until it ends there.
    browser.open(&address(&other, "/console/notifications")).await;
    heading(&browser, "Notifications").await;
    world.execute("UPDATE console_sessions SET expires_at = now() - interval '1 s'").await;
    browser.open(&address(&other, "/console/notifications")).await;
    heading(&browser, "Sign in").await;

    // Signing out on one replica signs out on the other.
    sign_in(&browser, &other).await;
    let cookies = browser.cookies().await;
    browser.open(&address(&one, "/console/dead-letters")).await;
    heading(&browser, "Dead letters").await;
    browser.click("form.who button").await;
    heading(&browser, "Sign in").await;
    assert!(browser.text("main").await.contains("You are signed out"));
    let kept = request(&other.api_addr(), "GET", "/console/", &[("Cookie", &cookies)], "").await;
    assert_eq!(kept.expect("the console answers").status, 303, "the old cookie opens nothing");
    browser.quit().await;
}

/// A form of another page, without the token of the session, with a wrong one, or from another origin,
/// changes nothing.
async fn forged(browser: &Browser, world: &World, service: &Service) {
    let id =
        world.column("SELECT notification_id || '/' || route_id FROM dead_letters ORDER BY 1 LIMIT 1").await;
    browser.open(&address(service, "/console/dead-letters")).await;
    let token = browser.value("document.querySelector('input[name=form_token]').value").await;
    let token = token.as_str().expect("a form has its token").to_owned();
    let cookies = browser.cookies().await;
    let form = |token: &str| format!("do=replay_chosen&id={}&request_id=r1&form_token={token}", id[0]);
    let cookie = ("Cookie", cookies.as_str());
    let other_origin = ("Origin", "https://other.example");
    for (headers, token) in [
        (vec![cookie], ""),
        (vec![cookie], "0000000000000000000000000000000000000000000000000000000000000000"),
        (vec![cookie, other_origin], token.as_str()),
        (vec![cookie, ("Sec-Fetch-Site", "same-site")], token.as_str()),
    ] {
        let answer = post(service, &headers, &form(token)).await;
        assert_eq!(answer.status, 403, "{headers:?} {}", answer.body);
    }
    // A page of another site sends the form with the browser's own cookies: it has none.
    let evil = format!(
        "data:text/html,<form method=post action={}><input name=do value=replay_chosen><input name=id value={}>\
         <input name=form_token value={token}><input name=request_id value=r2><button>Win</button></form>",
        address(service, CHANGE),
        id[0],
    );
    browser.open(&evil).await;
    browser.click("button").await;
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM dead_letters").await, 6);
    drop(browser.console_errors().await);
}
