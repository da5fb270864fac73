//! The problems that only the API has, and the rights of callers.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use domain::conflict::Difference;
use domain::malformed_intent::Rejection;
use domain::personal::Sight;
use domain::ports::{StoreError, error_chain};
use domain::route::Channel;
use http_server::problem::{self, FORBIDDEN, Kind, Problem};
use http_server::tokens::{Consumer, Principal};

/// An intent breaks a rule; `code` names it.
const MALFORMED_INTENT: Kind =
    Kind::new("malformed-intent", "Malformed intent", StatusCode::UNPROCESSABLE_ENTITY);

/// A search exceeds the time limit of a query.
const QUERY_TOO_EXPENSIVE: Kind =
    Kind::new("query-too-expensive", "Query too expensive", StatusCode::UNPROCESSABLE_ENTITY);

/// The problem of a search that took too long.
pub(crate) fn query_too_expensive() -> Problem {
    let detail = "The search took longer than NOTIFICATION_API_QUERY_TIMEOUT allows. Narrow it: bound accepted_at by $after and $before, or \
        add, outside of $or and $not, a condition that an index serves: equality of notification_id, idempotency_key or recipient, \
        or of route.status with another status than published.";
    Problem::new(QUERY_TOO_EXPENSIVE, detail)
}

/// The problem of an intent that breaks a rule.
pub(crate) fn malformed_intent(rejection: &Rejection) -> Problem {
    Problem::new(MALFORMED_INTENT, &rejection.message).with("code", rejection.code.as_str())
}

/// The problem of a key that belongs to another intent, which differs in these members.
pub(crate) fn idempotency_conflict(differs: &[Difference]) -> Problem {
    let differs: Vec<&str> = differs.iter().map(|difference| difference.member).collect();
    let detail = "The idempotency key belongs to another intent.";
    Problem::new(problem::IDEMPOTENCY_CONFLICT, detail)
        .with("code", "idempotency_conflict")
        .with("differs", differs)
}

/// The problem of a key whose other request is still being processed.
pub(crate) fn in_progress(retry_after: Duration) -> Problem {
    let detail = "Another request with this idempotency key is being processed.";
    Problem::new(problem::IN_PROGRESS, detail).retry_after(retry_after)
}

/// The problem of a key that guards another request.
pub(crate) fn request_conflict() -> Problem {
    Problem::new(problem::IDEMPOTENCY_CONFLICT, "The idempotency key belongs to another request.")
}

/// The problem of a request that is itself invalid.
pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
    Problem::new(problem::BAD_REQUEST, detail)
}

/// The problem of a thing that does not exist or is not visible to this caller.
pub(crate) fn not_found(what: &str) -> Problem {
    Problem::new(problem::NOT_FOUND, format!("There is no such {what}."))
}

/// The problem of an unavailable dependency. The cause is only logged: the caller can only repeat the
/// request.
pub(crate) fn unavailable(cause: &str) -> Problem {
    tracing::debug!(cause, "a request could not be answered");
    not_answered()
}

/// The problem of a service that cannot process the request now.
pub(crate) fn not_answered() -> Problem {
    Problem::new(
        problem::UNAVAILABLE,
        "The service cannot answer now. Repeat the request later, and with the same idempotency key if it has one.",
    )
}

/// The problem of a store that failed.
pub(crate) fn store_failed(error: &StoreError) -> Problem {
    unavailable(&error_chain(error))
}

/// The problem of a store that failed to read what a request refers to. If the store refuses the values of
/// the request, the problem is permanent: the same request fails again.
pub(crate) fn read_failed(error: &StoreError) -> Problem {
    match error {
        StoreError::Refused { .. } => bad_request("The request has an impossible value looked for."),
        _ => store_failed(error),
    }
}

/// The problem of a search by personal data that the caller may not see: its result would tell it.
pub(crate) fn personal_search() -> Problem {
    let detail = "A search by an address or by a member of the payload takes an operator's token, or a viewer's with see = [\"personal\"].";
    Problem::new(FORBIDDEN, detail)
}

/// The part of documents that the caller sees.
pub(crate) fn sight_of(principal: &Principal) -> Sight {
    match principal.role {
        Some(_) if principal.sees_personal() => Sight::Whole,
        Some(_) => Sight::Masked,
        None => Sight::Producer,
    }
}

/// Admits operators, who may make operators' changes.
pub(crate) fn operators_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.is_operator() {
        true => Ok(()),
        false => Err(Problem::new(FORBIDDEN, "This takes an operator's token.")),
    }
}

/// Admits viewers and operators, who read everything.
pub(crate) fn viewers_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.role {
        Some(_) => Ok(()),
        None => Err(Problem::new(FORBIDDEN, "This takes a viewer's or an operator's token.")),
    }
}

/// Admits producers, who may send.
pub(crate) fn producers_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.producer {
        Some(_) => Ok(()),
        None => Err(Problem::new(FORBIDDEN, "Only a producer's token may send.")),
    }
}

/// Admits producers, who read their own notifications, and viewers and operators, who read all.
pub(crate) fn readers_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    match principal.role.is_some() || principal.producer.is_some() {
        true => Ok(()),
        false => Err(Problem::new(FORBIDDEN, "This takes a producer's, a viewer's or an operator's token.")),
    }
}

/// The producer whose intents and notifications a request reads, if it names `asked`; `None` for all
/// producers. A producer's token without a role reads only its own.
pub(crate) fn producer_read(principal: &Principal, asked: Option<String>) -> Result<Option<String>, Problem> {
    match (principal.role, principal.producer.as_deref(), asked) {
        (Some(_), _, asked) => Ok(asked),
        (None, Some(own), Some(asked)) if own != asked => {
            Err(Problem::new(FORBIDDEN, "A producer's token reads what is that producer's only."))
        }
        (None, own, _) => Ok(own.map(str::to_owned)),
    }
}

/// Admits consumers, who report on routes of their own channel, and operators, who report on all.
pub(crate) fn reporters_only(principal: &Principal, _: &Parts) -> Result<(), Problem> {
    channel_reported(principal).map(drop)
}

/// The channel on whose routes a token may report; `None` for all channels.
pub(crate) fn channel_reported(principal: &Principal) -> Result<Option<Channel>, Problem> {
    match (principal.is_operator(), principal.consumer) {
        (true, _) => Ok(None),
        (false, Some(Consumer::Gateway)) => Ok(Some(Channel::Push)),
        (false, Some(Consumer::Mail)) => Ok(Some(Channel::Email)),
        (false, None) => Err(Problem::new(FORBIDDEN, "This takes a consumer's or an operator's token.")),
    }
}

/// The producer of a token that may send; the guard has checked that the token has one.
pub(crate) fn producer_of(principal: &Principal) -> Result<&str, Problem> {
    principal.producer.as_deref().ok_or_else(|| Problem::new(FORBIDDEN, "Only a producer's token may send."))
}
