//! The responses that the layer sends instead of the handler's, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};

use crate::IdempotencyError;

/// The time that a client must wait before it sends the same key again.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The reason that the handler did not run, or that there is no response.
#[derive(Debug)]
pub enum Problem {
    /// The header is missing although required, repeated or malformed, or the body could not be read.
    BadRequest(String),
    /// The request has no owner: the client is unknown.
    Forbidden,
    /// The body is too large to be compared with that of a repeat.
    BodyTooLarge {
        /// The largest body, in bytes.
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
    /// Returns the HTTP status.
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

    /// Returns the name, the last segment of `type`.
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

    /// Returns the title, the same for every occurrence.
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

    /// Returns advice for the client about this occurrence. The cause of an outage is logged, not sent to the
    /// client.
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

    /// Returns the time after which to retry with the same key, if that may help.
    pub fn retry_after(&self) -> Option<Duration> {
        matches!(self, Self::InProgress | Self::Unavailable(_)).then_some(RETRY_PAUSE)
    }

    /// Builds the response: `type` is `/problems/<name>`, `instance` the path of the request.
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
