//! `GET /v1/activity`: what the service did, in steps.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::ports::ActivityQueries;
use http_server::problem::Problem;

use crate::params::{Param, Params, Takes};
use crate::ports::{Api, Ports};
use crate::problems::read_failed;

/// The parameters.
pub(crate) const PARAMS: [Param; 1] = [Param::new("period", Takes::Period, "The period up to the present.")];

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let period = params.value("period", "hour or day")?.unwrap_or_default();
    let history = api.queries.activity(period).await.map_err(|error| read_failed(&error))?;
    Ok(Json(history).into_response())
}
