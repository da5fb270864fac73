//! The acceptor gives every entry of a batch its outcome, in stream order.
//!
//! A batch is committed from left to right, in as few transactions as PostgreSQL allows, and stays small
//! until statements are fast again. It is kept until each of its entries has an outcome, and so are the
//! directory's lookups of its users. They were requested after its entries were read, so they are never older
//! than the entries.

mod entries;
mod report;

use std::collections::{HashMap, VecDeque};

use ambient::{Clock, Timestamp};
use domain::accept::{Fate, FirstUndecided};
use domain::entry::EntryId;
use domain::malformed_intent::FailureCode;
use domain::ports::{Fence, Lookup, StoreError};
use tokio_util::sync::CancellationToken;

use super::{Intake, UnprocessedEntry};
use crate::accept::accept;
use crate::batch_limit::BatchLimit;
use crate::log_limiter::LogLimiter;
use crate::metrics::STREAM;
use crate::ports::Ports;
use crate::traces::IntentSpan;

use entries::Entries;

/// Processes one batch at a time.
pub(super) struct Acceptor<'a, P: Ports> {
    intake: &'a Intake<P>,
    /// The entries of the batch that have no outcome yet.
    batch: VecDeque<UnprocessedEntry>,
    /// The lookups of users of the batch, at most as many as the batch has routes.
    lookups: HashMap<String, Lookup>,
    /// True if the known keys of the next batch are looked up before it is decided.
    expects_known: bool,
    /// The current limit of entries in one transaction.
    limit: BatchLimit,
    /// The last entry whose outcome is committed, until [`Self::take_committed`].
    committed: Option<EntryId>,
    log: LogLimiter<FailureCode>,
}

/// The fence and the checkpoint that a batch is written with.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchCheckpoint {
    /// The fence of this term.
    pub(super) fence: Fence,
    /// The durable checkpoint that is expected.
    pub(super) expected: Option<EntryId>,
}

impl<'a, P: Ports> Acceptor<'a, P> {
    pub(super) fn new(intake: &'a Intake<P>) -> Self {
        Self {
            intake,
            batch: VecDeque::new(),
            lookups: HashMap::new(),
            expects_known: true,
            limit: BatchLimit::new(intake.settings.batch_size),
            committed: None,
            log: LogLimiter::new(),
        }
    }

    /// True if there is no unfinished batch.
    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_empty()
    }

    /// The first entry without an outcome.
    pub(super) fn first(&self) -> Option<EntryId> {
        self.batch.front().map(|entry| entry.decoded.id)
    }

    /// Starts the next batch.
    pub(super) fn begin(&mut self, batch: VecDeque<UnprocessedEntry>) {
        self.batch = batch;
        self.lookups.clear();
    }

    /// Drops the batch. Its entries are read again.
    pub(super) fn forget(&mut self) {
        self.begin(VecDeque::new());
        self.expects_known = true;
    }

    /// Returns the last entry whose outcome was committed since the last call, even if processing failed
    /// after it.
    pub(super) fn take_committed(&mut self) -> Option<EntryId> {
        self.committed.take()
    }

    /// Gives the entries of the batch their outcomes, as far as possible now. Returns [`Fate::Committed`] if
    /// the batch is done or the term is over, and otherwise the fate of the first entry without an outcome.
    pub(super) async fn process(
        &mut self,
        target: BatchCheckpoint,
        stop: &CancellationToken,
    ) -> Result<Fate, StoreError> {
        // If the term ends here, nothing is lost, because nothing is written.
        while !self.batch.is_empty() && !stop.is_cancelled() {
            let expected = self.committed.or(target.expected);
            let size = self.limit.get().min(self.batch.len());
            let entries = self.batch.iter().take(size).map(|entry| &entry.decoded);
            let mut entries = Entries::new(
                self.intake,
                entries.collect(),
                BatchCheckpoint { expected, ..target },
                &mut self.lookups,
                stop,
            );
            let fate = accept(&self.intake.store, &mut entries, self.expects_known).await?;
            self.expects_known = entries.decision.next_has_known_keys();
            match fate {
                Fate::Committed => {
                    self.limit.succeeded(entries.decision.decided.len(), entries.commit_time());
                    let outcomes =
                        report::report(self.intake, &mut self.log, &entries.decision.decided, entries.due_at)
                            .await;
                    let rest = entries.decision.rest;
                    self.finish(outcomes);
                    if let FirstUndecided::Waits(wait) = rest {
                        return Ok(Fate::Waiting(wait.cause));
                    }
                }
                Fate::Divided => {
                    self.limit.failed(entries.decision.decided.len());
                }
                fate => return Ok(fate),
            }
        }
        Ok(Fate::Committed)
    }

    /// Removes the first entries, whose outcomes with these names are committed.
    fn finish(&mut self, outcomes: Vec<&'static str>) {
        let Intake { metrics, traces, clock, .. } = self.intake;
        if let Some(first) = self.batch.front().filter(|_| !outcomes.is_empty()) {
            metrics.accepted_within(first.read_at.elapsed());
        }
        let now = traces.is_on().then(|| clock.now());
        for (entry, outcome) in self.batch.drain(..outcomes.len()).zip(outcomes) {
            self.committed = Some(entry.decoded.id);
            if let Some(now) = now {
                traces.intent(&span(&entry, outcome, now));
            }
        }
    }

    /// Logs the number of suppressed lines about entries, once a second is over or if no lines follow
    /// (`ends`).
    pub(super) fn report_suppressed(&mut self, ends: bool) {
        report::report_suppressed(&self.intake.settings.stream, &mut self.log, ends);
    }
}

fn span<'a>(entry: &'a UnprocessedEntry, outcome: &'static str, now: Timestamp) -> IntentSpan<'a> {
    let intent = entry.decoded.intent();
    IntentSpan {
        started: now - entry.read_at.elapsed(),
        ended: now,
        source: STREAM,
        id: Some(entry.decoded.id.to_string()),
        trace_id: intent.map_or("", |intent| &intent.trace_id),
        request_trace: None,
        notification_type: intent.map_or("", |intent| &intent.notification_type),
        outcome,
        failed: false,
    }
}
