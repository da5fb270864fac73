//! `/healthz` and `/readyz`, for the orchestrator and for operators, `/metrics` for Prometheus, and `/stats`
//! of a relay.
//!
//! Responses are computed from memory: a probe never calls PostgreSQL or Redis, so that it cannot hang with
//! them. The members of the workers show whether the service makes progress. A blocked worker does not make
//! the service unready, because a restart would not help. The exception is `/stats`, which queries the
//! producer's database, within [`STATS_TIMEOUT`].

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
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_server::{ListenerRefusal, ListenerSettings, Timeouts};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::telemetry::Exposition;

/// The maximum number of connections at a time. Further ones wait in the backlog of the operating system.
const MAX_CONNECTIONS: usize = 256;
/// The maximum size of a request body that is read, in bytes. No endpoint uses a body.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// The maximum memory for request bodies and responses together, in bytes.
const MAX_BUFFERED_BYTES: usize = 8 * 1024 * 1024;
/// The time for requests in progress to finish after the listener stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which `/stats` waits for the producer's database.
pub const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Some parts of the process do not run yet.
    #[default]
    Starting,
    /// All parts run.
    Ready,
    /// The process is stopping.
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

/// Returns the report of a worker. Called for each request; must not block.
type Detail = Box<dyn Fn() -> Value + Send + Sync>;

/// Returns the response of `/stats`, or the reason why there is none. Called for each request.
type StatsSource = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Value, String>> + Send>> + Send + Sync>;

/// The state that the probes report. Clones share it.
#[derive(Clone, Default)]
pub struct ReadyState(Arc<Mutex<ProbeState>>);

#[derive(Default)]
struct ProbeState {
    phase: Phase,
    details: Vec<(&'static str, Detail)>,
    stats: Option<StatsSource>,
    exposition: Option<Exposition>,
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

    /// The present phase.
    pub fn phase(&self) -> Phase {
        self.with(|inner| inner.phase)
    }

    /// Adds the member `name` to `/readyz`, with the value that `detail` returns. Null leaves the member out.
    pub fn add_detail(&self, name: &'static str, detail: impl Fn() -> Value + Send + Sync + 'static) {
        self.with(|inner| inner.details.push((name, Box::new(detail))));
    }

    /// Makes `/stats` respond with the value that `stats` returns.
    pub fn set_stats<F>(&self, stats: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.with(|inner| inner.stats = Some(Arc::new(move || Box::pin(stats()))));
    }

    /// Makes `/metrics` respond with the text of `exposition`. Without an exposition, `/metrics` is not
    /// found.
    pub fn set_exposition(&self, exposition: Option<Exposition>) {
        self.with(|inner| inner.exposition = exposition);
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut ProbeState) -> T) -> T {
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

/// Serves the probes on `listener` until `stop`, then waits for requests in progress.
pub async fn serve(listener: TcpListener, state: ReadyState, timeouts: Timeouts, stop: CancellationToken) {
    let settings = ListenerSettings {
        max_connections: MAX_CONNECTIONS,
        max_body_bytes: MAX_BODY_BYTES,
        max_buffered_bytes: MAX_BUFFERED_BYTES,
        probes: &[],
        timeouts,
        drain_delay: Duration::ZERO,
        drain_timeout: DRAIN_TIMEOUT,
        refuse,
        observe: None,
        tls: None,
        tokens: None,
    };
    http_server::serve(listener, router(state).layer(from_fn(read_body)), settings, stop).await;
}

/// Reads the body up to its limit before anything else, because no endpoint uses it.
async fn read_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match to_bytes(body, MAX_BODY_BYTES).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(_) => refusal(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
    }
}

fn refuse(refused: ListenerRefusal) -> Response {
    match refused {
        ListenerRefusal::RequestTimeout => refusal(StatusCode::REQUEST_TIMEOUT, "request_timeout"),
        ListenerRefusal::InvalidHead(_) => refusal(StatusCode::BAD_REQUEST, "bad_request"),
        _ => refusal(StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    }
}

/// The router of the endpoints. Every other path is a 404 with a JSON body.
pub fn router(state: ReadyState) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readyz", get(readyz))
        .route("/stats", get(stats))
        .route("/metrics", get(metrics))
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
        Err(_) => unavailable("the outbox did not respond in time"),
    }
}

async fn metrics(State(state): State<ReadyState>) -> Response {
    let Some(exposition) = state.with(|inner| inner.exposition.clone()) else {
        return refusal(StatusCode::NOT_FOUND, "not_found");
    };
    match exposition.text().await {
        Ok(text) => ([(CONTENT_TYPE, Exposition::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            let error = domain::ports::error_chain(error.as_ref());
            tracing::error!(error, "the metrics could not be given to Prometheus");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal")
        }
    }
}

fn refusal(status: StatusCode, code: &str) -> Response {
    (status, Json(json!({"error": {"code": code}}))).into_response()
}

#[cfg(test)]
mod tests;
