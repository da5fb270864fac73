//! The change that a plan showed, and what it did.
//!
//! The plan gave the form the id of its request, which is the idempotency key here: a form that is sent twice, by a double click or by loading the
//! page again, is carried out once and leads to the same result. Crash recovery is that of the API: the chunks before a crash are
//! committed, and the form, sent again, continues with what is left.

use std::sync::Arc;

use ambient::{Clock, error_chain};
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use domain::operations::{ChangeReport, DeadLetterChange, OperatorAction, Selection};
use domain::ports::{Operations, apply_change};
use domain::query::{Counted, DeadLetterFilter};
use idempotency::{Fingerprint, Key, Request, Run, Scope};
use maud::{Markup, html};
use serde_json::json;

use super::asked::{Asked, Change, filter_fields, reason, request_id};
use super::plan;
use crate::deadline::Deadline;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, Section};
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::session::Operator;
use crate::widgets::{Tone, counted, form_token, id, notice, number};

pub(super) const PATH: &str = "/console/dead-letters/change";
pub(super) const RESULT_PATH: &str = "/console/dead-letters/result";
const RESULT_PARAMS: [&str; 12] = [
    "change",
    "changed",
    "remaining",
    "capped",
    "unchanged",
    "unknown",
    "request_id",
    "channel",
    "classification",
    "notification_type",
    "created_after",
    "created_before",
];

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
    let (handler, path) = (Arc::clone(&console), ResultPath { asked: asked.clone(), request_id });
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

/// Where the browser is sent afterwards: all that the page of the result shows is in its address, so that it can be loaded again.
struct ResultPath {
    asked: Asked,
    request_id: String,
}

impl ResultPath {
    fn after(&self, report: &ChangeReport) -> String {
        let mut pairs = vec![
            ("change", self.asked.change.as_str().to_owned()),
            ("changed", report.changed.to_string()),
            ("remaining", report.remaining.count.to_string()),
            ("capped", report.remaining.capped.to_string()),
            ("unchanged", report.unchanged.to_string()),
            ("unknown", report.unknown.len().to_string()),
            ("request_id", self.request_id.clone()),
        ];
        if let Selection::Filter(filter) = &self.asked.selection {
            pairs.extend(filter.named_conditions());
        }
        address(RESULT_PATH, pairs.iter().map(|(name, value)| (*name, value.as_str())))
    }
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

/// What a change did.
struct Done {
    change: Change,
    changed: u64,
    remaining: Counted,
    unchanged: u64,
    unknown: u64,
    request_id: String,
    /// What it selected, if that was a filter: the end in time is always there.
    filter: Option<DeadLetterFilter>,
}

pub(super) async fn result<P: Ports>(
    State(_): State<Arc<Console<P>>>,
    operator: Operator,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &RESULT_PARAMS)?;
    let missing = || PageError::NotFound("There is no result at this address.".to_owned());
    let count = |name| Ok::<u64, PageError>(params.value(name, "a number")?.unwrap_or(0));
    let filter = super::filter_of(&params)?;
    let done = Done {
        change: params.text("change").and_then(Change::parse).ok_or_else(missing)?,
        changed: params.value("changed", "a number")?.ok_or_else(missing)?,
        remaining: Counted {
            count: count("remaining")?,
            capped: params.value("capped", "true or false")?.unwrap_or(false),
        },
        unchanged: count("unchanged")?,
        unknown: count("unknown")?,
        request_id: params.text("request_id").unwrap_or_default().to_owned(),
        filter: filter.created_before.is_some().then_some(filter),
    };
    let title = match done.change {
        Change::Replay => "Dead letters replayed",
        Change::Discard => "Dead letters discarded",
    };
    Ok(Page::new(Section::DeadLetters, title, render(&operator, &done)))
}

fn render(operator: &Operator, done: &Done) -> Markup {
    let letters = if done.changed == 1 { "dead letter was" } else { "dead letters were" };
    let verb = match done.change {
        Change::Replay => "replayed. Publishers take the routes as they are due.",
        Change::Discard => "discarded.",
    };
    let tone = if done.changed > 0 { Tone::Good } else { Tone::Neutral };
    html! {
        (notice(tone, &html! { p { strong { (number(done.changed)) " " (letters) " " (verb) } } }))
        @if done.unchanged > 0 {
            p {
                (number(done.unchanged)) (if done.unchanged == 1 { " was" } else { " were" })
                " left as found: changed since the plan was shown, by another operator, by an attempt that failed again, or by an earlier run of this form."
            }
        }
        @if done.changed == 0 {
            p {
                "Nothing was left to change. If an earlier run of this form was interrupted, what it did is recorded in " code { "operator_actions" }
                " under the request id " (id(&done.request_id)) "."
            }
        }
        @if done.unknown > 0 { p { (number(done.unknown)) " ids named no route; retention may have deleted it." } }
        @if done.remaining.count > 0 { (remaining(operator, done)) }
        @if done.changed > 0 {
            p { "Recorded in " code { "operator_actions" } " under the request id " (id(&done.request_id)) "." }
        }
        p { a.button href=(super::PATH) { "Back to the dead letters" } }
    }
}

/// What is left, and how to continue.
fn remaining(operator: &Operator, done: &Done) -> Markup {
    html! {
        (notice(Tone::Warning, &html! {
            p { strong { "Not changed yet: " (counted(done.remaining)) "." } }
            p { "What is left is beyond the bound of one request, or another transaction holds it." }
            @if done.filter.is_none() { p { "Choose it again in the list in a moment." } }
        }))
        @if let Some(filter) = &done.filter {
            form.actions method="post" action=(plan::PATH) {
                (form_token(operator))
                input type="hidden" name="do" value=(done.change.all());
                (filter_fields(filter))
                button.primary type="submit" { "Continue with the rest…" }
            }
        }
    }
}
