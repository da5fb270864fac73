//! The attempts of a publisher in the last minute. They show that a channel fails although it is not blocked.

use std::collections::VecDeque;
use std::time::Duration;

use domain::replica::is_failing;
use tokio::time::Instant;

/// The period that is observed.
const WINDOW: Duration = Duration::from_secs(60);
/// The resolution: attempts of this period leave the window together.
const SLOT: Duration = Duration::from_secs(5);

/// The attempts of the last minute, in slots.
#[derive(Debug, Default)]
pub(crate) struct AttemptWindow {
    /// Beginning of each slot, with the attempts that succeeded and failed in it.
    slots: VecDeque<(Instant, u64, u64)>,
    failing_since: Option<Instant>,
    cause: String,
}

/// A snapshot of the attempts of the last minute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecentAttempts {
    /// Attempts that appended an entry.
    pub succeeded: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// The time since which fewer than one attempt in ten has succeeded.
    pub failing_since: Option<Instant>,
    /// The message of the last failure.
    pub cause: String,
}

impl AttemptWindow {
    /// Counts attempts, with the message of a failure among them.
    pub(crate) fn add(&mut self, succeeded: u64, failed: u64, cause: Option<&str>, now: Instant) {
        if let Some(cause) = cause {
            cause.clone_into(&mut self.cause);
        }
        match self.slots.back_mut() {
            Some((began, good, bad)) if now.duration_since(*began) < SLOT => {
                *good += succeeded;
                *bad += failed;
            }
            _ => self.slots.push_back((now, succeeded, failed)),
        }
        self.update(now);
    }

    /// Returns the attempts of the last minute; `None` if there was none.
    pub(crate) fn recent(&mut self, now: Instant) -> Option<RecentAttempts> {
        let (succeeded, failed) = self.update(now);
        let (failing_since, cause) = (self.failing_since, self.cause.clone());
        (succeeded + failed > 0).then_some(RecentAttempts { succeeded, failed, failing_since, cause })
    }

    fn update(&mut self, now: Instant) -> (u64, u64) {
        while self.slots.front().is_some_and(|(began, ..)| now.duration_since(*began) >= WINDOW) {
            self.slots.pop_front();
        }
        let sum =
            |(good, bad): (u64, u64), (_, more, worse): &(Instant, u64, u64)| (good + more, bad + worse);
        let (succeeded, failed) = self.slots.iter().fold((0, 0), sum);
        let is_failing = is_failing(succeeded, failed);
        self.failing_since = self.failing_since.or(Some(now)).filter(|_| is_failing);
        if failed == 0 {
            self.cause.clear();
        }
        (succeeded, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_count_for_a_minute_and_failing_begins_when_too_few_succeed() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut window = AttemptWindow::default();
        assert_eq!(window.recent(at(0)), None);
        window.add(10, 0, None, at(0));
        window.add(0, 90, Some("why"), at(7));
        let recent = window.recent(at(8)).expect("attempts");
        assert_eq!((recent.succeeded, recent.failed, recent.failing_since), (10, 90, None));
        window.add(0, 1, Some("why now"), at(20));
        let recent = window.recent(at(30)).expect("attempts");
        assert_eq!((recent.failed, recent.failing_since, &*recent.cause), (91, Some(at(20)), "why now"));
        let recent = window.recent(at(60)).expect("attempts");
        assert_eq!((recent.succeeded, recent.failing_since), (0, Some(at(20))));
        window.add(50, 0, None, at(70));
        assert_eq!(window.recent(at(71)).expect("attempts").failing_since, None);
        assert_eq!(window.recent(at(80)).expect("attempts").cause, "");
        assert_eq!(window.recent(at(130)), None);
    }
}
