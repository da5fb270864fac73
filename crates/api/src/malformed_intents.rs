//! `GET /v1/malformed-intents` and `GET /v1/malformed-intents/{stream_entry_id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use domain::ports::Queries;
use domain::query::{MalformedFilter, MalformedPlace, Place};
use http_server::problem::Problem;
use serde_json::{Value, json};

use crate::params::{Params, PathId};
use crate::ports::{Api, Ports};
use crate::problems::{not_found, read_failed};
use crate::view;

const PARAMS: [&str; 6] = ["code", "producer", "recorded_after", "recorded_before", "limit", "cursor"];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = MalformedFilter {
        code: params.text("code"),
        producer: params.text("producer"),
        recorded_after: params.time("recorded_after")?,
        recorded_before: params.time("recorded_before")?,
    };
    let after: Option<MalformedPlace> = params.cursor(&filter)?;
    let page = api.queries.list_malformed_intents(&filter, after.as_ref(), params.limit()?).await;
    let page = page.map_err(|error| read_failed(&error))?;
    Ok(Json(json!({
        "malformed_intents": page.items.iter().map(view::malformed_summary).collect::<Vec<_>>(),
        "next_cursor": page.next.map(|place| place.to_cursor(&filter)),
    })))
}

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    PathId(entry_id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let params = Params::parse(query.as_deref(), &["stream"])?;
    let stream = params.text("stream").unwrap_or_else(|| api.settings.stream.clone());
    let found = api.queries.get_malformed_intents(&stream, &entry_id).await;
    let found = found.map_err(|error| read_failed(&error))?;
    if found.is_empty() {
        return Err(not_found("malformed intent"));
    }
    Ok(Json(json!({"malformed_intents": found.iter().map(view::malformed_intent).collect::<Vec<_>>()})))
}
