//! The layer in front of an axum router, on the store in memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http_body_util::{BodyExt, Full};
use idempotency::{
    IDEMPOTENCY_REPLAYED, Idempotency, IdempotencyLayer, IdempotencySettings, LayerOptions, MemoryStore,
    Owner, Problem, Store,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::support::until;

/// A handler that counts its runs and that the test can block.
#[derive(Clone)]
struct Handler {
    runs: Arc<AtomicUsize>,
    /// The gate: the handler takes a permit before it responds.
    gate: Arc<Semaphore>,
}

impl Handler {
    fn new() -> Self {
        Self { runs: Arc::default(), gate: Arc::new(Semaphore::new(1_000_000)) }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Responds as the body requests: `500` with that status, `panic`, `stream`, `large`, `upgrade`, `hang`; to
/// any other body with 201.
async fn handle(State(handler): State<Handler>, request: Request<Body>) -> Response<Body> {
    let run = handler.runs.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let body = to_bytes(request.into_body(), usize::MAX).await.expect("a body");
    drop(handler.gate.acquire().await.expect("never closed"));
    let text = String::from_utf8_lossy(&body).into_owned();
    let answer = |status: StatusCode, body: Body| {
        let response = Response::builder().status(status).header("x-custom", "kept");
        response.header("date", "not kept").header("x-request-id", run.to_string()).body(body).expect("valid")
    };
    match text.as_str() {
        "panic" => panic!("the handler's own fault"),
        "stream" => {
            let chunks = ["a", "b"].map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)));
            answer(StatusCode::OK, Body::from_stream(stream::iter(chunks)))
        }
        "trailers" => {
            let full = Full::new(Bytes::from("a"));
            answer(StatusCode::OK, Body::new(full.with_trailers(async { Some(Ok(Default::default())) })))
        }
        "large" => answer(StatusCode::OK, Body::from(vec![b'x'; 100])),
        "upgrade" => answer(StatusCode::SWITCHING_PROTOCOLS, Body::empty()),
        "hang" => std::future::pending().await,
        text => match text.parse().ok().and_then(|code| StatusCode::from_u16(code).ok()) {
            Some(status) => answer(status, Body::from("refused")),
            None => answer(StatusCode::CREATED, Body::from(format!("{path} {text} run {run}"))),
        },
    }
}

fn settings() -> IdempotencySettings {
    IdempotencySettings { max_response_bytes: 50, ..IdempotencySettings::default() }
}

fn idempotency<S: Store>(store: S) -> Idempotency<S> {
    Idempotency::new(Arc::new(store), settings()).expect("valid settings")
}

/// Returns the client in the header `x-client` as the owner.
fn owner(parts: &axum::http::request::Parts) -> Option<Owner> {
    let client = parts.headers.get("x-client").map_or("someone", |value| value.to_str().expect("a text"));
    // An empty header is not an owner.
    Owner::new(client).ok()
}

fn app_with<S: Store>(handler: &Handler, store: S, options: LayerOptions) -> Router {
    let layer = IdempotencyLayer::new(idempotency(store), options, owner);
    Router::new().route("/{*path}", any(handle)).layer(layer).with_state(handler.clone())
}

fn app(handler: &Handler) -> Router {
    app_with(handler, MemoryStore::new(100), LayerOptions::default())
}

fn request(key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::post("/orders");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    request.body(Body::from(body.to_owned())).expect("a request")
}

struct Seen {
    status: u16,
    replayed: bool,
    body: Bytes,
    response: axum::http::response::Parts,
}

async fn send(app: &Router, request: Request<Body>) -> Seen {
    let (response, body) = app.clone().oneshot(request).await.expect("infallible").into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    let replayed = response.headers.get(IDEMPOTENCY_REPLAYED).is_some_and(|value| value == "true");
    Seen { status: response.status.as_u16(), replayed, body, response }
}

/// Checks that the response is a problem with this status and name, in the form of RFC 9457.
fn assert_problem(seen: &Seen, status: u16, name: &str) {
    assert_eq!(seen.status, status, "{:?}", seen.body);
    assert_eq!(seen.response.headers[CONTENT_TYPE], "application/problem+json");
    let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
    assert_eq!(body["type"], format!("/problems/{name}"));
    assert_eq!(body["status"], status);
    assert_eq!(body["instance"], "/orders");
    assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
    let may_retry = matches!(status, 409 | 503);
    assert_eq!(seen.response.headers.contains_key(RETRY_AFTER), may_retry, "{status}");
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_passes_untouched() {
    let handler = Handler::new();
    let app = app(&handler);
    for _ in 0..2 {
        let seen = send(&app, request(None, &"x".repeat(2 * 1024 * 1024))).await;
        assert!(seen.status == 201 && !seen.replayed);
    }
    assert_eq!(handler.runs(), 2);
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_missing_key_is_refused_where_it_is_required_and_only_for_unsafe_methods() {
    let handler = Handler::new();
    let options = LayerOptions { required: true, ..LayerOptions::default() };
    let app = app_with(&handler, MemoryStore::new(100), options);
    assert_problem(&send(&app, request(None, "a")).await, 400, "bad-request");
    assert_eq!(handler.runs(), 0);
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::CONNECT] {
        for key in ["k", "k"] {
            let request = Request::builder().method(&method).uri("/orders").header("Idempotency-Key", key);
            assert!(!send(&app, request.body(Body::empty()).expect("a request")).await.replayed);
        }
    }
    assert_eq!(handler.runs(), 8, "safe requests are never replayed");
}

// I-15
#[tokio::test(start_paused = true)]
async fn keys_of_any_form_up_to_255_bytes_are_accepted() {
    let handler = Handler::new();
    let app = app(&handler);
    let longest = "a".repeat(255);
    for key in ["abc", "order-12345", "0190b5e0-3c80-7c4f-8d3a-9b1c2d3e4f50", &longest] {
        assert_eq!(send(&app, request(Some(key), "a")).await.status, 201, "{key}");
    }
    let too_long = "a".repeat(256);
    for key in [too_long.as_str(), "", "\"unfinished"] {
        assert_problem(&send(&app, request(Some(key), "a")).await, 400, "bad-request");
    }
    let mut repeated = request(Some("k"), "a");
    repeated.headers_mut().append("Idempotency-Key", "k".parse().expect("a value"));
    assert_problem(&send(&app, repeated).await, 400, "bad-request");
    assert_eq!(handler.runs(), 4);
}

// I-03, I-15
#[tokio::test(start_paused = true)]
async fn a_repeat_gets_the_first_answer_without_its_per_response_headers() {
    let handler = Handler::new();
    let app = app(&handler);
    let first = send(&app, request(Some("k"), "a")).await;
    assert!(first.status == 201 && !first.replayed && first.response.headers.contains_key("x-request-id"));
    for key in ["k", "\"k\""] {
        let second = send(&app, request(Some(key), "a")).await;
        assert!(second.replayed && second.status == 201);
        assert_eq!(second.body, first.body);
        assert_eq!(second.response.headers["x-custom"], "kept");
        assert!(!second.response.headers.contains_key("date"));
        assert!(!second.response.headers.contains_key("x-request-id"));
    }
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn another_body_path_or_query_under_the_same_key_is_refused_and_not_run() {
    let handler = Handler::new();
    let app = app(&handler);
    assert_eq!(send(&app, request(Some("k"), "a")).await.status, 201);
    assert_problem(&send(&app, request(Some("k"), "b")).await, 422, "idempotency-conflict");
    for path in ["/other", "/orders?page=2"] {
        let mut other = request(Some("k"), "a");
        *other.uri_mut() = path.parse().expect("a path");
        assert_eq!(send(&app, other).await.status, 422, "{path}");
    }
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_repeat_of_a_request_in_progress_is_refused_at_once() {
    let handler = Handler::new();
    let app = app(&handler);
    let all = handler.gate.forget_permits(usize::MAX);
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request(Some("k"), "a")).await.status }
    });
    until("the handler", async || handler.runs() == 1).await;
    assert_problem(&send(&app, request(Some("k"), "a")).await, 409, "in-progress");
    assert_problem(&send(&app, request(Some("k"), "another")).await, 409, "in-progress");
    handler.gate.add_permits(all);
    assert_eq!(first.await.expect("it does not panic"), 201);
    assert!(send(&app, request(Some("k"), "a")).await.replayed);
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn of_many_repeats_at_once_one_runs() {
    let handler = Handler::new();
    let app = app(&handler);
    let mut requests = JoinSet::new();
    for _ in 0..50 {
        let app = app.clone();
        requests.spawn(async move { send(&app, request(Some("k"), "a")).await.status });
    }
    assert!(requests.join_all().await.iter().all(|status| [201, 409].contains(status)));
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn an_answer_that_says_try_again_is_not_stored_and_any_other_is() {
    let handler = Handler::new();
    let app = app(&handler);
    for (status, is_stored) in [
        ("400", true),
        ("404", true),
        ("422", true),
        ("408", false),
        ("425", false),
        ("429", false),
        ("500", false),
        ("503", false),
    ] {
        let before = handler.runs();
        for is_repeat in [false, true] {
            let seen = send(&app, request(Some(status), status)).await;
            assert_eq!(seen.status.to_string(), status);
            assert_eq!(seen.replayed, is_repeat && is_stored, "{status}");
        }
        assert_eq!(handler.runs() - before, if is_stored { 1 } else { 2 }, "{status}");
    }
}

// I-15
#[tokio::test(start_paused = true)]
async fn which_answers_are_stored_is_the_callers_choice() {
    let handler = Handler::new();
    let store = Arc::new(MemoryStore::new(100));
    let undecided = |parts: &axum::http::response::Parts, body: &Bytes| {
        parts.status.is_success() && !body.ends_with(b"0")
    };
    let tokens = Arc::new(ambient::SeededTokens::new(1));
    let idempotency = Idempotency::build(store, settings(), undecided, tokens).expect("valid settings");
    let layer = IdempotencyLayer::new(idempotency, LayerOptions::default(), owner);
    let app = Router::new().route("/{*path}", any(handle)).layer(layer).with_state(handler.clone());
    assert!(send(&app, request(Some("k"), "a")).await.body.ends_with(b"run 0"));
    assert!(send(&app, request(Some("k"), "a")).await.body.ends_with(b"run 1"));
    assert!(send(&app, request(Some("k"), "a")).await.replayed);
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_panic_frees_the_key_and_goes_on() {
    let handler = Handler::new();
    let app = app(&handler);
    for run in 1..=2 {
        let sent = std::panic::AssertUnwindSafe(app.clone().oneshot(request(Some("k"), "panic")));
        let panic = sent.catch_unwind().await.expect_err("the panic is resumed");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the handler's own fault"));
        assert_eq!(handler.runs(), run);
    }
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_response_that_cannot_be_stored_reaches_the_client_whole_and_frees_the_key() {
    let handler = Handler::new();
    let app = app(&handler);
    let large = "x".repeat(100);
    for (body, status, expected) in
        [("stream", 200, "ab"), ("large", 200, large.as_str()), ("trailers", 200, "a"), ("upgrade", 101, "")]
    {
        let before = handler.runs();
        for _ in 0..2 {
            let seen = send(&app, request(Some(body), body)).await;
            assert!(seen.status == status && !seen.replayed, "{body}");
            assert_eq!(seen.body, expected, "{body}");
        }
        assert_eq!(handler.runs() - before, 2, "{body}");
    }
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_request_body_over_the_bound_is_refused_whether_its_length_is_declared_or_not() {
    let handler = Handler::new();
    let options = LayerOptions { max_body_bytes: 10, ..LayerOptions::default() };
    let app = app_with(&handler, MemoryStore::new(100), options);
    assert_eq!(send(&app, request(Some("fits"), &"x".repeat(10))).await.status, 201);
    assert_problem(&send(&app, request(Some("k"), &"x".repeat(11))).await, 413, "body-too-large");
    let chunks = || stream::iter((0..100).map(|_| Ok::<_, Infallible>(Bytes::from("xxxxx"))));
    let endless = Body::from_stream(chunks());
    let endless = request(Some("k"), "").map(|_| endless);
    assert_problem(&send(&app, endless).await, 413, "body-too-large");
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_refused_and_claims_nothing() {
    let handler = Handler::new();
    let app = app(&handler);
    let broken = stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))]);
    let seen = send(&app, request(Some("k"), "").map(|_| Body::from_stream(broken))).await;
    assert_problem(&seen, 400, "bad-request");
    assert_eq!(send(&app, request(Some("k"), "a")).await.status, 201);
    assert_eq!(handler.runs(), 1);
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_request_without_an_owner_is_refused_and_owners_share_nothing() {
    let handler = Handler::new();
    let app = app(&handler);
    let of_client = |client: &'static str| {
        let mut request = request(Some("k"), "a");
        request.headers_mut().insert("x-client", client.parse().expect("a value"));
        request
    };
    assert_problem(&send(&app, of_client("")).await, 403, "forbidden");
    for client in ["one", "another"] {
        assert!(!send(&app, of_client(client)).await.replayed);
        assert!(send(&app, of_client(client)).await.replayed);
    }
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_path_counts_in_nested_routers_too() {
    let handler = Handler::new();
    let layer = IdempotencyLayer::new(idempotency(MemoryStore::new(100)), LayerOptions::default(), owner);
    let inner = Router::new().route("/x", any(handle)).layer(layer).with_state(handler.clone());
    let app = Router::new().nest("/a", inner.clone()).nest("/b", inner);
    for (path, status) in [("/a/x", 201), ("/b/x", 422)] {
        let mut request = request(Some("k"), "a");
        *request.uri_mut() = path.parse().expect("a path");
        assert_eq!(send(&app, request).await.status, status, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_form_of_problems_is_the_callers_choice() {
    let handler = Handler::new();
    let teapot = |problem: &Problem, _: &axum::http::request::Parts| {
        let response = Response::builder().status(StatusCode::IM_A_TEAPOT);
        response.body(Body::from(problem.name())).expect("a response")
    };
    let options = LayerOptions { required: true, ..LayerOptions::default() };
    let layer = IdempotencyLayer::build(idempotency(MemoryStore::new(100)), options, owner, teapot);
    let app = Router::new().route("/{*path}", any(handle)).layer(layer).with_state(handler);
    let seen = send(&app, request(None, "a")).await;
    assert_eq!((seen.status, &*seen.body), (418, &b"bad-request"[..]));
}
