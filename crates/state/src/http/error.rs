//! Errors as answers: `{"error":"<code>","message":"…"}`.

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::{BodyError, Refusal};
use pg::PgError;
use serde_json::{Value, json};

use crate::StateError;

/// After how many seconds a client should retry what is unavailable.
const RETRY_AFTER_SECONDS: &str = "1";

/// What follows an answer that is not known.
const UNKNOWN_OUTCOME: &str = "; whether a write took effect is not known";

/// An answer that is no success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    header: Option<(HeaderName, &'static str)>,
    /// The member `current_status` of a conflict.
    current_status: Option<Value>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), header: None, current_status: None }
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn unauthorized() -> Self {
        let message = "the request needs a known token: Authorization: Bearer <token>";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message).with(WWW_AUTHENTICATE, "Bearer")
    }

    pub(super) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
    }

    pub(super) fn no_such_key() -> Self {
        Self::new(StatusCode::NOT_FOUND, "key_not_found", "there is no document with this key")
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let message = "this path does not take this method; see the header Allow";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).with(ALLOW, allow)
    }

    pub(super) fn status_conflict(current: Option<String>) -> Self {
        let message = "the document is not there with this status";
        let current = current.map_or(Value::Null, Value::String);
        Self { current_status: Some(current), ..Self::new(StatusCode::CONFLICT, "conflict", message) }
    }

    pub(super) fn precondition_failed() -> Self {
        let message = "the document is not there with this version, or is there and must not be";
        Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", message)
    }

    pub(super) fn unsupported_media_type(message: &str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    pub(super) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        error.with(RETRY_AFTER, RETRY_AFTER_SECONDS)
    }

    /// The database gave no answer in time.
    pub(super) fn no_answer() -> Self {
        Self::unavailable(format!("the database does not answer{UNKNOWN_OUTCOME}"))
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string())
            }
            BodyError::Incomplete => Self::bad_request(error.to_string()),
        }
    }
}

impl From<StateError> for ApiError {
    /// The causes are in the log; a client learns what it can do.
    fn from(error: StateError) -> Self {
        match error {
            StateError::InvalidKey(_) | StateError::InvalidValue(_) => Self::bad_request(error.to_string()),
            StateError::TimedOut { .. } => Self::timeout(error.to_string()),
            StateError::Postgres(PgError::TimedOut { .. }) => {
                Self::timeout(format!("the statement took longer than it may{UNKNOWN_OUTCOME}"))
            }
            StateError::Postgres(PgError::Locked { .. }) => {
                Self::unavailable("another transaction holds the document; nothing was changed")
            }
            StateError::Postgres(PgError::Refused { .. }) => {
                Self::bad_request("the database refused what was sent; nothing was changed")
            }
            StateError::Postgres(PgError::Unavailable { .. }) => {
                Self::unavailable(format!("the database is unavailable{UNKNOWN_OUTCOME}"))
            }
            StateError::NoRights(_) | StateError::Corrupt { .. } => {
                Self::unavailable("the table cannot be used; the log of the server says why")
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.code, "message": self.message });
        if let Some(current) = self.current_status {
            body["current_status"] = current;
        }
        let mut response =
            (self.status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response();
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// What the listener answers by itself, for `Settings::refuse` of the crate `http-server`.
pub fn refuse(refusal: Refusal) -> Response {
    let error = match refusal {
        Refusal::RequestTimeout => {
            let message = "the request was not complete in time";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
        }
        Refusal::AnswerTimeout => ApiError::no_answer(),
        Refusal::Overloaded => ApiError::unavailable("there are more requests in progress than can be buffered"),
        Refusal::Panicked => ApiError::unavailable(format!("the request failed{UNKNOWN_OUTCOME}")),
    };
    error.into_response()
}
