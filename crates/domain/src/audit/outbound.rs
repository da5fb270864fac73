//! Comparison of published routes with the outbound streams, in both directions.

use super::{Discrepancy, DiscrepancyKind as Kind, RetentionCutoffs, Subject, notification_time};
use crate::entry::{EntryId, RawFields};
use crate::republish::OutboundState;
use crate::republish::keeps_entry;
use crate::route::{Channel, RouteKey, RouteStatus};

/// The discrepancy to report if the entry `id` of a published route is missing in `stream`.
pub fn missing_entry(
    key: &RouteKey,
    id: EntryId,
    stream: &str,
    state: Option<&OutboundState>,
) -> Discrepancy {
    let last = state.map_or(EntryId::ZERO, |state| state.last_generated);
    let detail = format!("{stream} lacks its entry {id}; the last id of the stream is {last}");
    Discrepancy::new(Kind::PublishedEntryMissing, Subject::Route(key.clone()), detail)
}

/// The route that an outbound entry names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboundName {
    /// The entry names this route.
    Route(RouteKey),
    /// Not an entry of this service, or too large to be one, or not readable in time.
    Other,
}

impl OutboundName {
    /// Reads the name from the first field, in which the service writes it.
    pub fn of(channel: Channel, fields: Option<&RawFields>) -> Self {
        let name: &[u8] = match channel {
            Channel::Push => b"event_id",
            Channel::Email => b"delivery_id",
        };
        let first = fields.and_then(|fields| fields.0.first()).filter(|(field, _)| field == name);
        let key = first.and_then(|(_, value)| std::str::from_utf8(value).ok());
        let key = key.filter(|text| !text.contains('\0')).and_then(|text| text.parse::<RouteKey>().ok());
        match key.filter(|key| notification_time(&key.notification_id).is_some()) {
            Some(key) => Self::Route(key),
            None => Self::Other,
        }
    }
}

/// The state of the route of an outbound entry in PostgreSQL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteState {
    /// The status; `None` if it cannot be read.
    pub status: Option<RouteStatus>,
    /// The id of the entry that the route names.
    pub published_entry_id: String,
    /// The id of the entry in place of which an operator last had the route sent again; empty if never.
    pub replaced_entry_id: String,
}

/// The verdict on an outbound entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboundVerdict {
    /// The entry of a published route.
    Published,
    /// The entry of a live route: its completion is not committed yet, or a publisher will find the marker.
    Uncommitted,
    /// The entry of a route that retention may have deleted.
    Expired,
    /// Not an entry of this service.
    Other,
    /// The entry should not be in the stream.
    Wrong(Discrepancy),
}

/// Judges the entry `id` of `stream`, which was read before its route. An entry that its route does not name
/// is a duplicate; the caller checks whether the first entry still exists.
pub fn judge_outbound(
    stream: &str,
    id: EntryId,
    name: &OutboundName,
    route: Option<&RouteState>,
    cutoffs: RetentionCutoffs,
) -> OutboundVerdict {
    let OutboundName::Route(key) = name else { return OutboundVerdict::Other };
    let wrong = |kind, detail| {
        let subject = Subject::Entry { stream: stream.to_owned(), id };
        OutboundVerdict::Wrong(Discrepancy::new(kind, subject, detail))
    };
    let Some(route) = route else {
        let oldest = notification_time(&key.notification_id).map_or(id.time(), |time| time.min(id.time()));
        if oldest <= cutoffs.records {
            return OutboundVerdict::Expired;
        }
        return wrong(Kind::OutboundEntryWithoutRoute, format!("there is no route {key}"));
    };
    // An entry of an attempt before the last resend, whatever became of the resend.
    if route.replaced_entry_id.parse::<EntryId>().is_ok_and(|replaced| id <= replaced) {
        return OutboundVerdict::Published;
    }
    match route.status {
        Some(RouteStatus::Pending | RouteStatus::Failed) => OutboundVerdict::Uncommitted,
        Some(status) if keeps_entry(status, &route.published_entry_id) => {
            match route.published_entry_id.parse::<EntryId>() {
                Ok(named) if named != id => {
                    wrong(Kind::DuplicateOutboundEntry, format!("the route {key} was published as {named}"))
                }
                _ => OutboundVerdict::Published,
            }
        }
        Some(status) => {
            wrong(Kind::OutboundEntryNotPublished, format!("the route {key} is {}", status.as_str()))
        }
        // A row that cannot be read, or that names no entry, is reported as a discrepancy elsewhere.
        None => OutboundVerdict::Published,
    }
}
