//! The API's own problems, and who may do what.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use domain::malformed::Rejection;
use domain::ports::{StoreError, error_chain};
use domain::route::Channel;
use http_server::problem::{self, FORBIDDEN, Kind, Problem};
use http_server::tokens::{Consumer, Principal};

/// An intent that breaks a rule; `code` names it.
const MALFORMED_INTENT: Kind =
    Kind::new("malformed-intent", "Malformed intent", StatusCode::UNPROCESSABLE_ENTITY);

/// A search that takes longer than a query may.
const QUERY_TOO_EXPENSIVE: Kind =
    Kind::new("query-too-expensive", "Query too expensive", StatusCode::UNPROCESSABLE_ENTITY);

/// A search took too long.
pub(crate) fn query_too_expensive() -> Problem {
    let detail = "The search took longer than NOTIFICATION_API_QUERY_TIMEOUT allows. Narrow it: bound accepted_at by $after and $before, or \
        add, outside of $or and $not, a condition that an index serves: equality of notification_id, idempotency_key or recipient, \
        or of route.status with another status than published.";
    Problem::new(QUERY_TOO_EXPENSIVE, detail)
}

/// The intent breaks a rule.
pub(crate) fn malformed_intent(rejection: &Rejection) -> Problem {
    Problem::new(MALFORMED_INTENT, &rejection.message).with("code", rejection.code.as_str())
}

/// The key belongs to another intent, which differs in these members.
pub(crate) fn idempotency_conflict(differs: &[&str]) -> Problem {
    let detail = "The idempotency key belongs to another intent.";
    Problem::new(problem::IDEMPOTENCY_CONFLICT, detail)
        .with("code", "idempotency_conflict")
        .with("differs", differs.to_vec())
}

/// Another request with the key is being processed.
pub(crate) fn in_progress(retry_after: Duration) -> Problem {
    let detail = "Another request with this idempotency key is being processed.";
    Problem::new(problem::IN_PROGRESS, detail).retry_after(retry_after)
}

/// The key that guards a request as a whole belongs to another one.
pub(crate) fn request_conflict() -> Problem {
    Problem::new(problem::IDEMPOTENCY_CONFLICT, "The idempotency key belongs to another request.")
}

/// The request itself is wrong.
pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
    Problem::new(problem::BAD_REQUEST, detail)
}

/// There is no such thing, or it is not the caller's.
pub(crate) fn not_found(what: &str) -> Problem {
    Problem::new(problem::NOT_FOUND, format!("There is no such {what}."))
}

/// A dependency is unavailable. What exactly is for the log: the caller can only repeat the request.
pub(crate) fn unavailable(cause: &str) -> Problem {
    tracing::debug!(cause, "a request could not be answered");
    not_answered()
}

/// The service cannot answer now.
pub(crate) fn not_answered() -> Problem {
    Problem::new(
        problem::UNAVAILABLE,
        "The service cannot answer now. Repeat the request later, and with the same idempotency key if it has one.",
    )
}

/// A store failed.
pub(crate) fn store_failed(error: &StoreError) -> Problem {
    unavailable(&error_chain(error))
}

/// A store failed to read what a request names. If it refuses the values of the request, the same request
/// fails again.
pub(crate) fn read_failed(error: &StoreError) -> Problem {
    match error {
        StoreError::Refused { .. } => bad_request("The request has a value that cannot be looked for."),
        _ => store_failed(error),
    }
}

/// Reading everything and changing what operators may change.
pub(crate) fn operators_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.operator {
        true => Ok(()),
        false => Err(Problem::new(FORBIDDEN, "This takes an operator's token.")),
    }
}

/// Sending.
pub(crate) fn producers_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.producer {
        Some(_) => Ok(()),
        None => Err(Problem::new(FORBIDDEN, "Only a producer's token may send.")),
    }
}

/// Reading one's own notifications, or all as an operator.
pub(crate) fn readers_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.operator || principal.producer.is_some() {
        true => Ok(()),
        false => Err(Problem::new(FORBIDDEN, "This takes a producer's or an operator's token.")),
    }
}

/// The producer whose intents and notifications are read, if the request names `asked`; `None`: all
/// producers. A producer's token reads its own.
pub(crate) fn producer_read(principal: &Principal, asked: Option<String>) -> Result<Option<String>, Problem> {
    match (principal.operator, principal.producer.as_deref(), asked) {
        (true, _, asked) => Ok(asked),
        (false, Some(own), Some(asked)) if own != asked => {
            Err(Problem::new(FORBIDDEN, "A producer's token reads what is that producer's only."))
        }
        (false, own, _) => Ok(own.map(str::to_owned)),
    }
}

/// Reporting of one's own channel's routes, or of all as an operator.
pub(crate) fn reporters_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    channel_reported(principal).map(drop)
}

/// The channel of whose routes a token may report; `None` if of all.
pub(crate) fn channel_reported(principal: &Principal) -> Result<Option<Channel>, Problem> {
    match (principal.operator, principal.consumer) {
        (true, _) => Ok(None),
        (false, Some(Consumer::Gateway)) => Ok(Some(Channel::Push)),
        (false, Some(Consumer::Mail)) => Ok(Some(Channel::Email)),
        (false, None) => Err(Problem::new(FORBIDDEN, "This takes a consumer's or an operator's token.")),
    }
}

/// The producer of a token that may send; the guard has checked that there is one.
pub(crate) fn producer_of(principal: &Principal) -> Result<&str, Problem> {
    principal.producer.as_deref().ok_or_else(|| Problem::new(FORBIDDEN, "Only a producer's token may send."))
}
