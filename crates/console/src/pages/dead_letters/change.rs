//! The change that a plan showed.
//!
//! The plan gave the form the id of its request, which is the idempotency key here: a form that is sent twice, by a double click or by loading the
//! page again, is carried out once and leads to the same result. Crash recovery is that of the API: the chunks before a crash are
//! committed, and the form, sent again, continues with what is left.

use std::sync::Arc;

use ambient::{Clock, error_chain};
use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use domain::operations::{DeadLetterChange, OperatorAction, Selection};
use domain::ports::{Operations, apply_change};
use idempotency::{Fingerprint, Key, Request, Run, Scope};
use maud::html;
use serde_json::json;

use super::asked::{Asked, reason, request_id};
use super::plan;
use super::result::ResultPath;
use crate::deadline::Deadline;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, Section};
use crate::ports::{Console, Ports};
use crate::session::Operator;
use crate::widgets::{Tone, form_token, notice};

pub(super) const PATH: &str = "/console/dead-letters/change";

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
    let path = ResultPath { asked: asked.clone(), request_id, form_token: operator.form_token.clone() };
    let handler = Arc::clone(&console);
    let run = console
        .keys
        .run_once(request, move || async move { apply(&*handler, &change, &action, &path).await });
    let again = |why| again(why, &operator, &form, &asked).into_response();
    let run = match deadline.limit(run).await {
        // It goes on without this request.
        None => return Ok(again(Again::InProgress)),
        // The chunks before the failure are committed.
        Some(Err(PageError::Unavailable)) => return Ok(again(Again::Interrupted)),
        Some(run) => run?,
    };
    match run {
        Run::Handled(response) | Run::Replayed(response) => Ok(response),
        Run::InProgress => Ok(again(Again::InProgress)),
        Run::Conflict => Err(PageError::Invalid(
            "The form was sent before with other values. Start again from the list.".to_owned(),
        )),
        Run::Unavailable(error) => {
            tracing::debug!(cause = error_chain(&error), "dead letters could not be changed");
            Ok(again(Again::Interrupted))
        }
    }
}

/// What makes the request the same one when its form comes again: who sends it, its id, and all that it says.
fn guarded_request(
    operator: &Operator,
    request_id: &str,
    asked: &Asked,
    reason: &str,
) -> Result<Request, PageError> {
    let invalid = |error: idempotency::IdempotencyError| PageError::Invalid(error.to_string());
    let selected = match &asked.selection {
        Selection::Ids(ids) => {
            let versions = asked.planned.iter().flatten().map(|(id, version)| (id, version.to_string()));
            json!([ids, versions.collect::<Vec<_>>()])
        }
        Selection::Filter(filter) => json!(filter.named_conditions()),
    };
    let said = json!([asked.change.as_str(), reason, selected]).to_string();
    Ok(Request {
        scope: Scope::new(&format!("POST {PATH} {}", operator.name)).map_err(invalid)?,
        key: Key::new(request_id).map_err(invalid)?,
        fingerprint: Fingerprint::of_request(&Method::POST, PATH, said.as_bytes()),
    })
}

async fn apply<P: Ports>(
    console: &Console<P>,
    change: &DeadLetterChange,
    action: &OperatorAction,
    path: &ResultPath,
) -> Result<Response, PageError> {
    let now = console.clock.now();
    let mut targets = console.operations.select_dead_letters(change, &action.selection).await?;
    path.asked.keep_planned(&mut targets);
    let report = apply_change(&console.operations, change, &targets, action, now).await?;
    Ok(Redirect::to(&path.after(&report)).into_response())
}

/// Why a form is to be sent again.
#[derive(Clone, Copy)]
enum Again {
    /// An earlier run of it has not ended.
    InProgress,
    /// A store failed: some chunks may be committed.
    Interrupted,
}

/// The same form, to be sent again: it then leads to the result.
fn again(why: Again, operator: &Operator, form: &Form, asked: &Asked) -> Page {
    let (title, status, tone, what, advice, label) = match why {
        Again::InProgress => (
            "In progress",
            StatusCode::CONFLICT,
            Tone::Busy,
            "The change is still being made.",
            "Large changes take some seconds. Looking again changes nothing a second time.",
            "Look again",
        ),
        Again::Interrupted => (
            "Interrupted",
            StatusCode::SERVICE_UNAVAILABLE,
            Tone::Warning,
            "PostgreSQL did not answer in time. A part of the change may have been made.",
            "Sending the form again continues with the rest and repeats nothing.",
            "Continue",
        ),
    };
    let content = html! {
        (notice(tone, &html! {
            p { strong { (what) } }
            p { (advice) }
        }))
        form.actions method="post" action=(PATH) {
            (form_token(operator))
            @for name in ["request_id", "reason"] {
                @if let Some(value) = form.text(name) { input type="hidden" name=(name) value=(value); }
            }
            (asked.fields())
            button.primary type="submit" { (label) }
        }
    };
    Page::new(Section::DeadLetters, title, content).with_status(status)
}
