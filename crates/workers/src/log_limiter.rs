//! A bound on log lines about single elements: a thousand malformed entries a second must not cause a
//! thousand lines.
//!
//! The first few of a kind in a second are logged at once; the number of the others is logged when the second
//! is over. No information is lost: each element is in a table.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The most lines of one kind that are logged in a [`WINDOW`].
const MAX_LINES: u64 = 5;
/// The time over which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Counts lines by kind.
#[derive(Debug)]
pub(crate) struct LogLimiter<K> {
    begun: Instant,
    lines: BTreeMap<K, u64>,
}

impl<K: Ord + Copy> LogLimiter<K> {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), lines: BTreeMap::new() }
    }

    /// Returns true if a line of this kind may be logged now. Otherwise the line is counted. Call
    /// [`LogLimiter::suppressed`] first.
    pub(crate) fn admits(&mut self, kind: K) -> bool {
        if self.lines.is_empty() {
            self.begun = Instant::now();
        }
        let lines = self.lines.entry(kind).or_default();
        *lines += 1;
        *lines <= MAX_LINES
    }

    /// Returns the number of lines of each kind that were not logged, once the window is over or if no lines
    /// follow (`ends`).
    pub(crate) fn suppressed(&mut self, ends: bool) -> Vec<(K, u64)> {
        if self.lines.is_empty() || (!ends && self.begun.elapsed() < WINDOW) {
            return Vec::new();
        }
        let lines = std::mem::take(&mut self.lines).into_iter();
        lines.filter(|(_, lines)| *lines > MAX_LINES).map(|(kind, lines)| (kind, lines - MAX_LINES)).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_of_a_kind_are_logged_in_each_second_and_the_others_are_counted() {
        let mut limiter = LogLimiter::new();
        for second in 0..3 {
            let logged: Vec<bool> = (0..8).map(|_| limiter.admits("a")).collect();
            assert_eq!(logged.iter().filter(|logged| **logged).count() as u64, MAX_LINES, "second {second}");
            assert!(limiter.admits("b"));
            assert_eq!(limiter.suppressed(false), []);
            advance(WINDOW).await;
            assert_eq!(limiter.suppressed(false), [("a", 3)]);
            assert_eq!(limiter.suppressed(false), []);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_begins_with_its_first_line() {
        let mut limiter = LogLimiter::new();
        advance(WINDOW * 10).await;
        for _ in 0..=MAX_LINES {
            limiter.admits("a");
        }
        assert_eq!(limiter.suppressed(false), []);
        assert_eq!(limiter.suppressed(true), [("a", 1)]);
    }
}
