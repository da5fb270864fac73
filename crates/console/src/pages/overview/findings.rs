//! The top of the overview: what an operator has to look at, or that all is well.

use domain::document::Age;
use domain::hold::Hold;
use domain::query::{BLOCKED_LIMIT, Finding, ServiceState, Status};
use maud::{Markup, html};

use super::super::holds;
use crate::widgets::{Tone, callout, time, visible};

/// The findings, each with its cause, its beginning and its section of the runbook.
pub(super) fn show(status: &Status) -> Markup {
    html! {
        @if status.state == ServiceState::Well { (well(status)) }
        div.stack {
            @for found in &status.findings { (finding(found)) }
            @for hold in &status.store.holds { (held(hold, status)) }
        }
    }
}

fn finding(finding: &Finding) -> Markup {
    let word = if finding.state == ServiceState::Stuck { "Stuck: " } else { "Failing: " };
    callout(
        finding.state.tone(),
        &html! {
            p { strong { (word) (visible(&finding.parts.join(", "))) } }
            p { (visible(&finding.text())) "." }
            p.hint {
                @if let Some(since) = finding.since { "Since " (time(since)) ". " }
                "What to do: " code { (finding.runbook) }
            }
        },
    )
}

/// A hold, with its age and the number of routes that it keeps.
fn held(hold: &Hold, status: &Status) -> Markup {
    let released = hold.released_at.is_some();
    callout(
        Tone::Warning,
        &html! {
            p { strong { @if released { "Being released: " } @else { "Held: " } (visible(&hold.key.to_string())) } }
            p {
                (format!("{:#}", hold.routes)) " routes wait"
                @if !released { ", since " (status.age(hold.since)) ", by " (visible(&hold.actor)) ": " (visible(&hold.reason)) }
                ". " a href=(holds::LIST_PATH) { "Holds" }
            }
        },
    )
}

/// The text if nothing was found. It reports that all is well only if that is certain.
fn well(status: &Status) -> Markup {
    let channels = &status.store.channels;
    let waits = status.intake.waiting.is_some() || channels.iter().any(|channel| channel.waiting.is_some());
    if status.leader.is_none() {
        return callout(
            Tone::Warning,
            &html! {
                p { strong { "No replica leads at the moment." } " Intents wait until one does, which takes at most 12 s after a crash." }
            },
        );
    }
    if status.intake.backlog.is_none() {
        return callout(
            Tone::Warning,
            &html! {
                p { strong { "The stream cannot be read." } " Whether intents wait in it is not known." }
            },
        );
    }
    if waits {
        return callout(
            Tone::Warning,
            &html! {
                p { strong { "A worker waits." } " It counts as stuck after " (Age(BLOCKED_LIMIT)) "; what it waits for is below." }
            },
        );
    }
    callout(
        Tone::Good,
        &html! {
            p { strong { "Well: nothing is stuck and nothing fails." } " Intents are read and due routes are published." }
        },
    )
}
