//! `GET /v1/dead-letters`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use domain::ports::Queries;
use domain::query::{DeadLetterFilter, DeadLetterPlace, Place};
use http_server::problem::Problem;
use serde_json::{Value, json};

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::read_failed;
use crate::view;

const PARAMS: [&str; 8] = [
    "channel",
    "classification",
    "notification_type",
    "created_after",
    "created_before",
    "discarded",
    "limit",
    "cursor",
];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = DeadLetterFilter {
        channel: params.value("channel", "push or email")?,
        classification: params.text("classification"),
        notification_type: params.text("notification_type"),
        created_after: params.time("created_after")?,
        created_before: params.time("created_before")?,
        discarded: params.value("discarded", "true or false")?.unwrap_or(false),
    };
    let after: Option<DeadLetterPlace> = params.cursor(&filter)?;
    let page = api.queries.list_dead_letters(&filter, after.as_ref(), params.limit()?).await;
    let page = page.map_err(|error| read_failed(&error))?;
    Ok(Json(json!({
        "dead_letters": page.items.iter().map(view::dead_letter).collect::<Vec<_>>(),
        "next_cursor": page.next.map(|place| place.to_cursor(&filter)),
    })))
}
