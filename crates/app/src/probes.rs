//! `/healthz` and `/readyz`, for the orchestrator and for operators, and `/stats` of a relay.
//!
//! Answers come from memory alone: a probe never calls PostgreSQL or Redis, so that it cannot hang with them. The members
//! of the workers show whether the service makes progress. A blocked worker does not make the service unready, because
//! a restart would not help. The exception is `/stats`, which asks the producer's database, within [`STATS_TIMEOUT`].

mod worker_status;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_server::{Refusal, Settings, Timeouts};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The most connections at a time; further ones wait in the backlog of the operating system.
const MAX_CONNECTIONS: usize = 256;
/// The largest request body that is read, in bytes. No endpoint uses one.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// What request bodies and answers may occupy together, in bytes.
const MAX_BUFFERED_BYTES: usize = 8 * 1024 * 1024;
/// How long requests in flight may take once the listener stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long `/stats` waits for its answer.
pub const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Not all of it runs yet.
    #[default]
    Starting,
    /// All of it runs.
    Ready,
    /// It stops.
    Stopping,
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
        }
    }
}

/// What a worker reports, computed for each request. Must not block.
type Detail = Box<dyn Fn() -> Value + Send + Sync>;

/// What `/stats` answers, or why it cannot. Asked for each request.
type Stats = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Value, String>> + Send>> + Send + Sync>;

/// What the probes answer. Clones share it.
#[derive(Clone, Default)]
pub struct ReadyState(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    phase: Phase,
    details: Vec<(&'static str, Detail)>,
    stats: Option<Stats>,
}

impl fmt::Debug for ReadyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadyState").field(&self.phase()).finish()
    }
}

impl ReadyState {
    /// Sets the phase.
    pub fn set(&self, phase: Phase) {
        self.with(|inner| inner.phase = phase);
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        self.with(|inner| inner.phase)
    }

    /// From now on `/readyz` has a member `name` with what `detail` gives; null leaves it out.
    pub fn add_detail(&self, name: &'static str, detail: impl Fn() -> Value + Send + Sync + 'static) {
        self.with(|inner| inner.details.push((name, Box::new(detail))));
    }

    /// From now on `/stats` answers with what `stats` gives.
    pub fn set_stats<F>(&self, stats: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.with(|inner| inner.stats = Some(Arc::new(move || Box::pin(stats()))));
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Inner) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn body(&self) -> Value {
        self.with(|inner| {
            let details = inner.details.iter().map(|(name, detail)| ((*name).to_owned(), detail()));
            let mut body: Map<String, Value> = details.filter(|(_, value)| !value.is_null()).collect();
            body.insert("status".to_owned(), inner.phase.as_str().into());
            Value::Object(body)
        })
    }
}

/// Serves the probes on `listener` until `stop`, then drains what is in flight.
pub async fn serve(listener: TcpListener, state: ReadyState, timeouts: Timeouts, stop: CancellationToken) {
    let settings = Settings {
        max_connections: MAX_CONNECTIONS,
        max_body_bytes: MAX_BODY_BYTES,
        max_buffered_bytes: MAX_BUFFERED_BYTES,
        timeouts,
        drain_delay: Duration::ZERO,
        drain_timeout: DRAIN_TIMEOUT,
        refuse,
        observe: None,
        tls: None,
    };
    http_server::serve(listener, router(state).layer(from_fn(read_body)), settings, stop).await;
}

/// No endpoint uses a body, so it is read, up to its limit, before anything else.
async fn read_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match to_bytes(body, MAX_BODY_BYTES).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(_) => refusal(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
    }
}

fn refuse(refused: Refusal) -> Response {
    match refused {
        Refusal::RequestTimeout => refusal(StatusCode::REQUEST_TIMEOUT, "request_timeout"),
        _ => refusal(StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    }
}

/// The endpoints; every other path is a 404 with a JSON body.
pub fn router(state: ReadyState) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readyz", get(readyz))
        .route("/stats", get(stats))
        .fallback(|| async { refusal(StatusCode::NOT_FOUND, "not_found") })
        .method_not_allowed_fallback(|| async {
            refusal(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
        })
        .with_state(state)
}

async fn readyz(State(state): State<ReadyState>) -> Response {
    let status = if state.phase() == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(state.body())).into_response()
}

async fn stats(State(state): State<ReadyState>) -> Response {
    let Some(stats) = state.with(|inner| inner.stats.clone()) else {
        return refusal(StatusCode::NOT_FOUND, "not_found");
    };
    let unavailable = |cause: &str| {
        let body = json!({"error": {"code": "unavailable", "cause": cause}});
        (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
    };
    match tokio::time::timeout(STATS_TIMEOUT, stats()).await {
        Ok(Ok(stats)) => Json(stats).into_response(),
        Ok(Err(cause)) => unavailable(&cause),
        Err(_) => unavailable("the outbox gave no answer in time"),
    }
}

fn refusal(status: StatusCode, code: &str) -> Response {
    (status, Json(json!({"error": {"code": code}}))).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tower::ServiceExt;

    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    async fn ask(state: &ReadyState, method: &str, path: &str) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
        let response = router(state.clone()).oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 4096).await.expect("a short body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn the_process_is_alive_in_every_phase_and_ready_in_one() {
        let state = ReadyState::default();
        for (phase, status, word) in [
            (Phase::Starting, 503, "starting"),
            (Phase::Ready, 200, "ready"),
            (Phase::Stopping, 503, "stopping"),
        ] {
            state.set(phase);
            assert_eq!(ask(&state, "GET", "/healthz").await, (200, json!({"status": "ok"})));
            assert_eq!(ask(&state, "GET", "/readyz").await, (status, json!({"status": word})));
        }
    }

    #[tokio::test]
    async fn workers_add_members_but_cannot_change_the_status() {
        let state = ReadyState::default();
        state.set(Phase::Ready);
        state.add_detail("intake", || json!({"waiting_for": "1-0"}));
        state.add_detail("silent", || Value::Null);
        state.add_detail("status", || json!("dancing"));
        let expected = json!({"status": "ready", "intake": {"waiting_for": "1-0"}});
        assert_eq!(ask(&state, "GET", "/readyz").await, (200, expected));
    }

    #[tokio::test(start_paused = true)]
    async fn stats_are_those_of_a_relay_and_unavailable_without_an_answer_in_time() {
        let state = ReadyState::default();
        assert_eq!(ask(&state, "GET", "/stats").await, (404, json!({"error": {"code": "not_found"}})));
        state.set_stats(|| async { Ok(json!({"pending_count": 10})) });
        assert_eq!(ask(&state, "GET", "/stats").await, (200, json!({"pending_count": 10})));
        state.set_stats(|| async { Err("could not read the outbox".to_owned()) });
        let failed = json!({"error": {"code": "unavailable", "cause": "could not read the outbox"}});
        assert_eq!(ask(&state, "GET", "/stats").await, (503, failed));
        state.set_stats(std::future::pending);
        assert_eq!(ask(&state, "GET", "/stats").await.0, 503);
    }

    #[tokio::test]
    async fn anything_else_is_refused_in_json() {
        let state = ReadyState::default();
        assert_eq!(ask(&state, "GET", "/").await, (404, json!({"error": {"code": "not_found"}})));
        assert_eq!(ask(&state, "GET", "/readyz/x").await, (404, json!({"error": {"code": "not_found"}})));
        assert_eq!(
            ask(&state, "POST", "/readyz").await,
            (405, json!({"error": {"code": "method_not_allowed"}}))
        );
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_in_json() {
        let listener = http_server::bind(Some("127.0.0.1"), 0).await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let timeouts = Timeouts { read_header: BOUND, request: BOUND, idle: BOUND };
        tokio::spawn(serve(listener, ReadyState::default(), timeouts, CancellationToken::new()));
        let mut stream = TcpStream::connect(addr).await.expect("is listening");
        let head =
            format!("POST /readyz HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
        stream.write_all(head.as_bytes()).await.expect("is open");
        stream.write_all(&[b'x'; MAX_BODY_BYTES + 1]).await.expect("is open");
        let expected = br#"{"error":{"code":"body_too_large"}}"#;
        let mut response = Vec::new();
        while !response.ends_with(expected) {
            let count = tokio::time::timeout(BOUND, stream.read_buf(&mut response)).await.expect("in time");
            assert_ne!(count.expect("is open"), 0, "{}", String::from_utf8_lossy(&response));
        }
        assert!(response.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&response));
    }
}
