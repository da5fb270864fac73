//! A bounded log of the repeated failures of one worker: a line when a failure begins, when its cause
//! changes, at an interval while it lasts, and when it is over.

use std::time::Duration;

use domain::entry::EntryId;
use tokio::time::Instant;

/// The pause after the first failure; each further one doubles it.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The interval at which a failure that lasts unchanged is logged again.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// The current failure of one worker, if there is one.
#[derive(Debug)]
pub(super) struct FailureLog {
    worker: &'static str,
    current: Option<OngoingFailure>,
}

#[derive(Debug)]
struct OngoingFailure {
    cause: String,
    /// The stream entry that waits, if the failure is about one.
    entry_id: Option<EntryId>,
    since: Instant,
    logged_at: Instant,
    times: u32,
}

impl FailureLog {
    pub(super) fn new(worker: &'static str) -> Self {
        Self { worker, current: None }
    }

    /// Records a failure and returns how long to wait before the next attempt.
    pub(super) fn failed(&mut self, entry_id: Option<EntryId>, cause: &str) -> Duration {
        let now = Instant::now();
        let before = self.current.take();
        let since = before.as_ref().map_or(now, |failure| failure.since);
        let times = before.as_ref().map_or(1, |failure| failure.times.saturating_add(1));
        let unchanged = before.filter(|failure| failure.cause == cause && failure.entry_id == entry_id);
        let (cause, logged_at) = match unchanged {
            Some(failure) if now.duration_since(failure.logged_at) < REMINDER_INTERVAL => {
                (failure.cause, failure.logged_at)
            }
            _ => {
                tracing::warn!(
                    worker = self.worker,
                    entry_id = entry_id.map(tracing::field::display),
                    error = cause,
                    times,
                    "worker failed; retrying"
                );
                (cause.to_owned(), now)
            }
        };
        self.current = Some(OngoingFailure { cause, entry_id, since, logged_at, times });
        (MIN_PAUSE * 2_u32.saturating_pow(times.min(16) - 1)).min(MAX_PAUSE)
    }

    /// Records that the worker is healthy; true if it had failed.
    pub(super) fn recovered(&mut self) -> bool {
        let Some(failure) = self.current.take() else { return false };
        let lasted_ms = u64::try_from(failure.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(worker = self.worker, times = failure.times, lasted_ms, "worker recovered");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-12
    #[test]
    fn pauses_grow_to_a_bound_and_start_over_after_success() {
        let mut log = FailureLog::new("test");
        let pauses: Vec<u128> = (0..7).map(|_| log.failed(None, "down").as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        assert!(log.recovered());
        assert!(!log.recovered(), "it had not failed again");
        assert_eq!(log.failed(None, "down"), MIN_PAUSE);
    }
}
