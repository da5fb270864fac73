//! `GET /v1/find`: everything that an id refers to.

use std::sync::Arc;

use ambient::Clock;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::find::FindQuery;
use domain::personal::Document;
use domain::ports::Finder;
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{Param, Params, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, personal_search, read_failed, sight_of};

/// The id, and what narrows its meaning.
pub(crate) const PARAMS: [Param; 3] = [
    Param::new(
        "id",
        Takes::Text,
        "Required. The id of a stream entry, intents or outbound, of a notification, of a route (`event_id`, `delivery_id`), of an event of an outbox, of a \
         request (of an intent or of an operator's change) or of a trace; or an idempotency key.",
    ),
    Param::new("producer", Takes::Text, "The id is an idempotency key of this producer."),
    Param::new("stream", Takes::Text, "The id is that of an entry of this stream."),
];

pub(crate) async fn find<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let query = FindQuery {
        name: params.text("id").ok_or_else(|| bad_request("The parameter id is missing."))?,
        producer: params.text("producer"),
        stream: params.text("stream"),
    };
    if query.producer.is_some() && query.stream.is_some() {
        return Err(bad_request("An id has a producer or a stream, not both."));
    }
    let (sight, now) = (sight_of(&principal), api.clock.now());
    let query = query.sought_by(sight).ok_or_else(personal_search)?;
    let found = api.finder.find(&query, now).await.map_err(|error| read_failed(&error))?;
    Ok(Json(found.seen_by(sight).explained(now)).into_response())
}
