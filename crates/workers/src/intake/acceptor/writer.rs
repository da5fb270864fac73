//! Writes decided entries, in as few transactions as PostgreSQL allows, and reports them to publishers,
//! metrics and the log.
//!
//! A batch that takes too long or meets a lock is bisected, and batches stay small until statements are fast
//! again. A batch that is refused is also bisected, to isolate the bad entry. But first a valid row of the
//! service is tried: if that is refused as well, the entries are not the cause, and they wait (ADR 0023).
//!
//! Crash recovery: the transactions are independent and run from left to right. Entries that are not
//! committed are read again.

use std::collections::BTreeMap;

use ambient::Clock;
use domain::accept::{self, Decided, Wait};
use domain::entry::EntryId;
use domain::malformed::FailureCode;
use domain::outcome::Outcome;
use domain::policy::Policy;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Activity, CheckpointMove, Commit, Fence, StoreError, error_chain,
};
use tokio::time::Instant;

use crate::batch_limit::BatchLimit;
use crate::dispatch::Dispatcher;
use crate::health::Health;
use crate::intake::Intake;
use crate::log_limiter::LogLimiter;
use crate::metrics::{Metrics, STREAM};

/// Writes decided entries and reports them.
#[derive(Debug)]
pub(super) struct Writer<'a, A, C> {
    store: &'a A,
    clock: &'a C,
    policy: &'a Policy,
    dispatcher: &'a Dispatcher,
    metrics: &'a Metrics,
    health: &'a Health,
    stream: &'a str,
    /// The current limit of entries in one transaction.
    limit: BatchLimit,
    log: LogLimiter<FailureCode>,
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    /// The last entry whose outcome is committed.
    pub(super) committed: Option<EntryId>,
    /// The names of the outcomes that are committed, from the first entry on.
    pub(super) outcomes: Vec<&'static str>,
    /// The reason why writing ended.
    pub(super) end: Result<WriteEnd, StoreError>,
}

/// The reason why writing ended without an error of the store.
#[derive(Debug)]
pub(super) enum WriteEnd {
    /// All entries are committed.
    Written,
    /// The last committed outcome differs from the decided one, so the entries after it must be decided
    /// again.
    DecideAgain,
    /// An entry must wait.
    Waiting(Wait),
    /// Another transaction took a key or an id.
    WriteConflict,
    /// The durable checkpoint is not the expected one.
    CheckpointMoved,
}

impl<'a, A: AcceptanceStore, C: Clock> Writer<'a, A, C> {
    pub(super) fn new<E, I, K, D>(intake: &'a Intake<E, I, A, K, D, C>) -> Self {
        Self {
            store: &intake.store,
            clock: &intake.clock,
            policy: &intake.policy,
            dispatcher: &intake.dispatcher,
            metrics: &intake.metrics,
            health: &intake.health,
            stream: &intake.settings.stream,
            limit: BatchLimit::new(intake.settings.batch_size),
            log: LogLimiter::new(),
        }
    }

    /// Commits `decided`, from left to right, provided that the durable checkpoint is `expected`.
    pub(super) async fn write(
        &mut self,
        mut decided: Vec<Decided<'_>>,
        fence: Fence,
        expected: Option<EntryId>,
    ) -> Written {
        let mut committed = None;
        let mut outcomes = Vec::with_capacity(decided.len());
        // Bisecting a refused batch shows nothing about how large the next one may be.
        let mut bisected = usize::MAX;
        let end = loop {
            let rest = &mut decided[outcomes.len()..];
            let size = self.limit.get().min(bisected).min(rest.len());
            let Some(chunk) = rest.get(..size).filter(|chunk| !chunk.is_empty()) else {
                break Ok(WriteEnd::Written);
            };
            let fingerprint = chunk.last().map(|last| last.entry.fields_fingerprint()).unwrap_or_default();
            let checkpoint = chunk.last().map(|last| CheckpointMove {
                stream: self.stream,
                fence,
                expected: committed.or(expected),
                last_entry_id: last.entry.id,
                fingerprint: &fingerprint,
            });
            let batch = AcceptanceBatch {
                outcomes: chunk.iter().map(|decided| &decided.outcome).collect(),
                checkpoint,
                answers: Vec::new(),
            };
            let begun = Instant::now();
            match self.store.accept(batch).await {
                Ok(Commit::Committed) => {
                    self.limit.succeeded(size, begun.elapsed());
                    committed = chunk.last().map(|last| last.entry.id);
                    self.report(chunk).await;
                    outcomes.extend(chunk.iter().map(|decided| decided.outcome.name()));
                    if chunk.last().and_then(|last| last.outcome.failure_code())
                        == Some(FailureCode::NotStorable)
                    {
                        break Ok(WriteEnd::DecideAgain);
                    }
                }
                Ok(Commit::WriteConflict) => break Ok(WriteEnd::WriteConflict),
                // A batch from the stream stores no responses, so it cannot lose a claim.
                Ok(Commit::CheckpointMoved | Commit::AnswerRefused) => {
                    tracing::warn!(
                        stream = self.stream,
                        "the checkpoint in PostgreSQL is not where this replica left it; determining where to resume"
                    );
                    break Ok(WriteEnd::CheckpointMoved);
                }
                Err(error @ (StoreError::TimedOut { .. } | StoreError::Locked { .. })) => {
                    if !self.limit.timed_out(size) {
                        break Ok(WriteEnd::Waiting(waiting(&chunk[0], error_chain(&error))));
                    }
                }
                Err(error @ StoreError::Refused { .. }) => match self.probe(&chunk[0]).await {
                    Err(probe @ StoreError::Refused { .. }) => {
                        let cause = format!(
                            "PostgreSQL refuses a valid row of the service, too, so the entries are not the cause: {}",
                            error_chain(&probe)
                        );
                        break Ok(WriteEnd::Waiting(waiting(&chunk[0], cause)));
                    }
                    Err(other) => break Err(other),
                    Ok(()) if size > 1 => bisected = size / 2,
                    Ok(()) => {
                        let message = error_chain(&error);
                        match chunk[0].not_storable(self.stream, message.clone(), self.clock.now()) {
                            Some(not_storable) => rest[0] = not_storable,
                            None => {
                                let cause = format!("the entry cannot be stored in any form: {message}");
                                break Ok(WriteEnd::Waiting(waiting(&chunk[0], cause)));
                            }
                        }
                    }
                },
                Err(error) => break Err(error),
            }
        };
        Written { committed, outcomes, end }
    }

    async fn probe(&self, refused: &Decided<'_>) -> Result<(), StoreError> {
        let probe = accept::probe(self.stream, self.policy, refused.entry.intent(), self.clock.now());
        self.store.probe(&probe).await
    }

    /// Reports committed entries: to publishers first, because recipients wait for them.
    async fn report(&mut self, decided: &[Decided<'_>]) {
        let acceptances = decided.iter().filter_map(|decided| decided.outcome.acceptance());
        let left = self.dispatcher.send(acceptances).await;
        self.metrics.overflowed(left);
        if let Some(last) = decided.last() {
            self.health.set_position(last.entry.id);
        }
        self.report_suppressed(false);
        let mut activity = Activity::default();
        let mut counts: BTreeMap<(&'static str, &str, &str), u64> = BTreeMap::new();
        for Decided { entry, outcome } in decided {
            let label =
                entry.intent().map_or(("", ""), |intent| (&*intent.notification_type, &*intent.producer));
            *counts.entry((outcome.name(), label.0, label.1)).or_default() += 1;
            match outcome {
                Outcome::Accepted(_) => activity.accepted += 1,
                Outcome::Duplicate => activity.duplicates += 1,
                Outcome::Conflict(_) => activity.conflicts += 1,
                Outcome::Malformed(_) => activity.malformed += 1,
            }
            self.log(outcome);
        }
        self.metrics.outcomes(STREAM, &counts);
        self.health.count(&activity);
    }

    fn log(&mut self, outcome: &Outcome) {
        let Some(row) = outcome.malformed_row() else { return };
        if self.log.admits(row.rejection.code) {
            tracing::warn!(stream = row.stream, entry_id = %row.entry_id, failure_code = row.rejection.code.as_str(),
                reason = row.rejection.message, "an entry was not accepted");
        }
    }

    pub(super) fn report_suppressed(&mut self, ends: bool) {
        for (code, suppressed) in self.log.suppressed(ends) {
            tracing::warn!(
                stream = self.stream,
                failure_code = code.as_str(),
                suppressed,
                "more entries were not accepted for the same reason; malformed_intents has them all"
            );
        }
    }
}

fn waiting(decided: &Decided<'_>, cause: String) -> Wait {
    Wait { entry_id: decided.entry.id, cause }
}
