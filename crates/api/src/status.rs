//! `GET /v1/status`: the state of the service as a whole.

use std::sync::Arc;

use ambient::Clock;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::personal::Document;
use domain::ports::{LeaderLookup, Queries, StreamQueries};
use domain::query::Status;
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{sight_of, store_failed};

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let store = api.queries.status(&api.settings.stream, api.clock.now()).await;
    let store = store.map_err(|error| store_failed(&error))?.seen_by(sight_of(&principal));
    let term = api.leader.leader().await.map_err(|error| store_failed(&error))?;
    let seen_since = api.leaderless.look(term.is_some(), store.at);
    let last_term_end = match term {
        Some(_) => None,
        None => api.leader.last_term_end().await.map_err(|error| store_failed(&error))?,
    };
    // If Redis is unavailable, the rest is still returned.
    let backlog = api.stream.backlog(store.processed_up_to()).await.ok();
    Ok(Json(Status::new(store, term, last_term_end.or(seen_since), backlog)).into_response())
}
