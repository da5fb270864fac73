//! `GET /v1/intents/{idempotency_key}`: the outcome of the intents with a key, from HTTP and from the stream.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::catalog::MAX_NAME;
use domain::entry::EntryId;
use domain::personal::{Document, Sight};
use domain::ports::{Queries, StreamQueries, Submissions};
use domain::query::IntentTrace;
use domain::record::IdempotencyKey;
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::malformed_intents::is_shown;
use crate::params::{Param, Params, PathKey, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, producer_read, read_failed, sight_of, store_failed};
use crate::view::{IntentState, KeyOutcome};

/// The parameter that names the owner of the key.
pub(crate) const PARAMS: [Param; 1] = [Param::new(
    "producer",
    Takes::Text,
    "The producer whose key it is: required of an operator's or a viewer's token; a producer's token takes its own name only.",
)];

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    PathKey(key): PathKey,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let producer = producer_read(&principal, params.text("producer"))?;
    let producer = producer.ok_or_else(|| bad_request("The parameter producer is missing."))?;
    let key = IdempotencyKey { producer, key: key.as_str().to_owned() };
    // Requests in progress are checked before the tables: if one ends in between, its outcome is in the
    // tables. No token sends as a producer with a longer name.
    let is_in_progress =
        key.producer.len() <= MAX_NAME && api.submissions.time_in_progress(&key).await.is_some();
    let trace = api.queries.get_intent_trace(&api.settings.stream, &key).await;
    let mut trace = trace.map_err(|error| read_failed(&error))?;
    trace.notification.hide(Sight::Producer);
    trace.malformed.hide(sight_of(&principal));
    let state = match trace.outcome() {
        Some(outcome) => IntentState::from(outcome),
        None if is_in_progress => IntentState::InProgress,
        None if has_unread(&api, &trace).await? => IntentState::Unread,
        None => IntentState::Unknown,
    };
    let is_shown = trace.malformed.as_ref().is_some_and(|row| is_shown(&api, &principal, row));
    Ok(Json(KeyOutcome::new(state, &trace, is_shown)).into_response())
}

/// Returns true if the stream has entries without an outcome. All entries up to the checkpoint were decided
/// when the tables were read.
async fn has_unread<P: Ports>(api: &Api<P>, trace: &IntentTrace) -> Result<bool, Problem> {
    let after = trace.checkpoint.unwrap_or(EntryId::ZERO);
    api.stream.has_unread(after).await.map_err(|error| store_failed(&error))
}
