//! Reports this replica in the tables `replicas` and `activity`, for operators.
//!
//! A report is written every [`REPORT_INTERVAL`], and soon after a worker wins or loses leadership, is
//! blocked or recovers. Nothing depends on it: the tables are for operators, and are as old as `seen_at`.
//!
//! Crash recovery: the counts since the last report are lost, and other replicas delete the row of this
//! replica an hour later. If the reply to adding counts is lost, they are added again and count twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::ports::{Activity, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};
use domain::ports::{StoreError, error_chain};
use domain::replica::{AttemptsReport, DeferredReport};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::activity::{ActivityCounts, Parts};
use crate::attempts::RecentAttempts;
use crate::health::{BlockedWorker, FirstDeferred, Health, WorkerStatus};
use crate::passes::{Pass, Passes, run_passes};

/// The interval of reports while nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest duration of a change that is reported before the interval is over.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// The longest time that the last report may delay a stop.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval of deleting old rows.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(600);
/// The time for which the row of a replica is kept after its last report.
const REPLICA_RETENTION: Duration = Duration::from_secs(3_600);
/// The retention of activity.
const ACTIVITY_RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// The most rows that one statement deletes; the rest waits for the next cleanup.
const MAX_DELETED_ROWS: usize = 10_000;
/// The most characters of a cause that are reported. The log contains all of them.
const MAX_CAUSE_CHARS: usize = 1_000;

/// The health of all workers of this replica. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ReplicaHealth(Arc<ReplicaState>);

#[derive(Debug, Default)]
struct ReplicaState {
    workers: Mutex<Vec<Health>>,
    activity: ActivityCounts,
    changed: Arc<Notify>,
}

impl ReplicaHealth {
    /// Adds a worker and returns its health.
    pub fn add_worker(&self, worker: &'static str) -> Health {
        let ReplicaState { workers, activity, changed } = &*self.0;
        let health = Health::reported(worker, activity.clone(), Arc::clone(changed));
        // Nothing panics while the lock is held.
        workers.lock().unwrap_or_else(PoisonError::into_inner).push(health.clone());
        health
    }

    /// Returns for each worker whether it leads and whether it is blocked.
    fn conditions(&self) -> Vec<(bool, bool)> {
        let status = |health: &Health| health.status();
        self.workers().iter().map(status).map(|status| (status.leader, status.blocked.is_some())).collect()
    }

    pub(crate) fn workers(&self) -> Vec<Health> {
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The worker that reports.
#[derive(Debug)]
pub struct Reporter<S, C> {
    /// The store of the reports.
    pub store: S,
    /// The clock.
    pub clock: C,
    /// The name of this replica.
    pub replica: String,
    /// The version of the service.
    pub version: &'static str,
    /// The workers to report.
    pub workers: ReplicaHealth,
    /// The health of this worker.
    pub health: Health,
}

impl<S: ReplicaStore, C: Clock> Reporter<S, C> {
    /// Runs until `stop`, then writes a last report, because the other workers have stopped by then.
    pub async fn run(self, stop: CancellationToken) {
        let mut reports = Reports {
            reporter: &self,
            started_at: self.clock.now(),
            reported_at: None,
            cleaned_up_at: None,
            unreported: (Activity::default(), Parts::new()),
            is_stopped: false,
            reported: Vec::new(),
        };
        run_passes(&self.health, &stop, MIN_REPORT_INTERVAL, &mut reports).await;
        reports.is_stopped = true;
        match timeout(LAST_REPORT_TIMEOUT, reports.report()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(
                    error = error_chain(&error),
                    "the last report of this replica was not written"
                );
            }
            Err(_) => tracing::debug!("the last report of this replica was not written in time"),
        }
    }

    fn report(&self, started_at: Timestamp, stopped: bool) -> ReplicaReport {
        let (now, instant) = (self.clock.now(), Instant::now());
        let at = |then: Instant| now - instant.saturating_duration_since(then);
        let (mut leader_of, mut workers) = (Vec::new(), Vec::new());
        for health in self.workers.workers() {
            if health.status().leader {
                leader_of.push(health.worker().to_owned());
            }
            workers.push(worker_report(&health, at));
        }
        let (replica, version) = (self.replica.clone(), self.version.to_owned());
        ReplicaReport { replica, version, started_at, leader_of, workers, stopped }
    }
}

/// The report about one worker. `at` returns the time of an instant by the clock.
fn worker_report(health: &Health, at: impl Fn(Instant) -> Timestamp) -> WorkerReport {
    let WorkerStatus { last_pass, blocked, position, deferred, first_deferred, .. } = health.status();
    let blocked = blocked.map(|BlockedWorker { entry_id, cause, since }| BlockedReport {
        entry_id,
        cause: cut(&cause),
        since: at(since),
    });
    let deferred = first_deferred.map(|FirstDeferred { route, since, is_published, cause }| DeferredReport {
        completions: deferred as u64,
        since: at(since),
        first: route,
        is_published,
        cause: cut(&cause),
        held_by: None,
    });
    let attempts = health.recent_attempts();
    let attempts = attempts.map(|RecentAttempts { succeeded, failed, failing_since, cause }| {
        AttemptsReport { succeeded, failed, failing_since: failing_since.map(&at), cause: cut(&cause) }
    });
    let (worker, last_pass_at) = (health.worker().to_owned(), at(last_pass));
    WorkerReport { worker, last_pass_at, blocked, position, deferred, attempts }
}

fn cut(cause: &str) -> String {
    cause.chars().take(MAX_CAUSE_CHARS).collect()
}

/// The passes of [`Reporter::run`].
struct Reports<'a, S, C> {
    reporter: &'a Reporter<S, C>,
    started_at: Timestamp,
    /// The time at which the last report was written, unless the last attempt failed.
    reported_at: Option<Instant>,
    cleaned_up_at: Option<Instant>,
    /// The activity of the replica that the store has not confirmed.
    unreported: (Activity, Parts),
    /// True if the next report is the last one.
    is_stopped: bool,
    /// The conditions of the workers in the last report.
    reported: Vec<(bool, bool)>,
}

impl<S: ReplicaStore, C: Clock> Passes for &mut Reports<'_, S, C> {
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        if let Some(reported_at) = self.reported_at.take() {
            // A report follows a change, or the end of the interval.
            let wait = timeout(REPORT_INTERVAL, self.changed(reported_at));
            if stop.run_until_cancelled(wait).await.is_none() {
                return Ok(Pass::Done);
            }
        }
        let write = async {
            self.report().await?;
            self.clean_up().await
        };
        // A stop does not wait for a store that does not respond.
        let Some(written) = stop.run_until_cancelled(write).await else { return Ok(Pass::Done) };
        written?;
        self.reported_at = Some(Instant::now());
        Ok(Pass::Continue)
    }
}

impl<S: ReplicaStore, C: Clock> Reports<'_, S, C> {
    /// Waits for a change that lasts. A pass of retention, which leads for a moment, does not count.
    async fn changed(&self, reported_at: Instant) {
        let workers = &self.reporter.workers;
        loop {
            workers.0.changed.notified().await;
            tokio::time::sleep(SETTLE_TIME).await;
            tokio::time::sleep_until(reported_at + MIN_REPORT_INTERVAL).await;
            if workers.conditions() != self.reported {
                return;
            }
        }
    }

    async fn report(&mut self) -> Result<(), StoreError> {
        let Reporter { store, replica, workers, .. } = self.reporter;
        self.reported = workers.conditions();
        store.save_replica(&self.reporter.report(self.started_at, self.is_stopped)).await?;
        let (activity, parts) = workers.0.activity.take();
        self.unreported.0 += activity;
        for (part, activity) in parts {
            *self.unreported.1.entry(part).or_default() += activity;
        }
        if self.unreported.0 != Activity::default() {
            store.add_activity(replica, &self.unreported.0).await?;
            self.unreported.0 = Activity::default();
        }
        if !self.unreported.1.is_empty() {
            store.add_part_activity(replica, &self.unreported.1).await?;
            self.unreported.1.clear();
        }
        Ok(())
    }

    async fn clean_up(&mut self) -> Result<(), StoreError> {
        if self.cleaned_up_at.is_some_and(|at| at.elapsed() < CLEANUP_INTERVAL) {
            return Ok(());
        }
        let store = &self.reporter.store;
        store.delete_replicas(REPLICA_RETENTION, MAX_DELETED_ROWS).await?;
        store.delete_activity(ACTIVITY_RETENTION, MAX_DELETED_ROWS).await?;
        self.cleaned_up_at = Some(Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
