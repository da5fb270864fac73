//! `GET /v1/dead-letters`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::ports::Queries;
use domain::query::{DeadLetterFilter, DeadLetterPlace};
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{CURSOR, LIMIT, Param, Params, Takes, wrong_cursor};
use crate::ports::{Api, Ports};
use crate::problems::{read_failed, sight_of};
use crate::view::DeadLetters;

/// The filters of the list.
pub(crate) const PARAMS: [Param; 8] = [
    Param::new("channel", Takes::Channel, "Only those of this channel."),
    Param::new("classification", Takes::Text, "Only those whose last attempt failed for this cause."),
    Param::new("notification_type", Takes::Text, "Only those of notifications of this type."),
    Param::new("created_after", Takes::Time, "Only those created then or later."),
    Param::new("created_before", Takes::Time, "Only those created before then."),
    Param::new(
        "discarded",
        Takes::Flag,
        "`true`: only those that an operator discarded; else only the others.",
    ),
    LIMIT,
    CURSOR,
];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
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
    let sight = sight_of(&principal);
    let page = api.queries.list_dead_letters_seen(sight, &filter, after, params.limit()?).await;
    let page = page.map_err(|error| read_failed(&error))?.ok_or_else(wrong_cursor)?;
    let (dead_letters, next_cursor) = page.into_parts(&filter);
    Ok(Json(DeadLetters { dead_letters, next_cursor }).into_response())
}
