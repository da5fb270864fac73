//! Queries about notifications, dead letters, malformed intents and the service itself, and their results.
//!
//! Values only; the port that returns them is in `ports`. Lists are read newest first in pages. A page ends
//! at a place in the order of its list, and the next page begins after it, so rows that arrive meanwhile do
//! not shift the pages. A page may be short or empty and still have a next one: no request examines more than
//! a bounded number of rows.

mod actions;
mod activity;
mod causes;
mod cursor;
mod dead_letters;
mod findings;
mod intent_trace;
mod leaderless;
mod malformed_intents;
mod notification;
mod notifications;
mod search;
mod status;
mod store_status;
mod stream;

pub use crate::document::{COUNT_CAP, Counted};
pub use actions::{ActionFilter, ActionPlace, RecordedAction};
pub use activity::{
    ActivityHistory, ActivityPeriod, ActivityStep, ProducerActivity, RoutesActivity, RoutesStep, StepCounts,
};
pub use causes::{Causes, DeadLetterCause, MAX_CAUSES, MalformedCause};
pub use cursor::{InvalidCursor, Place};
pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterPlace, Discarded};
pub(crate) use findings::deferral_cause;
pub use findings::{
    BLOCKED_LIMIT, CulpritList, Culprits, DEFERRED_LIMIT, Finding, NO_LEADER_LIMIT, OLDEST_DUE_LIMIT, RECENT,
    RUNBOOK_SECTIONS, ServiceState,
};
#[cfg(test)]
pub(crate) use intent_trace::tests::notification as intent_trace_fixture;
pub use intent_trace::{IntentOutcome, IntentTrace};
pub use leaderless::Leaderless;
pub use malformed_intents::{MalformedFilter, MalformedPlace, MalformedSummary, StoredMalformedIntent};
pub use notification::{Notification, Route, RouteResend};
pub use notifications::{LISTED_RECIPIENTS, NotificationFilter, NotificationSummary, RouteCounts};
pub use search::{FilterFault, SEARCH_NAMES, SearchFilter, SearchName, SearchOutcome, SearchPlace};
pub use status::{IntakeStatus, Leader, LeaderTerm, Status, StreamBacklog, blocked_workers};
pub use store_status::{
    CauseCounts, ChannelStatus, INTAKE, REPLICA_FRESH_FOR, RecentFailure, RecentFailures, ReplicaStatus,
    StoreStatus, Waiting,
};
pub use stream::{EntryLook, FoundEntry, MAX_UNREAD_BYTES, MAX_UNREAD_ENTRIES, UnreadEntries};

/// The most items of a page.
pub const MAX_PAGE_ITEMS: usize = 200;
/// The default number of items of a page.
pub const DEFAULT_PAGE_ITEMS: usize = 50;
/// The most records that are read together by their ids, for comparison with intents: with payloads of 64 KiB
/// and a thousand recipients each they take about 10 MB.
pub const MAX_RECORDS: usize = 50;

/// The requested number of items of a page: 1 to [`MAX_PAGE_ITEMS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLimit(usize);

impl PageLimit {
    /// Returns `None` if the number is out of bounds.
    pub fn new(items: usize) -> Option<Self> {
        (1..=MAX_PAGE_ITEMS).contains(&items).then_some(Self(items))
    }

    /// The number of items.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for PageLimit {
    fn default() -> Self {
        Self(DEFAULT_PAGE_ITEMS)
    }
}

/// A page of a list, newest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T, P> {
    /// The items, at most the requested number.
    pub items: Vec<T>,
    /// The place after which the next page begins; `None` if the end of the list was reached.
    pub next: Option<P>,
}

impl<T, P: Place> Page<T, P> {
    /// The items, and the cursor of the next page of the list that `filter` selects.
    pub fn into_parts(self, filter: &P::Filter) -> (Vec<T>, Option<String>) {
        (self.items, self.next.map(|place| place.to_cursor(filter)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_1_to_200_items_and_50_by_default() {
        let limits = [0, 1, 200, 201].map(|items| PageLimit::new(items).map(PageLimit::get));
        assert_eq!(limits, [None, Some(1), Some(200), None]);
        assert_eq!(PageLimit::default().get(), 50);
    }
}
