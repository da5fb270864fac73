//! The answers that the layer gives instead of the handler, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};

use crate::IdempotencyError;

/// What a client is told to wait before it asks again with the same key.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why the handler did not run, or has no answer.
#[derive(Debug)]
pub enum Problem {
    /// The header is missing where it is required, is repeated or is not well formed, or the body could not
    /// be read.
    BadRequest(String),
    /// The request has no scope: the client is not known.
    Forbidden,
    /// The body is too large to be compared with that of a repeat.
    BodyTooLarge {
        /// The largest, in bytes.
        max_bytes: usize,
    },
    /// Another request with the key is in progress.
    InProgress,
    /// The key belongs to another request.
    Conflict,
    /// See [`crate::Run::Unavailable`].
    Unavailable(IdempotencyError),
}

impl Problem {
    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InProgress => StatusCode::CONFLICT,
            Self::Conflict => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The name, the last segment of `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::Forbidden => "forbidden",
            Self::BodyTooLarge { .. } => "body-too-large",
            Self::InProgress => "in-progress",
            Self::Conflict => "idempotency-conflict",
            Self::Unavailable(_) => "unavailable",
        }
    }

    /// What is the same for every occurrence.
    pub fn title(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "Bad request",
            Self::Forbidden => "Forbidden",
            Self::BodyTooLarge { .. } => "Body too large",
            Self::InProgress => "Request in progress",
            Self::Conflict => "Idempotency key used for another request",
            Self::Unavailable(_) => "Unavailable",
        }
    }

    /// What the client can do about this one. The cause of an outage is for the log, not for the client.
    pub fn detail(&self) -> String {
        match self {
            Self::BadRequest(detail) => detail.clone(),
            Self::Forbidden => "requests with an idempotency key need a known client".to_owned(),
            Self::BodyTooLarge { max_bytes } => format!("the body has more than {max_bytes} bytes"),
            Self::InProgress => {
                "a request with this idempotency key is being processed; repeat it later with the same key"
                    .to_owned()
            }
            Self::Conflict => {
                "the idempotency key was used for a request with another method, path or body; use a new key"
                    .to_owned()
            }
            Self::Unavailable(_) => {
                "whether the request was processed is unknown; repeat it later with the same key".to_owned()
            }
        }
    }

    /// When to try again with the same key, where that helps.
    pub fn retry_after(&self) -> Option<Duration> {
        matches!(self, Self::InProgress | Self::Unavailable(_)).then_some(RETRY_PAUSE)
    }

    /// The response: `type` is `/problems/<name>`, `instance` the path of the request.
    pub fn to_response(&self, request: &Parts) -> Response<Body> {
        let body = serde_json::json!({
            "type": format!("/problems/{}", self.name()),
            "title": self.title(),
            "status": self.status().as_u16(),
            "detail": self.detail(),
            "instance": request.uri.path(),
        });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(pause) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs()));
        }
        response
    }
}
