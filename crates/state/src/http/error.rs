//! Errors as responses: `{"error":"<code>","message":"…"}`.

use std::borrow::Cow;

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::{BodyError, ListenerRefusal};
use pg::PgError;
use serde_json::{Value, json};

use crate::StateError;

/// The seconds after which a client should retry after an unavailable response.
const RETRY_AFTER_SECONDS: &str = "1";

/// The end of a message if the outcome of a write is unknown.
const UNKNOWN_OUTCOME: &str = "; whether a write took effect is not known";

/// The kind of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ErrorKind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NoSuchPath,
    NoSuchKey,
    /// Contains the methods that the path accepts.
    MethodNotAllowed(&'static str),
    RequestTimeout,
    Conflict,
    PreconditionFailed,
    TooLarge,
    UnsupportedMediaType,
    Unavailable,
    Timeout,
}

impl ErrorKind {
    fn status_and_code(self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
            Self::NoSuchPath => (StatusCode::NOT_FOUND, "not_found"),
            Self::NoSuchKey => (StatusCode::NOT_FOUND, "key_not_found"),
            Self::MethodNotAllowed(_) => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::Conflict => (StatusCode::CONFLICT, "conflict"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
        }
    }

    fn header(self) -> Option<(HeaderName, &'static str)> {
        match self {
            Self::Unauthorized => Some((WWW_AUTHENTICATE, "Bearer")),
            Self::MethodNotAllowed(allow) => Some((ALLOW, allow)),
            Self::Unavailable => Some((RETRY_AFTER, RETRY_AFTER_SECONDS)),
            _ => None,
        }
    }
}

/// A response other than success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ApiError {
    kind: ErrorKind,
    message: Cow<'static, str>,
    /// The member `current_status` of a conflict, which may be null.
    current_status: Option<Value>,
}

impl ApiError {
    fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), current_status: None }
    }

    pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(ErrorKind::Unauthorized, "the request needs a known token: Authorization: Bearer <token>")
    }

    pub(super) fn forbidden(message: &'static str) -> Self {
        Self::new(ErrorKind::Forbidden, message)
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(ErrorKind::NoSuchPath, "there is nothing at this path")
    }

    pub(super) fn no_such_key() -> Self {
        Self::new(ErrorKind::NoSuchKey, "there is no document with this key")
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(
            ErrorKind::MethodNotAllowed(allow),
            "this path does not take this method; see the header Allow",
        )
    }

    pub(super) fn status_conflict(current: Option<String>) -> Self {
        let current = current.map_or(Value::Null, Value::String);
        let error = Self::new(ErrorKind::Conflict, "the document is not there with this status");
        Self { current_status: Some(current), ..error }
    }

    pub(super) fn precondition_failed() -> Self {
        let message = "the document is not there with this version, or is there and must not be";
        Self::new(ErrorKind::PreconditionFailed, message)
    }

    pub(super) fn unsupported_media_type(message: &'static str) -> Self {
        Self::new(ErrorKind::UnsupportedMediaType, message)
    }

    fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// The same error for a request that cannot have changed anything.
    pub(super) fn of_reading(self) -> Self {
        match self.message.strip_suffix(UNKNOWN_OUTCOME) {
            Some(message) => Self { message: message.to_owned().into(), ..self },
            None => self,
        }
    }

    /// The database did not respond in time.
    pub(super) fn no_answer() -> Self {
        Self::unavailable(format!("the database does not answer{UNKNOWN_OUTCOME}"))
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(_) => Self::new(ErrorKind::TooLarge, error.to_string()),
            BodyError::Incomplete => Self::bad_request(error.to_string()),
        }
    }
}

impl From<StateError> for ApiError {
    /// The causes are in the log; a client receives what it can act on.
    fn from(error: StateError) -> Self {
        match error {
            StateError::InvalidKey(_) | StateError::InvalidValue(_) | StateError::InvalidQuery(_) => {
                Self::bad_request(error.to_string())
            }
            StateError::TooLarge | StateError::DocumentTooLarge { .. } => {
                Self::new(ErrorKind::TooLarge, error.to_string())
            }
            StateError::NoRoom => Self::unavailable(format!("{error}; nothing was changed")),
            StateError::ReadOnly | StateError::Busy(_) => Self::unavailable(error.to_string()),
            StateError::TimedOut { .. } => Self::new(ErrorKind::Timeout, error.to_string()),
            StateError::Postgres(error @ PgError::TimedOut { .. }) if !pg::is_late(&error) => {
                Self::unavailable("a function of the database failed; nothing was changed")
            }
            StateError::Postgres(PgError::TimedOut { .. }) => Self::new(
                ErrorKind::Timeout,
                format!("the statement took longer than it may{UNKNOWN_OUTCOME}"),
            ),
            StateError::Postgres(PgError::Locked { .. }) => {
                Self::unavailable("another transaction holds the document; nothing was changed")
            }
            StateError::Postgres(PgError::Refused { .. }) => {
                Self::bad_request("the database refused what was sent; nothing was changed")
            }
            StateError::Postgres(PgError::Unavailable { .. }) => {
                Self::unavailable(format!("the database is unavailable{UNKNOWN_OUTCOME}"))
            }
            // The last two occur only at the start.
            StateError::NoRights(_)
            | StateError::Corrupt { .. }
            | StateError::NotATable { .. }
            | StateError::Index { .. } => {
                Self::unavailable("the table cannot be used; the log of the server says why")
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = self.kind.status_and_code();
        let mut body = json!({ "error": code, "message": self.message });
        if let Some(current) = self.current_status {
            body["current_status"] = current;
        }
        let mut response = (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response();
        if let Some((name, value)) = self.kind.header() {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The errors that the listener itself returns, for `Settings::refuse` of the crate `http-server`.
pub fn refuse(refusal: ListenerRefusal) -> Response {
    let error = match refusal {
        ListenerRefusal::RequestTimeout => {
            ApiError::new(ErrorKind::RequestTimeout, "the request was not complete in time")
        }
        ListenerRefusal::AnswerTimeout { is_safe: true } => {
            ApiError::unavailable("there was no answer in time")
        }
        ListenerRefusal::AnswerTimeout { is_safe: false } => ApiError::no_answer(),
        ListenerRefusal::Overloaded => {
            ApiError::unavailable("there are more requests in progress than can be buffered")
        }
        ListenerRefusal::Panicked { is_safe: true } => ApiError::unavailable("the request failed"),
        ListenerRefusal::Panicked { is_safe: false } => {
            ApiError::unavailable(format!("the request failed{UNKNOWN_OUTCOME}"))
        }
        ListenerRefusal::InvalidHead(rule) => ApiError::new(ErrorKind::BadRequest, rule),
    };
    error.into_response()
}
