//! The top of the overview: what an operator has to look at, or that all is well.

use domain::document::Age;
use domain::hold::Hold;
use domain::query::{BLOCKED_LIMIT, CulpritList, Culprits, Finding, ServiceState, Status};
use maud::{Markup, html};
use serde_json::json;

use super::super::{holds, runbook};
use crate::params::address;
use crate::widgets::{Tone, badge, callout, time, visible};

/// The state in one word, and the findings, each with its cause, its beginning, the list that has its
/// culprits and its section of the runbook.
pub(super) fn show(status: &Status) -> Markup {
    let is_well = status.state == ServiceState::Well;
    let caveats = if is_well { caveats(status) } else { Vec::new() };
    let tone = if caveats.is_empty() { status.state.tone() } else { Tone::Warning };
    html! {
        p.verdict {
            "The service is " (badge(tone, status.state.as_str()))
            @if !caveats.is_empty() { " as far as is known" }
        }
        div.stack {
            @if is_well { (well(&caveats)) }
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
                (culprits(finding.culprits.as_ref())) " · "
                a href=(runbook::section_path(finding.runbook)) { "What to do" }
            }
        },
    )
}

/// The link to the list that has the culprits; to the replicas, which have their workers, if none has.
fn culprits(culprits: Option<&Culprits>) -> Markup {
    let Some(Culprits { list, conditions }) = culprits else {
        return html! { a href="#replicas" { "Show the replicas" } };
    };
    let pairs = conditions.iter().map(|(name, value)| (*name, value.as_str()));
    let (link, what) = match list {
        CulpritList::Notifications => {
            let filter = json!(conditions).to_string();
            (address("/console/notifications", [("filter", filter.as_str())]), "Show the notifications")
        }
        CulpritList::DeadLetters => (address("/console/dead-letters", pairs), "Show the dead letters"),
        CulpritList::MalformedIntents => (address("/console/malformed", pairs), "Show the malformed intents"),
    };
    html! { a href=(link) { (what) } }
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
fn well(caveats: &[Caveat]) -> Markup {
    html! {
        @if caveats.is_empty() {
            (callout(Tone::Good, &html! {
                p { strong { "Well: nothing is stuck and nothing fails." } " Intents are read and due routes are published." }
            }))
        }
        @for (what, rest) in caveats {
            (callout(Tone::Warning, &html! { p { strong { (what) } " " (rest) } }))
        }
    }
}

/// A reason for which it is not certain that all is well, and its meaning.
type Caveat = (&'static str, String);

fn caveats(status: &Status) -> Vec<Caveat> {
    let channels = &status.store.channels;
    let waits = status.intake.waiting.is_some() || channels.iter().any(|channel| channel.waiting.is_some());
    let mut caveats: Vec<Caveat> = Vec::new();
    if status.leader.is_none() {
        let rest = "Intents wait until one does, which takes at most 12 s after a crash.";
        caveats.push(("No replica leads at the moment.", rest.to_owned()));
    }
    if status.intake.backlog.is_none() {
        let rest = "Whether intents wait in it is not known.";
        caveats.push(("The stream cannot be read.", rest.to_owned()));
    }
    if waits {
        let rest = format!("It counts as stuck after {}; what it waits for is below.", Age(BLOCKED_LIMIT));
        caveats.push(("A worker waits.", rest));
    }
    caveats
}
