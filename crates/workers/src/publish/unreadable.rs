//! Rows of due routes that cannot be read. Each is reported once, however many there are and however often
//! they are listed.
//!
//! Rows with the same problem share a line, and the number of lines in a second is bounded; the other rows
//! are reported when they are listed again. A row that was corrected is forgotten, so it is reported again if
//! it breaks again.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use domain::ports::{StoreError, error_chain};
use tokio::time::Instant;

/// The most rows in one line.
const ROWS_PER_LINE: usize = 20;
/// The most lines in a second.
const LINES_PER_SECOND: usize = 10;
/// The most rows that are remembered as reported. Further ones are not reported.
const REMEMBERED_MAX: usize = 1_000_000;

/// The rows that were reported.
#[derive(Debug)]
pub(super) struct UnreadableRows {
    reported: HashSet<u64>,
    /// The rows that were listed since the last sweep over all due routes ended.
    listed: HashSet<u64>,
    second: Instant,
    lines: usize,
}

/// One line of the log.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct UnreadableLine {
    pub(super) problem: String,
    pub(super) routes: Vec<String>,
}

impl UnreadableRows {
    pub(super) fn new(now: Instant) -> Self {
        Self { reported: HashSet::new(), listed: HashSet::new(), second: now, lines: 0 }
    }

    /// Returns the lines to write about the rows of a page.
    pub(super) fn report(&mut self, rows: &[StoreError], now: Instant) -> Vec<UnreadableLine> {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.lines) = (now, 0);
        }
        let mut fresh: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
        for row in rows {
            let (key, problem) = match row {
                StoreError::Corrupt { place, key, problem } => (key.clone(), format!("{place}: {problem}")),
                other => (String::new(), error_chain(other)),
            };
            let hash = hash_of(&(&key, &problem));
            self.listed.insert(hash);
            if !self.reported.contains(&hash) && self.reported.len() < REMEMBERED_MAX {
                fresh.entry(problem).or_default().push((hash, key));
            }
        }
        let mut reports = Vec::new();
        for (problem, rows) in fresh {
            for rows in rows.chunks(ROWS_PER_LINE).take(LINES_PER_SECOND - self.lines) {
                self.lines += 1;
                self.reported.extend(rows.iter().map(|(hash, _)| hash));
                let routes = rows.iter().map(|(_, key)| key.clone()).collect();
                reports.push(UnreadableLine { problem: problem.clone(), routes });
            }
        }
        reports
    }

    /// Records that all due routes were listed. Reported rows that were not among them can be read again.
    pub(super) fn sweep_done(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        self.reported.retain(|hash| listed.contains(hash));
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(numbers: impl IntoIterator<Item = u32>) -> Vec<StoreError> {
        let row = |number| StoreError::Corrupt {
            place: "routes.next_attempt_at",
            key: format!("{number}-0/push:user:u"),
            problem: "out of range".into(),
        };
        numbers.into_iter().map(row).collect()
    }

    #[test]
    fn each_of_many_unreadable_rows_is_reported_exactly_once_at_ten_lines_a_second() {
        let mut now = Instant::now();
        let mut unreadable = UnreadableRows::new(now);
        let mut reported = Vec::new();
        for _ in 0..10 {
            let mut lines = 0;
            for page in [0..512, 512..1_024, 1_024..1_100] {
                for report in unreadable.report(&rows(page), now) {
                    lines += 1;
                    reported.extend(report.routes);
                }
            }
            unreadable.sweep_done();
            assert!(lines <= LINES_PER_SECOND, "{lines} lines");
            now += Duration::from_secs(1);
        }
        assert_eq!(reported.len(), 1_100);
        assert_eq!(reported.iter().collect::<HashSet<_>>().len(), 1_100);
    }

    #[test]
    fn a_row_that_was_corrected_and_breaks_again_is_reported_again() {
        let now = Instant::now();
        let mut unreadable = UnreadableRows::new(now);
        for listed in [true, false, true] {
            let page = if listed { rows([1]) } else { Vec::new() };
            assert_eq!(unreadable.report(&page, now).len(), page.len());
            unreadable.sweep_done();
        }
    }
}
