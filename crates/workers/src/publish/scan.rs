//! The schedule of the due scan of a channel: the time of the next page and its position. A state machine
//! without I/O.
//!
//! When idle, the scan sleeps until the next route is due. While pages are full there is a backlog, and pages
//! alternate between both ends of the list: from the oldest route on, so that the backlog shrinks in order,
//! and from the newest on, so that a route that just became due does not wait for the whole backlog. Both
//! sweeps start over after a short time: the oldest one if it met routes that another replica held (the
//! leases of a crashed replica are at the front), the newest one always.

use std::time::Duration;

use domain::ports::{DueCursor, DueOrder};
use tokio::time::Instant;

/// The longest time between two scans while nothing is due, because routes of a crashed replica become due at
/// any time.
const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which a replica requests the scan lock again while another replica holds it.
const SCAN_LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which, during a backlog, a sweep returns to its start if that is useful.
const SWEEP_RESTART_INTERVAL: Duration = Duration::from_millis(500);
/// The time after which, during a backlog, the sweep from the oldest route on always returns to its start. It
/// is long, so that rows at the start that no replica can publish do not keep the sweep from the rows after
/// them.
const SWEEP_MAX: Duration = Duration::from_secs(5);

/// The scan of one channel.
#[derive(Debug)]
pub(super) struct Scan {
    next_at: Instant,
    /// The time at which this publisher last made routes due, or may have.
    changed_at: Instant,
    backlog: bool,
    order: DueOrder,
    oldest: Sweep,
    newest: Sweep,
    idle_interval: Duration,
    poll_interval: Duration,
}

/// One pass through the list.
#[derive(Debug)]
struct Sweep {
    started: Instant,
    cursor: Option<DueCursor>,
    /// True if it listed routes that could be read.
    found: bool,
    /// True if it met routes that this replica could not lease.
    contended: bool,
}

impl Sweep {
    fn new(started: Instant) -> Self {
        Self { started, cursor: None, found: false, contended: false }
    }
}

/// The next page to list.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct PageRequest {
    pub(super) order: DueOrder,
    pub(super) after: Option<DueCursor>,
}

/// The result of a page.
#[derive(Debug)]
pub(super) struct PageResult {
    /// The start of the next page; `None` if this was the last.
    pub(super) next: Option<DueCursor>,
    /// True if it contained routes to publish.
    pub(super) found: bool,
    /// True if another replica held some of them, or if their leases expired.
    pub(super) contended: bool,
}

impl Scan {
    /// Creates a scan that is due at `now`. `lease_ttl` and `poll_interval` are configuration.
    pub(super) fn new(now: Instant, lease_ttl: Duration, poll_interval: Duration) -> Self {
        Self {
            next_at: now,
            changed_at: now,
            backlog: false,
            order: DueOrder::OldestFirst,
            oldest: Sweep::new(now),
            newest: Sweep::new(now),
            // Another replica's new routes are due one lease TTL after their acceptance, so a scan at this
            // interval finds them.
            idle_interval: IDLE_SCAN_INTERVAL.min(lease_ttl),
            poll_interval,
        }
    }

    /// Returns the time of the next scan.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// True if the next scan may first query whether anything is due.
    pub(super) fn is_idle(&self) -> bool {
        !self.backlog
    }

    /// Returns the earliest time of a next-due query whose result is still recent enough. A tolerance of half
    /// an interval is enough for publishers that begin at different times to end up sharing the queries.
    pub(super) fn answers_since(&self, now: Instant) -> Instant {
        now.checked_sub(self.idle_interval / 2).map_or(now, |since| since.max(self.changed_at))
    }

    /// Records that nothing is due for `wait`, by the result of a query at `asked_at`.
    pub(super) fn nothing_due(&mut self, now: Instant, wait: Duration, asked_at: Instant) {
        // The query is repeated after one interval at the latest, so that routes are found that other
        // replicas made due. The interval counts from the query even if another publisher sent it.
        let ask_again_at = asked_at + self.idle_interval;
        self.next_at = now.checked_add(wait).map_or(ask_again_at, |due_at| due_at.min(ask_again_at));
    }

    /// Records that another replica holds the scan lock.
    pub(super) fn locked(&mut self, now: Instant) {
        self.next_at = now + SCAN_LOCK_POLL_INTERVAL;
    }

    /// Records that routes of this publisher are, or may be, due at `at`. The next scan begins then at the
    /// latest.
    pub(super) fn wake_by(&mut self, now: Instant, at: Instant) {
        self.changed_at = now;
        self.next_at = self.next_at.min(at);
    }

    /// Returns the page to list now.
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

    /// Records that the page was listed and its routes were processed. Returns true if this ended a sweep
    /// over all due routes.
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
                // Routes that are still due are held by another replica, or wait for this interval. Rows that
                // cannot be published are not urgent.
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
