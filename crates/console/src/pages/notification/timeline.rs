//! The events of a route, in order, and the next one.

use ambient::Timestamp;
use domain::operations::CANCELLED;
use domain::query::Route;
use domain::receipt::{PastReport, ReceiptStatus, Recorded};
use domain::route::{FailedAttempt, RouteStatus};
use maud::{Markup, html};

use crate::widgets::{Tone, class, time, visible};

/// A past or future event.
struct Event {
    tone: Tone,
    /// The time of the event; `None` for a future event whose time is unknown.
    at: Option<Timestamp>,
    what: &'static str,
    detail: Markup,
}

impl Event {
    fn new(tone: Tone, at: Option<Timestamp>, what: &'static str, detail: Markup) -> Self {
        Self { tone, at, what, detail }
    }
}

pub(super) fn of(route: &Route, now: Timestamp) -> Markup {
    let mut events = past(route);
    events.extend(route.receipt.iter().flat_map(|receipt| receipt.history.iter().rev()).map(report));
    // Receipts are not sorted by time, because a consumer's clock may be wrong.
    events.extend(next(route, now));
    html! {
        ol.timeline {
            @for event in &events {
                li class={ "is-" (class(event.tone)) } {
                    strong { (event.what) }
                    @if let Some(at) = event.at { " " (time(at)) }
                    " " (event.detail)
                }
            }
        }
    }
}

/// The past events in the row.
fn past(route: &Route) -> Vec<Event> {
    let mut events = vec![Event::new(Tone::Neutral, Some(route.created_at), "Accepted", html! {})];
    events.extend(route.failed_attempts.iter().map(failed));
    // A resend does not begin with the first attempt again.
    let is_replayed = route.resend.is_none() || route.attempt_count == 0;
    if route.status == RouteStatus::Pending && route.updated_at > route.created_at && is_replayed {
        events.push(Event::new(
            Tone::Neutral,
            Some(route.updated_at),
            "Scheduled again by an operator",
            html! {},
        ));
    }
    if let Some(at) = route.published_at {
        let entry =
            html! { "as entry " code { (visible(&route.published_entry_id)) } " of the outbound stream" };
        events.push(Event::new(Tone::Good, Some(at), "Published", entry));
    }
    if let Some(resend) = &route.resend {
        let of = html! {
            "by " (visible(&resend.actor)) @if !resend.reason.is_empty() { ": " (visible(&resend.reason)) }
            ", in place of entry " code { (visible(&resend.replaced_entry_id)) }
        };
        events.push(Event::new(Tone::Neutral, Some(resend.at), "Sent again", of));
    }
    if let Some(at) = route.dead_lettered_at {
        events.push(Event::new(
            Tone::Bad,
            Some(at),
            "Dead letter",
            html! { (visible(&route.recovery_hint)) },
        ));
    }
    if let Some(at) = route.skipped_at {
        events.push(match route.last_error_classification == CANCELLED {
            true => {
                let by = html! { (visible(&route.last_error_message)) };
                Event::new(Tone::Neutral, Some(at), "Cancelled", by)
            }
            false => {
                let why = html! { code { (visible(&route.last_error_classification)) } };
                Event::new(Tone::Neutral, Some(at), "Skipped", why)
            }
        });
    }
    if let Some(discarded) = &route.discarded {
        let by = html! { "by " (visible(&discarded.by)) ": " (visible(&discarded.reason)) };
        events.push(Event::new(Tone::Neutral, Some(discarded.at), "Discarded", by));
    }
    // A resend has attempts before and after it, and one publication on either side.
    events.sort_by_key(|event| event.at);
    events
}

fn failed(attempt: &FailedAttempt) -> Event {
    let cause = html! {
        "(attempt " (attempt.attempt) ") "
        code { (visible(&attempt.classification)) } ": " (visible(&attempt.message))
    };
    Event::new(Tone::Warning, Some(attempt.at), "Attempt failed", cause)
}

/// The tone of a report.
pub(super) fn tone_of(status: ReceiptStatus) -> Tone {
    match status {
        ReceiptStatus::Failed => Tone::Warning,
        ReceiptStatus::Delivered | ReceiptStatus::Opened => Tone::Good,
        ReceiptStatus::Complained | ReceiptStatus::Bounced => Tone::Bad,
    }
}

fn report(past: &PastReport) -> Event {
    let report = &past.report;
    let what = match report.status {
        ReceiptStatus::Failed => "Receipt: delivery failed",
        ReceiptStatus::Delivered => "Receipt: delivered",
        ReceiptStatus::Opened => "Receipt: opened",
        ReceiptStatus::Complained => "Receipt: the recipient complained",
        ReceiptStatus::Bounced => "Receipt: bounced",
    };
    let detail = html! {
        (visible(&report.detail))
        @if past.outcome == Recorded::Stale { " " span.soft { "(changes nothing: a higher report is known)" } }
    };
    Event::new(tone_of(report.status), Some(report.at), what, detail)
}

fn next(route: &Route, now: Timestamp) -> Option<Event> {
    match route.next_attempt_at? {
        Timestamp::MAX => Some(Event::new(Tone::Neutral, None, "Parked by an operator", html! {})),
        at if at > now => Some(Event::new(Tone::Busy, Some(at), "Next attempt", html! {})),
        at => Some(Event::new(Tone::Busy, Some(at), "Due", html! { "and waiting for a publisher" })),
    }
}
