//! The plan of a change: its effects, shown before it is made.

use std::sync::Arc;

use ambient::Clock;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Redirect;
use domain::operations::{MAX_REASON_BYTES, Plan, PlanGroup, Selection, Targets};
use domain::ports::{Operations, Queries};
use domain::route::RouteKey;
use maud::{Markup, html};

use super::asked::{Asked, CHANGE_PATH, Change, LIST_PATH};
use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, Section};
use crate::operator::Operator;
use crate::pages::parts::notification_path;
use crate::ports::{Console, Ports};
use crate::widgets::{column, empty, form_token, number, numbers, table, too_many, visible};

/// Redirects to the list: a plan belongs to a form, so its address alone, reloaded or bookmarked, cannot show
/// it.
pub(super) async fn start_over() -> Redirect {
    Redirect::to(LIST_PATH)
}

pub(super) async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    form: Form,
) -> Result<Page, PageError> {
    let end = console.queries.end_of_dead_letters(console.clock.now()).await?;
    let asked = Asked::read(&form, end)?;
    page(&console, &operator, &asked, None).await
}

/// A reason that is not valid for a discard.
pub(super) struct Refused<'a> {
    pub(super) reason: &'a str,
    /// The violation.
    pub(super) problem: &'a str,
}

/// The page of a plan. `refused` is set if it was confirmed with an invalid reason. Its form contains exactly
/// the dead letters that it shows.
pub(super) async fn page<P: Ports>(
    console: &Console<P>,
    operator: &Operator,
    asked: &Asked,
    refused: Option<&Refused<'_>>,
) -> Result<Page, PageError> {
    let change = asked.change.planned(console.settings.budgets);
    let mut targets = console.operations.select_dead_letters(&change, &asked.selection).await?;
    asked.keep_planned(&mut targets);
    let request_id = hex::encode(console.ids.next());
    let title = match asked.change {
        Change::Replay => "Replay dead letters?",
        Change::Discard => "Discard dead letters?",
    };
    let status = if refused.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let content = render(operator, asked, &targets, &request_id, refused);
    Ok(Page::new(Section::DeadLetters, title, content).with_status(status))
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
    html! {
        (selected(asked))
        @if now == 0 {
            (empty("There is nothing to change.", "Nothing that is selected is a dead letter that this applies to. It may have been replayed or discarded meanwhile."))
            (unknown(&plan.unknown))
            p { a.button href=(LIST_PATH) { "Back to the dead letters" } }
        } @else {
            section.card aria-label="The plan" {
                p.figure { (format!("{:#}", plan.count)) " " (letters(plan.count.count)) }
                p { (consequence(asked.change)) }
                (groups(&plan))
                @if plan.remaining.count > 0 {
                    (too_many(
                        &format!("This request changes {} of them.", number(now)),
                        "The page after it offers to continue with the others.",
                    ))
                }
                @if targets.unchanged > 0 {
                    p { (number(targets.unchanged)) " that are selected are not changed: they are no dead letters any more, are discarded already, or changed since the plan was shown." }
                }
                (unknown(&plan.unknown))
                (first(&plan))
            }
            (confirm(operator, &asked.planned(targets), now, request_id, refused))
        }
    }
}

fn letters(count: u64) -> &'static str {
    if count == 1 { "dead letter" } else { "dead letters" }
}

fn consequence(change: Change) -> &'static str {
    match change {
        Change::Replay => {
            "Each route becomes pending again with a new budget of attempts, under the ids it always had, and its dead letter is deleted."
        }
        Change::Discard => {
            "Each dead letter is marked with your name and the reason and leaves the list of those that need attention. It can still be replayed."
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
        other => other,
    }
}

/// Describes the selection.
fn selected(asked: &Asked) -> Markup {
    html! {
        @match &asked.selection {
            Selection::Ids(ids) => p { (number(ids.len() as u64)) " chosen by id." },
            Selection::Filter(filter) => {
                p {
                    "All open dead letters with "
                    @for (index, (name, value)) in filter.named_conditions().iter().enumerate() {
                        @if index > 0 { ", " }
                        (condition_name(name)) " " strong { (visible(value)) }
                    }
                    "."
                }
            }
        }
    }
}

fn groups(plan: &Plan) -> Markup {
    let row = |group: &PlanGroup| {
        vec![
            visible(&group.classification),
            html! { (group.channel.as_str()) },
            html! { (number(group.count)) },
        ]
    };
    let rows: Vec<Vec<Markup>> = plan.by.iter().map(row).collect();
    table("By cause", &[column("Cause"), column("Channel"), numbers("Dead letters")], &rows)
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
    let (label, class) = match asked.change {
        Change::Replay => ("Replay", "primary"),
        Change::Discard => ("Discard", "danger"),
    };
    html! {
        form.card method="post" action=(CHANGE_PATH) aria-label="Confirm" {
            (form_token(operator))
            input type="hidden" name="request_id" value=(request_id);
            (asked.fields())
            @if asked.change == Change::Discard { (reason_field(refused)) }
            div.actions {
                button class=(class) type="submit" { (label) " " (number(now)) " " (letters(now)) }
                a.button href=(LIST_PATH) { "Cancel" }
            }
        }
    }
}

fn reason_field(refused: Option<&Refused<'_>>) -> Markup {
    html! {
        div.fields {
            div.wide {
                label for="reason" { "Reason" }
                textarea #reason name="reason" rows="3" maxlength=(MAX_REASON_BYTES) required aria-describedby="reason-help"
                    aria-invalid=[refused.map(|_| "true")] { (refused.map_or("", |refused| refused.reason)) }
                p.hint #reason-help {
                    "For those who look at it later; it is kept with the dead letter. At most " (number(MAX_REASON_BYTES as u64))
                    " bytes: a letter with an accent takes two, others up to four."
                }
                @if let Some(refused) = refused { p.bad.problem role="alert" { (refused.problem) } }
            }
        }
    }
}
