//! Completions record the results of routes in PostgreSQL.
//!
//! One row that cannot be written does not delay another. A statement that is refused as a whole is repeated
//! in halves, and the completion of the row that remains is deferred ([`super::deferred`]). The completions
//! of a statement that takes too long, or that waits for a lock other than of its rows, are deferred
//! together: they are retried beside the loop of the channel, which continues. During an outage this code
//! waits: until the completions of a chunk are committed or deferred, the channel takes no new work.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::ports::{Activity, Completion, Failed, LeaseToken, Published, RouteStore, RowLocks, StoreError};
use domain::route::RouteKey;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::RoutePublisher;
use super::chunk::Appended;
use super::confirm::MAX_UNCONFIRMED;
use super::deferred::{Cause, DeferredChange};
use super::state::PublisherState;
use crate::health::Stopped;
use crate::ports::Ports;

/// The longest time that the loop of a channel waits for one statement. Slower completions are retried beside
/// the loop, without this bound. If a chunk has waited this long in all and its parts are single rows, the
/// rest of it is retried there, too.
const MAX_COMMIT_WAIT: Duration = Duration::from_secs(1);
/// The pause after a retry, as a multiple of the time that the retry took, so that slow rows take little of
/// PostgreSQL's time.
const REST_FACTOR: u32 = 3;
/// The longest such pause.
const MAX_REST: Duration = Duration::from_secs(10);

/// A kind of change that is committed in batches.
trait Completable: Clone + Send + Sync {
    fn key(&self) -> &RouteKey;

    fn change(self) -> DeferredChange;

    /// The routes whose markers must exist until the change is committed.
    fn appended(changes: &[Self]) -> &[Published];

    /// The changes, if they depend on an acknowledgement of Redis.
    fn acknowledged(changes: &mut Vec<Self>) -> Option<&mut Vec<Published>>;

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

    fn change(self) -> DeferredChange {
        DeferredChange::Published(self)
    }

    fn appended(changes: &[Self]) -> &[Published] {
        changes
    }

    fn acknowledged(changes: &mut Vec<Self>) -> Option<&mut Vec<Published>> {
        Some(changes)
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

    fn change(self) -> DeferredChange {
        DeferredChange::Failed(self)
    }

    fn appended(_: &[Self]) -> &[Published] {
        &[]
    }

    fn acknowledged(_: &mut Vec<Self>) -> Option<&mut Vec<Published>> {
        None
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

impl<T> Committed<T> {
    fn add(&mut self, changes: Vec<T>, outcomes: Vec<Completion>) {
        for (change, outcome) in changes.into_iter().zip(outcomes) {
            match outcome {
                Completion::Locked => self.deferred.push((change, Cause::Locked)),
                Completion::Applied | Completion::Conflict => self.done.push((change, outcome)),
            }
        }
    }
}

/// The error of a statement that is cancelled after [`MAX_COMMIT_WAIT`]. The next attempt shows whether it
/// was committed.
fn too_slow() -> StoreError {
    StoreError::TimedOut {
        operation: "complete routes",
        source: format!("not committed within {MAX_COMMIT_WAIT:?}").into(),
    }
}

impl<P: Ports> RoutePublisher<P> {
    /// Completes a chunk whose first acknowledgement is not older than `acknowledged_at`, and releases the
    /// leases of its failed routes, if it has any under `leases`. Defers completions that cannot be
    /// committed.
    pub(super) async fn complete(
        &self,
        appended: Appended,
        acknowledged_at: Instant,
        leases: Option<&LeaseToken>,
        shared: &PublisherState,
    ) -> Result<(), Stopped> {
        let published = self.commit(appended.published, acknowledged_at, shared).await?;
        self.report_published(&published.done);
        self.defer(published, |_| 0, shared);
        let failed = self.commit(appended.failed, acknowledged_at, shared).await?;
        self.report_failed(&failed.done, shared);
        if let Some(token) = leases {
            let keys: Vec<&RouteKey> = failed.done.iter().map(|(failed, _)| &failed.key).collect();
            self.release(&keys, token).await;
        }
        self.defer(failed, |_| 0, shared);
        Ok(())
    }

    /// Commits changes in parts as large as PostgreSQL accepts. During an outage it waits and keeps markers
    /// alive.
    async fn commit<X: Completable>(
        &self,
        changes: Vec<X>,
        acknowledged_at: Instant,
        shared: &PublisherState,
    ) -> Result<Committed<X>, Stopped> {
        let mut committed = Committed { done: Vec::with_capacity(changes.len()), deferred: Vec::new() };
        let mut parts = VecDeque::from([(changes, acknowledged_at)]);
        // The time spent on statements that were too slow.
        let mut waited = Duration::ZERO;
        while let Some((mut part, mut confirmed_at)) = parts.pop_front() {
            let limit = shared.batch_limit().get();
            if part.len() > limit {
                parts.push_front((part.split_off(limit), confirmed_at));
            }
            let started = Instant::now();
            if started.duration_since(confirmed_at) > MAX_UNCONFIRMED
                && let Some(published) = X::acknowledged(&mut part)
            {
                if let Err(error) = self.confirm(published, shared).await {
                    shared.markers.hold(published.iter());
                    shared.pause_after(&error).await?;
                    parts.push_front((part, confirmed_at));
                    continue;
                }
                confirmed_at = started;
            }
            if part.is_empty() {
                continue;
            }
            let statement = X::commit(&self.routes, &part, self.clock.now(), RowLocks::Wait);
            let result = timeout(MAX_COMMIT_WAIT, statement).await.unwrap_or_else(|_| Err(too_slow()));
            let error = match result {
                Ok(outcomes) => {
                    shared.batch_limit().succeeded(part.len(), started.elapsed());
                    shared.mark_healthy();
                    committed.add(part, outcomes);
                    continue;
                }
                Err(error) => error,
            };
            // Until these are committed, no publisher may append them again.
            for (waiting, _) in parts.iter().chain([&(part.clone(), confirmed_at)]) {
                shared.markers.hold(X::appended(waiting).iter());
            }
            match Cause::of(&error) {
                None => {
                    shared.pause_after(&error).await?;
                    parts.push_front((part, confirmed_at));
                }
                Some(cause @ (Cause::TimedOut(_) | Cause::Locked)) => {
                    if matches!(cause, Cause::TimedOut(_)) {
                        shared.batch_limit().failed(part.len());
                    }
                    shared.mark_failed(&error);
                    waited += started.elapsed();
                    // The parts cannot become smaller, and the others would probably wait as long.
                    let gives_up = part.len() == 1 && waited >= MAX_COMMIT_WAIT;
                    let rest = if gives_up { std::mem::take(&mut parts) } else { VecDeque::new() };
                    let deferred = part.into_iter().chain(rest.into_iter().flat_map(|(part, _)| part));
                    committed.deferred.extend(deferred.map(|change| (change, cause.clone())));
                }
                Some(cause) => match part.split_off(part.len() / 2) {
                    half if part.is_empty() => {
                        committed.deferred.extend(half.into_iter().map(|change| (change, cause.clone())));
                    }
                    half => {
                        parts.push_front((half, confirmed_at));
                        parts.push_front((part, confirmed_at));
                    }
                },
            }
        }
        shared.markers.stop_renewing(committed.done.iter().map(|(change, _)| change.key()));
        Ok(committed)
    }

    /// Retries deferred completions when they are due, for as long as it is polled.
    pub(super) async fn retry_deferred(&self, shared: &PublisherState) -> Infallible {
        loop {
            let next_at = shared.deferred().next_at();
            let is_due = async {
                match next_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = is_due => {}
                () = shared.deferred_added.notified() => continue,
            }
            let due = shared.deferred().due(Instant::now());
            let failures: HashMap<RouteKey, u32> =
                due.iter().map(|(change, failures)| (change.key().clone(), *failures)).collect();
            let count = |key: &RouteKey| failures.get(key).copied().unwrap_or(0);
            let (mut published, mut failed) = (Vec::new(), Vec::new());
            for (change, _) in due {
                match change {
                    DeferredChange::Published(route) => published.push(route),
                    DeferredChange::Failed(route) => failed.push(route),
                }
            }
            let published = self.retry(published, shared).await;
            self.report_published(&published.done);
            self.defer(published, count, shared);
            let failed = self.retry(failed, shared).await;
            self.report_failed(&failed.done, shared);
            self.defer(failed, count, shared);
            shared.retried.notify_one();
        }
    }

    /// Commits deferred changes, and separates those that are still refused or too slow. During an outage
    /// they are postponed: the loop of the channel waits until it is over.
    async fn retry<X: Completable>(&self, changes: Vec<X>, shared: &PublisherState) -> Committed<X> {
        let mut committed = Committed { done: Vec::with_capacity(changes.len()), deferred: Vec::new() };
        let mut parts = vec![changes];
        while let Some(mut part) = parts.pop() {
            if let Some(published) = X::acknowledged(&mut part)
                && let Err(error) = self.confirm(published, shared).await
            {
                tracing::debug!(
                    error = domain::ports::error_chain(&error),
                    "acknowledgements were not confirmed"
                );
                shared.deferred().postpone(part.iter().map(Completable::key), Instant::now());
                continue;
            }
            if part.is_empty() {
                continue;
            }
            shared.markers.hold(X::appended(&part).iter());
            let started = Instant::now();
            let result = X::commit(&self.routes, &part, self.clock.now(), RowLocks::Skip).await;
            let took = started.elapsed();
            match result {
                Ok(outcomes) => committed.add(part, outcomes),
                Err(error) => match Cause::of(&error) {
                    None => shared.deferred().postpone(part.iter().map(Completable::key), Instant::now()),
                    Some(cause) => match part.split_off(part.len() / 2) {
                        half if part.is_empty() => {
                            committed.deferred.extend(half.into_iter().map(|change| (change, cause.clone())));
                        }
                        half => parts.extend([half, part]),
                    },
                },
            }
            sleep((took * REST_FACTOR).min(MAX_REST)).await;
        }
        shared.markers.stop_renewing(committed.done.iter().map(|(change, _)| change.key()));
        committed
    }

    /// Defers changes that could not be committed, and removes those that now are. `failures` returns the
    /// number of times that a change has failed.
    fn defer<X: Completable>(
        &self,
        committed: Committed<X>,
        failures: impl Fn(&RouteKey) -> u32,
        shared: &PublisherState,
    ) {
        let mut deferred = shared.deferred();
        for (change, _) in &committed.done {
            deferred.remove(change.key());
        }
        let added = !committed.deferred.is_empty();
        for (change, cause) in committed.deferred {
            shared.markers.hold(X::appended(std::slice::from_ref(&change)).iter());
            let change = change.change();
            let (key, failures) = (change.key().clone(), failures(change.key()));
            if deferred.add(change, &cause, failures, Instant::now()) {
                shared.log().deferred(&key, &cause);
            }
        }
        self.health.set_deferred(deferred.len(), deferred.first());
        drop(deferred);
        if added {
            shared.deferred_added.notify_one();
        }
    }

    fn report_published(&self, done: &[(Published, Completion)]) {
        let applied = count(done, Completion::Applied);
        self.metrics.attempts(self.channel, "published", applied);
        self.health.count(&Activity { published: applied as u64, ..Activity::default() });
        self.metrics.conflicts(self.channel, count(done, Completion::Conflict));
    }

    fn report_failed(&self, done: &[(Failed, Completion)], shared: &PublisherState) {
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
