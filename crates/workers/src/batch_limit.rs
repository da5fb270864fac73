//! A limit on the size of one statement, adapted to the duration of statements.
//!
//! A statement that times out is repeated with half of its elements, because the same batch would take too
//! long again. The limit grows back once statements are fast. It is kept between passes, so that a slow
//! database does not receive the full batch at the start of each pass.
//!
//! The caller chooses the unit: elements, or bytes if elements differ a lot in size.

use std::time::Duration;

/// After a full statement that took less than this, the limit doubles: always if there is no target time,
/// otherwise only up to the floor.
const QUICK_STATEMENT: Duration = Duration::from_millis(250);

/// The current limit of a statement, from 1 to a configured maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchLimit {
    current: usize,
    max: usize,
    /// The duration below which a full statement doubles the limit.
    quick: Duration,
    /// The duration above which a statement halves the limit, but not below `floor`.
    slow: Duration,
    floor: usize,
}

impl BatchLimit {
    /// Starts at `max`, which is at least 1. Only a failed statement lowers the limit.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { current: max, max, quick: QUICK_STATEMENT, slow: Duration::MAX, floor: 1 }
    }

    /// Starts at `floor` and keeps statements near `target`. A slow statement never lowers the limit below
    /// `floor`, where most of the time may be spent in the network. A timeout does.
    pub(crate) fn with_target(floor: usize, max: usize, target: Duration) -> Self {
        Self { current: floor, max, quick: target / 2, slow: target, floor }
    }

    pub(crate) fn get(&self) -> usize {
        self.current
    }

    /// Records that a statement of `size` took too long or failed because of an element. Returns false if it
    /// cannot be made smaller.
    pub(crate) fn failed(&mut self, size: usize) -> bool {
        self.current = self.current.min(size / 2).max(1);
        size > 1
    }

    /// Records that a statement of `size` succeeded after `took`. A statement smaller than the limit does not
    /// show that a larger one would be fast. Below the floor, which is reached by a timeout or a refusal,
    /// most of the time is that of the commit, so a slow statement does not lower the limit.
    pub(crate) fn succeeded(&mut self, size: usize, took: Duration) {
        if self.current < self.floor {
            if size >= self.current && took < QUICK_STATEMENT {
                self.current = (self.current * 2).min(self.floor);
            }
        } else if took > self.slow {
            self.current = self.current.min((size / 2).max(self.floor));
        } else if size >= self.current && took < self.quick {
            self.current = (self.current * 2).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_halves_down_to_one_element_and_no_further() {
        let mut limit = BatchLimit::new(9);
        let mut sizes = vec![limit.get()];
        while limit.failed(limit.get()) {
            sizes.push(limit.get());
        }
        assert_eq!(sizes, [9, 4, 2, 1]);
    }

    #[test]
    fn a_limit_grows_back_only_by_full_and_quick_statements() {
        let mut limit = BatchLimit::new(9);
        assert!(limit.failed(9));
        limit.succeeded(3, Duration::ZERO);
        limit.succeeded(4, QUICK_STATEMENT);
        assert_eq!(limit.get(), 4);
        limit.succeeded(4, Duration::ZERO);
        limit.succeeded(8, Duration::ZERO);
        assert_eq!(limit.get(), 9);
    }

    #[test]
    fn a_limit_with_a_target_follows_it_between_its_floor_and_its_maximum() {
        let target = Duration::from_millis(5);
        let mut limit = BatchLimit::with_target(50, 1_000, target);
        for expected in [100, 200, 400, 800, 1_000, 1_000] {
            limit.succeeded(limit.get(), target / 4);
            assert_eq!(limit.get(), expected);
        }
        limit.succeeded(1_000, target);
        assert_eq!(limit.get(), 1_000, "it is on target");
        for expected in [500, 250, 125, 62, 50, 50] {
            limit.succeeded(limit.get(), target * 2);
            assert_eq!(limit.get(), expected);
        }
    }

    #[test]
    fn only_a_timeout_makes_a_limit_smaller_than_its_floor() {
        let mut limit = BatchLimit::with_target(50, 1_000, Duration::from_millis(5));
        assert!(limit.failed(30));
        assert_eq!(limit.get(), 15);
        limit.succeeded(15, Duration::from_secs(1));
        assert_eq!(limit.get(), 15);
        limit.succeeded(15, Duration::ZERO);
        assert_eq!(limit.get(), 30);
    }

    #[test]
    fn a_limit_below_its_floor_returns_to_it_however_long_a_commit_takes() {
        for took in [Duration::from_millis(4), Duration::from_millis(40)] {
            let mut limit = BatchLimit::with_target(50, 1_000, Duration::from_millis(5));
            while limit.failed(limit.get()) {}
            for expected in [2, 4, 8, 16, 32, 50, 50] {
                limit.succeeded(limit.get(), took);
                assert_eq!(limit.get(), expected, "{took:?}");
            }
        }
    }

    #[test]
    fn one_large_element_that_takes_long_does_not_raise_the_limit() {
        let mut limit = BatchLimit::with_target(50, 1_000, Duration::from_millis(5));
        assert!(limit.failed(5_000));
        assert_eq!(limit.get(), 50);
        limit.succeeded(5_000, Duration::from_secs(1));
        assert_eq!(limit.get(), 50);
    }
}
