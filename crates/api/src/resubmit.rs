//! `POST /v1/malformed-intents:resubmit`: appends malformed intents to the stream again.
//!
//! The Idempotency-Key guards a request as a whole. Crash recovery is that of the chunks: the repeated
//! request continues with the rows that are not marked.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::hold::checked_reason;
use domain::operations::MAX_REASON_BYTES;
use domain::ports::Resubmitter;
use domain::query::MalformedFilter;
use domain::resubmit::{MAX_INTENTS_PER_REQUEST, MAX_REQUEST_TIME, ResubmitActor, ResubmitSelection};
use http_server::Object;
use http_server::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use crate::at_most::AtMost;
use crate::operations::either_ids_or_filter;
use crate::operator_request::OperatorRequest;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, read_failed, store_failed};

type Ids = AtMost<String, MAX_INTENTS_PER_REQUEST>;

/// The malformed intents to resubmit: either those of these entries, or those that the filter selects.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_ids_or_filter)]
pub(crate) struct ResubmitRequest {
    /// Entry ids of the intents stream.
    #[schemars(
        with = "Option<Vec<String>>",
        length(min = 1, max = MAX_INTENTS_PER_REQUEST),
        inner(length(min = 1), regex(pattern = r"^[^\x00]*$"))
    )]
    ids: Option<Ids>,
    /// The newest 10,000 of those that the list shows with these parameters and that were not resubmitted
    /// yet; if there are others, the response has `has_more`.
    #[schemars(with = "Option<Filter>")]
    filter: Option<Object<Filter>>,
    /// The reason, in the operator's words, for `operator_actions`: 1 to 1,024 bytes without U+0000.
    #[schemars(length(min = 1, max = MAX_REASON_BYTES), regex(pattern = r"^[^\x00]*$"))]
    reason: Option<String>,
    /// Only return what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
}

/// A filter of malformed intents. Without a member it selects all that were not resubmitted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "MalformedIntentFilter")]
struct Filter {
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    code: Option<String>,
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    producer: Option<String>,
    /// Only those recorded then or later.
    #[schemars(extend("format" = "date-time"))]
    recorded_after: Option<String>,
    /// Only those recorded before then.
    #[schemars(extend("format" = "date-time"))]
    recorded_before: Option<String>,
}

impl Filter {
    fn read(self) -> Result<MalformedFilter, Problem> {
        let time = |name: &str, text: Option<String>| {
            let parsed = text.map(|text| text.parse()).transpose();
            parsed.map_err(|_| bad_request(format!("{name} takes a time of RFC 3339.")))
        };
        if [&self.code, &self.producer].into_iter().flatten().any(|text| !is_text(text)) {
            return Err(bad_request("A member of the filter is empty or holds NUL."));
        }
        Ok(MalformedFilter {
            code: self.code,
            producer: self.producer,
            idempotency_key: None,
            recorded_after: time("recorded_after", self.recorded_after)?,
            recorded_before: time("recorded_before", self.recorded_before)?,
        })
    }
}

fn is_text(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

fn selection(ids: Option<Ids>, filter: Option<Object<Filter>>) -> Result<ResubmitSelection, Problem> {
    match (ids, filter) {
        (Some(ids), None) if (1..=MAX_INTENTS_PER_REQUEST).contains(&ids.count) => {
            match ids.kept.iter().all(|id| is_text(id)) {
                true => Ok(ResubmitSelection::Ids(ids.kept)),
                false => Err(bad_request("One of the ids is empty or holds NUL.")),
            }
        }
        (Some(_), None) => Err(bad_request(format!("ids takes 1 to {MAX_INTENTS_PER_REQUEST} elements."))),
        (None, Some(Object(filter))) => Ok(ResubmitSelection::Filter(filter.read()?)),
        (Some(_), Some(_)) | (None, None) => Err(bad_request("The body takes either ids or a filter.")),
    }
}

pub(crate) async fn resubmit<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let ResubmitRequest { ids, filter, reason, dry_run } = request.parse()?;
    let selection = selection(ids, filter)?;
    let reason = reason.map(checked_reason).transpose();
    let reason = reason.map_err(|error| bad_request(format!("The body: {error}.")))?;
    if dry_run {
        let targets = api.resubmitter.select(&selection).await.map_err(|error| read_failed(&error))?;
        return Ok(Json(targets.plan()).into_response());
    }
    let key = request.key()?;
    let (ports, actor) = (Arc::clone(&api), request.principal.name.to_string());
    let (request_id, idempotency_key) = (request.request_id.clone(), key.as_str().to_owned());
    let handler = move || async move {
        let resubmitter = &ports.resubmitter;
        let targets = resubmitter.select(&selection).await.map_err(|error| read_failed(&error))?;
        let actor = ResubmitActor {
            name: &actor,
            request_id: request_id.as_str(),
            idempotency_key: Some(&idempotency_key),
            reason: reason.as_deref(),
        };
        let began = Instant::now();
        let go_on = |_: &_| began.elapsed() < MAX_REQUEST_TIME;
        let report = resubmitter.resubmit(&targets, &selection, actor, go_on).await;
        Ok(Json(report.map_err(|error| store_failed(&error))?).into_response())
    };
    request.run_once(&api, key, handler).await
}
