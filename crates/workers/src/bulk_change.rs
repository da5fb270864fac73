//! A change of all dead letters that an operator selects, however many, beside the traffic (ADR 0037).
//!
//! The list is read once, page by page from its newest end to its oldest, and each page is changed in chunks.
//! A route that becomes a dead letter meanwhile is before the place that was reached, so that one which fails
//! again at once is not replayed again, and the change comes to an end. What another transaction has locked
//! is tried again at the end, a bounded number of times, with the version that it was selected with.
//!
//! Replayed routes are due at once. So that they do not become a backlog in which others wait, a chunk is
//! replayed only while fewer than [`MAX_DUE_ROUTES`] are due. After each chunk there is a pause as long as
//! the chunk took.
//!
//! Crash recovery: each chunk is a transaction with its row in `operator_actions`. The same change, made
//! again, continues with what is left.

use std::time::Duration;

use ambient::Clock;
use domain::operations::{CHUNK_ROUTES, DeadLetterChange, OperatorAction, Selection, Target};
use domain::ports::{Operations, RouteStore, StoreError, apply_to_chunk};
use domain::query::DeadLetterFilter;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How many dead letters are listed together.
const PAGE_TARGETS: usize = 1_000;
/// How many due routes there may be before a chunk of them is added.
const MAX_DUE_ROUTES: usize = 1_000;
/// How soon due routes are counted again.
const DUE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a change waits for publishers before it ends.
const MAX_DUE_WAIT: Duration = Duration::from_secs(300);
/// The longest pause after a chunk.
const MAX_CHUNK_PAUSE: Duration = Duration::from_secs(1);
/// How often locked dead letters are tried again, and how long before each attempt.
const LOCK_ATTEMPTS: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// How many locked dead letters are remembered; what is beyond is reported as locked.
const MAX_LOCKED: usize = 10_000;

/// A change of dead letters.
#[derive(Debug)]
pub struct BulkChange<S, C> {
    /// The tables.
    pub store: S,
    /// The time, which routes are due at.
    pub clock: C,
    /// What is done.
    pub change: DeadLetterChange,
    /// Who does it to which dead letters.
    pub action: OperatorAction,
    /// Whether a replay waits while many routes are due.
    pub wait_for_publishers: bool,
}

/// What was done so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BulkReport {
    /// Routes that were changed.
    pub changed: u64,
    /// Those that were changed or deleted by someone else since they were selected.
    pub conflicts: u64,
    /// Those that another transaction has locked.
    pub locked: u64,
    /// Ids that name no route.
    pub unknown: Vec<String>,
    /// Named routes that are no dead letters (any more), or are discarded already.
    pub unchanged: u64,
    /// Whether it waits for publishers now.
    pub waiting: bool,
}

/// Why a change ended.
#[derive(Debug)]
pub enum BulkEnd {
    /// All that was selected was tried.
    Finished,
    /// It was stopped between two chunks.
    Stopped,
    /// As many routes as may be due were due all the time that it waits for publishers.
    Backlog,
    /// A call failed. Of a chunk whose commit was not answered it is unknown whether it was changed.
    Failed(StoreError),
}

/// What ends a change before its time.
type Early = Result<(), BulkEnd>;

impl<S: Operations + RouteStore, C: Clock> BulkChange<S, C> {
    /// Makes the change until `stop`, which does not interrupt a chunk. `progress` is told what was done.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        progress: impl FnMut(&BulkReport) + Send,
    ) -> (BulkReport, BulkEnd) {
        let mut run = Run { bulk: self, stop, progress, report: BulkReport::default(), locked: Vec::new() };
        let selected = match &self.action.selection {
            Selection::Filter(filter) => run.change_listed(filter).await,
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

/// Whether targets are changed for the first time, or again because they were locked: then the report has
/// counted them as locked.
#[derive(Clone, Copy)]
enum Attempt {
    First,
    Again,
}

struct Run<'a, S, C, P> {
    bulk: &'a BulkChange<S, C>,
    stop: &'a CancellationToken,
    progress: P,
    report: BulkReport,
    /// To be tried again.
    locked: Vec<Target>,
}

impl<S: Operations + RouteStore, C: Clock, P: FnMut(&BulkReport) + Send> Run<'_, S, C, P> {
    async fn change_listed(&mut self, filter: &DeadLetterFilter) -> Early {
        let mut after = None;
        loop {
            if self.stop.is_cancelled() {
                return Err(BulkEnd::Stopped);
            }
            let page = self.bulk.store.list_targets(filter, after.as_ref(), PAGE_TARGETS).await;
            let page = page.map_err(BulkEnd::Failed)?;
            self.change(&page.items, Attempt::First).await?;
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn change_named(&mut self, selection: &Selection) -> Early {
        let targets = self.bulk.store.select_dead_letters(&self.bulk.change, selection).await;
        let targets = targets.map_err(BulkEnd::Failed)?;
        (self.report.unknown, self.report.unchanged) = (targets.unknown, targets.unchanged);
        self.change(&targets.targets, Attempt::First).await
    }

    /// Those that were locked, as long as any is.
    async fn change_locked(&mut self) -> Early {
        for _ in 0..LOCK_ATTEMPTS {
            if self.locked.is_empty() {
                return Ok(());
            }
            self.pause(LOCK_PAUSE).await?;
            let locked = std::mem::take(&mut self.locked);
            self.change(&locked, Attempt::Again).await?;
        }
        Ok(())
    }

    async fn change(&mut self, targets: &[Target], attempt: Attempt) -> Early {
        let BulkChange { store, clock, change, action, .. } = self.bulk;
        for chunk in targets.chunks(CHUNK_ROUTES) {
            self.wait_for_publishers().await?;
            let begun = Instant::now();
            let done = apply_to_chunk(store, change, chunk, action, clock.now()).await;
            let done = done.map_err(BulkEnd::Failed)?;
            if matches!(attempt, Attempt::Again) {
                self.report.locked -= chunk.len() as u64;
            }
            self.report.changed += done.changed;
            self.report.conflicts += done.conflicts;
            self.report.locked += done.locked.len() as u64;
            let room = MAX_LOCKED - self.locked.len();
            self.locked.extend(done.locked.into_iter().take(room));
            (self.progress)(&self.report);
            self.pause(begun.elapsed().min(MAX_CHUNK_PAUSE)).await?;
        }
        Ok(())
    }

    /// Before a chunk: waits until few routes are due, if it adds some.
    async fn wait_for_publishers(&mut self) -> Early {
        if self.bulk.wait_for_publishers && matches!(self.bulk.change, DeadLetterChange::Replay(_)) {
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
