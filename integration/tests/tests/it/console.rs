//! The console of the real service: sessions across replicas and restarts, and the API on the same listener.

use std::collections::BTreeMap;

use harness::{HttpResponse, Service, ServiceBuilder, request, wait_for};

use crate::api::{OPERATOR, PRODUCER, TokensFile, is, read, with_api};
use crate::world::*;

/// The name of the session cookie, without TLS.
const SESSION: &str = "notification_console";

fn with_console(world: &World, tokens: &TokensFile) -> ServiceBuilder {
    with_api(world.service(), tokens).env("NOTIFICATION_CONSOLE", "on")
}

/// A browser: it keeps cookies and sends forms.
#[derive(Clone, Default)]
pub(crate) struct Browser(BTreeMap<String, String>);

impl Browser {
    pub(crate) async fn get(&mut self, addr: &str, path: &str) -> HttpResponse {
        self.send(addr, "GET", path, String::new()).await
    }

    pub(crate) async fn post(&mut self, addr: &str, path: &str, fields: &[(&str, &str)]) -> HttpResponse {
        let encoded = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
        let pairs = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        self.send(addr, "POST", path, pairs.collect::<Vec<_>>().join("&")).await
    }

    /// Signs in, and returns the response to the form.
    pub(crate) async fn sign_in(&mut self, addr: &str, token: &str) -> HttpResponse {
        let page = self.get(addr, "/console/sign-in").await;
        let fields = [("form_token", form_token(&page)), ("token", token.to_owned())];
        self.post(addr, "/console/sign-in", &fields.each_ref().map(|(name, value)| (*name, value.as_str())))
            .await
    }

    async fn send(&mut self, addr: &str, method: &str, path: &str, body: String) -> HttpResponse {
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookies = pairs.join("; ");
        let headers = [("Cookie", cookies.as_str()), ("Content-Type", "application/x-www-form-urlencoded")];
        let answer = request(addr, method, path, &headers, body).await.expect("the console answers");
        for (_, cookie) in answer.headers.iter().filter(|(name, _)| name == "set-cookie") {
            let (name, rest) = cookie.split_once('=').expect("a cookie has a name");
            let value = rest.split(';').next().unwrap_or_default();
            match cookie.contains("Max-Age=0") {
                true => self.0.remove(name),
                false => self.0.insert(name.to_owned(), value.to_owned()),
            };
        }
        answer
    }
}

/// The token of the first form of a page.
pub(crate) fn form_token(page: &HttpResponse) -> String {
    let (_, rest) = page.body.split_once("name=\"form_token\" value=\"").expect("a form");
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// True if the console shows its pages to this browser.
async fn is_signed_in(browser: &Browser, service: &Service) -> bool {
    let answer = browser.clone().get(&service.api_addr(), "/console/").await;
    match (answer.status, answer.header("location")) {
        (200, _) => true,
        (303, Some("/console/sign-in")) => false,
        _ => panic!("{answer:?}"),
    }
}

async fn signed_in(service: &Service) -> Browser {
    let mut browser = Browser::default();
    let answer = browser.sign_in(&service.api_addr(), OPERATOR).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/console/")), "{}", answer.body);
    browser
}

#[tokio::test]
async fn a_session_is_known_to_every_replica_outlives_a_restart_and_ends_everywhere() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let one = with_console(&world, &tokens).start().await;
    let other = with_console(&world, &tokens).start().await;

    let mut browser = signed_in(&one).await;
    assert!(is_signed_in(&browser, &other).await);
    let id = &browser.0[SESSION];
    let stored = world.column("SELECT encode(id_sha256, 'hex') FROM console_sessions").await;
    assert!(stored.len() == 1 && !stored.contains(id), "the id itself is not stored");
    one.kill().await;
    let one = with_console(&world, &tokens).start().await;
    assert!(is_signed_in(&browser, &one).await, "a restart ends no session");

    let token = form_token(&browser.get(&one.api_addr(), "/console/").await);
    let copy = browser.clone();
    let answer = browser.post(&one.api_addr(), "/console/sign-out", &[("form_token", &token)]).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert!(!is_signed_in(&copy, &other).await, "a sign-out is seen on the other replica at once");
    assert_eq!(world.number("SELECT count(*) FROM console_sessions").await, 0);

    let browser = signed_in(&other).await;
    world.execute("UPDATE console_sessions SET expires_at = now()").await;
    assert!(!is_signed_in(&browser, &one).await && !is_signed_in(&browser, &other).await);
}

#[tokio::test]
async fn a_token_that_is_removed_from_the_file_ends_its_sessions_on_every_replica() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let one = with_console(&world, &tokens).start().await;
    let other = with_console(&world, &tokens).start().await;
    let browser = signed_in(&one).await;
    assert!(is_signed_in(&browser, &other).await);
    std::fs::write(&tokens.0, "").expect("the file can be written");
    for service in [&one, &other] {
        wait_for("the session has ended", BOUND, async || {
            (!is_signed_in(&browser, service).await).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_console_and_the_api_keep_their_answers_and_credentials_apart() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let without = with_api(world.service(), &tokens).start().await;
    is(&read(&without, OPERATOR, "/console/").await, 404, "not-found", "");
    let service = with_console(&world, &tokens).start().await;
    let addr = service.api_addr();
    is(&read(&service, OPERATOR, "/v1/unknown").await, 404, "not-found", "");
    is(&read(&service, OPERATOR, "/").await, 404, "not-found", "");

    let mut browser = signed_in(&service).await;
    let page = browser.get(&addr, "/console/unknown").await;
    assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")));
    assert!(
        page.header("content-security-policy")
            .is_some_and(|policy| policy.contains("frame-ancestors 'none'"))
    );
    is(&browser.get(&addr, "/v1/status").await, 401, "unauthorized", "");
    assert_eq!(read(&service, OPERATOR, "/console/").await.status, 303, "a bearer token is no session");
    let refused = Browser::default().sign_in(&addr, PRODUCER).await;
    assert_eq!(refused.status, 403);
    // The output of a process is read separately from its responses.
    let failure =
        wait_for("the failure is logged", BOUND, async || service.logged("a sign-in to the console failed"));
    assert_eq!(failure.await["client_addr"], "127.0.0.1");
}

#[tokio::test]
async fn the_overview_shows_what_the_service_did() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_console(&world, &tokens).start().await;
    world.send(1..=10).await;
    world.add(&[(b"unknown", b"x")]).await;
    world.settled(10).await;
    let mut browser = signed_in(&service).await;
    wait_for("the counts of this minute are reported", BOUND, async || {
        let page = browser.get(&service.api_addr(), "/console/").await;
        assert_eq!(page.status, 200, "{}", page.body);
        let shown =
            ["accepted: 10 in the last hour", "published: 40 in the last hour", "/console/malformed?code="];
        shown.iter().all(|text| page.body.contains(text)).then_some(())
    })
    .await;
}
