//! Erasing a person: the user, the plan, and the receipt.
//!
//! An erasure that is sent twice, or again after it was interrupted, erases what is left.

use std::sync::Arc;

use ambient::Clock;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::{get, post};
use domain::erase::{ErasurePlan, ErasureReport, MAX_USER_ID_BYTES, Mentions, checked_user_id};
use domain::hold::HoldActor;
use domain::ports::Erasures;
use domain::record::NotificationId;
use maud::{Markup, html};

use super::parts::{facts, notification_path};
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, Section};
use crate::operator::Operator;
use crate::params::Params;
use crate::ports::{Console, Ports};
use crate::widgets::{Tone, form_token, id, notice, number, time, visible};

/// The address of the form.
pub(super) const PATH: &str = "/console/erase";
const PLAN_PATH: &str = "/console/erase/plan";
const CHANGE_PATH: &str = "/console/erase/change";

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new()
        .route(PATH, get(show))
        .route(PLAN_PATH, post(plan::<P>).get(start_over))
        .route(CHANGE_PATH, post(change::<P>).get(start_over))
}

/// Redirects to the form: a plan belongs to a form, so its address alone cannot show it.
async fn start_over() -> Redirect {
    Redirect::to(PATH)
}

async fn show(operator: Operator, RawQuery(query): RawQuery) -> Result<Page, PageError> {
    Params::parse(query.as_deref(), &[])?;
    Ok(Page::new(Section::Actions, "Erase a person", user_form(&operator, "", None)))
}

fn user_form(operator: &Operator, user_id: &str, problem: Option<&str>) -> Markup {
    html! {
        form.card method="post" action=(PLAN_PATH) aria-label="The user" {
            (form_token(operator))
            @if let Some(problem) = problem { (notice(Tone::Bad, &html! { p { (visible(problem)) } })) }
            div.fields {
                div.wide {
                    label for="user_id" { "User id" }
                    input #user_id name="user_id" autocomplete="off" spellcheck="false" maxlength=(MAX_USER_ID_BYTES) required value=(user_id);
                }
            }
            div.actions { button.primary type="submit" { "Show what would be erased…" } }
        }
    }
}

/// The user of a form; `Err` has the problem.
fn user_of(form: &Form) -> Result<String, String> {
    let given = form.text("user_id").unwrap_or_default().to_owned();
    checked_user_id(given).map_err(|error| format!("{error}."))
}

async fn plan<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let user_id = match user_of(&form) {
        Ok(user_id) => user_id,
        Err(problem) => {
            let given = form.text("user_id").unwrap_or_default();
            let content = user_form(&operator, given, Some(&problem));
            return Ok(
                Page::new(Section::Actions, "Erase a person", content).with_status(StatusCode::BAD_REQUEST)
            );
        }
    };
    let plan = console.erasures.plan_erasure(&user_id).await?.ok_or(PageError::Unavailable)?;
    Ok(Page::new(Section::Actions, "Erase this person?", planned(&operator, &user_id, &plan)))
}

fn planned(operator: &Operator, user_id: &str, plan: &ErasurePlan) -> Markup {
    html! {
        section.card aria-label="The plan" {
            (facts(&[
                ("User", visible(user_id)),
                ("Notifications to the user", html! { (format!("{:#}", plan.notifications)) }),
                ("Malformed intents that name the user", html! { (number(plan.malformed_intents)) }),
                ("Entries of streams that name the user", html! { (format!("{:#}", plan.stream_entries)) }),
                ("Document of the user directory", html! { @if plan.directory_document { "yes" } @else { "none" } }),
            ]))
            p { "Routes, receipts, dead letters, stored responses, raw fields and entries of the streams go. Notifications to others stay without the user. This cannot be undone." }
            (listed("Some of the notifications", plan.first.iter().map(NotificationId::as_str)))
            (mentioned(&plan.mentions))
        }
        form.card method="post" action=(CHANGE_PATH) aria-label="Confirm" {
            (form_token(operator))
            input type="hidden" name="user_id" value=(user_id);
            div.actions {
                button.danger type="submit" { "Erase " (visible(user_id)) }
                a.button href=(PATH) { "Cancel" }
            }
        }
    }
}

fn listed<'a>(title: &str, ids: impl Iterator<Item = &'a str>) -> Markup {
    let ids: Vec<&str> = ids.collect();
    html! {
        @if !ids.is_empty() {
            h2 { (title) }
            ul.ids { @for id in ids { li { a.id href=(notification_path(id)) { (visible(id)) } } } }
        }
    }
}

/// The notifications and malformed intents that stay, for a decision.
fn mentioned(mentions: &Mentions) -> Markup {
    html! {
        @if mentions.count.count > 0 || mentions.count.capped {
            p { (format!("{:#}", mentions.count)) " notifications and malformed intents mention the user elsewhere, and stay. Decide about them." }
            (listed("Notifications that mention the user", mentions.notifications.iter().map(NotificationId::as_str)))
            @if !mentions.malformed_intents.is_empty() {
                h2 { "Malformed intents that mention the user" }
                ul.ids { @for entry_id in &mentions.malformed_intents { li { (visible(entry_id)) } } }
            }
        }
    }
}

async fn change<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let user_id = user_of(&form).map_err(PageError::Invalid)?;
    let request_id = hex::encode(console.ids.next());
    let by = HoldActor { name: &operator.name, request_id: &request_id, idempotency_key: None };
    let erased = console.erasures.erase_user(&user_id, by, console.clock.now()).await?;
    let report = erased.ok_or(PageError::Unavailable)?;
    Ok(Page::new(Section::Actions, "Erased", receipt(&operator, &user_id, &report)))
}

fn receipt(operator: &Operator, user_id: &str, report: &ErasureReport) -> Markup {
    let rows = &report.rows;
    let count = |count: u64| html! { (number(count)) };
    html! {
        @if report.complete {
            (notice(Tone::Good, &html! { p { strong { "The person is erased." } } }))
        } @else {
            (notice(Tone::Warning, &html! { p { strong { "Something is left." } " The time did not suffice, a publisher or another transaction had it, an intent came meanwhile, or an entry is not processed yet." } }))
            form.actions method="post" action=(CHANGE_PATH) {
                (form_token(operator))
                input type="hidden" name="user_id" value=(user_id);
                button.primary type="submit" { "Continue" }
            }
        }
        section.card aria-label="Receipt" {
            (facts(&[
                ("Hash of the user's id", id(&report.user_hash)),
                ("Request id", id(&report.request_id)),
                ("Begun", time(report.started_at)),
                ("Ended", time(report.ended_at)),
                ("Notifications deleted", count(rows.records_deleted)),
                ("Notifications that lost the recipient", count(rows.records_changed)),
                ("Routes", count(rows.routes)),
                ("Dead letters", count(rows.dead_letters)),
                ("Receipts", count(rows.receipts)),
                ("Stored answers", count(rows.responses)),
                ("Malformed intents", count(rows.malformed_intents)),
                ("Actions of operators", count(rows.actions)),
                ("Documents of the user directory", count(rows.directory_documents)),
                ("Entries of streams", count(report.stream_entries)),
                ("Entries that are not processed yet, or not readable", count(report.unread_entries)),
            ]))
            (mentioned(&report.mentions))
        }
    }
}
