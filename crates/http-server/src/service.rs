//! Turns a request into its response, within the limits of the listener.

use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::MatchedPath;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, StatusCode, Version};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use futures_util::FutureExt;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tower::ServiceExt;

use crate::class::Class;
use crate::connection::{ConnectionActivity, RequestProgress};
use crate::exchange::{BodyProgress, Exchange, RequestClient, ServedRoute};
use crate::head;
use crate::problem::PROBLEM_JSON;
use crate::proxies::Peer;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::sparse_log::SparseLog;
use crate::started::Started;
use crate::timeouts::Timeouts;
use crate::tls::Tls;
use crate::tokens::AccessTokens;

/// The most bytes that are received of a body that no handler reads: the client reads the response only after
/// it has sent the body.
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// The time limit for that: a thousand clients that send at once share the machine's capacity for reading.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest pause of a client meanwhile.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Divisor of the places: clients without a known token have this fraction of them, in addition to the places
/// of known clients.
const UNKNOWN_PLACES_DIVISOR: usize = 4;

/// Divisor of the bytes: clients without a known token have this fraction of them.
const UNKNOWN_BYTES_DIVISOR: usize = 16;

/// The largest problem to which `instance` is added, in bytes.
const MAX_PROBLEM_BYTES: u64 = 256 * 1024;

/// The limits of a listener, and its callbacks, certificate and tokens.
#[derive(Clone)]
pub struct ListenerSettings {
    /// Maximum number of connections at a time, and of requests in progress. When there is no room for a
    /// further connection, idle ones are closed; others wait in the backlog of the operating system.
    pub max_connections: usize,
    /// Largest request body in bytes, for routes without their own [`BodyLimit`](crate::BodyLimit).
    pub max_body_bytes: usize,
    /// Maximum size of all request bodies and responses together, in bytes: at least twice the largest body.
    /// See budget.rs.
    pub max_buffered_bytes: usize,
    /// Paths that are served even while unread responses leave no room.
    pub probes: &'static [&'static str],
    /// Time limits for clients.
    pub timeouts: Timeouts,
    /// Time after the stop for which connections are still accepted.
    pub drain_delay: Duration,
    /// Time for requests in progress after that.
    pub drain_timeout: Duration,
    /// The responses of the listener itself.
    pub refuse: fn(ListenerRefusal) -> Response,
    /// Observer of every response to a request that was complete enough to have a path.
    pub observe: Option<ResponseObserver>,
    /// Certificate; without one the listener serves plain HTTP/1.1.
    pub tls: Option<Tls>,
    /// Tokens of known clients; other clients share a small part of the room. `None`: every client is known.
    pub tokens: Option<AccessTokens>,
}

impl fmt::Debug for ListenerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerSettings")
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

/// A callback for each response; must not block.
pub type ResponseObserver = Arc<dyn Fn(Answered<'_>) + Send + Sync>;

/// A response as reported to the observer.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Template of the route, such as `/v1/notifications/{id}`; `None` if no route matched.
    pub route: Option<&'a str>,
    /// Status of the response.
    pub status: StatusCode,
    /// Time from the first byte of the request to the response, before it is written.
    pub duration: Duration,
}

/// The reason why the listener responds in place of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerRefusal {
    /// The request timeout passed while the handler waited for the client: 408. The connection is closed.
    RequestTimeout,
    /// The request timeout passed while the handler did something else: 503.
    AnswerTimeout {
        /// True if the method changes nothing, so that nothing can have taken effect.
        is_safe: bool,
    },
    /// The request timeout passed while there was no room for the request: 503.
    Overloaded,
    /// The handler panicked: 503.
    Panicked {
        /// True if the method changes nothing.
        is_safe: bool,
    },
    /// The head of the request breaks this rule: 400.
    InvalidHead(&'static str),
}

/// The state that the connections of a listener share.
pub(crate) struct HttpService {
    router: Router,
    pub(crate) settings: ListenerSettings,
    known: Arc<Class>,
    /// Class of clients without a known token.
    unknown: Arc<Class>,
    /// Log of responses that clients do not read.
    pub(crate) stalled: Arc<SparseLog>,
    /// Log of unknown clients that found no room.
    crowded: SparseLog,
}

impl HttpService {
    pub(crate) fn new(router: Router, settings: ListenerSettings) -> Self {
        let places = (settings.max_connections / UNKNOWN_PLACES_DIVISOR).max(1);
        let unknown = Class::new(places, settings.max_buffered_bytes / UNKNOWN_BYTES_DIVISOR);
        Self {
            router: router.layer(from_fn(note_route)),
            known: Class::new(settings.max_connections, settings.max_buffered_bytes),
            unknown,
            settings,
            stalled: Arc::default(),
            crowded: SparseLog::default(),
        }
    }

    /// Serves one request. Never fails. It begins at once, before a byte of the next request is read.
    pub(crate) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
        activity: &ConnectionActivity,
        has_fragment: bool,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        let (started, progress) = activity.begin();
        self.answer_begun(request, peer, (started, progress), has_fragment)
    }

    async fn answer_begun(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: Peer,
        (started, progress): (Instant, RequestProgress),
        has_fragment: bool,
    ) -> Result<Response, Infallible> {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(Started(started));
        let id = RequestId::of(request.headers());
        let (path, version) = (request.uri().path().to_owned(), request.version());
        let deadline = started + self.settings.timeouts.request;
        let client = match head::check(&request, has_fragment) {
            Ok(()) => self.client(&request, &path, deadline).await.ok_or(ListenerRefusal::Overloaded),
            Err(rule) => Err(ListenerRefusal::InvalidHead(rule)),
        };
        let client = match client {
            Ok(client) => client,
            Err(refusal) => {
                progress.refused();
                if version < Version::HTTP_2 {
                    tokio::spawn(linger(request.into_body(), progress));
                }
                let response = (self.settings.refuse)(refusal);
                return Ok(self.finish(response, None, started, &id, &path).await);
            }
        };
        if Arc::ptr_eq(&client.class, &client.known) {
            progress.activity().set_known();
        }
        let exchange = Exchange::new(self.settings.max_body_bytes, client, progress);
        let (mut response, refusal) = self.handle(request, &exchange, &id, deadline).await;
        exchange.leave();
        if response.status() == StatusCode::UNAUTHORIZED {
            exchange.progress().activity().count_unauthorized();
        }
        if let Some(unread) = exchange.take_unread().filter(|_| version < Version::HTTP_2) {
            if refusal == Some(ListenerRefusal::RequestTimeout) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            } else {
                exchange.progress().refused();
                tokio::spawn(linger(unread, Arc::clone(exchange.progress())));
            }
        }
        let response = self.finish(response, exchange.route(), started, &id, &path).await;
        Ok(response.map(|body| exchange.answer_body(body)))
    }

    /// The client of a request, and a place for it; `None` if no place was free by `deadline`.
    async fn client(
        &self,
        request: &Request<Incoming>,
        path: &str,
        deadline: Instant,
    ) -> Option<RequestClient> {
        let principal = self.settings.tokens.as_ref().map(|tokens| tokens.principal(request.headers()));
        let class = if principal.as_ref().is_some_and(Option::is_none) { &self.unknown } else { &self.known };
        let is_probe = self.settings.probes.contains(&path);
        let place = timeout_at(deadline, class.enter(is_probe)).await;
        // Cannot fail: the semaphore is never closed; only the time can run out.
        let Ok(Ok(place)) = place else {
            if let Some(count) = self.crowded.admit().filter(|_| Arc::ptr_eq(class, &self.unknown)) {
                tracing::warn!(
                    count,
                    "clients without a known token take all room that they have; refusing some of their requests"
                );
            }
            return None;
        };
        let owner = principal.flatten().map(|principal| principal.name);
        Some(RequestClient { owner, class: Arc::clone(class), known: Arc::clone(&self.known), place })
    }

    /// The response of the router, or the listener's response in its place.
    async fn handle(
        &self,
        request: Request<Incoming>,
        exchange: &Exchange,
        id: &RequestId,
        deadline: Instant,
    ) -> (Response, Option<ListenerRefusal>) {
        let (mut head, body) = request.into_parts();
        let is_safe = head.method.is_safe();
        head.extensions.insert(exchange.clone());
        head.extensions.insert(id.clone());
        let request = Request::from_parts(head, exchange.request_body(body));
        let handling = AssertUnwindSafe(self.router.clone().oneshot(request)).catch_unwind();
        let mut handling = pin!(handling);
        let handled = tokio::select! {
            // Checked first, so that a request whose time is over starts nothing: the room that another
            // request frees goes to the next one.
            biased;
            () = sleep_until(deadline) => None,
            handled = handling.as_mut() => Some(handled),
        };
        let refusal = match handled {
            Some(Ok(Ok(response))) => return (response, None),
            Some(Ok(Err(never))) => match never {},
            Some(Err(_panic)) => {
                tracing::error!(
                    route = exchange.route(),
                    "a request handler panicked; the client got an error"
                );
                ListenerRefusal::Panicked { is_safe }
            }
            None => match exchange.body() {
                // The wait for room took most of the time, not the client.
                BodyProgress::Awaited if exchange.paused() > self.settings.timeouts.request / 2 => {
                    ListenerRefusal::Overloaded
                }
                BodyProgress::Awaited => ListenerRefusal::RequestTimeout,
                BodyProgress::Paused => ListenerRefusal::Overloaded,
                BodyProgress::NotAwaited => ListenerRefusal::AnswerTimeout { is_safe },
            },
        };
        ((self.settings.refuse)(refusal), Some(refusal))
    }

    /// Adds the headers that every response has, and notifies the observer.
    async fn finish(
        &self,
        response: Response,
        route: Option<&str>,
        started: Instant,
        id: &RequestId,
        path: &str,
    ) -> Response {
        let mut response = with_instance(response, path).await;
        if let Some(id) = id.header() {
            response.headers_mut().insert(X_REQUEST_ID, id);
        }
        if let Some(observe) = &self.settings.observe {
            observe(Answered { route, status: response.status(), duration: started.elapsed() });
        }
        response
    }
}

/// Records the route that matched, for the observer.
async fn note_route(request: axum::extract::Request, next: Next) -> Response {
    let (exchange, route) =
        (request.extensions().get::<Exchange>(), request.extensions().get::<MatchedPath>());
    if let (Some(exchange), Some(route)) = (exchange, route) {
        exchange.set_route(ServedRoute::Matched(route.clone()));
    }
    next.run(request).await
}

/// Adds the path of the request as `instance` to a problem that has none. It is added here and not by the
/// handler, so that a stored response equals the first one.
async fn with_instance(response: Response, path: &str) -> Response {
    let is_problem =
        response.headers().get(CONTENT_TYPE).is_some_and(|media_type| media_type == PROBLEM_JSON);
    if !is_problem || response.body().size_hint().upper().is_none_or(|size| size > MAX_PROBLEM_BYTES) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // Cannot fail: the body is in memory, and small.
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let Ok(mut problem) = serde_json::from_slice::<Map<String, Value>>(&bytes) else {
        return Response::from_parts(head, Body::from(bytes));
    };
    problem.entry("instance").or_insert_with(|| path.into());
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::from(Value::Object(problem).to_string()))
}

/// Reads the rest of a body for a while, so that closing the connection does not destroy the response for a
/// client that is still sending. Until then `progress` keeps the request in progress: the bytes that arrive
/// are not the head of a further request.
async fn linger<P>(unread: Incoming, progress: P) {
    let mut unread = pin!(Limited::new(unread, LINGER_BYTES));
    let drain = async { while let Ok(Some(Ok(_))) = timeout(LINGER_IDLE_TIMEOUT, unread.frame()).await {} };
    // In either case the rest is dropped, and the connection too if there is a rest.
    let _ = timeout(LINGER_TIMEOUT, drain).await;
    drop(progress);
}
