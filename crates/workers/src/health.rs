//! The health of a worker, reported in one place: in the log, in `/readyz`, in the table `replicas`, and to
//! acceptance, which does not wait for a publisher that is blocked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::{Episode, Recovery};
use domain::accept::Wait;
use domain::entry::EntryId;
use domain::ports::{Activity, StoreError, error_chain};
use domain::replica::{ActivityPart, PartActivity};
use domain::route::RouteKey;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::{ActivityCounts, Parts};
use crate::attempts::{AttemptWindow, RecentAttempts};
use crate::dispatch::Backpressure;
use crate::pause::pause;

/// The pause after the first failure; each further one doubles it.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A snapshot of the status of a worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// The end of the last pass, whether or not it had work.
    pub last_pass: Instant,
    /// The reason, while the worker cannot continue.
    pub blocked: Option<BlockedWorker>,
    /// True if this replica leads, for a worker that runs on one replica at a time.
    pub leader: bool,
    /// The last entry with an outcome, for the intake of the leader.
    pub position: Option<EntryId>,
    /// The leases that a publisher requested, and those of them that another publisher held or that expired
    /// before the append.
    pub leases: (u64, u64),
    /// The deferred completions of a publisher, which cannot be committed for now.
    pub deferred: usize,
    /// The completion that has been deferred longest.
    pub first_deferred: Option<FirstDeferred>,
}

/// The completion of a publisher that has been deferred longest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstDeferred {
    /// Its route.
    pub route: RouteKey,
    /// The time at which it was deferred.
    pub since: Instant,
    /// True if the entry of the route is in its stream; false if the attempt failed.
    pub is_published: bool,
    /// The reason.
    pub cause: String,
}

/// The reason why a worker is blocked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockedWorker {
    /// The stream entry that waits, if there is one.
    pub entry_id: Option<EntryId>,
    /// The error, or the condition that the worker waits for.
    pub cause: String,
    /// The time at which this began.
    pub since: Instant,
}

/// An error: the service stops. The next publisher finds the routes that were being published.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Stopped;

/// The health of one worker. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    worker: &'static str,
    state: Arc<Mutex<HealthState>>,
    backpressure: Backpressure,
    activity: ActivityCounts,
    /// Notified when the worker is blocked or recovers, and when it wins or loses leadership.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct HealthState {
    /// The stream entry that waits, if the failure is about one, and the cause.
    failures: Episode<(Option<EntryId>, String)>,
    /// The number of times that the worker has recovered from a failure.
    recoveries: u64,
    status: WorkerStatus,
    attempts: AttemptWindow,
}

impl Health {
    /// The health of a worker with this name, which is not reported in a table.
    pub fn new(worker: &'static str) -> Self {
        Self::reported(worker, ActivityCounts::default(), Arc::default())
    }

    /// The health of a worker that counts in `activity` and notifies `changed`.
    pub(crate) fn reported(worker: &'static str, activity: ActivityCounts, changed: Arc<Notify>) -> Self {
        let status = WorkerStatus {
            last_pass: Instant::now(),
            blocked: None,
            leader: false,
            position: None,
            leases: (0, 0),
            deferred: 0,
            first_deferred: None,
        };
        let attempts = AttemptWindow::default();
        let state = HealthState { failures: Episode::default(), recoveries: 0, status, attempts };
        let (state, backpressure) = (Arc::new(Mutex::new(state)), Backpressure::default());
        Self { worker, state, backpressure, activity, changed }
    }

    /// Also sets `backpressure` when the worker is blocked, and clears it when the worker is healthy.
    pub(crate) fn with_backpressure(self, backpressure: Backpressure) -> Self {
        Self { backpressure, ..self }
    }

    /// The name of the worker.
    pub fn worker(&self) -> &'static str {
        self.worker
    }

    /// Returns a snapshot of the status.
    pub fn status(&self) -> WorkerStatus {
        self.state().status.clone()
    }

    /// Records that a pass or a call succeeded.
    pub(crate) fn mark_healthy(&self) {
        self.backpressure.set(false);
        let mut state = self.state();
        if let Some(Recovery { times, lasted_ms }) = state.failures.recovered(Instant::now().into_std()) {
            state.recoveries += 1;
            tracing::info!(worker = self.worker, times, lasted_ms, "worker recovered");
        }
        self.unblock(&mut state.status);
    }

    /// Records that the worker makes progress. Only the next successful call shows that it has recovered, and
    /// ends a failure in the log.
    pub(crate) fn mark_progress(&self) {
        self.unblock(&mut self.state().status);
    }

    /// Records a failed call: logs it and returns how long to wait before the next attempt.
    pub(crate) fn mark_failed(&self, error: &StoreError) -> Duration {
        self.mark_blocked(&error_chain(error))
    }

    /// Same as [`Health::mark_failed`], for a condition that is not an error but blocks the worker.
    pub(crate) fn mark_blocked(&self, cause: &str) -> Duration {
        self.fail(None, cause)
    }

    /// Same as [`Health::mark_failed`], for an entry that must wait.
    pub(crate) fn mark_waiting(&self, wait: &Wait) -> Duration {
        self.fail(Some(wait.entry_id), &wait.cause)
    }

    /// Records that the worker takes no new work for this reason, although every call succeeds. This is not a
    /// failure, so it is not logged here.
    pub(crate) fn mark_full(&self, cause: &str) {
        self.backpressure.set(true);
        self.block(&mut self.state().status, None, cause);
    }

    fn fail(&self, entry_id: Option<EntryId>, cause: &str) -> Duration {
        self.backpressure.set(true);
        let mut state = self.state();
        self.block(&mut state.status, entry_id, cause);
        let failure = state.failures.failed(Instant::now().into_std(), (entry_id, cause.to_owned()));
        if failure.is_logged {
            tracing::warn!(
                worker = self.worker,
                entry_id = entry_id.map(tracing::field::display),
                error = cause,
                times = failure.times,
                "worker failed; retrying"
            );
        }
        (MIN_PAUSE * 2_u32.saturating_pow(failure.times.min(16) - 1)).min(MAX_PAUSE)
    }

    fn block(&self, status: &mut WorkerStatus, entry_id: Option<EntryId>, cause: &str) {
        status.last_pass = Instant::now();
        let before = status.blocked.take();
        if before.is_none() {
            self.changed.notify_one();
        }
        let before = before.filter(|blocked| blocked.entry_id == entry_id);
        let since = before.map_or(status.last_pass, |blocked| blocked.since);
        status.blocked = Some(BlockedWorker { entry_id, cause: cause.to_owned(), since });
    }

    fn unblock(&self, status: &mut WorkerStatus) {
        status.last_pass = Instant::now();
        if status.blocked.take().is_some() {
            self.changed.notify_one();
        }
    }

    /// Returns the number of times that the worker has recovered from a failure.
    pub(crate) fn recoveries(&self) -> u64 {
        self.state().recoveries
    }

    /// Records whether this replica leads.
    pub(crate) fn set_leader(&self, leader: bool) {
        let mut state = self.state();
        state.status.leader = leader;
        // The next leader may be another replica, and this replica does not receive its position.
        state.status.position = state.status.position.filter(|_| leader);
        self.changed.notify_one();
    }

    /// Records that every entry up to this one has its outcome.
    pub(crate) fn set_position(&self, position: EntryId) {
        self.state().status.position = Some(position);
    }

    /// Counts what the worker did, for the table `activity`.
    pub(crate) fn count(&self, activity: &Activity) {
        self.activity.add(activity);
    }

    /// Counts what became of intents of a producer.
    pub(crate) fn count_intents(&self, producer: &str, activity: Activity) {
        self.count(&activity);
        let of_producer = PartActivity { activity, ..PartActivity::default() };
        self.count_parts([(ActivityPart::Producer(producer.to_owned()), of_producer)].into());
    }

    /// Counts what the worker did, by part.
    pub(crate) fn count_parts(&self, parts: Parts) {
        self.activity.add_parts(parts);
    }

    /// Counts attempts of a publisher, with the message of a failure among them.
    pub(crate) fn count_attempts(&self, succeeded: u64, failed: u64, cause: Option<&str>) {
        self.state().attempts.add(succeeded, failed, cause, Instant::now());
    }

    /// Returns the attempts of the last minute.
    pub(crate) fn recent_attempts(&self) -> Option<RecentAttempts> {
        self.state().attempts.recent(Instant::now())
    }

    /// Records the state of work that another crate does and logs: the cause if it is blocked.
    pub fn set_blocked(&self, cause: Option<&str>) {
        match cause {
            Some(cause) => self.mark_full(cause),
            None => self.mark_progress(),
        }
    }

    /// Counts the leases that were requested, and those of them that were not acquired or expired before the
    /// append.
    pub(crate) fn count_leases(&self, asked: usize, held: usize) {
        let mut state = self.state();
        state.status.leases.0 += asked as u64;
        state.status.leases.1 += held as u64;
    }

    /// Records the deferred completions: their number and the first of them.
    pub(crate) fn set_deferred(&self, completions: usize, first: Option<FirstDeferred>) {
        let mut state = self.state();
        (state.status.deferred, state.status.first_deferred) = (completions, first);
    }

    /// Repeats the call, with growing pauses, until it succeeds. Returns `Err` if the service stops first.
    pub(crate) async fn until_answered<V, F: Future<Output = Result<V, StoreError>>>(
        &self,
        stop: &CancellationToken,
        mut call: impl FnMut() -> F,
    ) -> Result<V, Stopped> {
        loop {
            match call().await {
                Ok(value) => {
                    self.mark_healthy();
                    return Ok(value);
                }
                Err(error) => self.pause_after(&error, stop).await?,
            }
        }
    }

    /// Records the failure and waits. Returns `Err` if the service stops meanwhile.
    pub(crate) async fn pause_after(
        &self,
        error: &StoreError,
        stop: &CancellationToken,
    ) -> Result<(), Stopped> {
        let wait = self.mark_failed(error);
        if pause(stop, wait).await { Ok(()) } else { Err(Stopped) }
    }

    /// Locks the state. Nothing panics while the lock is held.
    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn cause(health: &Health) -> Option<String> {
        health.status().blocked.map(|blocked| blocked.cause)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_sets_backpressure_and_status_until_the_next_success() {
        let backpressure = Backpressure::default();
        let health = Health::new("test").with_backpressure(backpressure.clone());
        let begun = Instant::now();
        health.mark_blocked("first");
        advance(Duration::from_secs(3)).await;
        health.mark_blocked("second");
        let blocked = health.status().blocked.expect("it is blocked");
        assert_eq!((blocked.cause.as_str(), blocked.since), ("second", begun));
        assert!(backpressure.is_set());

        health.mark_healthy();
        assert!(cause(&health).is_none() && !backpressure.is_set());
        assert_eq!(health.recoveries(), 1);
        health.mark_healthy();
        assert_eq!(health.recoveries(), 1);
    }

    // INV-12
    #[test]
    fn pauses_grow_to_a_bound_and_start_over_after_success() {
        let health = Health::new("test");
        let pauses: Vec<u128> = (0..7).map(|_| health.mark_blocked("down").as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        health.mark_healthy();
        assert_eq!(health.mark_blocked("down"), MIN_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn each_entry_that_waits_is_shown_since_its_own_time() {
        let health = Health::new("test");
        let wait = |number| Wait { entry_id: EntryId::new(number, 0), cause: "slow".into() };
        health.mark_waiting(&wait(1));
        advance(Duration::from_secs(3)).await;
        let second = Instant::now();
        health.mark_waiting(&wait(2));
        let blocked = health.status().blocked.expect("it is blocked");
        assert_eq!((blocked.entry_id, blocked.since), (Some(EntryId::new(2, 0)), second));
    }

    #[test]
    fn a_channel_that_is_full_is_blocked_and_has_not_failed() {
        let health = Health::new("test");
        health.mark_full("full");
        assert_eq!(cause(&health).as_deref(), Some("full"));
        health.mark_healthy();
        assert_eq!((cause(&health), health.recoveries()), (None, 0));
    }

    #[test]
    fn a_replica_that_stepped_down_shows_no_position() {
        let health = Health::new("test");
        health.set_leader(true);
        health.set_position(EntryId::new(7, 0));
        assert_eq!(health.status().position, Some(EntryId::new(7, 0)));
        health.set_leader(false);
        assert_eq!((health.status().leader, health.status().position), (false, None));
    }
}
