//! The top of the overview: the stuck parts, or that nothing is stuck.

use domain::document::Age;
use domain::hold::Hold;
use domain::query::{BLOCKED_LIMIT, Status};
use maud::{Markup, html};

use super::super::holds;
use super::age;
use crate::widgets::{Tone, callout, visible};

/// The stuck parts, each with its cause.
pub(super) fn show(status: &Status) -> Markup {
    html! {
        @if status.stuck.is_empty() { (nothing_stuck(status)) }
        div.stack {
            @for hold in &status.store.holds { (held(hold, status)) }
            @for stuck in &status.stuck {
                @let tone = if stuck.stops_traffic { Tone::Bad } else { Tone::Warning };
                (callout(tone, &html! {
                    p { strong { "Stuck: " (visible(&stuck.what)) } }
                    p { (visible(&stuck.sentence)) "." }
                }))
            }
        }
    }
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
                @if !released { ", since " (format!("{:#}", status.age(hold.since))) ", by " (visible(&hold.actor)) ": " (visible(&hold.reason)) }
                ". " a href=(holds::LIST_PATH) { "Holds" }
            }
        },
    )
}

/// The text if nothing is stuck. It reports that all is well only if that is certain.
fn nothing_stuck(status: &Status) -> Markup {
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
                p { strong { "Redis cannot be asked." } " Whether intents wait in the stream is not known." }
            },
        );
    }
    if waits {
        return callout(
            Tone::Warning,
            &html! {
                p { strong { "A worker waits." } " It counts as stuck after " (age(Age(BLOCKED_LIMIT))) "; what it waits for is below." }
            },
        );
    }
    callout(
        Tone::Good,
        &html! {
            p { strong { "Nothing is stuck." } " Intents are read and due routes are published." }
        },
    )
}
