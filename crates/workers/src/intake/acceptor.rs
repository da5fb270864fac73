//! The acceptor gives every entry of a batch its outcome, in stream order.
//!
//! The steps of one batch: look up the recipients → decide → one transaction → dispatch. Most keys are new,
//! and a transaction with a taken key writes nothing ([`Commit::WriteConflict`](domain::ports::Commit)). So
//! known keys are looked up beforehand only if the previous batch had some, or if a recipient is missing or
//! cannot be looked up: the outcome of a replay never depends on the directory.
//!
//! A batch is kept until each of its entries has an outcome, and so are the directory's lookups of its users.
//! They were requested after its entries were read, so they are never older than the entries.

mod decider;
mod writer;

use std::collections::VecDeque;

use ambient::{Clock, Timestamp};
use domain::accept::{Decision, Rest, Wait};
use domain::entry::EntryId;
use domain::ports::{AcceptanceStore, Fence, StoreError, UserDirectory};
use tokio_util::sync::CancellationToken;

use super::{Intake, UnprocessedEntry};
use crate::metrics::{Metrics, STREAM};
use crate::traces::{IntentSpan, Traces};

use decider::Decider;
use writer::{WriteEnd, Writer};

/// The most write conflicts of a batch before intake determines again where to resume.
const MAX_CONFLICT_RETRIES: usize = 5;

/// Processes one batch at a time.
#[derive(Debug)]
pub(super) struct Acceptor<'a, A, D, C> {
    metrics: &'a Metrics,
    traces: &'a Traces,
    clock: &'a C,
    decider: Decider<'a, A, D, C>,
    writer: Writer<'a, A, C>,
    /// The entries of the batch that have no outcome yet.
    batch: VecDeque<UnprocessedEntry>,
    /// True if the keys of the next batch are looked up before it is decided.
    ask_known: bool,
}

/// The fence and the checkpoint that a batch is written with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// The fence of this term.
    pub(super) fence: Fence,
    /// The durable checkpoint that is expected.
    pub(super) expected: Option<EntryId>,
}

/// The result of processing a batch.
#[derive(Debug)]
pub(super) struct Processed {
    /// The last entry whose outcome is committed, even if processing failed after it.
    pub(super) committed: Option<EntryId>,
    /// The end of processing.
    pub(super) ended: Result<Ended, StoreError>,
}

/// The end of processing, if no call failed.
#[derive(Debug)]
pub(super) enum Ended {
    /// The batch is done, or the term is over.
    Continue,
    /// An entry must wait. This entry and those after it are kept.
    Waiting(Wait),
    /// The durable checkpoint is not the expected one.
    CheckpointMoved,
}

impl<'a, A, D, C> Acceptor<'a, A, D, C>
where
    A: AcceptanceStore,
    D: UserDirectory,
    C: Clock,
{
    pub(super) fn new<E, I, K>(intake: &'a Intake<E, I, A, K, D, C>) -> Self {
        Self {
            metrics: &intake.metrics,
            traces: &intake.traces,
            clock: &intake.clock,
            decider: Decider::new(intake),
            writer: Writer::new(intake),
            batch: VecDeque::new(),
            ask_known: true,
        }
    }

    /// True if there is no unfinished batch.
    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_empty()
    }

    /// Starts the next batch.
    pub(super) fn begin(&mut self, batch: VecDeque<UnprocessedEntry>) {
        self.batch = batch;
        self.decider.forget_answers();
    }

    /// Drops the batch. Its entries are read again.
    pub(super) fn forget(&mut self) {
        self.begin(VecDeque::new());
        self.ask_known = true;
    }

    /// Logs the number of suppressed lines about entries, once a second is over or if no lines follow
    /// (`ends`).
    pub(super) fn report_suppressed(&mut self, ends: bool) {
        self.writer.report_suppressed(ends);
    }

    /// Gives the entries of the batch their outcomes, as far as possible now.
    pub(super) async fn process(&mut self, target: Target, stop: &CancellationToken) -> Processed {
        let Target { fence, expected } = target;
        let mut committed = None;
        let mut ask_known = self.ask_known;
        let mut conflicts = 0;
        let ended = loop {
            if self.batch.is_empty() {
                break Ok(Ended::Continue);
            }
            // If the term ends here, nothing is lost, because nothing has been written.
            let deciding = stop.run_until_cancelled(self.decider.decide(&self.batch, ask_known)).await;
            let (decision, asked) = match deciding {
                None => break Ok(Ended::Continue),
                Some(Err(error)) => break Err(error),
                Some(Ok(decided)) => decided,
            };
            ask_known = asked;
            self.ask_known = decision.next_has_known_keys();
            let Decision { decided, rest } = decision;
            let written = self.writer.write(decided, fence, committed.or(expected)).await;
            committed = written.committed.or(committed);
            if let Some(first) = self.batch.front().filter(|_| !written.outcomes.is_empty()) {
                self.metrics.accepted_within(first.read_at.elapsed());
            }
            let done = self.batch.drain(..written.outcomes.len());
            if self.traces.is_on() {
                let now = self.clock.now();
                done.zip(written.outcomes)
                    .for_each(|(entry, outcome)| trace(self.traces, &entry, outcome, now));
            }
            match written.end {
                Ok(WriteEnd::Written) => match rest {
                    Rest::Waits(wait) => break Ok(Ended::Waiting(wait)),
                    Rest::Nothing | Rest::NotAsked => {}
                },
                Ok(WriteEnd::DecideAgain) => {}
                Ok(WriteEnd::Waiting(wait)) => break Ok(Ended::Waiting(wait)),
                Ok(WriteEnd::WriteConflict) if !ask_known => ask_known = true,
                Ok(WriteEnd::WriteConflict) if conflicts < MAX_CONFLICT_RETRIES => conflicts += 1,
                Ok(WriteEnd::WriteConflict | WriteEnd::CheckpointMoved) => break Ok(Ended::CheckpointMoved),
                Err(error) => break Err(error),
            }
        };
        Processed { committed, ended }
    }
}

fn trace(traces: &Traces, entry: &UnprocessedEntry, outcome: &'static str, now: Timestamp) {
    let intent = entry.decoded.intent();
    traces.intent(&IntentSpan {
        started: now - entry.read_at.elapsed(),
        ended: now,
        source: STREAM,
        id: Some(entry.decoded.id.to_string()),
        trace_id: intent.map_or("", |intent| &intent.trace_id),
        request_trace: None,
        notification_type: intent.map_or("", |intent| &intent.notification_type),
        outcome,
        failed: false,
    });
}
