//! Marks that could not be made yet: rows that another transaction has locked, or a store that does not answer.
//!
//! They are retried until their lease is over. Then the events are reaped, and a mark would change nothing.

use std::collections::VecDeque;

use tokio::time::Instant;
use uuid::Uuid;

use super::chunk::Outcomes;
use crate::{ClaimToken, Failure, FailureKind, Marked, Observer, OutboxError, Storage};

/// The most marks that wait; as long as there are more, nothing is claimed.
pub(crate) const MAX_HELD_MARKS: usize = 10_000;
/// The most ids in one log line.
const IDS_PER_LINE: usize = 20;

/// The marks of one claim that are still to be made.
#[derive(Debug)]
struct Held {
    token: ClaimToken,
    lease_end: Instant,
    outcomes: Outcomes,
}

impl Held {
    fn len(&self) -> usize {
        self.outcomes.delivered.len() + self.outcomes.failed.len() + self.outcomes.released.len()
    }
}

/// The marks of a relay that are still to be made, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Marks(VecDeque<Held>);

impl Marks {
    pub(crate) fn add(&mut self, token: ClaimToken, lease_end: Instant, outcomes: Outcomes) {
        let held = Held { token, lease_end, outcomes };
        if held.len() > 0 {
            self.0.push_back(held);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether nothing may be claimed until some are made.
    pub(crate) fn is_full(&self) -> bool {
        self.0.iter().map(Held::len).sum::<usize>() >= MAX_HELD_MARKS
    }

    /// Tries each once. An error ends the round: the store does not answer.
    pub(crate) async fn flush(
        &mut self,
        storage: &impl Storage,
        observer: &impl Observer,
    ) -> Result<(), OutboxError> {
        for _ in 0..self.0.len() {
            let Some(mut held) = self.0.pop_front() else { break };
            if Instant::now() >= held.lease_end {
                give_up(&held, observer);
                continue;
            }
            let done = mark(&mut held, storage, observer).await;
            let left = held.len() > 0;
            match done {
                Ok(()) if left => self.0.push_back(held),
                Ok(()) => {}
                Err(error) => {
                    self.0.push_front(held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Makes the marks, and leaves in `held` those that are busy.
async fn mark(held: &mut Held, storage: &impl Storage, observer: &impl Observer) -> Result<(), OutboxError> {
    let Held { token, outcomes, .. } = held;
    let mut lost = Vec::new();
    if !outcomes.delivered.is_empty() {
        let marked = storage.mark_delivered_batch(token, &outcomes.delivered).await?;
        let applied = take(&mut outcomes.delivered, &marked, |id| *id, &mut lost);
        observed(observer, "delivered", applied.len());
    }
    if !outcomes.failed.is_empty() {
        let marked = storage.mark_failed_batch(token, &outcomes.failed).await?;
        let applied = take(&mut outcomes.failed, &marked, |failure| failure.event_id, &mut lost);
        let dead: Vec<&Failure> =
            applied.iter().filter(|failure| failure.kind == FailureKind::Dead).collect();
        observed(observer, "failed", applied.len() - dead.len());
        observed(observer, "dead", dead.len());
        if let Some(first) = dead.first() {
            tracing::warn!(
                events = dead.len(),
                event_ids = %list_ids(dead.iter().map(|failure| failure.event_id)),
                error = first.error,
                "events of the outbox are dead; an operator can requeue them"
            );
        }
    }
    if !outcomes.released.is_empty() {
        let marked = storage.release_batch(token, &outcomes.released).await?;
        let applied = take(&mut outcomes.released, &marked, |id| *id, &mut lost);
        observed(observer, "released", applied.len());
    }
    report_lost(&lost, observer);
    Ok(())
}

fn observed(observer: &impl Observer, result: &'static str, events: usize) {
    if events > 0 {
        observer.marked(result, events);
    }
}

/// Takes out what is no longer to be marked; returns what was applied.
fn take<T: Clone>(
    elements: &mut Vec<T>,
    marked: &[Marked],
    id: impl Fn(&T) -> Uuid,
    lost: &mut Vec<Uuid>,
) -> Vec<T> {
    let mut applied = Vec::new();
    let mut busy = Vec::new();
    for (element, outcome) in elements.drain(..).zip(marked) {
        match outcome {
            Marked::Applied => applied.push(element),
            Marked::Busy => busy.push(element),
            Marked::Lost => lost.push(id(&element)),
        }
    }
    *elements = busy;
    applied
}

fn give_up(held: &Held, observer: &impl Observer) {
    let Outcomes { delivered, failed, released } = &held.outcomes;
    let failed = failed.iter().map(|failure| failure.event_id);
    report_lost(
        &delivered.iter().copied().chain(failed).chain(released.iter().copied()).collect::<Vec<_>>(),
        observer,
    );
}

fn report_lost(lost: &[Uuid], observer: &impl Observer) {
    if lost.is_empty() {
        return;
    }
    observer.leases_lost(lost.len());
    tracing::warn!(
        events = lost.len(),
        event_ids = %list_ids(lost.iter().copied()),
        "leases of outbox events ended before their marks; the events are tried again"
    );
}

/// The first of the ids, for the log.
pub(super) fn list_ids(ids: impl Iterator<Item = Uuid>) -> String {
    ids.take(IDS_PER_LINE).map(|id| id.to_string()).collect::<Vec<_>>().join(",")
}
