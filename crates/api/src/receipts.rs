//! `POST /v1/receipts`: the delivery reports of the consumers of the outbound streams.
//!
//! Reports are recorded one by one: an error in one of them is its own outcome and does not refuse the
//! others. A repeated request is safe, because a known report is stale, so it needs no idempotency key.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::ports::ReceiptStore;
use domain::receipt::{MAX_DETAIL_CHARS, MAX_REPORTS, ReceiptStatus, Report, ReportOutcome, RouteReport};
use domain::route::RouteKey;
use http_server::problem::Problem;
use http_server::tokens::Principal;
use http_server::{JsonText, Object};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::at_most::AtMost;
use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, channel_reported, store_failed};
use crate::view::{OUTCOME_INVALID, ReceiptResult, ReceiptResults};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    receipts: AtMost<&'a RawValue, MAX_REPORTS>,
}

/// An element, of which any member may be missing or of any type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Element<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    at: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

/// The id of an element that cannot be parsed.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// Reports on up to a thousand routes.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "a description: elements are read one by one, so that a wrong one refuses no other"
)]
pub(crate) struct ReceiptsRequest {
    #[schemars(length(min = 1, max = MAX_REPORTS))]
    receipts: Vec<ReceiptReport>,
}

/// The report on a route.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a description")]
struct ReceiptReport {
    /// The `event_id` or `delivery_id` of the entry.
    id: String,
    /// The status of delivery, from the lowest to the highest.
    status: ReceiptStatus,
    /// When, by the clock of the consumer.
    #[schemars(extend("format" = "date-time"))]
    at: String,
    /// Further words, without U+0000. The producer of the notification can read them.
    #[schemars(length(max = MAX_DETAIL_CHARS), regex(pattern = r"^[^\x00]*$"))]
    detail: Option<String>,
}

/// The result of reading an element.
enum Read {
    Report(RouteReport),
    /// The id does not have the form of a route's id.
    NoRoute,
    /// The element breaks this rule.
    Invalid(String),
}

pub(crate) async fn record<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let channel = channel_reported(&principal)?;
    let elements = parse(&body)?;
    let (mut results, mut reports, mut places) = (Vec::with_capacity(elements.len()), Vec::new(), Vec::new());
    for (place, text) in elements.into_iter().enumerate() {
        let parsed: Result<Object<Element<'_>>, _> = serde_json::from_str(text.get());
        let (id, read) = match parsed {
            Ok(Object(element)) => {
                let id = text_of(element.id);
                let read = element.read(id.as_deref());
                (id, read)
            }
            Err(error) => {
                let named: Result<Object<Named<'_>>, _> = serde_json::from_str(text.get());
                let id = named.ok().and_then(|Object(Named { id })| text_of(id));
                (id, Read::Invalid(format!("The element is not as expected: {error}.")))
            }
        };
        let (outcome, detail) = match read {
            Read::Report(report) => {
                reports.push(report);
                places.push(place);
                (ReportOutcome::UnknownRoute.as_str(), None)
            }
            Read::NoRoute => (ReportOutcome::UnknownRoute.as_str(), None),
            Read::Invalid(detail) => (OUTCOME_INVALID, Some(detail)),
        };
        results.push(ReceiptResult { id, outcome, detail });
    }
    let outcomes = api.receipts.record_reports(&reports, channel).await;
    for (place, outcome) in places.into_iter().zip(outcomes.map_err(|error| store_failed(&error))?) {
        results[place].outcome = outcome.as_str();
    }
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for result in &results {
        *counts.entry(result.outcome).or_default() += 1;
    }
    counts.into_iter().for_each(|(outcome, count)| (api.count_receipts)(outcome, count));
    Ok(Json(ReceiptResults { results }).into_response())
}

fn parse(body: &str) -> Result<Vec<&RawValue>, Problem> {
    let parsed: Result<Object<Body<'_>>, _> = serde_json::from_str(body);
    let Object(Body { receipts }) =
        parsed.map_err(|error| bad_request(format!("The body is not as expected: {error}.")))?;
    let found = receipts.count;
    if !(1..=MAX_REPORTS).contains(&found) {
        return Err(bad_request(format!("receipts has {found} elements and takes 1 to {MAX_REPORTS}.")));
    }
    Ok(receipts.kept)
}

/// The text of a member; `None` if the member is missing or not a string.
fn text_of(member: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(member?.get()).ok()
}

impl Element<'_> {
    /// Checks the rules in order; the result is the first violation.
    fn read(&self, id: Option<&str>) -> Read {
        let Some(id) = id else { return Read::Invalid("id takes an event_id or a delivery_id.".to_owned()) };
        match (self.report(), id.parse::<RouteKey>()) {
            (Err(detail), _) => Read::Invalid(detail),
            (Ok(_), Err(_)) => Read::NoRoute,
            (Ok(report), Ok(key)) => Read::Report(RouteReport { key, report }),
        }
    }

    fn report(&self) -> Result<Report, String> {
        let status = text_of(self.status).and_then(|text| text.parse().ok()).ok_or_else(|| {
            format!("status takes one of {}.", ReceiptStatus::ALL.map(ReceiptStatus::as_str).join(", "))
        })?;
        let at = text_of(self.at).and_then(|text| text.parse().ok());
        let at = at.ok_or_else(|| "at takes a time of RFC 3339.".to_owned())?;
        let detail = match self.detail {
            None => String::new(),
            Some(text) => text_of(Some(text)).ok_or_else(|| "detail takes a string.".to_owned())?,
        };
        if detail.chars().count() > MAX_DETAIL_CHARS {
            return Err(format!("detail takes at most {MAX_DETAIL_CHARS} characters."));
        }
        if detail.contains('\0') {
            return Err("detail takes no U+0000.".to_owned());
        }
        Ok(Report { status, at, detail })
    }
}
