//! Completions: recording the results of routes in PostgreSQL.
//!
//! A statement that is refused or too slow as a whole is repeated in smaller parts, so that the one row that cannot be
//! written delays no other: its completion is deferred ([`super::deferred`]). During an outage this code waits: until the
//! completions of a chunk are committed or deferred, the channel takes no new work.

use std::collections::VecDeque;

use ambient::{Clock, Jitter, Timestamp, Tokens};
use domain::ports::Activity;
use domain::ports::{
    Completion, Failed, LeaseStore, LeaseToken, Outbound, Published, RouteStore, RowLocks, StoreError,
};
use domain::route::RouteKey;
use tokio::time::Instant;

use super::chunk::Appended;
use super::deferred::{Cause, Change};
use super::{RoutePublisher, Shared};
use crate::health::Stopped;

/// A kind of change that is committed in batches.
trait Completable: Clone + Send + Sync {
    fn key(&self) -> &RouteKey;

    fn change(self) -> Change;

    /// The routes whose receipts must exist until the change is committed.
    fn appended(changes: &[Self]) -> &[Published];

    fn commit<R: RouteStore>(
        store: &R,
        changes: &[Self],
        now: Timestamp,
        locks: RowLocks,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}

impl Completable for Published {
    fn key(&self) -> &RouteKey {
        &self.key
    }

    fn change(self) -> Change {
        Change::Published(self)
    }

    fn appended(changes: &[Self]) -> &[Published] {
        changes
    }

    async fn commit<R: RouteStore>(
        store: &R,
        changes: &[Self],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        store.complete_routes_published(changes, now, locks).await
    }
}

impl Completable for Failed {
    fn key(&self) -> &RouteKey {
        &self.key
    }

    fn change(self) -> Change {
        Change::Failed(self)
    }

    fn appended(_: &[Self]) -> &[Published] {
        &[]
    }

    async fn commit<R: RouteStore>(
        store: &R,
        changes: &[Self],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        store.complete_routes_failed(changes, now, locks).await
    }
}

/// The result of changes: written or in conflict, or not committed for now.
struct Committed<T> {
    done: Vec<(T, Completion)>,
    deferred: Vec<(T, Cause)>,
}

impl<R, L, O, C, J, T> RoutePublisher<R, L, O, C, J, T>
where
    R: RouteStore,
    L: LeaseStore,
    O: Outbound,
    C: Clock,
    J: Jitter,
    T: Tokens,
{
    /// Completes a chunk; what cannot be committed is deferred.
    pub(super) async fn complete(
        &self,
        appended: Appended,
        token: &LeaseToken,
        shared: &Shared,
    ) -> Result<(), Stopped> {
        let published = self.commit(appended.published, RowLocks::Wait, shared).await?;
        self.report_published(&published.done);
        self.defer(published, |_| 0, shared);
        let failed = self.commit(appended.failed, RowLocks::Wait, shared).await?;
        self.report_failed(&failed.done, shared);
        let keys: Vec<&RouteKey> = failed.done.iter().map(|(failed, _)| &failed.key).collect();
        self.release(&keys, token).await;
        self.defer(failed, |_| 0, shared);
        Ok(())
    }

    /// Tries deferred completions again that are due.
    pub(super) async fn retry_deferred(&self, shared: &Shared) -> Result<(), Stopped> {
        let due = shared.deferred().due(Instant::now());
        let failures: std::collections::HashMap<RouteKey, u32> =
            due.iter().map(|(change, failures)| (change.key().clone(), *failures)).collect();
        let (mut published, mut failed) = (Vec::new(), Vec::new());
        for (change, _) in due {
            match change {
                Change::Published(route) => published.push(route),
                Change::Failed(route) => failed.push(route),
            }
        }
        let count = |key: &RouteKey| failures.get(key).copied().unwrap_or(0);
        let published = self.commit(published, RowLocks::Skip, shared).await?;
        self.report_published(&published.done);
        self.defer(published, count, shared);
        let failed = self.commit(failed, RowLocks::Skip, shared).await?;
        self.report_failed(&failed.done, shared);
        self.defer(failed, count, shared);
        Ok(())
    }

    /// Commits changes in parts as large as PostgreSQL takes them. During an outage it waits and keeps receipts alive.
    async fn commit<X: Completable>(
        &self,
        changes: Vec<X>,
        locks: RowLocks,
        shared: &Shared,
    ) -> Result<Committed<X>, Stopped> {
        let mut committed = Committed { done: Vec::with_capacity(changes.len()), deferred: Vec::new() };
        let mut parts = VecDeque::from([changes]);
        while let Some(mut part) = parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            let limit = shared.batch_limit().get();
            if part.len() > limit {
                parts.push_front(part.split_off(limit));
            }
            let started = Instant::now();
            match X::commit(&self.routes, &part, self.clock.now(), locks).await {
                Ok(outcomes) => {
                    shared.batch_limit().succeeded(part.len(), started.elapsed());
                    shared.mark_healthy();
                    for (change, outcome) in part.into_iter().zip(outcomes) {
                        match outcome {
                            Completion::Locked => committed.deferred.push((change, Cause::Locked)),
                            Completion::Applied | Completion::Conflict => {
                                committed.done.push((change, outcome));
                            }
                        }
                    }
                }
                Err(error) => {
                    // Until these are committed, no publisher may append them again.
                    for waiting in parts.iter().chain([&part]) {
                        shared.receipts.hold(X::appended(waiting).iter());
                    }
                    let alone = part.len() == 1;
                    match (Cause::of(&error), alone) {
                        (Some(cause), true) => {
                            if cause == Cause::TimedOut {
                                shared.mark_failed(&error);
                            }
                            let deferred = part.into_iter().map(|change| (change, cause.clone()));
                            committed.deferred.extend(deferred);
                        }
                        (Some(Cause::TimedOut), false) => {
                            shared.batch_limit().timed_out(part.len());
                            shared.mark_failed(&error);
                            parts.push_front(part);
                        }
                        (Some(_), false) => {
                            let half = part.split_off(part.len() / 2);
                            parts.push_front(half);
                            parts.push_front(part);
                        }
                        (None, _) => {
                            shared.pause_after(&error).await?;
                            parts.push_front(part);
                        }
                    }
                }
            }
        }
        shared.receipts.stop_renewing(committed.done.iter().map(|(change, _)| change.key()));
        Ok(committed)
    }

    /// Defers what could not be committed, and removes what now is. `failures` is how often a change has failed.
    fn defer<X: Completable>(
        &self,
        committed: Committed<X>,
        failures: impl Fn(&RouteKey) -> u32,
        shared: &Shared,
    ) {
        let mut deferred = shared.deferred();
        for (change, _) in &committed.done {
            deferred.remove(change.key());
        }
        for (change, cause) in committed.deferred {
            shared.receipts.hold(X::appended(std::slice::from_ref(&change)).iter());
            let change = change.change();
            let (key, failures) = (change.key().clone(), failures(change.key()));
            if deferred.add(change, &cause, failures, Instant::now()) {
                shared.log().deferred(&key, &cause);
            }
        }
        self.health.set_deferred(deferred.len());
    }

    fn report_published(&self, done: &[(Published, Completion)]) {
        let applied = count(done, Completion::Applied);
        self.metrics.attempts(self.channel, "published", applied);
        self.health.count(&Activity { published: applied as u64, ..Activity::default() });
        self.metrics.conflicts(self.channel, count(done, Completion::Conflict));
    }

    fn report_failed(&self, done: &[(Failed, Completion)], shared: &Shared) {
        self.metrics.conflicts(self.channel, count(done, Completion::Conflict));
        let applied = done.iter().filter(|(_, outcome)| *outcome == Completion::Applied);
        let (mut retried, mut dead) = (0, 0);
        for (route, _) in applied {
            *(if route.retry_at.is_some() { &mut retried } else { &mut dead }) += 1;
            shared.log().attempt_failed(route);
        }
        self.metrics.attempts(self.channel, "failed", retried);
        self.metrics.attempts(self.channel, "dead_letter", dead);
        let activity = Activity { failed: retried as u64, dead_lettered: dead as u64, ..Activity::default() };
        self.health.count(&activity);
    }
}

fn count<X>(done: &[(X, Completion)], wanted: Completion) -> usize {
    done.iter().filter(|(_, outcome)| *outcome == wanted).count()
}
