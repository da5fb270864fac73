//! The plan of a change: its effects, shown before it is made.

use std::sync::Arc;

use ambient::Clock;
use axum::extract::State;
use axum::http::StatusCode;
use domain::operations::{MAX_REASON_BYTES, Plan, PlanGroup, Selection, Targets};
use domain::ports::{Operations, Queries};
use domain::route::RouteKey;
use maud::{Markup, html};

use super::asked::Asked;
use super::kind::Change;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::Page;
use crate::operator::Operator;
use crate::pages::parts::notification_path;
use crate::ports::{Console, Ports};
use crate::widgets::{column, empty, form_token, number, numbers, table, too_many, visible};

pub(super) async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let asked = Asked::of(&form)?;
    let now = console.clock.now();
    let end = match asked.selection {
        Selection::Routes(_) => console.queries.end_of_notifications(now).await?,
        Selection::DeadLetters(_) | Selection::Ids(_) => console.queries.end_of_dead_letters(now).await?,
    };
    page(&console, &operator, &asked.until(end), None).await
}

/// A reason that is not valid.
pub(super) struct Refused<'a> {
    pub(super) reason: &'a str,
    /// The violation.
    pub(super) problem: &'a str,
}

/// The page of a plan. `refused` is set if it was confirmed with an invalid reason. Its form contains exactly
/// the routes that it shows.
pub(super) async fn page<P: Ports>(
    console: &Console<P>,
    operator: &Operator,
    asked: &Asked,
    refused: Option<&Refused<'_>>,
) -> Result<Page, PageError> {
    let change = asked.change.planned(console.settings.budgets);
    let mut targets = console.operations.select_routes(&change, &asked.selection).await?;
    asked.keep_planned(&mut targets);
    let request_id = hex::encode(console.ids.next());
    let [title, _] = asked.change.titles();
    let status = if refused.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let content = render(operator, asked, &targets, &request_id, refused);
    Ok(Page::new(asked.change.pages().section, title, content).with_status(status))
}

fn render(
    operator: &Operator,
    asked: &Asked,
    targets: &Targets,
    request_id: &str,
    refused: Option<&Refused<'_>>,
) -> Markup {
    let plan = targets.plan();
    let now = targets.targets.len() as u64;
    let pages = asked.change.pages();
    html! {
        (selected(asked))
        @if now == 0 {
            (empty("There is nothing to change.", &format!("Nothing that is selected is a {} that this applies to. It may have been changed meanwhile.", pages.noun(1))))
            (unknown(&plan.unknown))
            p { a.button href=(pages.list) { (pages.back) } }
        } @else {
            section.card aria-label="The plan" {
                p.figure { (format!("{:#}", plan.count)) " " (pages.noun(plan.count.count)) }
                p { (asked.change.consequence()) }
                (groups(asked.change, &plan))
                @if plan.remaining.count > 0 {
                    (too_many(
                        &format!("This request changes {} of them.", number(now)),
                        "The page after it offers to continue with the others.",
                    ))
                }
                @if targets.unchanged > 0 {
                    p { (number(targets.unchanged)) " that are selected are not changed: they are not in the state that this needs (any more), or changed since the plan was shown." }
                }
                (unknown(&plan.unknown))
                (first(&plan))
            }
            (confirm(operator, &asked.planned(targets), now, request_id, refused))
        }
    }
}

/// The name of a condition, as labelled in the form of the list.
fn condition_name(name: &str) -> &str {
    match name {
        "classification" => "the cause",
        "notification_type" => "the type",
        "channel" => "the channel",
        "created_after" => "a failure from",
        "created_before" => "a failure before",
        "notification_id" => "the notification",
        "producer" => "the producer",
        "recipient" => "the recipient",
        "since" => "a time from",
        "until" => "a time before",
        other => other,
    }
}

/// Describes the selection.
fn selected(asked: &Asked) -> Markup {
    let all = match asked.change {
        Change::Replay | Change::Discard => "All open dead letters with ",
        Change::Cancel => "All pending and failed routes with ",
        Change::Resend => "All published routes with ",
    };
    html! {
        @match (&asked.selection, asked.selection.named_conditions()) {
            (Selection::Ids(ids), _) => p { (number(ids.len() as u64)) " chosen by id." },
            (_, conditions) => {
                p {
                    (all)
                    @for (index, (name, value)) in conditions.iter().flatten().enumerate() {
                        @if index > 0 { ", " }
                        (condition_name(name)) " " strong { (visible(value)) }
                    }
                    "."
                }
            }
        }
    }
}

fn groups(change: Change, plan: &Plan) -> Markup {
    let row = |group: &PlanGroup| {
        vec![visible(group.group.name()), html! { (group.channel.as_str()) }, html! { (number(group.count)) }]
    };
    let rows: Vec<Vec<Markup>> = plan.by.iter().map(row).collect();
    match change {
        Change::Replay | Change::Discard => {
            table("By cause", &[column("Cause"), column("Channel"), numbers("Dead letters")], &rows)
        }
        Change::Cancel | Change::Resend => {
            table("By type", &[column("Type"), column("Channel"), numbers("Routes")], &rows)
        }
    }
}

fn first(plan: &Plan) -> Markup {
    let all = plan.first.len() as u64 == plan.count.count;
    html! {
        h2 { @if all { "Which" } @else { "The first " (plan.first.len()) } }
        ul.ids {
            @for key in &plan.first { li { (route(key)) } }
        }
    }
}

fn route(key: &RouteKey) -> Markup {
    let id = key.notification_id.as_str();
    html! { a.id href=(notification_path(id)) { (visible(&key.to_string())) } }
}

fn unknown(ids: &[String]) -> Markup {
    html! {
        @if !ids.is_empty() {
            p { (number(ids.len() as u64)) " name no route; retention may have deleted it: "
                @for (index, id) in ids.iter().take(domain::operations::PLAN_IDS).enumerate() {
                    @if index > 0 { ", " }
                    code { (visible(id)) }
                }
                @if ids.len() > domain::operations::PLAN_IDS { ", …" }
            }
        }
    }
}

fn confirm(
    operator: &Operator,
    asked: &Asked,
    now: u64,
    request_id: &str,
    refused: Option<&Refused<'_>>,
) -> Markup {
    let (change, pages) = (asked.change, asked.change.pages());
    html! {
        form.card method="post" action=(pages.change) aria-label="Confirm" {
            (form_token(operator))
            input type="hidden" name="request_id" value=(request_id);
            (asked.fields())
            @if let Some(required) = change.reason() { (reason_field(required, refused)) }
            div.actions {
                button class=(change.class()) type="submit" { (change.label()) " " (number(now)) " " (pages.noun(now)) }
                a.button href=(pages.list) { "Back" }
            }
        }
    }
}

fn reason_field(required: bool, refused: Option<&Refused<'_>>) -> Markup {
    html! {
        div.fields {
            div.wide {
                label for="reason" { "Reason" }
                textarea #reason name="reason" rows="3" maxlength=(MAX_REASON_BYTES) required[required] aria-describedby="reason-help"
                    aria-invalid=[refused.map(|_| "true")] { (refused.map_or("", |refused| refused.reason)) }
                p.hint #reason-help {
                    "For those who look at it later; it is kept. At most " (number(MAX_REASON_BYTES as u64))
                    " bytes: a letter with an accent takes two, others up to four."
                }
                @if let Some(refused) = refused { p.bad.problem role="alert" { (refused.problem) } }
            }
        }
    }
}
