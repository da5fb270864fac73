//! Headers of every response, and the order of the checks before a body is read.

use axum::http::StatusCode;

use crate::support::{Client, JSON, MAX_BODY_BYTES, settings, start};

#[tokio::test]
async fn the_first_rule_broken_decides_whatever_else_is_wrong() {
    let server = start(settings()).await;
    let (sender, reader, unknown) = (
        "Authorization: Bearer game-token\r\n",
        "authorization: bearer on-call-token\r\n",
        "Authorization: Bearer other\r\n",
    );
    // Each request would fail all later checks, too.
    for (request, headers, expected) in [
        ("POST /nowhere", "", (404, "not-found")),
        ("PUT /sent", "", (405, "method-not-allowed")),
        ("POST /sent", "", (401, "unauthorized")),
        ("POST /sent", unknown, (401, "unauthorized")),
        ("POST /sent", &format!("{sender}{sender}"), (401, "unauthorized")),
        ("POST /sent", "Authorization: Basic Z2FtZTp0b2tlbg==\r\n", (401, "unauthorized")),
        ("POST /sent", "Authorization: Bearer\r\n", (401, "unauthorized")),
        ("POST /sent", reader, (403, "forbidden")),
        ("POST /sent", sender, (415, "unsupported-media-type")),
        ("POST /sent", &format!("{sender}{JSON}"), (413, "body-too-large")),
    ] {
        let mut client = Client::connect(&server).await;
        let length = MAX_BODY_BYTES + 1;
        client
            .send(format!("{request} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {length}\r\n\r\n"))
            .await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.problem().as_str()), expected, "{request} {headers}");
        assert_eq!(answer.header("www-authenticate"), (answer.status == 401).then_some("bearer"));
        assert_eq!(answer.header("allow"), (answer.status == 405).then_some("post"));
    }
    let answer = Client::connect(&server).await.post("/sent", &format!("{sender}{JSON}"), "{}").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "sent by game"));
}

#[tokio::test]
async fn a_token_over_its_rate_is_429_before_its_body_is_looked_at_but_after_403() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    let refused = loop {
        let answer = client.post("/sent", "Authorization: Bearer game-token\r\n", "{}").await;
        if answer.status != 415 {
            break answer;
        }
    };
    assert_eq!((refused.status, refused.problem().as_str()), (429, "too-many-requests"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    for _ in 0..10 {
        let answer = client.post("/sent", "Authorization: Bearer on-call-token\r\n", "{}").await;
        assert_eq!(answer.status, 403);
    }
}

#[tokio::test]
async fn a_problem_names_the_path_of_its_request() {
    let server = start(settings()).await;
    let answer = server.get("/no/%22where?q=1").await;
    assert_eq!(answer.problem(), "not-found");
    assert!(answer.body.contains(r#""instance":"/no/%22where""#), "{}", answer.body);
}

#[tokio::test]
async fn every_answer_has_the_clients_request_id_or_a_new_one() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /id HTTP/1.1\r\nHost: test\r\nX-Request-Id: mine-1\r\n\r\n").await;
    let mine = client.answer().await;
    assert_eq!((mine.header("x-request-id"), mine.body.as_str()), (Some("mine-1"), "mine-1 true"));
    client.send("GET /id HTTP/1.1\r\nHost: test\r\nX-Request-Id: not one\r\n\r\n").await;
    let made = client.answer().await;
    assert_eq!(
        Some(made.body.as_str()),
        made.header("x-request-id").map(|id| format!("{id} false")).as_deref()
    );
    assert!(server.get("/nowhere").await.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_panic_in_a_handler_is_503_and_the_connection_serves_again() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.get("/panic").await.problem(), "unavailable");
    assert_eq!(client.get("/one").await.body, "answer one");
}

#[tokio::test]
async fn the_observer_is_told_of_every_answer_by_the_template_of_its_route() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    for path in ["/bytes/3", "/bytes/x", "/nowhere", "/sent", "/panic"] {
        client.get(path).await;
    }
    let seen = std::mem::take(&mut *server.answered.lock().expect("not poisoned"));
    let expected = [
        (Some("/bytes/{n}"), StatusCode::OK),
        (Some("/bytes/{n}"), StatusCode::BAD_REQUEST),
        (None, StatusCode::NOT_FOUND),
        (Some("/sent"), StatusCode::METHOD_NOT_ALLOWED),
        (Some("/panic"), StatusCode::SERVICE_UNAVAILABLE),
    ];
    assert_eq!(seen, expected.map(|(route, status)| (route.map(str::to_owned), status)));
}
