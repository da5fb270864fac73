//! The order of the requests of one lookup of several users, and the conditions for stopping. No I/O: the
//! time is an argument.
//!
//! Users are requested in the given order, so that the caller's first entry is not delayed by later ones. If
//! the directory was overloaded or unreachable, the user is requested again after a pause that doubles,
//! before users that were not requested yet. Requests in flight are always awaited. No more requests are sent
//!
//! * if as many requests in a row failed as were allowed at the last response: the directory responds to no
//!   request,
//! * if a request fails and there was no response for a whole timeout: each further request would cost
//!   another timeout,
//! * [`MAX_CALL_TIME`] after the start, so that the caller can report the users without a response.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::ports::Lookup;
use tokio::time::Instant;

use super::concurrency::Concurrency;

/// The time after the start of a lookup from which no request is sent.
const MAX_CALL_TIME: Duration = Duration::from_secs(20);
/// The maximum sum of the pauses of one user: a user that is always refused delays the others of the call by
/// no more. The caller tries again later.
const MAX_RETRY_PAUSES: Duration = Duration::from_secs(2);
/// The first pause before a user is requested again; it doubles.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The minimum number of failures in a row that stops the lookup: if the concurrency limit is lower, a single
/// failure is weak evidence.
const MIN_FAILURES: usize = 4;

/// The result of one request.
#[derive(Clone, Debug)]
pub(crate) enum RequestOutcome {
    /// The directory returned the user, or reported that it does not exist.
    Answer(Lookup),
    /// The directory is overloaded or unreachable. It may have requested a wait.
    Refused { cause: String, retry_after: Option<Duration> },
    /// The directory is available, but its response is unusable; another request would give the same.
    Unusable { cause: String },
}

#[derive(Debug)]
struct UserProgress {
    next_pause: Duration,
    /// Sum of the pauses so far.
    paused: Duration,
    /// The last outcome, if there is one.
    lookup: Option<Lookup>,
}

/// The schedule of one lookup; users are identified by their index.
#[derive(Debug)]
pub(crate) struct LookupSchedule {
    users: Vec<UserProgress>,
    /// Index from which users have not been requested yet.
    unasked: usize,
    /// Users to request again, ordered by time.
    again: BTreeSet<(Instant, usize)>,
    timeout: Duration,
    started: Instant,
    last_answer: Instant,
    /// Failures since the last response.
    failures: usize,
    /// The concurrency limit at the last response.
    allowed: usize,
    stopped: Option<&'static str>,
}

impl LookupSchedule {
    /// Creates a schedule for `users` users, each of whose requests ends after `timeout`.
    pub(crate) fn new(users: usize, timeout: Duration, concurrency: &Concurrency, now: Instant) -> Self {
        let user = |_| UserProgress { next_pause: FIRST_RETRY_PAUSE, paused: Duration::ZERO, lookup: None };
        Self {
            users: (0..users).map(user).collect(),
            unasked: 0,
            again: BTreeSet::new(),
            timeout,
            started: now,
            last_answer: now,
            failures: 0,
            allowed: concurrency.limit(),
            stopped: None,
        }
    }

    /// The user to request now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<usize> {
        if now >= self.started + MAX_CALL_TIME {
            self.stop("earlier lookups took too long");
        }
        if let Some(&(due, index)) = self.again.first()
            && due <= now
        {
            self.again.pop_first();
            return Some(index);
        }
        let index = self.unasked;
        if self.stopped.is_some() || index == self.users.len() {
            return None;
        }
        self.unasked += 1;
        Some(index)
    }

    /// The time at which the next user has to be requested again.
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        self.again.first().map(|(due, _)| *due)
    }

    /// Records the result of the request for user `index`.
    pub(crate) fn record(
        &mut self,
        index: usize,
        outcome: RequestOutcome,
        concurrency: &mut Concurrency,
        now: Instant,
    ) {
        let user = &mut self.users[index];
        user.lookup = Some(match outcome {
            RequestOutcome::Answer(lookup) => {
                concurrency.answered();
                (self.last_answer, self.failures, self.allowed) = (now, 0, concurrency.limit());
                user.lookup = Some(lookup);
                return;
            }
            RequestOutcome::Refused { cause, retry_after } => {
                let pause = user.next_pause.max(retry_after.unwrap_or_default());
                user.next_pause *= 2;
                user.paused = user.paused.saturating_add(pause);
                if self.stopped.is_none() && user.paused <= MAX_RETRY_PAUSES {
                    self.again.insert((now + pause, index));
                }
                Lookup::Unavailable(cause)
            }
            RequestOutcome::Unusable { cause } => Lookup::Unavailable(cause),
        });
        concurrency.failed();
        self.failures += 1;
        let silent = now.duration_since(self.last_answer) >= self.timeout;
        if silent || self.failures >= self.allowed.max(MIN_FAILURES) {
            self.stop("earlier lookups failed");
        }
    }

    /// The lookup of each user.
    pub(crate) fn into_lookups(self) -> impl Iterator<Item = Lookup> {
        let reason = self.stopped.unwrap_or_default();
        let not_asked = move || Lookup::Unavailable(format!("the user was not looked up: {reason}"));
        self.users.into_iter().map(move |user| user.lookup.unwrap_or_else(not_asked))
    }

    fn stop(&mut self, reason: &'static str) {
        self.again.clear();
        self.stopped.get_or_insert(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn refused() -> RequestOutcome {
        RequestOutcome::Refused { cause: "status 503".into(), retry_after: None }
    }

    fn missing() -> RequestOutcome {
        RequestOutcome::Answer(Lookup::Missing)
    }

    /// A schedule for this many users with a window of 32, and its start time.
    fn schedule(users: usize) -> (LookupSchedule, Concurrency, Instant) {
        let (concurrency, now) = (Concurrency::new(32), Instant::now());
        (LookupSchedule::new(users, TIMEOUT, &concurrency, now), concurrency, now)
    }

    #[test]
    fn a_refused_user_is_asked_again_before_later_users_and_after_a_pause_that_doubles() {
        let (mut schedule, mut concurrency, start) = schedule(3);
        assert_eq!(schedule.next(start), Some(0));
        schedule.record(0, refused(), &mut concurrency, start);
        assert_eq!(schedule.next(start), Some(1), "the first one is not due yet");
        let due = start + FIRST_RETRY_PAUSE;
        assert_eq!(schedule.next_retry(), Some(due));
        assert_eq!(schedule.next(due), Some(0));
        schedule.record(0, refused(), &mut concurrency, due);
        assert_eq!(schedule.next_retry(), Some(due + FIRST_RETRY_PAUSE * 2));
    }

    #[test]
    fn a_user_is_asked_again_until_its_pauses_are_two_seconds() {
        let (mut schedule, mut concurrency, start) = schedule(2);
        let mut now = start;
        assert_eq!(schedule.next(now), Some(0));
        assert_eq!(schedule.next(now), Some(1));
        schedule.record(0, refused(), &mut concurrency, now);
        while let Some(due) = schedule.next_retry() {
            now = due;
            assert_eq!(schedule.next(now), Some(0));
            // The directory is available: the response for another user arrives meanwhile.
            schedule.record(1, missing(), &mut concurrency, now);
            schedule.record(0, refused(), &mut concurrency, now);
        }
        assert!(now > start + MAX_RETRY_PAUSES / 2 && now <= start + MAX_RETRY_PAUSES, "{:?}", now - start);
    }

    #[test]
    fn retry_after_is_waited_for_if_the_user_is_still_to_be_asked_then() {
        for (seconds, retried) in [(2, true), (3, false), (u64::MAX, false)] {
            let (mut schedule, mut concurrency, start) = schedule(1);
            assert_eq!(schedule.next(start), Some(0));
            let wait = Duration::from_secs(seconds);
            let outcome = RequestOutcome::Refused { cause: "status 429".into(), retry_after: Some(wait) };
            schedule.record(0, outcome, &mut concurrency, start);
            assert_eq!(schedule.next_retry(), retried.then(|| start + wait));
        }
    }

    #[test]
    fn a_whole_window_of_failures_stops_the_asking_and_one_answer_between_them_does_not() {
        for answered in [false, true] {
            let (mut schedule, mut concurrency, now) = schedule(100);
            for _ in 0..32 {
                schedule.next(now).expect("it is a whole window");
            }
            for index in 0..32 {
                let outcome = if answered && index == 16 { missing() } else { refused() };
                schedule.record(index, outcome, &mut concurrency, now);
            }
            assert_eq!(schedule.next(now).is_some(), answered);
            assert_eq!(schedule.next_retry().is_some(), answered);
        }
    }

    #[test]
    fn a_failure_after_a_timeout_without_an_answer_stops_the_asking() {
        let (mut schedule, mut concurrency, start) = schedule(100);
        assert_eq!(schedule.next(start), Some(0));
        schedule.record(0, refused(), &mut concurrency, start + TIMEOUT);
        assert_eq!(schedule.next(start + TIMEOUT), None);
        let lookups: Vec<Lookup> = schedule.into_lookups().collect();
        assert_eq!(lookups[0], Lookup::Unavailable("status 503".into()));
        let not_asked = "the user was not looked up: earlier lookups failed";
        assert_eq!(lookups[99], Lookup::Unavailable(not_asked.into()));
    }

    #[test]
    fn a_look_up_that_takes_too_long_sends_no_more_requests_and_keeps_its_answers() {
        let (mut schedule, mut concurrency, start) = schedule(2);
        assert_eq!(schedule.next(start), Some(0));
        let end = start + MAX_CALL_TIME;
        schedule.record(0, missing(), &mut concurrency, end);
        assert_eq!(schedule.next(end), None);
        let lookups: Vec<Lookup> = schedule.into_lookups().collect();
        assert_eq!(lookups[0], Lookup::Missing);
        assert!(matches!(&lookups[1], Lookup::Unavailable(cause) if cause.contains("took too long")));
    }
}
