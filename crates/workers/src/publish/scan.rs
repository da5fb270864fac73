//! When the due routes of a channel are listed next, and from where: a state machine without I/O.
//!
//! Idle, the scan sleeps until the next route is due. While pages are full there is a backlog, and pages
//! alternate between both ends of the list: from the oldest route on, so that the backlog shrinks in order,
//! and from the newest on, so that a route that just became due does not wait for all of it. Both sweeps
//! start over after a short time: the oldest one if it met routes that another replica held (the leases of a
//! crashed replica are at the front), the newest one always.

use std::time::Duration;

use domain::ports::{DueCursor, DueOrder};
use tokio::time::Instant;

/// The longest time between two scans while nothing is due, because routes of a crashed replica become due at
/// any time.
const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// How soon a replica asks again for the scan lock that another replica holds.
const SCAN_LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// While there is a backlog, how soon a sweep returns to its start where that is worth it.
const SWEEP_RESTART_INTERVAL: Duration = Duration::from_millis(500);
/// While there is a backlog, how soon the sweep from the oldest route on returns to its start in any case. So
/// rarely that rows at the start that no replica can publish do not keep it from the rows after them.
const SWEEP_MAX: Duration = Duration::from_secs(5);

/// The scan of one channel.
#[derive(Debug)]
pub(super) struct Scan {
    next_at: Instant,
    /// When this publisher last made routes due, or may have.
    changed_at: Instant,
    backlog: bool,
    order: DueOrder,
    oldest: Sweep,
    newest: Sweep,
    idle_interval: Duration,
    poll_interval: Duration,
}

/// One way through the list.
#[derive(Debug)]
struct Sweep {
    started: Instant,
    cursor: Option<DueCursor>,
    /// It listed routes that could be read.
    found: bool,
    /// It met routes that this replica could not take.
    contended: bool,
}

impl Sweep {
    fn new(started: Instant) -> Self {
        Self { started, cursor: None, found: false, contended: false }
    }
}

/// What is listed next.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct PageRequest {
    pub(super) order: DueOrder,
    pub(super) after: Option<DueCursor>,
}

/// The result of a page.
#[derive(Debug)]
pub(super) struct PageResult {
    /// Where the next page begins; `None` if this was the last.
    pub(super) next: Option<DueCursor>,
    /// It held routes that were to be published.
    pub(super) found: bool,
    /// Another replica held some of them, or their leases expired.
    pub(super) contended: bool,
}

impl Scan {
    /// A scan that is due at `now`. `lease_ttl` and `poll_interval` are configuration.
    pub(super) fn new(now: Instant, lease_ttl: Duration, poll_interval: Duration) -> Self {
        Self {
            next_at: now,
            changed_at: now,
            backlog: false,
            order: DueOrder::OldestFirst,
            oldest: Sweep::new(now),
            newest: Sweep::new(now),
            // Another replica's new routes are due one lease TTL after their acceptance: looking that often
            // finds them.
            idle_interval: IDLE_SCAN_INTERVAL.min(lease_ttl),
            poll_interval,
        }
    }

    /// When the next scan is due.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Whether the next scan may ask first if anything is due at all.
    pub(super) fn is_idle(&self) -> bool {
        !self.backlog
    }

    /// From when on an answer to the question what is due next will do. Half an interval of tolerance is
    /// enough for publishers that begin at any time to end up asking together.
    pub(super) fn answers_since(&self, now: Instant) -> Instant {
        now.checked_sub(self.idle_interval / 2).map_or(now, |since| since.max(self.changed_at))
    }

    /// Nothing is due for `wait`, by an answer to a question of `asked_at`.
    pub(super) fn nothing_due(&mut self, now: Instant, wait: Duration, asked_at: Instant) {
        // What others make due is found within an interval of the question, also if another publisher asked
        // it.
        let ask_again_at = asked_at + self.idle_interval;
        self.next_at = now.checked_add(wait).map_or(ask_again_at, |due_at| due_at.min(ask_again_at));
    }

    /// Another replica holds the scan lock.
    pub(super) fn locked(&mut self, now: Instant) {
        self.next_at = now + SCAN_LOCK_POLL_INTERVAL;
    }

    /// This publisher has made routes due at `at`, or may have: scans no later.
    pub(super) fn wake_by(&mut self, now: Instant, at: Instant) {
        self.changed_at = now;
        self.next_at = self.next_at.min(at);
    }

    /// The page to list now.
    pub(super) fn next_page(&mut self, now: Instant) -> PageRequest {
        let order = self.order;
        let sweep = self.sweep();
        let age = now.duration_since(sweep.started);
        let worthwhile = order == DueOrder::NewestFirst || sweep.contended;
        if age >= SWEEP_MAX || (worthwhile && age >= SWEEP_RESTART_INTERVAL) {
            *sweep = Sweep::new(now);
        }
        PageRequest { order, after: self.sweep().cursor.clone() }
    }

    /// The page was listed and its routes were dealt with. True if it ended a sweep over all that is due.
    pub(super) fn page_done(&mut self, now: Instant, page: PageResult) -> bool {
        let sweep = self.sweep();
        sweep.found |= page.found;
        sweep.contended |= page.contended;
        match page.next {
            Some(next) => {
                sweep.cursor = Some(next);
                self.backlog = true;
                self.next_at = now;
                self.order = match self.order {
                    DueOrder::OldestFirst => DueOrder::NewestFirst,
                    DueOrder::NewestFirst => DueOrder::OldestFirst,
                };
                false
            }
            None => {
                self.changed_at = now;
                // What is still due is held by another replica or waits for this interval. Rows that cannot
                // be published are in no hurry.
                let found = self.oldest.found || self.newest.found;
                self.next_at = now + if found { self.poll_interval } else { self.idle_interval };
                let whole = self.order == DueOrder::OldestFirst;
                (self.backlog, self.order) = (false, DueOrder::OldestFirst);
                (self.oldest, self.newest) = (Sweep::new(now), Sweep::new(now));
                whole
            }
        }
    }

    fn sweep(&mut self) -> &mut Sweep {
        match self.order {
            DueOrder::OldestFirst => &mut self.oldest,
            DueOrder::NewestFirst => &mut self.newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::record::NotificationId;
    use domain::route::RouteKey;

    use super::*;

    const LEASE_TTL: Duration = Duration::from_secs(5);
    const POLL: Duration = Duration::from_millis(100);

    fn cursor(number: u32) -> DueCursor {
        let key = RouteKey {
            notification_id: NotificationId::from(format!("{number}-0")),
            route_id: "push:user:u".into(),
        };
        DueCursor { next_attempt_at: "2026-01-01".into(), key }
    }

    fn full(number: u32, contended: bool) -> PageResult {
        PageResult { next: Some(cursor(number)), found: true, contended }
    }

    fn last(found: bool) -> PageResult {
        PageResult { next: None, found, contended: false }
    }

    fn request(order: DueOrder, after: Option<u32>) -> PageRequest {
        PageRequest { order, after: after.map(cursor) }
    }

    #[test]
    fn beside_a_backlog_pages_alternate_between_the_oldest_and_the_newest() {
        use DueOrder::{NewestFirst, OldestFirst};
        let now = Instant::now();
        let mut scan = Scan::new(now, LEASE_TTL, POLL);
        for (expected, next) in [
            (request(OldestFirst, None), 1),
            (request(NewestFirst, None), 99),
            (request(OldestFirst, Some(1)), 2),
            (request(NewestFirst, Some(99)), 98),
            (request(OldestFirst, Some(2)), 3),
        ] {
            assert_eq!(scan.next_page(now), expected);
            assert!(!scan.page_done(now, full(next, false)));
            assert_eq!(scan.next_at(), now, "a backlog is worked off without a pause");
        }
    }

    #[test]
    fn a_sweep_that_met_held_routes_returns_to_the_start_of_a_backlog_soon() {
        let now = Instant::now();
        for (contended, restarted) in [(true, true), (false, false)] {
            let mut scan = Scan::new(now, LEASE_TTL, POLL);
            assert!(!scan.page_done(now, full(1, contended)));
            assert!(!scan.page_done(now, full(99, false)));
            let after = scan.next_page(now + SWEEP_RESTART_INTERVAL).after;
            assert_eq!(after.is_none(), restarted);
        }
    }

    #[test]
    fn every_restart_of_the_newest_sweep_finds_the_route_that_became_due_last() {
        let now = Instant::now();
        let mut scan = Scan::new(now, LEASE_TTL, POLL);
        for page in [full(1, false), full(99, false), full(2, false)] {
            assert!(!scan.page_done(now, page));
        }
        let early = now + SWEEP_RESTART_INTERVAL - Duration::from_millis(1);
        assert_eq!(scan.next_page(early), request(DueOrder::NewestFirst, Some(99)));
        let due = now + SWEEP_RESTART_INTERVAL;
        assert_eq!(scan.next_page(due), request(DueOrder::NewestFirst, None));
    }

    // INV-11
    #[test]
    fn rows_that_no_replica_can_publish_do_not_keep_the_scan_at_the_start() {
        let now = Instant::now();
        let mut scan = Scan::new(now, LEASE_TTL, POLL);
        assert!(!scan.page_done(now, PageResult { next: Some(cursor(1)), found: false, contended: false }));
        assert!(!scan.page_done(now, full(99, false)));
        let later = now + SWEEP_MAX - Duration::from_millis(1);
        assert_eq!(scan.next_page(later), request(DueOrder::OldestFirst, Some(1)));
        assert_eq!(scan.next_page(now + SWEEP_MAX), request(DueOrder::OldestFirst, None));
    }

    #[test]
    fn after_the_last_page_the_remaining_routes_are_scanned_again_soon_and_unreadable_ones_later() {
        let now = Instant::now();
        for (found, wait) in [(true, POLL), (false, LEASE_TTL)] {
            let mut scan = Scan::new(now, LEASE_TTL, POLL);
            assert!(scan.page_done(now, last(found)));
            assert_eq!((scan.next_at() - now, scan.is_idle()), (wait, true));
        }
    }

    #[test]
    fn an_idle_scan_wakes_for_a_retry_and_sleeps_no_longer_than_a_lease() {
        let now = Instant::now();
        let mut scan = Scan::new(now, Duration::from_secs(2), POLL);
        scan.nothing_due(now, Duration::from_secs(60), now);
        assert_eq!(scan.next_at() - now, Duration::from_secs(2));
        scan.wake_by(now, now + Duration::from_secs(1));
        scan.wake_by(now, now + Duration::from_secs(9));
        assert_eq!(scan.next_at() - now, Duration::from_secs(1));
    }

    #[test]
    fn an_older_answer_brings_the_next_question_forward_and_a_due_route_too() {
        let asked_at = Instant::now();
        let now = asked_at + Duration::from_secs(2);
        let mut scan = Scan::new(asked_at, LEASE_TTL, POLL);
        for (wait, next) in [(60, 3), (3, 3), (1, 1)] {
            scan.nothing_due(now, Duration::from_secs(wait), asked_at);
            assert_eq!(scan.next_at() - now, Duration::from_secs(next), "a route that is due in {wait} s");
        }
    }

    #[test]
    fn an_answer_is_used_for_half_an_interval_and_not_once_this_publisher_made_a_route_due() {
        let start = Instant::now();
        let mut scan = Scan::new(start, LEASE_TTL, POLL);
        let now = start + LEASE_TTL;
        assert_eq!(scan.answers_since(now), start + LEASE_TTL / 2);
        scan.wake_by(now, now + POLL);
        assert_eq!(scan.answers_since(now + POLL), now);
    }
}
