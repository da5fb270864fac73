//! Queries about notifications, dead letters, malformed intents and the service itself, and their results.
//!
//! Values only; the port that returns them is in `ports`. Lists are read newest first in pages. A page ends
//! at a place in the order of its list, and the next page begins after it, so rows that arrive meanwhile do
//! not shift the pages. A page may be short or empty and still have a next one: no request examines more than
//! a bounded number of rows.

mod activity;
mod causes;
mod cursor;
mod dead_letters;
mod intent_trace;
mod malformed;
mod notification;
mod notifications;
mod search;
mod status;
mod stream;
mod stuck;

use std::fmt;

use crate::document::grouped;

pub use activity::{ACTIVITY_MINUTES, ActivityHistory, MinuteActivity};
pub use causes::{Causes, DeadLetterCause, MAX_CAUSES, MalformedCause};
pub use cursor::{InvalidCursor, Place};
pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterPlace, Discarded};
pub use intent_trace::{IntentOutcome, IntentTrace};
pub use malformed::{MalformedFilter, MalformedPlace, MalformedSummary, StoredMalformedIntent};
pub use notification::{Notification, Route};
pub use notifications::{NotificationFilter, NotificationSummary, RouteCounts};
pub use search::{FilterFault, SEARCH_NAMES, SearchFilter, SearchName, SearchOutcome, SearchPlace};
pub use status::{
    CauseCounts, ChannelStatus, INTAKE, IntakeStatus, Leader, LeaderTerm, REPLICA_FRESH_FOR, ReplicaStatus,
    Status, StoreStatus, StreamBacklog, Waiting,
};
pub use stream::{EntryLook, FoundEntry, MAX_UNREAD_BYTES, MAX_UNREAD_ENTRIES, UnreadEntries};
pub use stuck::{BLOCKED_LIMIT, NO_LEADER_LIMIT, OLDEST_DUE_LIMIT, Stuck};

/// The most items of a page.
pub const MAX_PAGE_ITEMS: usize = 200;
/// The default number of items of a page.
pub const DEFAULT_PAGE_ITEMS: usize = 50;
/// The most records that are read together by their ids, for comparison with intents: with payloads of 64 KiB
/// and a thousand recipients each they take about 10 MB.
pub const MAX_RECORDS: usize = 50;
/// The number at which counting of rows stops.
pub const COUNT_CAP: u64 = 10_000;

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

/// A count that stops at a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// The number.
    pub count: u64,
    /// True if there may be more.
    pub capped: bool,
}

impl Counted {
    /// The result of a count that stops at [`COUNT_CAP`].
    pub fn up_to_cap(count: u64) -> Self {
        Self { count: count.min(COUNT_CAP), capped: count >= COUNT_CAP }
    }
}

/// Format for people: `7` or `at least 10000`, and on pages (`{:#}`) `10,000 or more`.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, capped } = self;
        match (f.alternate(), capped) {
            (false, false) => write!(f, "{count}"),
            (false, true) => write!(f, "at least {count}"),
            (true, false) => f.write_str(&grouped(*count)),
            (true, true) => write!(f, "{} or more", grouped(*count)),
        }
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

    #[test]
    fn a_count_at_the_cap_may_be_more() {
        assert_eq!(Counted::up_to_cap(9_999), Counted { count: 9_999, capped: false });
        assert_eq!(Counted::up_to_cap(10_001), Counted { count: 10_000, capped: true });
    }

    #[test]
    fn a_count_that_is_not_complete_says_so() {
        let counted = [(7, false), (20_000, true)].map(|(count, capped)| Counted { count, capped });
        assert_eq!(counted.map(|counted| counted.to_string()), ["7", "at least 20000"]);
        assert_eq!(counted.map(|counted| format!("{counted:#}")), ["7", "20,000 or more"]);
    }
}
