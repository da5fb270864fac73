//! The position of the next claim: after the last one, or at the beginning.
//!
//! A claim from the beginning skips everything that cannot be claimed now: keys that wait for a retry or are
//! held elsewhere, types of other relays, index entries of finished events. So a relay continues where the
//! last claim ended. Skipped events may become claimable, and a transaction may commit late, so the relay
//! also starts over, as often as that costs a small part of its time.

use std::time::Duration;

use tokio::time::Instant;

use crate::Position;

/// The minimum duration of a sweep, as a multiple of the time to its first claimable event.
const SWEEP_FACTOR: u32 = 20;

/// The same factor if a key has become free. Many may become free in a row.
const FREED_FACTOR: u32 = 2;

/// The position of a relay in the queue.
#[derive(Debug)]
pub(crate) struct QueueScan {
    after: Option<Position>,
    begun: Instant,
    /// The time from the beginning to the first claim with events, or to the end.
    way: Option<Duration>,
    /// True if it may have skipped events whose key this relay itself held.
    passed_own: bool,
}

impl QueueScan {
    pub(crate) fn new(now: Instant) -> Self {
        Self { after: None, begun: now, way: None, passed_own: false }
    }

    /// Returns the position after which the next claim looks. Call it before each claim.
    pub(crate) fn next(&mut self, now: Instant) -> Option<&Position> {
        let may_start_over = self.way.is_some_and(|way| now >= self.begun + way * SWEEP_FACTOR);
        if self.after.is_none() || may_start_over {
            self.start_over(now);
        }
        self.after.as_ref()
    }

    fn start_over(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Notes that a key has become free whose other events may have been skipped.
    pub(crate) fn freed(&mut self, now: Instant) {
        if self.way.is_some_and(|way| now >= self.begun + way * FREED_FACTOR) {
            self.start_over(now);
        }
    }

    /// Notes that the next claim is made while this relay holds other events, and skips events of their keys.
    pub(crate) fn passes_own(&mut self) {
        self.passed_own = true;
    }

    /// Notes that a claim found `events` events and looked as far as `next`, or to the end. Returns true if
    /// it starts over now because skipped events are free.
    pub(crate) fn advance(&mut self, now: Instant, events: usize, next: Option<Position>) -> bool {
        if self.way.is_none() && (events > 0 || next.is_none()) {
            self.way = Some(now.saturating_duration_since(self.begun));
        }
        // At the end the position stays: new events are appended there.
        if next.is_some() {
            self.after = next;
            return false;
        }
        let starts_over = self.passed_own;
        if starts_over {
            self.start_over(now);
        }
        starts_over
    }
}

#[cfg(test)]
mod tests {
    use ambient::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn position(seconds: u64) -> Position {
        let at = (Timestamp::UNIX_EPOCH + Duration::from_secs(seconds)).into();
        Position { available_at: at, created_at: at, event_id: Uuid::nil() }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_continues_where_the_last_claim_ended_until_twenty_times_the_way_have_passed() {
        let start = Instant::now();
        let mut scan = QueueScan::new(start);
        assert_eq!(scan.next(start), None);
        assert!(!scan.advance(start + MS * 3, 0, Some(position(1))));
        assert_eq!(scan.next(start + MS * 3), Some(&position(1)), "no way is known yet");
        assert!(!scan.advance(start + MS * 5, 9, Some(position(2))));
        assert_eq!(scan.next(start + MS * 99), Some(&position(2)));
        assert!(!scan.advance(start + MS * 99, 9, Some(position(3))));
        assert_eq!(scan.next(start + MS * 100), None);
    }

    #[test]
    fn at_the_end_it_stays_until_it_may_start_over() {
        let start = Instant::now();
        let mut scan = QueueScan::new(start);
        assert_eq!(scan.next(start), None);
        assert!(!scan.advance(start + MS * 10, 0, Some(position(1))));
        assert!(!scan.advance(start + MS * 20, 0, None));
        assert_eq!(scan.next(start + MS * 399), Some(&position(1)));
        assert_eq!(scan.next(start + MS * 400), None);
    }

    #[test]
    fn a_short_queue_is_always_read_from_its_beginning() {
        let start = Instant::now();
        let mut scan = QueueScan::new(start);
        for pass in 0..3 {
            assert_eq!(scan.next(start + MS * pass), None);
            assert!(!scan.advance(start + MS * (pass + 1), 3, None));
        }
    }

    #[test]
    fn at_the_end_it_starts_over_once_if_it_has_passed_what_the_relay_itself_held() {
        let start = Instant::now();
        let mut scan = QueueScan::new(start);
        assert!(!scan.advance(start + MS * 10, 9, Some(position(1))));
        scan.passes_own();
        assert!(!scan.advance(start + MS * 20, 9, Some(position(2))));
        assert!(scan.advance(start + MS * 30, 2, None), "what it has passed is free now");
        assert_eq!(scan.next(start + MS * 31), None);
        assert!(!scan.advance(start + MS * 32, 1, None), "nothing is left behind");
    }

    #[test]
    fn it_starts_over_earlier_if_a_key_has_become_free() {
        let start = Instant::now();
        let mut scan = QueueScan::new(start);
        assert!(!scan.advance(start + MS * 100, 1, Some(position(1))));
        scan.freed(start + MS * 199);
        assert_eq!(scan.next(start + MS * 199), Some(&position(1)));
        scan.freed(start + MS * 200);
        assert_eq!(scan.next(start + MS * 200), None);
    }
}
