//! `GET /v1/malformed-intents` and `GET /v1/malformed-intents/{stream_entry_id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::{MalformedFilter, MalformedPlace, MalformedSummary, Page, StoredMalformedIntent};
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{CURSOR, LIMIT, Param, Params, PathId, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{not_found, producer_read, read_failed, sight_of};
use crate::view::{MalformedIntents, MalformedIntentsPage};

/// The filters of the list.
pub(crate) const PARAMS: [Param; 6] = [
    Param::new("code", Takes::Text, "Only those with this failure code."),
    Param::new(
        "producer",
        Takes::Text,
        "Only those that name this producer; a producer's token takes its own name only.",
    ),
    Param::new("recorded_after", Takes::Time, "Only those recorded then or later."),
    Param::new("recorded_before", Takes::Time, "Only those recorded before then."),
    LIMIT,
    CURSOR,
];

/// The filters of the rows with one entry id.
pub(crate) const SHOW_PARAMS: [Param; 1] =
    [Param::new("stream", Takes::Text, "The stream of the entry; absent: the one that the service reads.")];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = MalformedFilter {
        code: params.text("code"),
        producer: producer_read(&principal, params.text("producer"))?,
        idempotency_key: None,
        recorded_after: params.time("recorded_after")?,
        recorded_before: params.time("recorded_before")?,
    };
    let sight = sight_of(&principal);
    let after = params.cursor::<MalformedPlace>(&filter)?.seen_by(sight);
    let page = api.queries.list_malformed_intents(&filter, after.as_ref(), params.limit()?).await;
    let mut page = page.map_err(|error| read_failed(&error))?;
    page.items.iter_mut().filter(|row| !is_shown(&api, &principal, row)).for_each(MalformedSummary::withhold);
    let page = Page { items: page.items.seen_by(sight), next: page.next.seen_by(sight) };
    let (malformed_intents, next_cursor) = page.into_parts(&filter);
    Ok(Json(MalformedIntentsPage { malformed_intents, next_cursor }).into_response())
}

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    PathId(entry_id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &SHOW_PARAMS)?;
    let stream = params.text("stream").unwrap_or_else(|| api.settings.stream.clone());
    let catalog = &api.settings.catalog;
    let found = api.queries.get_malformed_details(&stream, &entry_id, catalog).await;
    let mut found = found.map_err(|error| read_failed(&error))?;
    let own = principal.producer.as_deref();
    found.retain(|row| principal.role.is_some() || own == Some(row.summary.producer.as_str()));
    if found.is_empty() {
        return Err(not_found("malformed intent"));
    }
    let hidden = found.iter_mut().filter(|row| !is_shown(&api, &principal, &row.summary));
    hidden.for_each(StoredMalformedIntent::withhold);
    Ok(Json(MalformedIntents { malformed_intents: found.seen_by(sight_of(&principal)) }).into_response())
}

/// Returns true if the reader may see the content of an entry. The producer in an entry is only a claim: a
/// producer sees the content of entries whose type it may send.
pub(crate) fn is_shown<P: Ports>(api: &Api<P>, principal: &Principal, summary: &MalformedSummary) -> bool {
    principal.role.is_some() || summary.allows_producer(&api.settings.catalog)
}
