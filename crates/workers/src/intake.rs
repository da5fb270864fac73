//! Stream entries → outcomes in PostgreSQL → publishers in memory → the cached checkpoint in Redis.
//!
//! One replica leads and reads (ADR 0015). Three parts work during a term: the reader reads entries from
//! Redis, the acceptor gives each entry its outcome, and the checkpoint keeper determines where to resume.
//! While a batch is committed, the next entries are read, if the last read showed that there are more, and
//! the cached checkpoint of the previous batch is moved.
//!
//! Crash recovery: after a read, nothing is left, and the entries are read again. After a commit, the cached
//! checkpoint is older than the durable one, which is authoritative. The user directory's lookups for a
//! waiting entry are requested again.

mod acceptor;
mod checkpoint;
mod reader;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::accept::{Decoded, Fate, Wait};
use domain::checkpoint::StreamCheck;
use domain::policy::Policy;
use domain::ports::{Election, Fence, StoreError};
use futures_util::future::{join, join3};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accept::{MAX_BATCH_COST, MAX_BATCH_ROUTES};
use crate::dispatch::Dispatcher;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{CurrentTerm, Pass, Passes, run_passes, while_leading};
use crate::ports::Ports;
use crate::traces::Traces;

use acceptor::{Acceptor, BatchCheckpoint};
use checkpoint::{CheckpointKeeper, Resumed};
use reader::EntryReader;

/// The cause that is reported when intake has determined where to resume and the checkpoint moves again
/// before an entry is processed.
const MOVED_AGAIN: &str = "the checkpoint or the stream changes with each pass";

/// The configuration of intake.
#[derive(Clone, Debug)]
pub struct IntakeSettings {
    /// The key of the intents stream.
    pub stream: String,
    /// The most entries in one transaction.
    pub batch_size: usize,
    /// The time that a read waits for the first entry.
    pub block: Duration,
    /// The shortest retention of records. An older entry may have had a record.
    pub record_retention: Duration,
    /// The retention of processed entries in the stream; `None` leaves trimming to others.
    pub stream_retention: Option<Duration>,
}

/// The worker that reads the intents stream while this replica leads.
pub struct Intake<P: Ports> {
    /// The election of the replica that reads.
    pub election: P::Election,
    /// The stream.
    pub intents: P::Intents,
    /// The store that commits acceptance.
    pub store: P::Store,
    /// The cached checkpoint.
    pub cache: P::Cache,
    /// The user directory.
    pub directory: P::Directory,
    /// The clock.
    pub clock: P::Clock,
    /// The rules of acceptance.
    pub policy: Arc<Policy>,
    /// The dispatcher to the publishers of this replica.
    pub dispatcher: Dispatcher,
    /// The configuration.
    pub settings: IntakeSettings,
    /// The instruments.
    pub metrics: Metrics,
    /// The spans of intents.
    pub traces: Traces,
    /// The health of the worker.
    pub health: Health,
}

/// An entry that was read and has no outcome yet.
#[derive(Debug)]
struct UnprocessedEntry {
    decoded: Decoded,
    read_at: Instant,
}

impl<P: Ports> fmt::Debug for Intake<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<P: Ports> Intake<P> {
    /// Runs until `stop`: campaigns, leads, and steps down. A transaction that has begun is finished.
    pub async fn run(self, stop: CancellationToken) {
        // Recorded from the start, so that the series exists, with the sum 0, while no replica leads.
        self.metrics.leads(false);
        run_passes(&self.health, &stop, Duration::ZERO, Campaigns(&self)).await;
    }

    /// Reads and processes until the term is over, or until another term has superseded it. The fence keeps
    /// every earlier leader from writing.
    async fn lead(&self, term: CurrentTerm) {
        let CurrentTerm { fence, over } = term;
        self.metrics.leads(true);
        let mut work = Work::new(self, fence);
        run_passes(&self.health, &over, Duration::ZERO, &mut work).await;
        work.finish().await;
        self.metrics.leads(false);
    }

    /// Raises the fences of future terms above `superseding`, a fence of another term that is not below the
    /// fence of this term.
    async fn raise_fence(&self, superseding: Fence, over: &CancellationToken) -> Result<(), StoreError> {
        tracing::warn!(
            stream = self.settings.stream,
            fence = superseding,
            "another term has a fence that is not lower; stepping down"
        );
        over.run_until_cancelled(self.election.raise_fence(superseding)).await.unwrap_or(Ok(()))
    }
}

/// The passes of [`Intake::run`]: campaigns, and the terms that follow from them.
struct Campaigns<'a, P: Ports>(&'a Intake<P>);

impl<P: Ports> Passes for Campaigns<'_, P> {
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let Self(intake) = self;
        let led = while_leading(&intake.election, &intake.health, stop, |term| intake.lead(term)).await?;
        if led.is_none() {
            intake.health.mark_healthy();
            stop.run_until_cancelled(intake.election.leader_change()).await;
        }
        Ok(Pass::Undecided)
    }
}

/// The three parts of intake, during a term.
struct Work<'a, P: Ports> {
    intake: &'a Intake<P>,
    reader: EntryReader<'a, P>,
    acceptor: Acceptor<'a, P>,
    keeper: CheckpointKeeper<'a, P>,
    /// The entries that were read after the acceptor's batch.
    queue: VecDeque<UnprocessedEntry>,
    /// True if the checkpoint moved and nothing has been processed since.
    moved: bool,
}

impl<P: Ports> Passes for &mut Work<'_, P> {
    async fn run_once(&mut self, over: &CancellationToken) -> Result<Pass, StoreError> {
        let pass = self.step(over).await;
        match &pass {
            Ok(Pass::Continue) => self.moved = false,
            Ok(_) => {}
            Err(_) => {
                // The stream may have changed while it was unreachable: determine again where to resume.
                self.forget();
                self.reader.failed();
            }
        }
        pass
    }
}

impl<'a, P: Ports> Work<'a, P> {
    fn new(intake: &'a Intake<P>, fence: Fence) -> Self {
        Self {
            intake,
            reader: EntryReader::new(intake),
            acceptor: Acceptor::new(intake),
            keeper: CheckpointKeeper::new(intake, fence),
            queue: VecDeque::new(),
            moved: false,
        }
    }

    /// Forgets the position, and the entries that were read after it.
    fn forget(&mut self) {
        self.keeper.forget();
        self.acceptor.forget();
        self.queue.clear();
    }

    /// Ends the term: logs the last lines and caches the last checkpoint.
    async fn finish(&mut self) {
        self.acceptor.report_suppressed(true);
        self.keeper.move_cache().await;
    }

    /// Determines again where to resume, because the checkpoint is not where this term left it: another
    /// replica moved it, PostgreSQL was restored, or the stream was recreated. If that happens a second time
    /// with nothing processed in between, it is a failure.
    fn resume_again(&mut self) -> Pass {
        self.forget();
        match std::mem::replace(&mut self.moved, true) {
            false => Pass::Undecided,
            true => Pass::Blocked(MOVED_AGAIN.to_owned()),
        }
    }

    /// Determines where to resume, or reads and processes one batch.
    async fn step(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        self.acceptor.report_suppressed(false);
        let Some(processed) = self.keeper.processed() else { return self.resume(stop).await };
        if self.acceptor.is_idle() && self.queue.is_empty() {
            let block = self.intake.settings.block;
            let reading = stop.run_until_cancelled(self.reader.read(processed, block));
            let (read, ()) = join(reading, self.keeper.maintain()).await;
            let Some(read) = read else { return Ok(Pass::Continue) };
            self.queue.extend(read?);
            if self.queue.is_empty() {
                return self.check_idle().await;
            }
        }
        self.process(stop).await
    }

    async fn resume(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let Some(resumed) = stop.run_until_cancelled(self.keeper.resume(&self.reader)).await else {
            return Ok(Pass::Continue);
        };
        match resumed? {
            Resumed::After(entry_id) => {
                self.intake.health.set_position(entry_id);
                // The failure is not over yet: only the next step shows whether this helped.
                Box::pin(self.step(stop)).await
            }
            Resumed::Absent(cause) => Ok(Pass::Blocked(cause)),
            Resumed::Superseded(fence) => self.intake.raise_fence(fence, stop).await.map(|()| Pass::Done),
            Resumed::Moved => Ok(self.resume_again()),
        }
    }

    /// Processes the unfinished batch or a new one, and reads ahead meanwhile.
    async fn process(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let mut read_after = None;
        if self.acceptor.is_idle() {
            let batch = self.cut_batch();
            let cost: usize = batch.iter().map(|entry| entry.decoded.cost).sum();
            // While a large entry is processed, nothing is read ahead: two of them would take twice the
            // memory.
            if self.queue.is_empty() && cost <= MAX_BATCH_COST {
                read_after = batch.back().map(|last| last.decoded.id);
            }
            self.acceptor.begin(batch);
        }
        let target = BatchCheckpoint { fence: self.keeper.fence(), expected: self.keeper.durable() };
        let (fate, read, ()) = join3(
            self.acceptor.process(target, stop),
            self.reader.read_ahead(read_after),
            self.keeper.maintain(),
        )
        .await;
        if let Some(committed) = self.acceptor.take_committed() {
            self.keeper.committed(committed);
        }
        let fate = fate?;
        self.queue.extend(read?);
        Ok(match (fate, self.acceptor.first()) {
            (Fate::Waiting(cause), Some(entry_id)) => Pass::Waiting(Wait { entry_id, cause }),
            (Fate::CheckpointMoved | Fate::KeyTaken | Fate::WriteConflict, _) => {
                tracing::warn!(
                    stream = self.intake.settings.stream,
                    "the checkpoint in PostgreSQL is not where this replica left it; determining where to resume"
                );
                self.resume_again()
            }
            (Fate::Committed | Fate::Divided | Fate::Waiting(_), _) => Pass::Continue,
        })
    }

    /// Takes as many of the read entries as fit into one transaction, at least one.
    fn cut_batch(&mut self) -> VecDeque<UnprocessedEntry> {
        let (mut cost, mut routes) = (0, 0);
        let fits = self.queue.iter().take(self.intake.settings.batch_size).take_while(|entry| {
            cost += entry.decoded.cost;
            routes += entry.decoded.routes();
            cost <= MAX_BATCH_COST && routes <= MAX_BATCH_ROUTES
        });
        let length = fits.count().max(1);
        let rest = self.queue.split_off(length.min(self.queue.len()));
        std::mem::replace(&mut self.queue, rest)
    }

    /// Handles a read that returned nothing: checks whether the stream was recreated, cut short or trimmed,
    /// and whether the connection still leads to the primary.
    async fn check_idle(&mut self) -> Result<Pass, StoreError> {
        let Some(idle) = self.keeper.check_idle().await? else { return Ok(self.resume_again()) };
        match idle.stream {
            StreamCheck::EndsBefore => return Ok(self.resume_again()),
            StreamCheck::Absent => return Ok(Pass::Blocked(checkpoint::absent(idle.processed))),
            StreamCheck::Continues | StreamCheck::ContinuesIfPresent | StreamCheck::Gap(_) => {}
        }
        let Some(entry_id) = self.reader.missed_after(idle.processed, idle.has_more).await? else {
            return Ok(Pass::Continue);
        };
        // The next connection may lead to another server: determine again where to resume.
        self.forget();
        Ok(Pass::Blocked(format!(
            "reads return nothing although the stream has entry {entry_id}: the connection is replaced"
        )))
    }
}

#[cfg(test)]
mod tests;
