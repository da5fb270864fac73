//! Comparison of a record with its routes and their dead letters.

use std::collections::{BTreeSet, HashSet};

use ambient::Timestamp;

use super::{Discrepancy, DiscrepancyKind as Kind, Subject};
use crate::catalog::AudienceKind;
use crate::entry::EntryId;
use crate::query::OLDEST_DUE_LIMIT;
use crate::record::NotificationId;
use crate::republish::keeps_entry;
use crate::route::{Channel, RouteKey, RouteStatus};

/// The most recipients that one discrepancy lists.
const NAMED_RECIPIENTS: usize = 3;

/// The audited columns of a record, with all its routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditedRecord {
    /// Primary key.
    pub notification_id: NotificationId,
    /// Time of acceptance.
    pub accepted_at: Timestamp,
    /// Time of the last change; equal to `accepted_at` if unchanged.
    pub updated_at: Timestamp,
    /// Kind of the recipients: users or administrators.
    pub audience: AudienceKind,
    /// The users.
    pub recipient_user_ids: Vec<String>,
    /// Every route, in any order.
    pub routes: Vec<RouteRow>,
}

/// A row with a value that this service never writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadableRow {
    /// The object that the row belongs to.
    pub subject: Subject,
    /// The column and the fault of its value.
    pub problem: String,
}

impl From<UnreadableRow> for Discrepancy {
    fn from(row: UnreadableRow) -> Self {
        Self::new(Kind::UnreadableRow, row.subject, row.problem)
    }
}

/// A row of `routes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteRow {
    /// A route that was read.
    Read(AuditedRoute),
    /// A route of which only the key could be read, and the fault.
    Unreadable(RouteKey, String),
}

impl RouteRow {
    fn key(&self) -> &RouteKey {
        match self {
            Self::Read(route) => &route.key,
            Self::Unreadable(key, _) => key,
        }
    }
}

/// The audited columns of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the columns of routes")]
pub struct AuditedRoute {
    pub key: RouteKey,
    pub channel: Channel,
    pub recipient_ref: String,
    pub status: RouteStatus,
    pub attempt_count: u32,
    pub max_attempts: u32,
    /// [`Timestamp::MAX`] if the route is parked: a time that is never reached.
    pub next_attempt_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub published_at: Option<Timestamp>,
    pub dead_lettered_at: Option<Timestamp>,
    pub skipped_at: Option<Timestamp>,
    pub published_entry_id: String,
    /// True if the route has a row in `dead_letters`.
    pub has_dead_letter: bool,
    /// True if a hold keeps the route: it is never due before the release.
    pub is_held: bool,
}

impl AuditedRoute {
    /// The due time of a live route that is far overdue at `now`. Such a route waits for something, and ends
    /// once that is available.
    pub fn stuck_since(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.next_attempt_at.filter(|_| self.status.is_live());
        due.filter(|due| now.saturating_since(*due) > OLDEST_DUE_LIMIT)
    }

    /// The id of the outbound entry that the route keeps.
    pub fn entry_id(&self) -> Option<EntryId> {
        let id = self.published_entry_id.parse().ok();
        id.filter(|_| keeps_entry(self.status, &self.published_entry_id))
    }
}

/// The discrepancies of a record and its routes, apart from their entries in the streams.
pub fn judge_record(record: &AuditedRecord) -> Vec<Discrepancy> {
    let mut wrong = Vec::new();
    let subject = || Subject::Notification(record.notification_id.clone());
    if record.updated_at != record.accepted_at {
        let detail =
            format!("it was accepted at {} and changed at {}", record.accepted_at, record.updated_at);
        wrong.push(Discrepancy::new(Kind::RecordChanged, subject(), detail));
    }
    if record.routes.is_empty() {
        wrong.push(Discrepancy::new(Kind::RecordWithoutRoutes, subject(), "it has none"));
        return wrong;
    }
    judge_recipients(record, &mut wrong);
    for row in &record.routes {
        match row {
            RouteRow::Read(route) => judge_route(route, &mut wrong),
            RouteRow::Unreadable(key, problem) => {
                let row = UnreadableRow { subject: Subject::Route(key.clone()), problem: problem.clone() };
                wrong.push(row.into());
            }
        }
    }
    wrong
}

/// Checks that every recipient has a route on every channel on which one of them has a route. The catalogue
/// is not consulted: it may have been different when the intent was accepted.
fn judge_recipients(record: &AuditedRecord, wrong: &mut Vec<Discrepancy>) {
    let of_user = |channel: Channel, user: &str| format!("{channel}:user:{user}");
    let ids: HashSet<&str> = record.routes.iter().map(|row| row.key().route_id.as_str()).collect();
    let users = &record.recipient_user_ids;
    let has = |channel: &Channel| users.iter().any(|user| ids.contains(&*of_user(*channel, user)));
    let channels: Vec<Channel> = Channel::ALL.into_iter().filter(has).collect();
    let expected: BTreeSet<String> =
        channels.iter().flat_map(|channel| users.iter().map(|user| of_user(*channel, user))).collect();
    let lacking: Vec<&str> =
        expected.iter().map(String::as_str).filter(|id| !ids.contains(id)).take(NAMED_RECIPIENTS).collect();
    if !lacking.is_empty() {
        let subject = Subject::Notification(record.notification_id.clone());
        let detail = format!("it lacks {}", lacking.join(", "));
        wrong.push(Discrepancy::new(Kind::RecordIncomplete, subject, detail));
    }
    let is_known = |id: &str| match record.audience {
        AudienceKind::User => expected.contains(id),
        AudienceKind::AdminEmail => {
            ["email:email:", "email:config:"].iter().any(|start| id.starts_with(start))
        }
    };
    for row in record.routes.iter().filter(|row| !is_known(&row.key().route_id)) {
        let detail = "its record names no such recipient";
        wrong.push(Discrepancy::new(Kind::RouteOfNoRecipient, Subject::Route(row.key().clone()), detail));
    }
}

fn judge_route(route: &AuditedRoute, wrong: &mut Vec<Discrepancy>) {
    let status = route.status.as_str();
    let mut report = |kind, detail: String| {
        wrong.push(Discrepancy::new(kind, Subject::Route(route.key.clone()), detail));
    };
    match route.next_attempt_at {
        None if route.status.is_live() => {
            report(Kind::ScheduleMismatch, format!("it is {status} without a next attempt"))
        }
        Some(Timestamp::MAX) if route.status.is_live() && !route.is_held => {
            report(
                Kind::RouteWithoutEnd,
                format!("it is {status} and never due: its next attempt is parked"),
            );
        }
        Some(at) if !route.status.is_live() => {
            report(Kind::ScheduleMismatch, format!("it is {status} with a next attempt at {at}"));
        }
        _ => {}
    }
    if route.attempt_count > route.max_attempts {
        let detail = format!("{} attempts failed of {}", route.attempt_count, route.max_attempts);
        report(Kind::AttemptsOverBudget, detail);
    }
    if route.key.route_id != format!("{}:{}", route.channel, route.recipient_ref) {
        report(Kind::RouteIdMismatch, format!("it is for {} by {}", route.recipient_ref, route.channel));
    }
    let was_changed =
        matches!(route.status, RouteStatus::Failed | RouteStatus::Published | RouteStatus::DeadLetter);
    if route.updated_at < route.created_at || (was_changed && route.updated_at == route.created_at) {
        let detail =
            format!("it was created at {} and its version is {}", route.created_at, route.updated_at);
        report(Kind::VersionDidNotRise, detail);
    }
    let ended = match route.status {
        RouteStatus::Pending | RouteStatus::Failed => true,
        RouteStatus::Published => route.published_at.is_some(),
        RouteStatus::DeadLetter => route.dead_lettered_at.is_some(),
        RouteStatus::Skipped => route.skipped_at.is_some(),
    };
    if !ended {
        report(
            Kind::TerminalWithoutTime,
            format!("it is {status}, and there is no time at which that happened"),
        );
    }
    if route.status == RouteStatus::Published && route.entry_id().is_none() {
        report(Kind::PublishedWithoutEntry, format!("{:?} is not an entry id", route.published_entry_id));
    }
    match (route.status == RouteStatus::DeadLetter, route.has_dead_letter) {
        (true, false) => report(Kind::DeadLetterWithoutRow, "dead_letters has no row of it".to_owned()),
        (false, true) => {
            report(Kind::RowWithoutDeadLetter, format!("it is {status}, and dead_letters has a row of it"))
        }
        _ => {}
    }
}
