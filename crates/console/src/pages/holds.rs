//! Holds: the list, the plan of a change, and the change.
//!
//! A change is one transaction: sent twice, the second finds nothing to change.

use std::collections::BTreeSet;
use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use domain::catalog::Catalog;
use domain::document::Age;
use domain::hold::{
    Hold, HoldActor, HoldChange, HoldKey, HoldPlan, HoldScope, MAX_NAME_BYTES, MAX_REASON_BYTES,
    checked_reason,
};
use domain::personal::Document;
use domain::ports::{HoldChanges, HoldStore};
use domain::route::Channel;
use maud::{Markup, html};

use super::parts::notification_path;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, Section};
use crate::operator::{Operator, Visitor};
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{Tone, badge, column, empty, form_token, notice, numbers, table, time, visible};

/// The address of the list.
pub(super) const LIST_PATH: &str = "/console/holds";
const PLAN_PATH: &str = "/console/holds/plan";
const CHANGE_PATH: &str = "/console/holds/change";
/// The parameter of the list that contains the result of a change.
const DONE: &str = "done";

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new()
        .route(LIST_PATH, get(list::<P>))
        .route(PLAN_PATH, post(plan::<P>).get(start_over))
        .route(CHANGE_PATH, post(change::<P>).get(start_over))
}

/// Redirects to the list: a plan belongs to a form, so its address alone cannot show it.
async fn start_over() -> Redirect {
    Redirect::to(LIST_PATH)
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &[DONE])?;
    let holds = console.holds.list_holds().await?.seen_by(visitor.sight);
    let done = params.text(DONE);
    let operator = visitor.operator();
    let content = html! {
        @if let Some(done) = &done { (notice(Tone::Good, &html! { p { (visible(done)) } })) }
        (listed(operator.as_ref(), &holds, console.clock.now()))
        @if let Some(operator) = &operator {
            (new_hold(operator, &names(&console.settings.catalog), &Given::default()))
        }
    };
    Ok(Page::new(Section::Holds, "Holds", content))
}

fn listed(operator: Option<&Operator>, holds: &[Hold], now: Timestamp) -> Markup {
    if holds.is_empty() {
        return empty("Nothing is held.", "Intents are accepted and their routes are published.");
    }
    let row = |hold: &Hold| {
        let mut cells = vec![
            html! { (hold.key.scope.as_str()) " " strong { (visible(&hold.key.name)) } },
            html! { (format!("{:#}", hold.routes)) },
            state(hold, now),
            html! { (visible(&hold.actor)) ": " (visible(&hold.reason)) },
        ];
        cells.extend(operator.map(|operator| {
            html! { @if hold.released_at.is_none() { (release_form(operator, &hold.key)) } }
        }));
        cells
    };
    let rows: Vec<Vec<Markup>> = holds.iter().map(row).collect();
    let mut columns = vec![column("Held"), numbers("Routes"), column("State"), column("Operator and reason")];
    columns.extend(operator.map(|_| column("Release")));
    table("Holds, the oldest first", &columns, &rows)
}

fn state(hold: &Hold, now: Timestamp) -> Markup {
    match hold.released_at {
        None => html! {
            (badge(Tone::Warning, &format!("held for {:#}", Age::between(hold.since, now)))) " since " (time(hold.since))
        },
        Some(at) => html! { (badge(Tone::Busy, "being released")) " since " (time(at)) },
    }
}

fn release_form(operator: &Operator, key: &HoldKey) -> Markup {
    html! {
        form method="post" action=(PLAN_PATH) {
            (form_token(operator))
            (key_fields(key))
            input type="hidden" name="change" value="release";
            button type="submit" { "Release…" }
        }
    }
}

fn key_fields(key: &HoldKey) -> Markup {
    html! {
        input type="hidden" name="scope" value=(key.scope.as_str());
        input type="hidden" name="name" value=(key.name);
    }
}

/// The names of channels, and of the notification types and producers in the catalogue.
fn names(catalog: &Catalog) -> BTreeSet<&str> {
    let types = catalog.types();
    let of_types = types.flat_map(|known| known.producers().iter().map(String::as_str).chain([known.name()]));
    of_types.chain(Channel::ALL.map(Channel::as_str)).collect()
}

/// The form of a new hold, filled with what was given. `names` are suggested.
fn new_hold(operator: &Operator, names: &BTreeSet<&str>, given: &Given<'_>) -> Markup {
    html! {
        form.card method="post" action=(PLAN_PATH) aria-label="Hold" {
            h2 { "Hold something" }
            (form_token(operator))
            input type="hidden" name="change" value="hold";
            @if let Some(problem) = given.problem { (notice(Tone::Bad, &html! { p { (visible(problem)) } })) }
            div.fields {
                div {
                    label for="scope" { "Routes of a" }
                    select #scope name="scope" {
                        @for scope in HoldScope::ALL {
                            option value=(scope.as_str()) selected[given.scope == scope.as_str()] { (scope.as_str()) }
                        }
                    }
                }
                div {
                    label for="name" { "Name" }
                    input #name name="name" list="names" autocomplete="off" maxlength=(MAX_NAME_BYTES) required value=(given.name);
                    datalist #names { @for name in names { option value=(name) {} } }
                }
                div.wide {
                    label for="reason" { "Reason" }
                    input #reason name="reason" maxlength=(MAX_REASON_BYTES) required value=(given.reason);
                }
            }
            div.actions { button.primary type="submit" { "Show what would be held…" } }
        }
    }
}

/// The values of a form that cannot be held, and the problem.
#[derive(Default)]
struct Given<'a> {
    scope: &'a str,
    name: &'a str,
    reason: &'a str,
    problem: Option<&'a str>,
}

/// Reads the key and the change of a form. `Err` has the problem.
fn read(form: &Form) -> Result<(HoldKey, HoldChange), String> {
    let text = |name| form.text(name).unwrap_or_default();
    let scope =
        text("scope").parse().map_err(|_| "Routes of a channel, a type or a producer can be held.")?;
    let key = HoldKey::new(scope, text("name").to_owned()).map_err(|error| format!("Name: {error}."))?;
    match text("change") {
        "release" => Ok((key, HoldChange::Release)),
        _ => {
            let reason = checked_reason(text("reason").to_owned());
            Ok((key, HoldChange::Hold { reason: reason.map_err(|error| format!("Reason: {error}."))? }))
        }
    }
}

async fn plan<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let (key, change) = match read(&form) {
        Ok(asked) => asked,
        Err(problem) => {
            let text = |name| form.text(name).unwrap_or_default();
            let given = Given {
                scope: text("scope"),
                name: text("name"),
                reason: text("reason"),
                problem: Some(&problem),
            };
            let page = Page::new(
                Section::Holds,
                "Holds",
                new_hold(&operator, &names(&console.settings.catalog), &given),
            );
            return Ok(page.with_status(StatusCode::BAD_REQUEST));
        }
    };
    let plan = console.holds.plan_hold(&key, &change).await?;
    let title = match change {
        HoldChange::Hold { .. } => "Hold?",
        HoldChange::Release => "Release?",
    };
    Ok(Page::new(Section::Holds, title, planned(&operator, &key, &change, &plan)))
}

fn planned(operator: &Operator, key: &HoldKey, change: &HoldChange, plan: &HoldPlan) -> Markup {
    let (label, class, effect) = match change {
        HoldChange::Hold { .. } => (
            "Hold",
            "danger",
            "Intents are accepted as ever. These routes and those that come are not published until the release, and count no attempt. Entries that are in the streams already are not called back.",
        ),
        HoldChange::Release => {
            ("Release", "primary", "Those that were due first go first, beside the other traffic.")
        }
    };
    html! {
        section.card aria-label="The plan" {
            p { (key.scope.as_str()) " " strong { (visible(&key.name)) } }
            @if let HoldChange::Hold { reason } = change { p { "Reason: " (visible(reason)) } }
            p.figure {
                (format!("{:#}", plan.routes))
                @if matches!(change, HoldChange::Hold { .. }) { " live routes" } @else { " held routes" }
            }
            @if plan.routes.is_zero() && matches!(change, HoldChange::Hold { .. }) {
                p.hint { "No live route is of it at present: check that the name is right." }
            }
            p { (effect) }
            @if !plan.first.is_empty() {
                h2 { "Some of them" }
                ul.ids {
                    @for route in &plan.first {
                        li { a.id href=(notification_path(route.notification_id.as_str())) { (visible(&route.to_string())) } }
                    }
                }
            }
        }
        form.card method="post" action=(CHANGE_PATH) aria-label="Confirm" {
            (form_token(operator))
            (key_fields(key))
            @if let HoldChange::Hold { reason } = change {
                input type="hidden" name="change" value="hold";
                input type="hidden" name="reason" value=(reason);
            } @else {
                input type="hidden" name="change" value="release";
            }
            div.actions {
                button class=(class) type="submit" { (label) " the " (visible(&key.to_string())) }
                a.button href=(LIST_PATH) { "Cancel" }
            }
        }
    }
}

async fn change<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Response, PageError> {
    let (key, change) = read(&form).map_err(PageError::Invalid)?;
    let request_id = hex::encode(console.ids.next());
    let by = HoldActor { name: &operator.name, request_id: &request_id, idempotency_key: None };
    let changed = console.holds.change_hold(&key, &change, by).await?;
    let done = match (&change, changed) {
        (HoldChange::Hold { .. }, true) => format!("The {key} is held."),
        (HoldChange::Hold { .. }, false) => format!("The {key} was held already."),
        (HoldChange::Release, true) => format!("The {key} is released."),
        (HoldChange::Release, false) => format!("The {key} was not held."),
    };
    Ok(Redirect::to(&address(LIST_PATH, [(DONE, done.as_str())])).into_response())
}
