//! Explanation of a route in one sentence for a person: the reason for its state, and its next step and time.
//!
//! A function of the row and of its obstacle, if the replicas report one.

pub mod intent;
mod obstacle;

use std::time::Duration;

use ambient::Timestamp;

use crate::hold::RouteHold;
use crate::operations::CANCELLED;
use crate::query::{Route, RouteResend, deferral_cause};
use crate::receipt::{Receipt, ReceiptStatus, Report};
use crate::replica::DeferredReport;
use crate::route::{RouteStatus, SkipReason};

pub use obstacle::{Obstacle, Obstacles};

/// Publishers take what is due within this time, unless another replica holds its lease.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// The sentence for `route` at `now`, while it has this obstacle. It contains no address, and ends without a
/// full stop.
pub fn explain(route: &Route, now: Timestamp, obstacle: Option<Obstacle<'_>>) -> String {
    let state = state(route, now, obstacle);
    match &route.receipt {
        // The detail is left out: it may contain an address.
        Some(Receipt { highest: Report { status, at, .. }, .. }) => {
            format!("{state}; its consumer reported: {} at {at}", what_happened(*status))
        }
        None => state,
    }
}

fn what_happened(status: ReceiptStatus) -> &'static str {
    match status {
        ReceiptStatus::Failed => "delivery failed",
        ReceiptStatus::Delivered => "delivered",
        ReceiptStatus::Opened => "opened by the recipient",
        ReceiptStatus::Complained => "the recipient complained",
        ReceiptStatus::Bounced => "bounced",
    }
}

fn state(route: &Route, now: Timestamp, obstacle: Option<Obstacle<'_>>) -> String {
    match route.status {
        RouteStatus::Pending => format!("{}; {}", why_pending(route), next_attempt(route, now, obstacle)),
        RouteStatus::Failed => format!("{}; {}", failures(route), next_attempt(route, now, obstacle)),
        RouteStatus::Published => {
            let again = route.resend.as_ref().map(|resend| format!(", {}", sent_again(resend)));
            let again = again.unwrap_or_default();
            format!("{}{again}; final, consumers deliver it from there", published(route))
        }
        RouteStatus::DeadLetter => dead_letter(route),
        RouteStatus::Skipped => skipped(route),
    }
}

fn why_pending(route: &Route) -> String {
    // A replay of a dead letter begins with the first attempt again.
    if let Some(resend) = route.resend.as_ref().filter(|_| route.attempt_count > 0) {
        return format!("{}, {}", published(route), sent_again(resend));
    }
    // Only an operator makes a route pending again, or holds it.
    if route.updated_at > route.created_at && route.hold.is_none() {
        format!("Scheduled again by an operator at {}", route.updated_at)
    } else {
        format!("Accepted at {}", route.created_at)
    }
}

fn published(route: &Route) -> String {
    format!(
        "Published{} as entry {} of the outbound stream",
        at(route.published_at),
        route.published_entry_id
    )
}

/// The resend, with operator and reason unless the reader may not learn them.
fn sent_again(resend: &RouteResend) -> String {
    let by = resend.actor.shown().unwrap_or("an operator");
    let because = resend.reason.shown().filter(|reason| !reason.is_empty());
    let because = because.map(|reason| format!(" because: {reason}")).unwrap_or_default();
    format!("sent again by {by} at {}{because}", resend.at)
}

fn failures(route: &Route) -> String {
    if let Some(resend) = &route.resend {
        // The attempts before the resend are counted, too.
        let attempt = route.attempt_count;
        return format!(
            "{}, {}; attempt {attempt} failed: {}",
            published(route),
            sent_again(resend),
            cause(route)
        );
    }
    format!("Failed {}: {}", times(route.attempt_count), cause(route))
}

/// The next step of a live route.
fn next_attempt(route: &Route, now: Timestamp, obstacle: Option<Obstacle<'_>>) -> String {
    let attempt = u64::from(route.attempt_count) + 1;
    let of = format!("{attempt} of {}", route.max_attempts);
    let is_new = route.status == RouteStatus::Pending && route.updated_at == route.created_at;
    match (&route.hold, obstacle) {
        (Some(hold), _) => return held(hold, &of),
        (None, Some(Obstacle::Deferred(report))) => return deferred(report, &of),
        (None, _) => {}
    }
    let is_next = |due: Timestamp| due <= now || (is_new && due < Timestamp::MAX);
    match (route.next_attempt_at, obstacle) {
        // The service does not write such a row: live routes have a time.
        (None, _) => "it has no time for its next attempt, so it waits for an operator".to_owned(),
        (Some(due), Some(Obstacle::Waits(waiting))) if is_next(due) => {
            format!("waits: {}; next attempt ({of}) as soon as that is over", waiting.meaning())
        }
        (Some(Timestamp::MAX), _) => {
            "parked: it has no attempt before an operator sets next_attempt_at to a time".to_owned()
        }
        (Some(due), _) if due > now && is_new => format!(
            "the replica that accepted it makes the first attempt ({of}) now, and any other one may from {due}"
        ),
        (Some(due), _) if due > now => format!("next attempt ({of}) at {due}"),
        (Some(due), obstacle) => {
            let delay = delay(now.saturating_since(due), obstacle);
            format!("next attempt ({of}) as soon as a publisher takes it; due since {due}{delay}")
        }
    }
}

fn held(hold: &RouteHold, of: &str) -> String {
    let RouteHold { key, since, released_at, .. } = hold;
    match released_at {
        Some(at) => format!(
            "the hold of the {key} was released at {at}; next attempt ({of}) once those held before it are published"
        ),
        None => {
            format!("held: an operator holds the {key} since {since}; next attempt ({of}) after the release")
        }
    }
}

/// The next step of a route whose completion is deferred.
fn deferred(report: &DeferredReport, of: &str) -> String {
    let (obstacle, cause) = deferral_cause(report, "its row");
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    match report.is_published {
        true => format!(
            "its entry is in the outbound stream, but {obstacle}{cause}; the service records that as soon as it can, without a second entry"
        ),
        false => format!(
            "the attempt ({of}) failed, but {obstacle}{cause}; the service records that as soon as it can, and schedules the next one"
        ),
    }
}

/// The likely reason why a route that has been due for this long was not taken yet.
fn delay(overdue: Duration, obstacle: Option<Obstacle<'_>>) -> String {
    match obstacle {
        Some(Obstacle::NoPublisher) => "; no running replica publishes its channel".to_owned(),
        Some(Obstacle::PerhapsDeferred(completions)) if overdue > TAKEN_WITHIN => format!(
            "; completions of its channel are deferred ({completions}), perhaps its own, see notification status"
        ),
        None if overdue > TAKEN_WITHIN => {
            "; others may be due before it, or a replica that crashed or hangs holds its lease, for NOTIFICATION_ROUTE_LEASE_TTL at most"
                .to_owned()
        }
        _ => String::new(),
    }
}

fn dead_letter(route: &Route) -> String {
    let attempts = match &route.resend {
        None => attempts(route.attempt_count),
        // The attempts before the resend are counted, too.
        Some(resend) => format!("attempt {}, {}", route.attempt_count, sent_again(resend)),
    };
    let gave_up = format!("gave up{} after {attempts}: {}", at(route.dead_lettered_at), cause(route));
    match &route.discarded {
        Some(discarded) => format!(
            "Discarded by {} at {} ({}), after the service {gave_up}; only a replay by its id makes another attempt",
            discarded.by, discarded.at, discarded.reason,
        ),
        None if route.recovery_hint.is_empty() => {
            format!("The service {gave_up}; only a replay by an operator makes another attempt")
        }
        None => format!("The service {gave_up}; an operator can act: {}", route.recovery_hint),
    }
}

fn skipped(route: &Route) -> String {
    let reason = route.last_error_classification.as_str();
    if reason == CANCELLED {
        // The message names the operator and the reason, unless the reader may not learn them.
        let (at, who) = (at(route.skipped_at), &route.last_error_message);
        let again = match &route.resend {
            Some(resend) => format!("{}, {}; ", published(route), sent_again(resend)),
            None => String::new(),
        };
        return format!("{again}Skipped{at} because it was {who}; final, only a new intent is sent");
    }
    let why = if reason == SkipReason::NoEmailAddress.as_str() {
        "the user directory had no usable e-mail address of the user"
    } else if reason == SkipReason::NoAdminRecipients.as_str() {
        "no administrator was configured for its type (NOTIFICATION_ADMIN_EMAILS_…)"
    } else if reason.is_empty() {
        "there was no one to reach"
    } else {
        reason
    };
    format!("Skipped{} at acceptance because {why}; final, only a new intent is sent", at(route.skipped_at))
}

/// The cause of the last failure: the message, or the classification if there is no message.
fn cause(route: &Route) -> &str {
    let message = route.last_error_message.trim().trim_end_matches('.');
    match (message, route.last_error_classification.as_str()) {
        ("", "") => "the cause was not recorded",
        ("", classification) => classification,
        (message, _) => message,
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

fn attempts(count: u32) -> String {
    if count == 1 { "1 failed attempt".to_owned() } else { format!("{count} failed attempts") }
}

fn at(time: Option<Timestamp>) -> String {
    time.map_or_else(String::new, |time| format!(" at {time}"))
}

#[cfg(test)]
pub(crate) mod tests;
