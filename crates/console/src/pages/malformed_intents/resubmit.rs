//! Resubmitting malformed intents: the form, its plan, and the result.
//!
//! A resubmitted intent is marked, so a form that is sent twice finds nothing to resubmit.

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use domain::hold::checked_reason;
use domain::operations::MAX_REASON_BYTES;
use domain::ports::Resubmitter;
use domain::query::MalformedFilter;
use domain::resubmit::{MAX_REQUEST_TIME, ResubmitActor, ResubmitPlan, ResubmitReport, ResubmitSelection};
use maud::{Markup, html};
use tokio::time::Instant;

use super::{DONE, PATH, PROOF};
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{FIND_PATH, Page, Section};
use crate::operator::Operator;
use crate::params::address;
use crate::ports::{Console, Ports};
use crate::widgets::{column, empty, form_token, numbers, table, visible};

const PLAN_PATH: &str = "/console/malformed/resubmit/plan";
const CHANGE_PATH: &str = "/console/malformed/resubmit/change";
/// The hidden fields of a filter.
const FIELDS: [&str; 5] = ["code", "producer", "idempotency_key", "recorded_after", "recorded_before"];

/// The routes of these pages.
pub(super) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new()
        .route(PLAN_PATH, post(plan::<P>).get(start_over))
        .route(CHANGE_PATH, post(change::<P>).get(start_over))
}

/// Redirects to the list: a plan belongs to a form, so its address alone cannot show it.
async fn start_over() -> Redirect {
    Redirect::to(PATH)
}

/// The form for one malformed intent.
pub(super) fn one_form(operator: &Operator, entry_id: &str) -> Markup {
    form(operator, &ResubmitSelection::Ids(vec![entry_id.to_owned()]), "Resubmit…")
}

/// The form for all that match the filter of the list.
pub(super) fn all_form(operator: &Operator, filter: &MalformedFilter) -> Markup {
    form(operator, &ResubmitSelection::Filter(filter.clone()), "Resubmit all that match…")
}

fn form(operator: &Operator, selection: &ResubmitSelection, label: &str) -> Markup {
    html! {
        form method="post" action=(PLAN_PATH) {
            (form_token(operator))
            (selection_fields(selection))
            button type="submit" { (label) }
        }
    }
}

/// The values of [`FIELDS`].
fn values(filter: &MalformedFilter) -> [Option<String>; 5] {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    [
        filter.code.clone(),
        filter.producer.clone(),
        filter.idempotency_key.clone(),
        time(filter.recorded_after),
        time(filter.recorded_before),
    ]
}

fn selection_fields(selection: &ResubmitSelection) -> Markup {
    html! {
        @match selection {
            ResubmitSelection::Ids(ids) => {
                @for id in ids { input type="hidden" name="id" value=(id); }
            }
            ResubmitSelection::Filter(filter) => {
                @for (name, value) in FIELDS.iter().zip(values(filter)) {
                    @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
                }
            }
        }
    }
}

/// Reads the selection of a form. A filter without an end gets `now` as its end, so that the confirmed form
/// selects nothing that is malformed again.
fn read(form: &Form, now: Timestamp) -> Result<ResubmitSelection, PageError> {
    let is_wrong = |text: &&str| text.contains('\0');
    if FIELDS.iter().chain(&["id"]).flat_map(|name| form.all(name)).any(|text| is_wrong(&text)) {
        return Err(PageError::Invalid("A field of the form holds NUL.".to_owned()));
    }
    let ids: Vec<String> = form.all("id").map(str::to_owned).collect();
    if !ids.is_empty() {
        return Ok(ResubmitSelection::Ids(ids));
    }
    let text = |name| form.text(name).map(str::to_owned);
    let time = |name| {
        let parsed = form.text(name).map(str::parse::<Timestamp>).transpose();
        parsed.map_err(|_| PageError::Invalid(format!("The field {name} takes a time.")))
    };
    Ok(ResubmitSelection::Filter(MalformedFilter {
        code: text("code"),
        producer: text("producer"),
        idempotency_key: text("idempotency_key"),
        recorded_after: time("recorded_after")?,
        recorded_before: Some(time("recorded_before")?.unwrap_or(now)),
    }))
}

async fn plan<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let selection = read(&form, console.clock.now())?;
    let plan = console.resubmitter.select(&selection).await?.plan();
    Ok(Page::new(Section::Malformed, "Resubmit?", planned(&operator, &selection, &plan)))
}

fn planned(operator: &Operator, selection: &ResubmitSelection, plan: &ResubmitPlan) -> Markup {
    let group = |group: &domain::resubmit::ResubmitGroup| {
        vec![visible(&group.code), visible(&group.producer), html! { (group.count) }]
    };
    let groups: Vec<Vec<Markup>> = plan.by.iter().map(group).collect();
    html! {
        section.card aria-label="The plan" {
            p.figure { (format!("{:#}", plan.count)) " malformed intents" }
            p { "Their fields are appended to the intents stream again, unchanged, each as a new entry. What becomes of it is what becomes of any entry: it is accepted if the rule that it broke now holds." }
            @if !groups.is_empty() {
                (table("By code and producer", &[column("Code"), column("Producer"), numbers("Intents")], &groups))
                h2 { "The first of them" }
                ul.ids { @for id in &plan.first { li { code.id { (visible(id)) } } } }
            }
            @if plan.refused > 0 {
                h2 { (plan.refused) " cannot be resubmitted" }
                ul { @for one in &plan.first_refused { li { code.id { (visible(&one.stream_entry_id)) } ": " (one.reason.sentence()) "." } } }
            }
            @if !plan.unknown.is_empty() { p { "Retention may have deleted the others." } }
        }
        @if plan.count.count == 0 {
            (empty("There is nothing to resubmit.", "Go back to the list to choose others."))
            a.button href=(PATH) { "Back to the list" }
        } @else {
            form.card method="post" action=(CHANGE_PATH) aria-label="Confirm" {
                (form_token(operator))
                (selection_fields(selection))
                div.field {
                    label for="reason" { "Reason (optional)" }
                    input #reason name="reason" maxlength=(MAX_REASON_BYTES);
                }
                div.actions {
                    button.primary type="submit" { "Resubmit" }
                    a.button href=(PATH) { "Cancel" }
                }
            }
        }
    }
}

async fn change<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Response, PageError> {
    let selection = read(&form, console.clock.now())?;
    let targets = console.resubmitter.select(&selection).await?;
    let request_id = hex::encode(console.ids.next());
    let reason = form.text("reason").map(str::trim).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| checked_reason(reason.to_owned())).transpose();
    let reason = reason.map_err(|error| PageError::Invalid(format!("Reason: {error}.")))?;
    let actor = ResubmitActor {
        name: &operator.name,
        request_id: &request_id,
        idempotency_key: None,
        reason: reason.as_deref(),
    };
    let began = Instant::now();
    let go_on = |_: &ResubmitReport| began.elapsed() < MAX_REQUEST_TIME;
    let report = console.resubmitter.resubmit(&targets, &selection, actor, go_on).await?;
    if let (ResubmitSelection::Ids(_), [only]) = (&selection, &report.first[..]) {
        // The new entry is not read yet, as a rule: the search says what becomes of it.
        let path = address(FIND_PATH, [("id", only.resubmitted_entry_id.as_str())]);
        return Ok(Redirect::to(&path).into_response());
    }
    Ok(Redirect::to(&result_path(&operator, &selection, &report, &request_id)).into_response())
}

/// The address of the list, with the result. If some are left, it shows those that the filter selects next.
fn result_path(
    operator: &Operator,
    selection: &ResubmitSelection,
    report: &ResubmitReport,
    request_id: &str,
) -> String {
    let mut done = format!("Malformed intents: {} resubmitted, {} not", report.resubmitted, report.refused);
    if report.resubmitted > 0 {
        done.push_str(&format!(", under the request id {request_id} in Actions"));
    }
    done.push_str(if report.has_more { ". Some are left: resubmit again to continue." } else { "." });
    let proof = operator.form_token.proof(&done);
    let mut pairs = vec![(DONE, done), (PROOF, proof)];
    if let (ResubmitSelection::Filter(filter), true) = (selection, report.has_more) {
        let before = report.continue_before.or(filter.recorded_before);
        let rest = MalformedFilter { recorded_before: before, ..filter.clone() };
        pairs.extend(FIELDS.into_iter().zip(values(&rest)).filter_map(|(name, value)| Some((name, value?))));
    }
    address(PATH, pairs.iter().map(|(name, value)| (*name, value.as_str())))
}
