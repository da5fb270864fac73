//! The bookkeeping of something that fails for a time and then works again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which a failure that lasts unchanged is logged again.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Failures in a row of one thing, and which of them are logged: the first, one with another cause, and one
/// a minute while they last.
///
/// Callers that run at the same time, and whose causes therefore alternate, use no cause.
#[derive(Debug)]
pub struct Episode<C = ()>(Mutex<Option<Ongoing<C>>>);

#[derive(Debug)]
struct Ongoing<C> {
    cause: C,
    since: Instant,
    logged_at: Instant,
    times: u32,
}

/// A failure of an [`Episode`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpisodeFailure {
    /// The failures in a row, this one included.
    pub times: u32,
    /// True if this failure is to be logged.
    pub is_logged: bool,
}

/// The end of an [`Episode`], which is always to be logged.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// The failures in a row.
    pub times: u32,
    /// The time since the first of them, in milliseconds.
    pub lasted_ms: u64,
}

impl<C> Default for Episode<C> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<C: PartialEq> Episode<C> {
    /// Records a failure.
    pub fn failed(&self, now: Instant, cause: C) -> EpisodeFailure {
        let mut current = self.current();
        let is_logged = current.as_ref().is_none_or(|before| {
            before.cause != cause || now.saturating_duration_since(before.logged_at) >= REMINDER_INTERVAL
        });
        let (since, logged_at, times) =
            current.as_ref().map_or((now, now, 0), |before| (before.since, before.logged_at, before.times));
        let (logged_at, times) = (if is_logged { now } else { logged_at }, times.saturating_add(1));
        *current = Some(Ongoing { cause, since, logged_at, times });
        EpisodeFailure { times, is_logged }
    }

    /// Records a success; `None` if the call before did not fail.
    pub fn recovered(&self, now: Instant) -> Option<Recovery> {
        let ended = self.current().take()?;
        let lasted = now.saturating_duration_since(ended.since).as_millis();
        Some(Recovery { times: ended.times, lasted_ms: u64::try_from(lasted).unwrap_or(u64::MAX) })
    }

    /// Locks the state. Nothing panics while the lock is held.
    fn current(&self) -> MutexGuard<'_, Option<Ongoing<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(times: u32) -> EpisodeFailure {
        EpisodeFailure { times, is_logged: true }
    }

    fn silent(times: u32) -> EpisodeFailure {
        EpisodeFailure { times, is_logged: false }
    }

    #[test]
    fn the_first_failure_another_cause_and_one_a_minute_are_logged() {
        let (episode, begin) = (Episode::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(episode.failed(begin, "down"), logged(1));
        assert_eq!(episode.failed(after(1), "down"), silent(2));
        assert_eq!(episode.failed(after(2), "late"), logged(3));
        assert_eq!(episode.failed(after(61), "late"), silent(4));
        assert_eq!(episode.failed(after(62), "late"), logged(5));
        assert_eq!(episode.failed(after(63), "late"), silent(6));
    }

    #[test]
    fn a_recovery_has_the_number_of_failures_and_their_duration_once() {
        let (episode, begin) = (Episode::default(), Instant::now());
        assert_eq!(episode.recovered(begin), None);
        let failures = [episode.failed(begin, ()), episode.failed(begin, ())];
        assert_eq!(failures, [logged(1), silent(2)]);
        let recovery = Recovery { times: 2, lasted_ms: 12_000 };
        assert_eq!(episode.recovered(begin + Duration::from_secs(12)), Some(recovery));
        assert_eq!(episode.recovered(begin + Duration::from_secs(13)), None);
        assert_eq!(episode.failed(begin + Duration::from_secs(14), ()), logged(1));
    }
}
