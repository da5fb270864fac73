//! `POST /v1/users:erase`: erases a person.
//!
//! The Idempotency-Key guards the erasure as a whole, and each of its chunks is a separate transaction. After
//! a crash the repeated request continues with what is left, and counts only that.

use std::sync::Arc;

use ambient::Clock;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::erase::{MAX_USER_ID_BYTES, checked_user_id};
use domain::hold::HoldActor;
use domain::ports::Erasures;
use http_server::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::operator_request::OperatorRequest;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, store_failed, unavailable};

/// The user to erase.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EraseRequest {
    /// The id of the user, as in `recipient_user_ids`.
    #[schemars(length(min = 1, max = MAX_USER_ID_BYTES), regex(pattern = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"))]
    user_id: String,
    /// Only tell what the request would do. Then it needs no `Idempotency-Key`.
    #[serde(default)]
    dry_run: bool,
}

pub(crate) async fn erase<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    request: OperatorRequest,
) -> Result<Response, Problem> {
    let EraseRequest { user_id, dry_run } = request.parse()?;
    let user_id = checked_user_id(user_id).map_err(|error| bad_request(format!("The body: {error}.")))?;
    if dry_run {
        let plan = api.erasures.plan_erasure(&user_id).await.map_err(|error| store_failed(&error))?;
        return Ok(Json(plan.ok_or_else(no_installation)?).into_response());
    }
    let key = request.key()?;
    let (erasing, actor) = (Arc::clone(&api), request.principal.name.to_string());
    let (request_id, idempotency_key) = (request.request_id.clone(), key.as_str().to_owned());
    let handler = move || async move {
        let by = HoldActor {
            name: &actor,
            request_id: request_id.as_str(),
            idempotency_key: Some(&idempotency_key),
        };
        let erased = erasing.erasures.erase_user(&user_id, by, erasing.clock.now()).await;
        let report = erased.map_err(|error| store_failed(&error))?.ok_or_else(no_installation)?;
        Ok(Json(report).into_response())
    };
    request.run_once(&api, key, handler).await
}

fn no_installation() -> Problem {
    unavailable("the service has not started on these tables yet")
}
