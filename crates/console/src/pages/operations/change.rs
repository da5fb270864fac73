//! Carries out the change that a plan showed.
//!
//! The plan gave the form the id of its request, which is the idempotency key here. A form that is sent
//! twice, by a double click or by reloading the page, is carried out once and leads to the same result. A
//! change that takes longer than its page continues in the background, up to the handler timeout of
//! `idempotency`. Crash recovery is that of the API: the chunks before a crash are committed, and the form,
//! sent again, continues with the rest.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ambient::{Clock, error_chain};
use axum::Extension;
use axum::extract::State;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use domain::operations::{OperatorAction, RouteChange};
use domain::ports::{Operations, StoreError, apply_change};
use futures_util::FutureExt;
use idempotency::{Fingerprint, Key, KeyedRequest, Owner, Run};
use serde_json::json;

use super::asked::{Asked, reason, request_id};
use super::plan;
use super::result::ResultPath;
use super::unfinished::{self, Unfinished};
use crate::deadline::Deadline;
use crate::error::PageError;
use crate::forms::Form;
use crate::operator::Operator;
use crate::ports::{Console, Ports};

pub(super) async fn change<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    Extension(deadline): Extension<Deadline>,
    form: Form,
) -> Result<Response, PageError> {
    let asked = Asked::confirmed(&form)?;
    let request_id = request_id(&form)?.to_owned();
    let reason = reason(&form);
    let change = match asked.change.confirmed(console.settings.budgets, &reason) {
        Ok(change) => change,
        Err(problem) => {
            let refused = plan::Refused { reason: &reason, problem: &problem };
            return Ok(plan::page(&console, &operator, &asked, Some(&refused)).await?.into_response());
        }
    };
    let action = OperatorAction {
        actor: operator.name.to_string(),
        request_id: request_id.clone(),
        idempotency_key: Some(request_id.clone()),
        selection: asked.selection.clone(),
    };
    let request = guarded_request(&operator, &request_id, &asked, &reason)?;
    let form_token = operator.form_token.clone();
    let path = ResultPath { asked: asked.clone(), request_id: request_id.clone(), form_token };
    let (handler, begun) = (Arc::clone(&console), Begun::default());
    let begins = begun.clone();
    let run = console.keys.run_once(request, move || async move {
        begins.set();
        apply(&*handler, &change, &action, &path).await
    });
    // A panic ended only the task of the change. The task shares only stores, which recover their locks.
    let run = deadline.limit(AssertUnwindSafe(run).catch_unwind()).await;
    Ok(match answer(run, begun.is_set(), &request_id)? {
        Ok(response) => response,
        Err(why) => unfinished::page(why, &operator, &form, &asked).into_response(),
    })
}

/// The outcome of a run: `None` if the page did not wait long enough, an inner error if it panicked.
type Waited = Option<Result<Result<Run, PageError>, Box<dyn Any + Send>>>;

/// The response to a run, if it has one; otherwise the reason why it does not have one yet.
fn answer(run: Waited, begun: bool, request_id: &str) -> Result<Result<Response, Unfinished>, PageError> {
    Ok(Err(match run {
        // The run continues without this request.
        None if begun => Unfinished::InProgress,
        None => Unfinished::Waiting,
        Some(Ok(Ok(Run::Handled(response) | Run::Replayed(response)))) => return Ok(Ok(response)),
        Some(Ok(Ok(Run::InProgress))) => Unfinished::InProgress,
        Some(Ok(Ok(Run::Conflict))) => {
            return Err(PageError::Invalid(
                "The form was sent before with other values. Start again from the list.".to_owned(),
            ));
        }
        Some(Ok(Ok(Run::Unavailable(error)))) => {
            tracing::debug!(cause = error_chain(&error), "routes could not be changed");
            Unfinished::of(&error, begun)
        }
        // The chunks before the failure are committed.
        Some(Ok(Err(PageError::Unavailable))) => Unfinished::Interrupted,
        Some(Ok(Err(PageError::Corrupt))) => Unfinished::Corrupt,
        Some(Ok(Err(PageError::Refused))) => Unfinished::Refused,
        Some(Ok(Err(error))) => return Err(error),
        Some(Err(_panic)) => {
            tracing::error!(
                request_id,
                "a change of routes panicked; its operator may send the form again, which continues with the rest"
            );
            Unfinished::Panicked
        }
    }))
}

/// A flag that is set when a handler has begun. Clones share it.
#[derive(Clone, Default)]
struct Begun(Arc<AtomicBool>);

impl Begun {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Identifies the request when its form is sent again: the operator, the request id, and all of its content.
fn guarded_request(
    operator: &Operator,
    request_id: &str,
    asked: &Asked,
    reason: &str,
) -> Result<KeyedRequest, PageError> {
    let invalid = |error: idempotency::IdempotencyError| PageError::Invalid(error.to_string());
    let selected = match asked.selection.named_conditions() {
        None => {
            let planned = asked.planned.iter().flatten().map(|(id, version)| format!("{id}={version}"));
            json!(planned.collect::<Vec<_>>())
        }
        Some(conditions) => json!(conditions),
    };
    let path = asked.change.pages().change;
    let said = json!([asked.change.as_str(), reason, selected]).to_string();
    Ok(KeyedRequest {
        owner: Owner::new(&format!("POST {path} {}", operator.name)).map_err(invalid)?,
        key: Key::new(request_id).map_err(invalid)?,
        fingerprint: Fingerprint::of_request(&Method::POST, path, said.as_bytes()),
    })
}

async fn apply<P: Ports>(
    console: &Console<P>,
    change: &RouteChange,
    action: &OperatorAction,
    path: &ResultPath,
) -> Result<Response, PageError> {
    let now = console.clock.now();
    let mut targets = console.operations.select_routes(change, &action.selection).await?;
    path.asked.keep_planned(&mut targets);
    let report = apply_change(&console.operations, change, &targets, action, now).await;
    let report = report.map_err(|error| match error {
        // The selection itself is valid, so the store refused to write a row.
        StoreError::Refused { .. } => {
            let (request_id, cause) = (&action.request_id, error_chain(&error));
            tracing::error!(request_id, cause, "PostgreSQL refuses a change of routes");
            PageError::Refused
        }
        error => error.into(),
    })?;
    Ok(Redirect::to(&path.after(&report)).into_response())
}
