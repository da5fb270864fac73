//! Marks that are still to be made: rows that another transaction has locked, or a store that does not
//! respond.
//!
//! They are retried until their lease expires. After that the events are reaped, and a mark would change
//! nothing.

use std::collections::VecDeque;

use ambient::error_chain;
use tokio::time::Instant;
use uuid::Uuid;

use super::chunk::Outcomes;
use crate::error::{Blame, UnclearRows};
use crate::{ClaimToken, FailedEvent, FailureKind, Marked, OutboxError, RelayObserver, Storage};

/// The largest number of waiting marks; while there are more, nothing is claimed.
pub(crate) const MAX_HELD_MARKS: usize = 10_000;
/// The largest number of ids in one log line.
pub(super) const IDS_PER_LINE: usize = 20;

/// The waiting marks of one claim.
#[derive(Debug)]
struct ClaimMarks {
    token: ClaimToken,
    lease_end: Instant,
    outcomes: Outcomes,
}

impl ClaimMarks {
    fn len(&self) -> usize {
        self.outcomes.delivered.len() + self.outcomes.failed.len() + self.outcomes.released.len()
    }
}

/// The waiting marks of a relay, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    held: VecDeque<ClaimMarks>,
    /// True if an event was marked as DELIVERED.
    has_delivered: bool,
}

impl Marks {
    pub(crate) fn add(&mut self, token: ClaimToken, lease_end: Instant, outcomes: Outcomes) {
        let held = ClaimMarks { token, lease_end, outcomes };
        if held.len() > 0 {
            self.held.push_back(held);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True if nothing may be claimed until some marks are made.
    pub(crate) fn is_full(&self) -> bool {
        self.held.iter().map(ClaimMarks::len).sum::<usize>() >= MAX_HELD_MARKS
    }

    /// True if an event was marked as DELIVERED since the last reset.
    pub(crate) fn has_delivered(&self) -> bool {
        self.has_delivered
    }

    pub(crate) fn forget_delivered(&mut self) {
        self.has_delivered = false;
    }

    /// Tries each mark once. An error ends the round: the store does not respond.
    pub(crate) async fn flush(
        &mut self,
        storage: &impl Storage,
        observer: &impl RelayObserver,
    ) -> Result<(), OutboxError> {
        for _ in 0..self.held.len() {
            let Some(mut held) = self.held.pop_front() else { break };
            if Instant::now() >= held.lease_end {
                give_up(&held, observer);
                continue;
            }
            let done = mark(&mut held, &mut self.has_delivered, storage, observer).await;
            let left = held.len() > 0;
            match done {
                Ok(()) if left => self.held.push_back(held),
                Ok(()) => {}
                Err(error) => {
                    self.held.push_front(held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Makes the marks. Keeps in `held` those that are busy, and after an error those that were not made.
async fn mark(
    held: &mut ClaimMarks,
    has_delivered: &mut bool,
    storage: &impl Storage,
    observer: &impl RelayObserver,
) -> Result<(), OutboxError> {
    let ClaimMarks { token, outcomes, lease_end } = held;
    let (mut lost, mut refused) = (Vec::new(), Vec::new());
    let outcome = async {
        let part = MarksOfKind::Delivered(&outcomes.delivered);
        let (marked, error) = mark_parts(storage, token, part, *lease_end, &mut refused).await;
        let applied = take(&mut outcomes.delivered, &marked, |id| *id, &mut lost);
        observed(observer, "delivered", applied.len());
        // After an error some may be marked nevertheless.
        *has_delivered |= !applied.is_empty() || error.is_err();
        error?;
        let part = MarksOfKind::Failed(&outcomes.failed);
        let (marked, error) = mark_parts(storage, token, part, *lease_end, &mut refused).await;
        let applied = take(&mut outcomes.failed, &marked, |failure| failure.event_id, &mut lost);
        observe_failed(&applied, observer);
        error?;
        let part = MarksOfKind::Released(&outcomes.released);
        let (marked, error) = mark_parts(storage, token, part, *lease_end, &mut refused).await;
        let applied = take(&mut outcomes.released, &marked, |id| *id, &mut lost);
        observed(observer, "released", applied.len());
        error
    }
    .await;
    report_lost(&lost, observer);
    if let Some((_, error)) = refused.first() {
        tracing::error!(
            events = refused.len(),
            event_ids = %list_ids(refused.iter().map(|(id, _)| *id)),
            error = error_chain(error),
            "the outbox table rejects the marks of events; they are tried again when their leases end"
        );
    }
    outcome
}

/// Marks of one kind.
#[derive(Clone, Copy)]
enum MarksOfKind<'a> {
    Delivered(&'a [Uuid]),
    Failed(&'a [FailedEvent]),
    Released(&'a [Uuid]),
}

impl MarksOfKind<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Delivered(ids) | Self::Released(ids) => ids.len(),
            Self::Failed(failures) => failures.len(),
        }
    }

    fn first(&self) -> Option<Uuid> {
        match self {
            Self::Delivered(ids) | Self::Released(ids) => ids.first().copied(),
            Self::Failed(failures) => failures.first().map(|failure| failure.event_id),
        }
    }

    fn halves(self) -> [Self; 2] {
        let middle = self.len() / 2;
        match self {
            Self::Delivered(ids) => [Self::Delivered(&ids[..middle]), Self::Delivered(&ids[middle..])],
            Self::Failed(failures) => [Self::Failed(&failures[..middle]), Self::Failed(&failures[middle..])],
            Self::Released(ids) => [Self::Released(&ids[..middle]), Self::Released(&ids[middle..])],
        }
    }

    async fn make(self, storage: &impl Storage, token: &ClaimToken) -> Result<Vec<Marked>, OutboxError> {
        match self {
            Self::Delivered(ids) => storage.mark_delivered_batch(token, ids).await,
            Self::Failed(failures) => storage.mark_failed_batch(token, failures).await,
            Self::Released(ids) => storage.release_batch(token, ids).await,
        }
    }
}

/// Makes marks, and halves them if they fail. Returns one outcome for each mark reached, `None` for one that
/// failed alone. If too many do, the others are left for the next time.
async fn mark_parts(
    storage: &impl Storage,
    token: &ClaimToken,
    whole: MarksOfKind<'_>,
    lease_end: Instant,
    refused: &mut Vec<(Uuid, OutboxError)>,
) -> (Vec<Option<Marked>>, Result<(), OutboxError>) {
    let (mut marked, mut parts) = (Vec::with_capacity(whole.len()), vec![whole]);
    let mut unclear = UnclearRows::new();
    while let Some(part) = parts.pop().filter(|_| !unclear.are_too_many()) {
        let Some(first) = part.first() else { continue };
        let error = match part.make(storage, token).await {
            Ok(outcomes) => {
                marked.extend(outcomes.into_iter().map(Some));
                continue;
            }
            Err(error) if error.blame() != Blame::Server && Instant::now() < lease_end => error,
            Err(error) => return (marked, Err(error)),
        };
        if part.len() == 1 {
            unclear.add(error.blame());
            refused.push((first, error));
            marked.push(None);
        } else {
            let [first, second] = part.halves();
            parts.extend([second, first]);
        }
    }
    (marked, Ok(()))
}

fn observe_failed(applied: &[FailedEvent], observer: &impl RelayObserver) {
    let dead: Vec<&FailedEvent> =
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

fn observed(observer: &impl RelayObserver, result: &'static str, events: usize) {
    if events > 0 {
        observer.marked(result, events);
    }
}

/// Removes the elements that need no further mark, and returns those that were applied. Elements without an
/// outcome stay.
fn take<T: Clone>(
    elements: &mut Vec<T>,
    marked: &[Option<Marked>],
    id: impl Fn(&T) -> Uuid,
    lost: &mut Vec<Uuid>,
) -> Vec<T> {
    let mut applied = Vec::new();
    let mut left = Vec::new();
    let outcomes = marked.iter().copied().chain(std::iter::repeat(Some(Marked::Busy)));
    for (element, outcome) in elements.drain(..).zip(outcomes) {
        match outcome {
            Some(Marked::Applied) => applied.push(element),
            Some(Marked::Busy) => left.push(element),
            Some(Marked::Lost) => lost.push(id(&element)),
            None => {}
        }
    }
    *elements = left;
    applied
}

fn give_up(held: &ClaimMarks, observer: &impl RelayObserver) {
    let Outcomes { delivered, failed, released } = &held.outcomes;
    let failed = failed.iter().map(|failure| failure.event_id);
    report_lost(
        &delivered.iter().copied().chain(failed).chain(released.iter().copied()).collect::<Vec<_>>(),
        observer,
    );
}

fn report_lost(lost: &[Uuid], observer: &impl RelayObserver) {
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

/// Returns the first of the ids, for the log.
pub(super) fn list_ids(ids: impl Iterator<Item = Uuid>) -> String {
    ids.take(IDS_PER_LINE).map(|id| id.to_string()).collect::<Vec<_>>().join(",")
}
