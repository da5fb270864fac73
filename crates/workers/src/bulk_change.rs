//! Changes all routes that an operator selects, however many, beside the traffic (ADR 0037, ADR 0059).
//!
//! The list is read once, page by page, and each page is changed in chunks. Dead letters are read from the
//! newest to the oldest. A route that becomes one during the change is newer than the position reached. So a
//! route that fails again at once is not replayed again, and the change ends. Live routes are read in the
//! order in which they are due, and a cancelled one is not listed again. Rows that another transaction has
//! locked, and routes that a publisher has leased, are tried again at the end, a bounded number of times.
//!
//! Replayed routes are due at once. To avoid a backlog in which other routes wait, a chunk is replayed only
//! while fewer than [`MAX_DUE_ROUTES`] are due. After each chunk there is a pause as long as the chunk took,
//! up to [`MAX_CHUNK_PAUSE`].
//!
//! Crash recovery: each chunk is a transaction with its row in `operator_actions`. Repeating the same change
//! continues with what is left.

use std::time::Duration;

use ambient::Clock;
use domain::operations::{CHUNK_ROUTES, OperatorAction, RouteChange, Selection, Target};
use domain::ports::{Operations, RouteStore, StoreError, apply_to_chunk};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The most routes in one page of the list.
const PAGE_TARGETS: usize = 1_000;
/// The number of due routes from which on no chunk of them is added.
pub(crate) const MAX_DUE_ROUTES: usize = 1_000;
/// The interval at which due routes are counted again.
const DUE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time that a change waits for publishers before it ends.
const MAX_DUE_WAIT: Duration = Duration::from_secs(300);
/// The longest pause after a chunk.
const MAX_CHUNK_PAUSE: Duration = Duration::from_secs(1);
/// The number of times that locked routes are tried again, and the pause before each attempt.
const LOCK_ATTEMPTS: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// The most locked routes that are kept to be tried again. Others are only reported as locked.
const MAX_LOCKED: usize = 10_000;

/// A change of routes.
#[derive(Debug)]
pub struct BulkChange<O, S, C> {
    /// Selects and changes the routes.
    pub operations: O,
    /// Counts the due routes.
    pub store: S,
    /// The clock. Routes that become pending again are due at its time.
    pub clock: C,
    /// The operation on each route.
    pub change: RouteChange,
    /// The operator and the selection of routes.
    pub action: OperatorAction,
    /// True if a change that makes routes due waits while many routes are due.
    pub wait_for_publishers: bool,
}

/// The progress or the result of a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BulkReport {
    /// Routes that were changed.
    pub changed: u64,
    /// Routes that another transaction changed or deleted since they were selected.
    pub conflicts: u64,
    /// Routes that were to be cancelled and are published.
    pub published: u64,
    /// Routes that another transaction has locked or a publisher has leased.
    pub locked: u64,
    /// Ids that match no route.
    pub unknown: Vec<String>,
    /// Named routes that are not (any more) in the state that the change needs, or are discarded already.
    pub unchanged: u64,
    /// True while the change waits for publishers.
    pub waiting: bool,
}

/// The reason why a change ended.
#[derive(Debug)]
pub enum BulkEnd {
    /// Every selected route was tried.
    Finished,
    /// The change was stopped between two chunks.
    Stopped,
    /// The backlog of due routes stayed at its limit until the wait timed out.
    Backlog,
    /// A call failed. If a commit got no reply, its chunk may or may not have been changed.
    Failed(StoreError),
}

/// The result of a step. `Err` ends the change early.
type Early = Result<(), BulkEnd>;

impl<O: Operations, S: RouteStore, C: Clock> BulkChange<O, S, C> {
    /// Runs the change until `stop`, which does not interrupt a chunk. Calls `progress` with the report so
    /// far.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        progress: impl FnMut(&BulkReport) + Send,
    ) -> (BulkReport, BulkEnd) {
        let mut run =
            BulkRun { bulk: self, stop, progress, report: BulkReport::default(), locked: Vec::new() };
        let selected = match &self.action.selection {
            Selection::DeadLetters(_) | Selection::Routes(_) => run.change_listed().await,
            selection @ Selection::Ids(_) => run.change_named(selection).await,
        };
        let end = match selected {
            Ok(()) => run.change_locked().await,
            Err(end) => Err(end),
        };
        run.report.waiting = false;
        (run.report, end.err().unwrap_or(BulkEnd::Finished))
    }
}

/// The first attempt with targets, or another one because they were locked. In the second case the report has
/// counted them as locked.
#[derive(Clone, Copy)]
enum BulkAttempt {
    First,
    Again,
}

struct BulkRun<'a, O, S, C, P> {
    bulk: &'a BulkChange<O, S, C>,
    stop: &'a CancellationToken,
    progress: P,
    report: BulkReport,
    /// Targets to be tried again.
    locked: Vec<Target>,
}

impl<O: Operations, S: RouteStore, C: Clock, P: FnMut(&BulkReport) + Send> BulkRun<'_, O, S, C, P> {
    async fn change_listed(&mut self) -> Early {
        let BulkChange { operations, change, action, .. } = self.bulk;
        let mut after = None;
        loop {
            if self.stop.is_cancelled() {
                return Err(BulkEnd::Stopped);
            }
            let page = operations.list_targets(change, &action.selection, after.as_ref(), PAGE_TARGETS).await;
            let page = page.map_err(BulkEnd::Failed)?;
            self.change(&page.items, BulkAttempt::First).await?;
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn change_named(&mut self, selection: &Selection) -> Early {
        let targets = self.bulk.operations.select_routes(&self.bulk.change, selection).await;
        let targets = targets.map_err(BulkEnd::Failed)?;
        (self.report.unknown, self.report.unchanged) = (targets.unknown, targets.unchanged);
        self.change(&targets.targets, BulkAttempt::First).await
    }

    /// Tries locked targets again, as long as there are any.
    async fn change_locked(&mut self) -> Early {
        for _ in 0..LOCK_ATTEMPTS {
            if self.locked.is_empty() {
                return Ok(());
            }
            self.pause(LOCK_PAUSE).await?;
            let locked = std::mem::take(&mut self.locked);
            self.change(&locked, BulkAttempt::Again).await?;
        }
        Ok(())
    }

    async fn change(&mut self, targets: &[Target], attempt: BulkAttempt) -> Early {
        let BulkChange { operations, clock, change, action, .. } = self.bulk;
        for chunk in targets.chunks(CHUNK_ROUTES) {
            self.wait_for_publishers().await?;
            let begun = Instant::now();
            let done = apply_to_chunk(operations, change, chunk, action, clock.now()).await;
            let done = done.map_err(BulkEnd::Failed)?;
            if matches!(attempt, BulkAttempt::Again) {
                self.report.locked -= chunk.len() as u64;
            }
            self.report.changed += done.changed;
            self.report.conflicts += done.conflicts;
            self.report.published += done.published;
            self.report.locked += done.locked.len() as u64;
            let room = MAX_LOCKED - self.locked.len();
            self.locked.extend(done.locked.into_iter().take(room));
            (self.progress)(&self.report);
            self.pause(begun.elapsed().min(MAX_CHUNK_PAUSE)).await?;
        }
        Ok(())
    }

    /// Waits before a chunk until few routes are due, if the chunk adds due routes.
    async fn wait_for_publishers(&mut self) -> Early {
        if self.bulk.wait_for_publishers && self.bulk.change.adds_due_routes() {
            self.wait_until_few_are_due().await?;
        }
        if self.stop.is_cancelled() { Err(BulkEnd::Stopped) } else { Ok(()) }
    }

    async fn wait_until_few_are_due(&mut self) -> Early {
        let BulkChange { store, clock, .. } = self.bulk;
        let begun = Instant::now();
        loop {
            let due = store.count_due_routes(clock.now(), MAX_DUE_ROUTES).await.map_err(BulkEnd::Failed)?;
            self.report.waiting = due >= MAX_DUE_ROUTES as u64;
            if !self.report.waiting {
                return Ok(());
            }
            if begun.elapsed() >= MAX_DUE_WAIT {
                return Err(BulkEnd::Backlog);
            }
            (self.progress)(&self.report);
            self.pause(DUE_POLL_INTERVAL).await?;
        }
    }

    async fn pause(&self, time: Duration) -> Early {
        self.stop.run_until_cancelled(sleep(time)).await.ok_or(BulkEnd::Stopped)
    }
}

#[cfg(test)]
mod tests;
