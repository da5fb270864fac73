//! Fates of intents as sentences for a person.

use ambient::Timestamp;

use super::fate::{Absence, Expected, Fate, TermState};
use crate::entry::EntryId;
use crate::malformed_intent::{Rejection, rule_of};
use crate::query::{Counted, MalformedSummary, RecordedAction, Waiting};
use crate::record::NotificationId;
use crate::route::RouteKey;

impl Fate {
    /// A sentence for a person, at `now`, without a full stop.
    pub fn sentence(&self, now: Timestamp) -> String {
        match self {
            Self::Accepted { notification_id, accepted_at, route_id: None } => {
                format!("Accepted at {accepted_at}: it is the notification {notification_id}")
            }
            Self::Accepted { notification_id, accepted_at, route_id: Some(route_id) } => format!(
                "Accepted at {accepted_at}: it is the route {route_id} of the notification {notification_id}"
            ),
            Self::Change { request_id, newest: RecordedAction { action, actor, at, .. }, affected } => {
                let least = if affected.capped { "at least " } else { "" };
                format!(
                    "The request {request_id} of {actor}: {action}; changed rows: {least}{}, the last at {at}",
                    affected.count
                )
            }
            Self::Published { stream, id, key: RouteKey { notification_id, route_id }, exists } => {
                let end = if *exists { "" } else { ", which retention has deleted" };
                format!(
                    "The entry {id} of the stream {stream} is the route {route_id} of the notification {notification_id}{end}"
                )
            }
            Self::Duplicate { id, of, accepted_at } => format!(
                "The entry {id} is a duplicate of the intent that became the notification {of} at {accepted_at}; it changed nothing"
            ),
            Self::Conflict { id, with, row } => conflict(id, with.as_ref(), row.as_ref()),
            Self::Malformed(row) => malformed(row),
            Self::Unread { id, ahead, term, expected } => {
                format!("{}; {}; {}", unread(*id, *ahead, now), reader(term), outlook(expected))
            }
            Self::Forgotten { id, broken } => forgotten(*id, broken.as_ref()),
            Self::Absent { absence, .. } => absent(absence),
            Self::NoRoute(RouteKey { notification_id, route_id }) => {
                format!("There is the notification {notification_id}, and it has no route {route_id}")
            }
            Self::Unknown { name } => format!(
                "No notification, no malformed intent and no unread entry is known by the name {name}; an intent that was refused over \
                 HTTP leaves no row, one that waits in a producer's outbox is not in the stream yet, and retention deletes old rows"
            ),
        }
    }
}

fn conflict(id: &str, with: Option<&NotificationId>, row: Option<&MalformedSummary>) -> String {
    let with = with.map_or_else(
        || "of another intent, whose notification retention has deleted since".to_owned(),
        |with| format!("of the notification {with}, which another intent became"),
    );
    let at = row.map_or_else(String::new, |row| format!(" at {}", row.recorded_at));
    format!("The entry {id} was refused{at}, because its idempotency key is that {with}")
}

fn malformed(row: &MalformedSummary) -> String {
    let rule = rule_of(&row.failure_code).map_or_else(String::new, |rule| format!(" (the rule: {rule})"));
    let next = match (row.resubmitted_at, &row.resubmitted_entry_id) {
        (Some(at), Some(new)) => format!("an operator resubmitted it at {at} as the entry {new}"),
        _ => "its key is free, so that the producer can correct it and send it again".to_owned(),
    };
    format!(
        "The entry {} was refused at {} as malformed: {}: {}{rule}; {next}",
        row.key.entry_id, row.recorded_at, row.failure_code, row.failure_message,
    )
}

fn unread(id: EntryId, ahead: Counted, now: Timestamp) -> String {
    let age = Some(id.time())
        .filter(|at| *at <= now)
        .map_or_else(String::new, |at| format!(", added {} s ago", now.saturating_since(at).as_secs()));
    let before = match ahead {
        Counted { count: 0, capped: true } => "an unknown number of entries before it".to_owned(),
        Counted { count, capped: true } => format!("at least {count} entries before it"),
        Counted { count: 0, .. } => "it is the next".to_owned(),
        Counted { count: 1, .. } => "1 entry before it".to_owned(),
        Counted { count, .. } => format!("{count} entries before it"),
    };
    format!("The entry {id} is in the stream{age}, and is not read yet: {before}")
}

fn reader(term: &TermState) -> String {
    match term {
        TermState::NoLeader => {
            "no replica reads the stream now, and one that runs takes over within 12 s".to_owned()
        }
        TermState::Waits(Waiting { entry_id, cause, age, .. }) => {
            let at = entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
            format!("intake has waited for {} s{at}: {cause}", age.0.as_secs())
        }
        TermState::Reads => "intake reads and waits for nothing".to_owned(),
    }
}

fn outlook(expected: &Expected) -> String {
    match expected {
        Expected::Undecided => "its outcome is decided when it is read".to_owned(),
        Expected::Duplicate(id) => format!("it will be a duplicate of the notification {id}"),
        Expected::Conflict(id) => {
            format!("it will be refused, because its key is that of the notification {id}")
        }
        Expected::Malformed(rejection) => format!("it will be refused as malformed: {rejection}"),
    }
}

fn forgotten(id: EntryId, broken: Option<&Rejection>) -> String {
    let why = match broken {
        Some(rejection) => format!(
            "by the present catalogue it is malformed ({rejection}), so retention has probably deleted what was stored of it"
        ),
        None => "retention has deleted its notification, or what was stored of it as malformed".to_owned(),
    };
    format!(
        "The entry {id} is still in the stream and was read, and no row tells its outcome: {why}; the trail ends here"
    )
}

/// The part of a sentence that reports that both tables lack a row.
const NO_ROW: &str = "PostgreSQL has neither a notification nor a malformed intent under this id";

fn absent(absence: &Absence) -> String {
    let if_read = |unread: bool| match unread {
        true => {
            "The checkpoint is before it, so it was not read: if it existed, it has no outcome and its producer must send it again"
        }
        false => {
            "The checkpoint is after it, so it was read if it existed: as a duplicate, which leaves no row, or its row was deleted by retention"
        }
    };
    match absence {
        Absence::Trimmed { first, unread } => {
            let stream = first.map_or_else(
                || "the stream is empty, and its entries were removed".to_owned(),
                |first| format!("the stream begins after it, with {first}: what was before was trimmed"),
            );
            format!("{NO_ROW}, and {stream}. {}; the trail ends here", if_read(*unread))
        }
        Absence::Deleted { unread } => format!(
            "{NO_ROW}, and the stream does not have it between its other entries: it was deleted from the stream, or never was there. {}; the trail ends here",
            if_read(*unread)
        ),
        Absence::NotGenerated { last_generated } => {
            format!("{NO_ROW}, and the stream has not come to it: its last id is {last_generated}")
        }
        Absence::NoStream { unread } => {
            format!(
                "{NO_ROW}, and the intents stream does not exist. {}; the trail ends here",
                if_read(*unread)
            )
        }
        Absence::StreamUnavailable { unread: true } => format!(
            "{NO_ROW}. The checkpoint is before it: if it is in the stream, it is not read yet. Redis could not be asked"
        ),
        Absence::StreamUnavailable { unread: false } => {
            format!("{NO_ROW}. {}. Redis could not be asked, which may still have the entry", if_read(false))
        }
    }
}
