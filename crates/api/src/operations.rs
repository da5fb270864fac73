//! `POST /v1/dead-letters:replay` and `:discard`, `POST /v1/routes:cancel` and `:resend`: operators' changes
//! of routes.
//!
//! The Idempotency-Key guards a change as a whole, and each chunk of the change is a separate transaction.
//! Crash recovery: after a crash the chunks before it are committed, and the key is free once its lock TTL
//! has expired; the repeated request continues with the rest and counts only that.

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::operations::{
    ChangeReport, MAX_REASON_BYTES, MAX_ROUTES_PER_REQUEST, OperatorAction, RouteChange, RouteFilter,
    Selection,
};
use domain::ports::{Operations, apply_change};
use domain::query::DeadLetterFilter;
use domain::record::NotificationId;
use domain::route::Channel;
use http_server::Object;
use http_server::problem::Problem;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::at_most::AtMost;
use crate::operator_request::OperatorRequest;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, read_failed, store_failed};
use crate::view::{Cancelled, Discarded, Replayed, Resent};

type Ids = AtMost<String, MAX_ROUTES_PER_REQUEST>;

/// The dead letters to replay: either those with these ids, or those that the filter selects.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_ids_or_filter)]
pub(crate) struct ReplayRequest {
    /// `<notification_id>/<route_id>`: the `id` of each dead letter. A discarded one is replayed if it is
    /// named here.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = MAX_ROUTES_PER_REQUEST))]
    ids: Option<Ids>,
    /// At most 10,000 of those that the list shows with these parameters; `remaining` counts the others.
    #[schemars(with = "Option<Filter>")]
    filter: Option<Object<Filter>>,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
}

/// The dead letters to discard, either those with these ids or those that the filter selects, and the reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_ids_or_filter)]
pub(crate) struct DiscardRequest {
    /// `<notification_id>/<route_id>`: the `id` of each dead letter.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = MAX_ROUTES_PER_REQUEST))]
    ids: Option<Ids>,
    /// At most 10,000 of those that the list shows with these parameters; `remaining` counts the others.
    #[schemars(with = "Option<Filter>")]
    filter: Option<Object<Filter>>,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
    /// The reason, in the operator's words: 1 to 1,024 bytes without U+0000.
    #[schemars(length(min = 1, max = MAX_REASON_BYTES), regex(pattern = r"^[^\x00]*$"))]
    reason: String,
}

/// A filter of dead letters. Without a member it selects all that are not discarded.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeadLetterFilter")]
struct Filter {
    #[schemars(extend("enum" = channel_names()))]
    channel: Option<String>,
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    classification: Option<String>,
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    notification_type: Option<String>,
    /// Only those created then or later.
    #[schemars(extend("format" = "date-time"))]
    created_after: Option<String>,
    /// Only those created before then.
    #[schemars(extend("format" = "date-time"))]
    created_before: Option<String>,
}

/// The routes to cancel, either those with these ids or those that the filter selects, and the reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_ids_or_filter)]
pub(crate) struct CancelRequest {
    /// `<notification_id>/<route_id>` of each route.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = MAX_ROUTES_PER_REQUEST))]
    ids: Option<Ids>,
    /// At most 10,000 of the live routes that it selects; `remaining` counts the others. It takes at least
    /// one condition. The times are those of acceptance.
    #[schemars(with = "Option<SelectedRoutes>")]
    filter: Option<Object<SelectedRoutes>>,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
    /// The reason, in the operator's words: 1 to 1,024 bytes without U+0000.
    #[schemars(length(min = 1, max = MAX_REASON_BYTES), regex(pattern = r"^[^\x00]*$"))]
    reason: String,
}

/// The published routes to send again: either those with these ids, or those that the filter selects.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_ids_or_filter)]
pub(crate) struct ResendRequest {
    /// `<notification_id>/<route_id>` of each route.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = MAX_ROUTES_PER_REQUEST))]
    ids: Option<Ids>,
    /// At most 10,000 of the published routes that it selects; `remaining` counts the others. It takes at
    /// least one condition. The times are those of publication; a route that was published more than a day
    /// after its acceptance is selected by its id or its notification.
    #[schemars(with = "Option<SelectedRoutes>")]
    filter: Option<Object<SelectedRoutes>>,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
    /// The reason, in the operator's words: at most 1,024 bytes without U+0000.
    #[serde(default)]
    #[schemars(length(max = MAX_REASON_BYTES), regex(pattern = r"^[^\x00]*$"))]
    reason: String,
}

// The schema requires a condition by `if`, which generators of clients do not read: a filter in which no
// member has a text would need eight members, one more than there are.
/// A filter of routes, with at least one condition.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(
    rename = "RouteFilter",
    extend("if" = json!({"additionalProperties": {"maxLength": 0}}), "then" = json!({"minProperties": 8}))
)]
pub(crate) struct SelectedRoutes {
    /// Those of this notification.
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    notification_id: Option<String>,
    #[schemars(extend("enum" = channel_names()))]
    channel: Option<String>,
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    notification_type: Option<String>,
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    producer: Option<String>,
    /// A user's id or an administrator's address.
    #[schemars(length(min = 1), regex(pattern = r"^[^\x00]*$"))]
    recipient: Option<String>,
    /// Only those then or later.
    #[schemars(extend("format" = "date-time"))]
    since: Option<String>,
    /// Only those before then.
    #[schemars(extend("format" = "date-time"))]
    until: Option<String>,
}

/// Requires exactly one of both by `if`, which generators of clients do not read: for them a request is one
/// object.
pub(crate) fn either_ids_or_filter(schema: &mut Schema) {
    let ids = json!({"type": "array", "items": {"type": "string"}});
    let filter = json!({"type": "object"});
    schema.insert("if".to_owned(), json!({"required": ["ids"], "properties": {"ids": ids}}));
    schema.insert("then".to_owned(), json!({"properties": {"filter": {"not": filter}}}));
    schema.insert("else".to_owned(), json!({"required": ["filter"], "properties": {"filter": filter}}));
}

fn channel_names() -> Value {
    let names = Channel::ALL.iter().map(|channel| Value::from(channel.as_str()));
    names.chain([Value::Null]).collect()
}

/// A request to change routes.
struct Asked {
    change: RouteChange,
    selection: Selection,
    dry_run: bool,
    /// Renders the response: the report of the change.
    render: fn(ChangeReport) -> Response,
}

pub(crate) async fn replay<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let ReplayRequest { ids, filter, dry_run } = request.parse()?;
    let asked = Asked {
        change: RouteChange::Replay(api.settings.budgets),
        selection: selection(ids, filter, |filter: Filter| filter.read().map(Selection::DeadLetters))?,
        dry_run,
        render: |report| Json(Replayed::from(report)).into_response(),
    };
    carry_out(api, request, asked).await
}

pub(crate) async fn discard<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let DiscardRequest { ids, filter, dry_run, reason } = request.parse()?;
    let Some(change) = RouteChange::discard(reason) else {
        return Err(bad_request(format!("A discard takes a reason of 1 to {MAX_REASON_BYTES} bytes.")));
    };
    let asked = Asked {
        change,
        selection: selection(ids, filter, |filter: Filter| filter.read().map(Selection::DeadLetters))?,
        dry_run,
        render: |report| Json(Discarded::from(report)).into_response(),
    };
    carry_out(api, request, asked).await
}

pub(crate) async fn cancel<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let CancelRequest { ids, filter, dry_run, reason } = request.parse()?;
    let Some(change) = RouteChange::cancel(reason) else {
        return Err(bad_request(format!("A cancellation takes a reason of 1 to {MAX_REASON_BYTES} bytes.")));
    };
    let asked = Asked {
        change,
        selection: selection(ids, filter, |filter: SelectedRoutes| filter.read().map(Selection::Routes))?,
        dry_run,
        render: |report| Json(Cancelled::from(report)).into_response(),
    };
    carry_out(api, request, asked).await
}

pub(crate) async fn resend<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let ResendRequest { ids, filter, dry_run, reason } = request.parse()?;
    let Some(change) = RouteChange::resend(api.settings.budgets, reason) else {
        return Err(bad_request(format!("reason takes at most {MAX_REASON_BYTES} bytes.")));
    };
    let mut selection =
        selection(ids, filter, |filter: SelectedRoutes| filter.read().map(Selection::Routes))?;
    if let Selection::Routes(filter) = &mut selection {
        // What the request sends again is not selected by it again.
        filter.until = Some(filter.until.unwrap_or_else(|| api.clock.now()));
    }
    let render = |report| Json(Resent::from(report)).into_response();
    carry_out(api, request, Asked { change, selection, dry_run, render }).await
}

async fn carry_out<P: Ports>(
    api: Arc<Api<P>>,
    request: OperatorRequest,
    asked: Asked,
) -> Result<Response, Problem> {
    if asked.dry_run {
        let targets = api.operations.select_routes(&asked.change, &asked.selection).await;
        let targets = targets.map_err(|error| read_failed(&error))?;
        return Ok(Json(targets.plan()).into_response());
    }
    let key = request.key()?;
    let action = OperatorAction {
        actor: request.principal.name.to_string(),
        request_id: request.request_id.as_str().to_owned(),
        idempotency_key: Some(key.as_str().to_owned()),
        selection: asked.selection,
    };
    let (operations, change, render) = (Arc::clone(&api), asked.change, asked.render);
    let handler = move || async move {
        let now = operations.clock.now();
        let targets = operations.operations.select_routes(&change, &action.selection).await;
        let targets = targets.map_err(|error| read_failed(&error))?;
        let report = apply_change(&operations.operations, &change, &targets, &action, now).await;
        let report = report.map_err(|error| store_failed(&error))?;
        Ok(render(report))
    };
    request.run_once(&api, key, handler).await
}

fn selection<F>(
    ids: Option<Ids>,
    filter: Option<Object<F>>,
    read: impl FnOnce(F) -> Result<Selection, Problem>,
) -> Result<Selection, Problem> {
    match (ids, filter) {
        (Some(ids), None) if (1..=MAX_ROUTES_PER_REQUEST).contains(&ids.count) => {
            Ok(Selection::Ids(ids.kept))
        }
        (Some(_), None) => Err(bad_request(format!("ids takes 1 to {MAX_ROUTES_PER_REQUEST} elements."))),
        (None, Some(Object(filter))) => read(filter),
        (Some(_), Some(_)) | (None, None) => Err(bad_request("The body takes either ids or a filter.")),
    }
}

fn channel(name: Option<String>) -> Result<Option<Channel>, Problem> {
    name.map(|name| name.parse()).transpose().map_err(|_| bad_request("channel takes push or email."))
}

fn time(name: &str, text: Option<String>) -> Result<Option<Timestamp>, Problem> {
    let parsed = text.map(|text| text.parse()).transpose();
    parsed.map_err(|_| bad_request(format!("{name} takes a time of RFC 3339.")))
}

/// Checks the texts of a filter.
fn check<'a>(texts: impl IntoIterator<Item = &'a Option<String>>) -> Result<(), Problem> {
    let is_wrong = |text: &String| text.is_empty() || text.contains('\0');
    if texts.into_iter().flatten().any(is_wrong) {
        return Err(bad_request("A member of the filter is empty or holds NUL."));
    }
    Ok(())
}

impl Filter {
    fn read(self) -> Result<DeadLetterFilter, Problem> {
        let channel = channel(self.channel)?;
        check([&self.classification, &self.notification_type])?;
        Ok(DeadLetterFilter {
            channel,
            classification: self.classification,
            notification_type: self.notification_type,
            created_after: time("created_after", self.created_after)?,
            created_before: time("created_before", self.created_before)?,
            discarded: false,
        })
    }
}

impl SelectedRoutes {
    fn read(self) -> Result<RouteFilter, Problem> {
        check([&self.notification_id, &self.notification_type, &self.producer, &self.recipient])?;
        let filter = RouteFilter {
            notification_id: self.notification_id.map(NotificationId::from),
            channel: channel(self.channel)?,
            notification_type: self.notification_type,
            producer: self.producer,
            recipient: self.recipient,
            since: time("since", self.since)?,
            until: time("until", self.until)?,
        };
        if filter.is_empty() {
            return Err(bad_request("The filter takes at least one condition."));
        }
        Ok(filter)
    }
}
