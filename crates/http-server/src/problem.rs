//! Errors as problem details (RFC 9457).
//!
//! A [`Problem`] is a response: `application/problem+json` with `type`, `title`, `status` and `detail`,
//! further members that the handler adds, and the headers that belong to its status. The listener adds
//! `instance`, the path of the request.
//!
//! An interface with its own kinds declares them next to these: `const QUERY_TOO_EXPENSIVE: Kind =
//! Kind::new(…)`.

use std::time::Duration;

use axum::Router;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use crate::ListenerRefusal;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The delay after which a client should retry a 503, unless the handler sets another one.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(1);

/// The kind of a problem: name, title and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    name: &'static str,
    title: &'static str,
    status: StatusCode,
}

impl Kind {
    /// Creates a kind whose `type` is `/problems/<name>`.
    pub const fn new(name: &'static str, title: &'static str, status: StatusCode) -> Self {
        Self { name, title, status }
    }

    /// The last part of `type`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The status of the response.
    pub const fn status(self) -> StatusCode {
        self.status
    }
}

/// The request breaks a rule of the interface.
pub const BAD_REQUEST: Kind = Kind::new("bad-request", "Bad request", StatusCode::BAD_REQUEST);
/// The token is missing or unknown. The response has `WWW-Authenticate: Bearer`.
pub const UNAUTHORIZED: Kind = Kind::new("unauthorized", "Unauthorized", StatusCode::UNAUTHORIZED);
/// The token does not allow this request.
pub const FORBIDDEN: Kind = Kind::new("forbidden", "Forbidden", StatusCode::FORBIDDEN);
/// Nothing exists at this path.
pub const NOT_FOUND: Kind = Kind::new("not-found", "Not found", StatusCode::NOT_FOUND);
/// The path does not support this method. The router adds `Allow`.
pub const METHOD_NOT_ALLOWED: Kind =
    Kind::new("method-not-allowed", "Method not allowed", StatusCode::METHOD_NOT_ALLOWED);
/// The request was not complete in time.
pub const REQUEST_TIMEOUT: Kind =
    Kind::new("request-timeout", "Request timeout", StatusCode::REQUEST_TIMEOUT);
/// Another request with the same idempotency key is in progress.
pub const IN_PROGRESS: Kind = Kind::new("in-progress", "In progress", StatusCode::CONFLICT);
/// The body is larger than the limit.
pub const BODY_TOO_LARGE: Kind = Kind::new("body-too-large", "Body too large", StatusCode::PAYLOAD_TOO_LARGE);
/// The body is not `application/json`, or is compressed.
pub const UNSUPPORTED_MEDIA_TYPE: Kind =
    Kind::new("unsupported-media-type", "Unsupported media type", StatusCode::UNSUPPORTED_MEDIA_TYPE);
/// The idempotency key belongs to another request.
pub const IDEMPOTENCY_CONFLICT: Kind =
    Kind::new("idempotency-conflict", "Idempotency conflict", StatusCode::UNPROCESSABLE_ENTITY);
/// The token exceeded its rate limit. The response has `Retry-After`.
pub const TOO_MANY_REQUESTS: Kind =
    Kind::new("too-many-requests", "Too many requests", StatusCode::TOO_MANY_REQUESTS);
/// The service cannot serve the request now. The response has `Retry-After`.
pub const UNAVAILABLE: Kind = Kind::new("unavailable", "Unavailable", StatusCode::SERVICE_UNAVAILABLE);

/// An error as a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    kind: Kind,
    detail: String,
    members: Map<String, Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    /// Creates a problem. `detail` describes the fault of this request, in a sentence for the client's
    /// developer.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let retry_after = (kind == UNAVAILABLE).then_some(RETRY_UNAVAILABLE);
        Self { kind, detail: detail.into(), members: Map::new(), retry_after }
    }

    /// Adds a further member, such as `code`.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// Sets `Retry-After`, the time to retry: whole seconds, rounded up, at least one.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// The kind of the problem.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The fault of this request.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The body as JSON, without `instance`.
    pub fn body(&self) -> Map<String, Value> {
        let mut body = self.members.clone();
        body.insert("type".to_owned(), format!("/problems/{}", self.kind.name).into());
        body.insert("title".to_owned(), self.kind.title.into());
        body.insert("status".to_owned(), self.kind.status.as_u16().into());
        body.insert("detail".to_owned(), self.detail.clone().into());
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Value::Object(self.body()).to_string();
        let mut response = (self.kind.status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        let headers = response.headers_mut();
        if self.kind.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(delay) = self.retry_after {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

/// Adds the responses with problem details for requests that the router does not serve: 404 for an unknown
/// path, 405 with `Allow` for another method. Must be called after the last route is added; the router
/// ignores it for later routes.
pub fn with_fallbacks<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(|| async { Problem::new(NOT_FOUND, "There is nothing at this path.") })
        .method_not_allowed_fallback(|| async {
            Problem::new(METHOD_NOT_ALLOWED, "This path does not take this method; see the header Allow.")
        })
}

/// The listener's own responses, for [`ListenerSettings::refuse`](crate::ListenerSettings).
pub fn refuse(refusal: ListenerRefusal) -> Response {
    let problem = match refusal {
        ListenerRefusal::RequestTimeout => {
            Problem::new(REQUEST_TIMEOUT, "The request was not complete within the request timeout.")
        }
        ListenerRefusal::AnswerTimeout { is_safe } => {
            let unknown = if is_safe { "" } else { " Whether the request took effect is not known." };
            Problem::new(UNAVAILABLE, format!("No response within the request timeout.{unknown}"))
        }
        ListenerRefusal::Overloaded => {
            Problem::new(UNAVAILABLE, "The service has more requests in progress than it can buffer.")
        }
        ListenerRefusal::Panicked { is_safe } => {
            let unknown = if is_safe { "" } else { " Whether it took effect is not known." };
            Problem::new(UNAVAILABLE, format!("The request failed.{unknown}"))
        }
        ListenerRefusal::InvalidHead(rule) => Problem::new(BAD_REQUEST, rule),
    };
    problem.into_response()
}
