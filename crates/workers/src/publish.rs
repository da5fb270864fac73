//! Live routes → leases → appends with markers → completions in SQL, for one channel.
//!
//! Routes that this replica has just accepted need no lease: they are appended under a permit, which expires
//! before any other replica sees them as due ([`permit`]).
//!
//! Crash recovery, step by step: a lease or a permit expires by itself. An append leaves a marker, and the
//! publisher that tries the route next finds the marker and completes the route without appending. After
//! the completion, nothing is left to do. A call whose reply was lost is repeated under the same token and
//! returns the result of the first call. While a completion is not committed, its marker is renewed
//! ([`markers`]); a completion that cannot be committed because of its own row is deferred ([`deferred`]).
//!
//! A route that an operator has sent again (ADR 0059) names the entry that its next one replaces, and goes
//! the same way: a marker of exactly that entry gives way to the lease. What is left if the process dies
//! after a step:
//!
//! | step | after a crash |
//! |---|---|
//! | the operator's transaction | the route is due, with the marker of the replaced entry or none |
//! | lease | the lease, until it expires; the replaced marker is gone |
//! | append | the marker of the new entry, which completes the route |
//! | completion | nothing to do |
//!
//! A publisher that has not committed the replaced entry renews its marker, and may write it over the lease.
//! The append then finds it, appends nothing, and the route is leased again.
//!
//! Work has two sources: batches of routes that this replica has just accepted ([`crate::dispatch`]), and the
//! scan for due routes ([`scan`]): retries, routes that were not dispatched, and routes of a crashed replica.
//! One replica at a time reads a page of due routes of a channel, under the scan lock.

mod chunk;
mod complete;
mod confirm;
mod deferred;
mod holds;
mod log;
mod markers;
mod next_due;
mod permit;
mod scan;
mod state;
mod tally;
mod unreadable;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::backoff::BackoffBounds;
use domain::ports::{LeaseStore, RouteStore, StoreError, error_chain};
use domain::route::Channel;
use futures_util::future::join_all;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::chunk::ChunkResult;
pub use self::holds::CurrentHolds;
use self::log::RouteLog;
use self::markers::Markers;
pub use self::next_due::NextDue;
use self::scan::{PageResult, Scan};
use self::state::PublisherState;
use self::unreadable::UnreadableRows;
use crate::batch_limit::BatchLimit;
use crate::dispatch::{BATCH_ROUTES, Receiver, RouteBatch};
use crate::health::{Health, Stopped};
use crate::metrics::Metrics;
use crate::ports::Ports;
use crate::traces::Traces;

/// The TTL of the scan lock. A replica releases the lock when it has published its page; after a crash, the
/// others wait for the TTL.
const SCAN_LOCK_TTL: Duration = Duration::from_secs(1);
/// The most chunks of a channel that are published at the same time, so that Redis appends one while
/// PostgreSQL completes the other.
const MAX_CONCURRENT_CHUNKS: usize = 2;
/// The number of chunks of newly accepted routes that are published before each page of a backlog.
const DISPATCHED_CHUNKS_PER_PAGE: usize = 8;
/// The longest time for which publishing continues after the stop. The next publisher finds the rest.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which a channel whose list of deferred completions is full reports that.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The cause that is reported while the list of deferred completions of a channel is full.
const DEFERRED_FULL: &str = "too many completions wait for rows that are locked or refused: the channel takes no new work until some are committed";

/// The configuration of publishing.
#[derive(Clone, Copy, Debug)]
pub struct PublishSettings {
    /// The most routes in one append.
    pub batch_size: usize,
    /// The pause before the scan lists again while routes are due that it could not lease.
    pub poll_interval: Duration,
    /// The TTL of a lease.
    pub lease_ttl: Duration,
    /// The TTL of a marker.
    pub dedupe_ttl: Duration,
    /// The pauses between attempts.
    pub backoff: BackoffBounds,
}

/// The worker that publishes the routes of one channel.
pub struct RoutePublisher<P: Ports> {
    /// The channel.
    pub channel: Channel,
    /// The store of routes.
    pub routes: P::Store,
    /// The time at which routes are due next, shared by the publishers of a replica.
    pub next_due: Arc<NextDue>,
    /// The holds in force, shared by the publishers of a replica.
    pub holds: Arc<CurrentHolds>,
    /// The store of leases and markers.
    pub leases: P::Leases,
    /// The outbound streams.
    pub outbound: P::Outbound,
    /// The clock.
    pub clock: P::Clock,
    /// The jitter of retries.
    pub jitter: P::Jitter,
    /// The source of lease tokens.
    pub tokens: P::Tokens,
    /// The configuration.
    pub settings: PublishSettings,
    /// The instruments.
    pub metrics: Metrics,
    /// The spans of batches.
    pub traces: Traces,
    /// The health of the worker.
    pub health: Health,
}

impl<P: Ports> fmt::Debug for RoutePublisher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutePublisher").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// The state that only the loop of passes uses, and no chunk.
struct Loop {
    scan: Scan,
    unreadable: UnreadableRows,
    /// The number of due routes in one page.
    page_limit: BatchLimit,
    /// The chunks of dispatched routes since the last page of due ones.
    dispatched: usize,
    /// The number of the worker's recoveries at the last pass.
    recoveries: u64,
    /// True if no more completions can be deferred. This has been logged.
    full: bool,
}

impl<P: Ports> RoutePublisher<P> {
    /// Runs until `stop`. Routes that were dispatched before are still published, if the stores are
    /// available, within five seconds: intake stops first.
    pub async fn run(self, receiver: Receiver, stop: CancellationToken) {
        let Receiver { batches, backpressure } = receiver;
        let shared = PublisherState {
            health: self.health.clone().with_backpressure(backpressure),
            stop: stop.clone(),
            markers: Markers::default(),
            deferred: Mutex::default(),
            deferred_added: Notify::new(),
            retried: Notify::new(),
            scan_now: AtomicBool::new(false),
            batch_limit: Mutex::new(BatchLimit::new(self.settings.batch_size)),
            log: Mutex::new(RouteLog::new(self.channel)),
            server: Mutex::default(),
            permit: tokio::sync::Mutex::default(),
        };
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            () = self.work(batches, &shared) => {}
            never = shared.markers.keep_alive(&self.leases, self.settings.dedupe_ttl) => match never {},
            never = self.retry_deferred(&shared) => match never {},
            () = too_late => {
                let channel = self.channel.as_str();
                tracing::warn!(channel, "stopped before all dispatched routes were published; the next publisher continues");
            }
        }
        shared.log().report_suppressed(true);
    }

    async fn work(&self, mut batches: mpsc::Receiver<RouteBatch>, shared: &PublisherState) {
        let now = Instant::now();
        let mut state = Loop {
            scan: Scan::new(now, self.settings.lease_ttl, self.settings.poll_interval),
            unreadable: UnreadableRows::new(now),
            page_limit: BatchLimit::new(self.settings.batch_size),
            dispatched: 0,
            recoveries: 0,
            full: false,
        };
        while !shared.stop.is_cancelled() {
            if self.pass(&mut state, &mut batches, shared).await == Err(Stopped) {
                return;
            }
        }
        // No more batches arrive, because intake has stopped.
        while let Ok(batch) = batches.try_recv() {
            if self.publish(batch, shared).await.is_err() {
                return;
            }
        }
    }

    /// Publishes a page of due routes, if it is due and precedes the dispatched batches, and then dispatched
    /// batches. Waits if there are none.
    async fn pass(
        &self,
        state: &mut Loop,
        batches: &mut mpsc::Receiver<RouteBatch>,
        shared: &PublisherState,
    ) -> Result<(), Stopped> {
        shared.log().report_suppressed(false);
        let now = Instant::now();
        let full = shared.deferred().is_full();
        if full {
            shared.health.mark_full(DEFERRED_FULL);
        }
        if std::mem::replace(&mut state.full, full) != full && full {
            tracing::error!(
                channel = self.channel.as_str(),
                deferred = deferred::DEFERRED_MAX,
                "{DEFERRED_FULL}"
            );
        }
        // While the worker waited for a store, routes became due, or leases of a crashed replica expired.
        let recoveries = shared.health.recoveries();
        let has_recovered = std::mem::replace(&mut state.recoveries, recoveries) != recoveries;
        if shared.scan_now.swap(false, Ordering::Relaxed) || has_recovered {
            state.scan.wake_by(now, now);
        }
        // During a backlog, newly accepted routes are published first, but only a bounded number of chunks
        // per page.
        let first = batches.is_empty() || state.dispatched >= DISPATCHED_CHUNKS_PER_PAGE;
        if !full && first && state.scan.next_at() <= now {
            state.dispatched = 0;
            match self.scan_once(state, shared).await? {
                Ok(()) => self.health.mark_progress(),
                Err(error) => shared.pause_after(&error).await?,
            }
        }
        let wake = if full { now + FULL_CHECK_INTERVAL } else { state.scan.next_at() };
        let batch = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ok(()),
            Some(batch) = batches.recv(), if !full => batch,
            () = shared.retried.notified() => return Ok(()),
            () = sleep_until(wake) => return Ok(()),
        };
        let chunks = merge(batch, batches, self.settings.batch_size);
        state.dispatched += chunks.len();
        let reports = join_all(chunks.into_iter().map(|chunk| self.publish(chunk, shared))).await;
        for report in reports {
            self.note_report(state, &report?);
        }
        self.health.mark_progress();
        Ok(())
    }

    /// Schedules a scan at the time of the first retry.
    fn note_report(&self, state: &mut Loop, report: &ChunkResult) {
        if let Some(at) = report.retry_at {
            let now = Instant::now();
            state.scan.wake_by(now, now + at.saturating_since(self.clock.now()));
        }
    }

    /// Publishes one page of due routes, if there are any and no other replica holds the scan lock.
    async fn scan_once(
        &self,
        state: &mut Loop,
        shared: &PublisherState,
    ) -> Result<Result<(), StoreError>, Stopped> {
        if state.scan.is_idle() {
            let since = state.scan.answers_since(Instant::now());
            let due = match self.next_due.of(self.channel, since, &self.routes).await {
                Ok(due) => due,
                Err(error) => return Ok(Err(error)),
            };
            let wait = due.at.map_or(Duration::MAX, |at| at.saturating_since(self.clock.now()));
            if !wait.is_zero() {
                state.scan.nothing_due(Instant::now(), wait, due.asked_at);
                shared.mark_healthy();
                return Ok(Ok(()));
            }
        }
        // Two replicas that read the same page would request the same leases, and one of them would not get
        // them.
        let token = self.token();
        match self.leases.acquire_scan_lock(self.channel, &token, SCAN_LOCK_TTL).await {
            Ok(true) => {}
            Ok(false) => {
                state.scan.locked(Instant::now());
                shared.mark_healthy();
                return Ok(Ok(()));
            }
            Err(error) => return Ok(Err(error)),
        }
        let scanned = self.publish_page(state, shared, self.clock.now()).await;
        if let Err(error) = self.leases.release_scan_lock(self.channel, &token).await {
            tracing::debug!(error = error_chain(&error), "the scan lock was not released; it will expire");
        }
        scanned
    }

    /// Reads one page of due routes and publishes it.
    async fn publish_page(
        &self,
        state: &mut Loop,
        shared: &PublisherState,
        now: Timestamp,
    ) -> Result<Result<(), StoreError>, Stopped> {
        let read_at = Instant::now();
        let request = state.scan.next_page(read_at);
        let limit = state.page_limit.get();
        let listed =
            self.routes.list_due_routes(self.channel, request.order, now, request.after.as_ref(), limit);
        let page = match listed.await {
            Ok(page) => page,
            Err(error) => {
                if matches!(error, StoreError::TimedOut { .. }) {
                    state.page_limit.failed(limit);
                }
                return Ok(Err(error));
            }
        };
        state.page_limit.succeeded(page.routes.len() + page.corrupt.len(), read_at.elapsed());
        shared.mark_healthy();
        for report in state.unreadable.report(&page.corrupt, read_at) {
            tracing::error!(channel = self.channel.as_str(), error = report.problem, routes = ?report.routes,
                "routes cannot be read; they wait until their rows are corrected");
        }
        let mut routes = page.routes;
        {
            let deferred = shared.deferred();
            // MODEL-21
            routes.retain(|route| !deferred.contains(&route.key));
        }
        let found = !routes.is_empty();
        let report = match found {
            true => self.publish(RouteBatch { routes, read_at, due_at: read_at }, shared).await?,
            false => ChunkResult::default(),
        };
        let result = PageResult { next: page.next, found, contended: report.contended };
        if state.scan.page_done(Instant::now(), result) {
            state.unreadable.sweep_done();
        }
        self.note_report(state, &report);
        Ok(Ok(()))
    }
}

/// Merges the batch and the other waiting batches into as few full chunks as may be published concurrently,
/// so that a burst of small batches is published as a few large ones. It does not wait for more.
fn merge(first: RouteBatch, waiting: &mut mpsc::Receiver<RouteBatch>, batch_size: usize) -> Vec<RouteBatch> {
    let mut batches = vec![first];
    while let Some(last) = batches.last_mut() {
        let has_room = last.routes.len() + BATCH_ROUTES <= batch_size;
        if !has_room && batches.len() >= MAX_CONCURRENT_CHUNKS {
            break;
        }
        let Ok(next) = waiting.try_recv() else { break };
        match batches.last_mut() {
            Some(last) if has_room => {
                last.read_at = last.read_at.min(next.read_at);
                last.due_at = last.due_at.min(next.due_at);
                last.routes.extend(next.routes);
            }
            _ => batches.push(next),
        }
    }
    batches
}

#[cfg(test)]
mod tests;
