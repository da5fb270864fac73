//! `GET /v1/holds`, `POST /v1/holds:hold` and `POST /v1/holds:release`: what operators keep from being
//! published.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::hold::{
    HoldActor, HoldChange, HoldKey, HoldScope, MAX_NAME_BYTES, MAX_REASON_BYTES, checked_reason,
};
use domain::personal::Document;
use domain::ports::{HoldChanges, HoldStore};
use domain::route::Channel;
use http_server::problem::Problem;
use http_server::tokens::Principal;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::json;

use crate::operator_request::OperatorRequest;
use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, read_failed, sight_of, store_failed};
use crate::view::{ChangedHold, Holds};

/// The routes to hold, and the reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = name_of_a_channel)]
pub(crate) struct HoldRequest {
    /// The property of a route that is compared with `name`.
    #[schemars(with = "HoldScope")]
    scope: String,
    /// The channel, the notification type or the producer.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), regex(pattern = r"^[^\x00]*$"))]
    name: String,
    /// The reason, in the operator's words: 1 to 1,024 bytes without U+0000.
    #[schemars(length(min = 1, max = MAX_REASON_BYTES), regex(pattern = r"^[^\x00]*$"))]
    reason: String,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
}

/// The hold to release.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = name_of_a_channel)]
pub(crate) struct ReleaseRequest {
    /// The property of a route that is compared with `name`.
    #[schemars(with = "HoldScope")]
    scope: String,
    /// The channel, the notification type or the producer.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), regex(pattern = r"^[^\x00]*$"))]
    name: String,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
}

/// Requires the name of a channel in that scope by `if`, which generators of clients do not read.
fn name_of_a_channel(schema: &mut Schema) {
    let names = Channel::ALL.map(Channel::as_str);
    let channel = HoldScope::Channel.as_str();
    schema.insert("if".to_owned(), json!({"properties": {"scope": {"const": channel}}}));
    schema.insert("then".to_owned(), json!({"properties": {"name": {"enum": names}}}));
}

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let holds = api.holds.list_holds().await.map_err(|error| store_failed(&error))?;
    Ok(Json(Holds { holds: holds.seen_by(sight_of(&principal)) }).into_response())
}

pub(crate) async fn hold<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let HoldRequest { scope, name, reason, dry_run } = request.parse()?;
    let reason = checked_reason(reason).map_err(|error| bad_request(format!("The body: {error}.")))?;
    carry_out(api, request, key(&scope, name)?, HoldChange::Hold { reason }, dry_run).await
}

pub(crate) async fn release<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let ReleaseRequest { scope, name, dry_run } = request.parse()?;
    carry_out(api, request, key(&scope, name)?, HoldChange::Release, dry_run).await
}

fn key(scope: &str, name: String) -> Result<HoldKey, Problem> {
    let scope = scope.parse().map_err(|_| bad_request("scope takes channel, type or producer."))?;
    HoldKey::new(scope, name).map_err(|error| bad_request(format!("The body: {error}.")))
}

async fn carry_out<P: Ports>(
    api: Arc<Api<P>>,
    request: OperatorRequest,
    hold: HoldKey,
    change: HoldChange,
    dry_run: bool,
) -> Result<Response, Problem> {
    if dry_run {
        let plan = api.holds.plan_hold(&hold, &change).await.map_err(|error| read_failed(&error))?;
        return Ok(Json(plan).into_response());
    }
    let key = request.key()?;
    let (holds, actor) = (Arc::clone(&api), request.principal.name.to_string());
    let (request_id, idempotency_key) = (request.request_id.clone(), key.as_str().to_owned());
    let handler = move || async move {
        let store = &holds.holds;
        let by = HoldActor {
            name: &actor,
            request_id: request_id.as_str(),
            idempotency_key: Some(&idempotency_key),
        };
        let changed = store.change_hold(&hold, &change, by).await;
        let changed = changed.map_err(|error| store_failed(&error))?;
        let holds = store.list_holds().await.map_err(|error| store_failed(&error))?;
        let hold = holds.into_iter().find(|found| found.key == hold);
        Ok(Json(ChangedHold { changed, hold }).into_response())
    };
    request.run_once(&api, key, handler).await
}
