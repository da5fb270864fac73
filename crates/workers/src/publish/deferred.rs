//! Deferred completions cannot be committed for now because of their own row: another transaction has locked
//! it, PostgreSQL refuses it, or its statement takes too long.
//!
//! They wait here, and are retried with growing pauses beside the other work of the channel. Until one is
//! committed, this replica does not publish its route again, and renews its marker, so that no other replica
//! appends it. The list is bounded; when it is full, the channel takes no new work. After a crash of this
//! replica the routes are still due: the next publisher finds their markers and defers them, too.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ports::{Failed, Published, StoreError, error_chain};
use domain::route::RouteKey;
use tokio::time::Instant;

use crate::health::FirstDeferred;

/// The most deferred completions of a channel.
pub(super) const DEFERRED_MAX: usize = 4_096;
/// The most completions in one retry.
const RETRIED_AT_ONCE: usize = 64;
/// The pause before the first retry, and the longest pause.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The change to write about a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum DeferredChange {
    Published(Published),
    Failed(Failed),
}

impl DeferredChange {
    pub(super) fn key(&self) -> &RouteKey {
        match self {
            Self::Published(route) => &route.key,
            Self::Failed(route) => &route.key,
        }
    }
}

/// The reason why a completion was not committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Another transaction has locked the row.
    Locked,
    /// The completion takes too long by itself, or a function that it calls fails, with this message.
    TimedOut(String),
    /// PostgreSQL refuses the completion, with this message.
    Refused(String),
}

impl Cause {
    /// Returns the cause if the error concerns the completions of one statement; `None` for an outage, which
    /// concerns all.
    pub(super) fn of(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::Unavailable { .. } => None,
            StoreError::TimedOut { .. } => Some(Self::TimedOut(error_chain(error))),
            StoreError::Locked { .. } => Some(Self::Locked),
            StoreError::Refused { .. } | StoreError::Corrupt { .. } => {
                Some(Self::Refused(error_chain(error)))
            }
        }
    }
}

/// The deferred completions.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    waiting: BTreeMap<RouteKey, WaitingChange>,
}

#[derive(Debug)]
struct WaitingChange {
    change: DeferredChange,
    /// The number of times that the change was refused or too slow. A lock does not count: it ends when its
    /// transaction does.
    failures: u32,
    retry_at: Instant,
    /// The time at which it was deferred first, and the last cause.
    since: Instant,
    cause: Cause,
}

impl Cause {
    /// The cause in words.
    fn text(&self) -> String {
        match self {
            Self::Locked => "another transaction has locked the row".to_owned(),
            Self::TimedOut(message) => format!("the completion takes too long or fails: {message}"),
            Self::Refused(message) => format!("PostgreSQL refuses the completion: {message}"),
        }
    }
}

impl Deferred {
    /// Adds a completion, or one whose retry failed. Returns true if it is new in the list.
    pub(super) fn add(&mut self, change: DeferredChange, cause: &Cause, failures: u32, now: Instant) -> bool {
        let failures = failures + u32::from(*cause != Cause::Locked);
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
        let retry_at = now + (RETRY_MIN * factor).min(RETRY_MAX);
        let key = change.key().clone();
        let since = self.waiting.get(&key).map_or(now, |waiting| waiting.since);
        let waiting = WaitingChange { change, failures, retry_at, since, cause: cause.clone() };
        self.waiting.insert(key, waiting).is_none()
    }

    /// Retries these later, without counting a failure.
    pub(super) fn postpone<'a>(&mut self, keys: impl Iterator<Item = &'a RouteKey>, now: Instant) {
        for key in keys {
            if let Some(waiting) = self.waiting.get_mut(key) {
                waiting.retry_at = now + RETRY_MIN;
            }
        }
    }

    pub(super) fn remove(&mut self, key: &RouteKey) {
        self.waiting.remove(key);
    }

    pub(super) fn contains(&self, key: &RouteKey) -> bool {
        self.waiting.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the completion that has been deferred longest.
    pub(super) fn first(&self) -> Option<FirstDeferred> {
        let (route, waiting) = self.waiting.iter().min_by_key(|(_, waiting)| waiting.since)?;
        Some(FirstDeferred {
            route: route.clone(),
            since: waiting.since,
            is_published: matches!(waiting.change, DeferredChange::Published(_)),
            cause: waiting.cause.text(),
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= DEFERRED_MAX
    }

    /// Returns the time of the next retry.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.retry_at).min()
    }

    /// Returns the completions to retry now, those that are due longest first, with the number of their
    /// failures. They stay in the list meanwhile.
    pub(super) fn due(&self, now: Instant) -> Vec<(DeferredChange, u32)> {
        let mut due: Vec<&WaitingChange> =
            self.waiting.values().filter(|waiting| waiting.retry_at <= now).collect();
        due.sort_by_key(|waiting| waiting.retry_at);
        due.truncate(RETRIED_AT_ONCE);
        due.into_iter().map(|waiting| (waiting.change.clone(), waiting.failures)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{acknowledged, route};

    fn published(number: u64) -> DeferredChange {
        let route = route(number, 0);
        DeferredChange::Published(Published {
            key: route.key,
            version: route.version,
            entry: acknowledged("1-0"),
        })
    }

    #[test]
    fn a_locked_row_is_tried_every_second_and_a_refused_one_ever_more_rarely() {
        let now = Instant::now();
        let waits = |cause: &Cause| -> Vec<u64> {
            let mut deferred = Deferred::default();
            let mut failures = 0;
            let mut waits = Vec::new();
            for _ in 0..7 {
                deferred.add(published(1), cause, failures, now);
                let at = deferred.next_at().expect("it waits");
                waits.push((at - now).as_secs());
                assert_eq!(deferred.due(at - Duration::from_millis(1)), []);
                failures = deferred.due(at)[0].1;
            }
            waits
        };
        assert_eq!(waits(&Cause::Locked), [1; 7]);
        assert_eq!(waits(&Cause::Refused("check".into())), [1, 2, 4, 8, 16, 30, 30]);
    }

    // INV-09
    #[test]
    fn completions_that_fail_again_and_again_do_not_keep_later_ones_from_their_turn() {
        let now = Instant::now();
        let mut deferred = Deferred::default();
        let first = RETRIED_AT_ONCE as u64;
        for number in 0..=first {
            deferred.add(published(number), &Cause::Locked, 0, now);
        }
        // The retry of the first ones takes longer than their pause.
        let retried = now + RETRY_MIN;
        let taken = deferred.due(retried);
        let is_left = |change: &DeferredChange| taken.iter().all(|(taken, _)| taken != change);
        let left = (0..=first).map(published).find(is_left).expect("one more than are retried at once");
        for (change, failures) in taken {
            deferred.add(change, &Cause::Locked, failures, retried);
        }
        let next = deferred.due(retried + RETRY_MIN);
        assert_eq!((next.len(), &next[0].0), (RETRIED_AT_ONCE, &left));
    }

    #[test]
    fn a_completion_is_new_once() {
        let now = Instant::now();
        let mut deferred = Deferred::default();
        assert!(deferred.add(published(1), &Cause::Locked, 0, now));
        assert!(!deferred.add(published(1), &Cause::Locked, 0, now));
        assert_eq!(deferred.len(), 1);
        deferred.remove(published(1).key());
        assert!(deferred.add(published(1), &Cause::Locked, 0, now));
    }
}
