//! `GET /v1/activity`: what the service did, in steps.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::personal::Document;
use domain::ports::ActivityQueries;
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{Param, Params, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{read_failed, sight_of};

/// The parameters.
pub(crate) const PARAMS: [Param; 1] = [Param::new("period", Takes::Period, "The period up to the present.")];

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let period = params.value("period", "hour or day")?.unwrap_or_default();
    let history = api.queries.activity(period).await.map_err(|error| read_failed(&error))?;
    Ok(Json(history.seen_by(sight_of(&principal))).into_response())
}
