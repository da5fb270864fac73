//! `GET /v1/actions`: what operators changed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::{ActionFilter, ActionPlace};
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{CURSOR, LIMIT, Param, Params, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{read_failed, sight_of};
use crate::view::Actions;

/// The filters of the list.
pub(crate) const PARAMS: [Param; 7] = [
    Param::new("actor", Takes::Text, "Only those of this operator."),
    Param::new("action", Takes::Text, "Only those with this name."),
    Param::new("request_id", Takes::Text, "Only those of this request."),
    Param::new("after", Takes::Time, "Only those made then or later."),
    Param::new("before", Takes::Time, "Only those made before then."),
    LIMIT,
    CURSOR,
];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = ActionFilter {
        actor: params.text("actor"),
        action: params.text("action"),
        request_id: params.text("request_id"),
        after: params.time("after")?,
        before: params.time("before")?,
    };
    let after: Option<ActionPlace> = params.cursor(&filter)?;
    let page = api.queries.list_actions(&filter, after.as_ref(), params.limit()?).await;
    let page = page.map_err(|error| read_failed(&error))?;
    let (actions, next_cursor) = page.into_parts(&filter);
    Ok(Json(Actions { actions: actions.seen_by(sight_of(&principal)), next_cursor }).into_response())
}
