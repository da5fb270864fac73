//! `POST /v1/dead-letters:replay` and `:discard`: what operators change.
//!
//! A change is guarded by its Idempotency-Key as a whole, and each chunk of it is a transaction of its own. Crash recovery: after a crash
//! the chunks before it are committed, and the key is free once its lock TTL is over; the repeated request continues with what is
//! left and counts that.

use std::sync::Arc;

use ambient::Clock;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use domain::operations::{DeadLetterChange, MAX_ROUTES_PER_REQUEST, OperatorAction, Plan, Selection};
use domain::ports::{Operations, apply_change};
use domain::query::{Counted, DeadLetterFilter};
use domain::route::Channel;
use http_server::problem::{self, Problem};
use http_server::tokens::Principal;
use http_server::{JsonText, Object, RequestId};
use idempotency::{Fingerprint, Key, Request, Run, Scope};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::ports::{Api, Ports};
use crate::problems::{bad_request, read_failed, store_failed, unavailable};

/// The longest reason for a discard, in bytes.
const MAX_REASON_BYTES: usize = 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    ids: Option<Vec<String>>,
    filter: Option<Object<Filter>>,
    #[serde(default)]
    dry_run: bool,
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    channel: Option<String>,
    classification: Option<String>,
    notification_type: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
}

/// A request to change dead letters.
struct Asked {
    change: DeadLetterChange,
    selection: Selection,
    /// The word for how many were changed.
    counted_as: &'static str,
}

pub(crate) async fn replay<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    request_id: RequestId,
    headers: HeaderMap,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    let change = parse(&body)?;
    if change.reason.is_some() {
        return Err(bad_request("A replay takes no reason."));
    }
    let asked = Asked {
        change: DeadLetterChange::Replay(api.settings.budgets),
        selection: selection(change.ids, change.filter)?,
        counted_as: "replayed",
    };
    let caller = Caller { principal, request_id, headers, path: "/v1/dead-letters:replay", body };
    carry_out(api, caller, asked, change.dry_run).await
}

pub(crate) async fn discard<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    request_id: RequestId,
    headers: HeaderMap,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    let change = parse(&body)?;
    let reason = change.reason.filter(|reason| (1..=MAX_REASON_BYTES).contains(&reason.len()));
    let reason = reason
        .filter(|reason| !reason.contains('\0'))
        .ok_or_else(|| bad_request(format!("A discard takes a reason of 1 to {MAX_REASON_BYTES} bytes.")))?;
    let asked = Asked {
        change: DeadLetterChange::Discard { reason },
        selection: selection(change.ids, change.filter)?,
        counted_as: "discarded",
    };
    let caller = Caller { principal, request_id, headers, path: "/v1/dead-letters:discard", body };
    carry_out(api, caller, asked, change.dry_run).await
}

/// What a request says besides the change.
struct Caller {
    principal: Principal,
    request_id: RequestId,
    headers: HeaderMap,
    path: &'static str,
    body: String,
}

async fn carry_out<P: Ports>(
    api: Arc<Api<P>>,
    caller: Caller,
    asked: Asked,
    dry_run: bool,
) -> Result<Response, Problem> {
    if dry_run {
        let targets = api.operations.select_dead_letters(&asked.change, &asked.selection).await;
        return Ok(Json(plan(&targets.map_err(|error| read_failed(&error))?.plan())).into_response());
    }
    let key = match Key::from_headers(&caller.headers) {
        Ok(Some(key)) => key,
        Ok(None) => return Err(bad_request("The header Idempotency-Key is missing.")),
        Err(error) => return Err(bad_request(format!("The header Idempotency-Key is wrong: {error}."))),
    };
    let action = OperatorAction {
        actor: caller.principal.name.to_string(),
        request_id: caller.request_id.as_str().to_owned(),
        idempotency_key: Some(key.as_str().to_owned()),
        selection: asked.selection,
    };
    let scope = format!("POST {} {}", caller.path, caller.principal.name);
    let fingerprint = Fingerprint::of_request(&Method::POST, caller.path, caller.body.as_bytes());
    let (operations, change, counted_as) = (Arc::clone(&api), asked.change, asked.counted_as);
    guarded(&api, &scope, key, fingerprint, move || async move {
        let now = operations.clock.now();
        let targets = operations.operations.select_dead_letters(&change, &action.selection).await;
        let targets = targets.map_err(|error| read_failed(&error))?;
        let report = apply_change(&operations.operations, &change, &targets, &action, now).await;
        let report = report.map_err(|error| store_failed(&error))?;
        let mut answer = Map::new();
        answer.insert(counted_as.to_owned(), report.changed.into());
        counted(&mut answer, "remaining", report.remaining);
        answer.insert("unknown".to_owned(), report.unknown.into());
        Ok(Json(Value::Object(answer)).into_response())
    })
    .await
}

/// Runs `handler` once for the key; a repeated request gets its answer.
pub(crate) async fn guarded<P, F>(
    api: &Api<P>,
    scope: &str,
    key: Key,
    fingerprint: Fingerprint,
    handler: impl FnOnce() -> F + Send + 'static,
) -> Result<Response, Problem>
where
    P: Ports,
    F: Future<Output = Result<Response, Problem>> + Send + 'static,
{
    let scope = Scope::new(scope).map_err(|error| bad_request(error.to_string()))?;
    match api.keys.run_once(Request { scope, key, fingerprint }, handler).await? {
        Run::Handled(response) | Run::Replayed(response) => Ok(response),
        Run::InProgress => {
            let detail = "Another request with this idempotency key is being processed.";
            Err(Problem::new(problem::IN_PROGRESS, detail).retry_after(idempotency::RETRY_PAUSE))
        }
        Run::Conflict => {
            let detail = "The idempotency key belongs to another request.";
            Err(Problem::new(problem::IDEMPOTENCY_CONFLICT, detail))
        }
        Run::Unavailable(error) => Err(unavailable(&ambient::error_chain(&error))),
    }
}

fn parse(body: &str) -> Result<Change, Problem> {
    let parsed: Result<Object<Change>, _> = serde_json::from_str(body);
    let Object(change) =
        parsed.map_err(|error| bad_request(format!("The body is not as expected: {error}.")))?;
    Ok(change)
}

fn selection(ids: Option<Vec<String>>, filter: Option<Object<Filter>>) -> Result<Selection, Problem> {
    match (ids, filter) {
        (Some(ids), None) if (1..=MAX_ROUTES_PER_REQUEST).contains(&ids.len()) => Ok(Selection::Ids(ids)),
        (Some(_), None) => Err(bad_request(format!("ids takes 1 to {MAX_ROUTES_PER_REQUEST} elements."))),
        (None, Some(Object(filter))) => Ok(Selection::Filter(filter.read()?)),
        (Some(_), Some(_)) | (None, None) => Err(bad_request("The body takes either ids or a filter.")),
    }
}

impl Filter {
    fn read(self) -> Result<DeadLetterFilter, Problem> {
        let channel = self.channel.map(|name| name.parse::<Channel>()).transpose();
        let time = |name: &str, text: Option<String>| {
            let parsed = text.map(|text| text.parse()).transpose();
            parsed.map_err(|_| bad_request(format!("{name} takes a time of RFC 3339.")))
        };
        for text in [&self.classification, &self.notification_type].into_iter().flatten() {
            if text.is_empty() || text.contains('\0') {
                return Err(bad_request("A member of the filter is empty or holds NUL."));
            }
        }
        Ok(DeadLetterFilter {
            channel: channel.map_err(|_| bad_request("channel takes push or email."))?,
            classification: self.classification,
            notification_type: self.notification_type,
            created_after: time("created_after", self.created_after)?,
            created_before: time("created_before", self.created_before)?,
            discarded: false,
        })
    }
}

fn plan(plan: &Plan) -> Value {
    let by = plan.by.iter().map(|group| {
        json!({
            "channel": group.channel.as_str(),
            "classification": group.classification,
            "count": group.count,
        })
    });
    let first: Vec<String> = plan.first.iter().map(ToString::to_string).collect();
    let mut view = Map::new();
    counted(&mut view, "count", plan.count);
    view.insert("by".to_owned(), by.collect());
    view.insert("first".to_owned(), first.into());
    view.insert("unknown".to_owned(), plan.unknown.clone().into());
    Value::Object(view)
}

fn counted(view: &mut Map<String, Value>, name: &str, counted: Counted) {
    view.insert(name.to_owned(), counted.count.into());
    if counted.capped {
        view.insert(format!("{name}_capped"), true.into());
    }
}
