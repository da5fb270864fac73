//! One pass: claim, publish, mark.
//!
//! The order: the publisher's deadline is fixed first, then the claim is made, so that the publisher refuses before
//! the lease can be over; then the events are published, chunk by chunk; then they are marked. A crash in between leaves a
//! claim, which is reaped, and published events without a mark, which are published again unless the publisher keeps receipts.
//!
//! In a backlog of many keys the marks are made while the next claim is, which then takes no event of a key of theirs: until its
//! mark an event is held as before, only for longer.

use std::time::Duration;

use pg::PgError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::chunk::{Judge, Outcomes, are_all_delivered, chunk_end, keys_are_many};
use super::engine::{MARK_RETRY_INTERVAL, Relay};
use super::marks::Marks;
use super::scan::Scan;
use crate::{
    ClaimRequest, ClaimToken, Deadline, Event, Observer, OutboxError, Position, Publication, Publisher,
    PublisherOutage, Storage,
};

/// The part of a lease after which no further chunk is published.
const PUBLISHING_PART: f64 = 0.7;

/// Why nothing can be claimed at present.
#[derive(Debug, thiserror::Error)]
pub(super) enum Outage {
    #[error(transparent)]
    Storage(#[from] OutboxError),
    #[error(transparent)]
    Publisher(#[from] PublisherOutage),
}

/// How a pass ended.
#[derive(Debug)]
pub(super) enum Pass {
    /// There may be more at once.
    Busy,
    /// Nothing could be claimed. Zero if something is due all the same, else when the next event falls due.
    Idle { due_in: Option<Duration> },
}

/// What the loop remembers between passes.
pub(super) struct Work {
    pub(super) scan: Scan,
    pub(super) marks: Marks,
    pub(super) marks_tried: Instant,
    /// Whether the marks are made during the next claim.
    pub(super) marks_wait: bool,
    /// Whether the last claim could not have its lock.
    pub(super) was_locked: bool,
    /// Whether the next pass looks for due events before it claims.
    pub(super) looks_first: bool,
}

/// A claim that is being published.
struct Claimed {
    token: ClaimToken,
    begun: Instant,
    deadline: Deadline,
    events: Vec<Event>,
}

impl<S: Storage, P: Publisher, O: Observer> Relay<S, P, O> {
    /// Claims once and publishes what was claimed.
    pub(super) async fn pass(&self, work: &mut Work, stop: &CancellationToken) -> Result<Pass, Outage> {
        let marks_wait = std::mem::take(&mut work.marks_wait);
        if !work.marks.is_empty() && !marks_wait && work.marks_tried.elapsed() >= MARK_RETRY_INTERVAL {
            self.make_marks(work).await?;
        }
        if work.marks.is_full() {
            return Ok(Pass::Idle { due_in: Some(Duration::ZERO) });
        }
        let begun = Instant::now();
        let deadline = self.publisher.deadline(self.settings.lease_timeout).await?;
        let after = work.scan.next(begun).copied();
        let types = &self.settings.types;
        if std::mem::take(&mut work.looks_first) {
            let due_in = self.storage.due_in(types, after.as_ref()).await?;
            if due_in != Some(Duration::ZERO) {
                let starts_over = work.scan.advance(Instant::now(), 0, None);
                return Ok(if starts_over { Pass::Busy } else { Pass::Idle { due_in } });
            }
        }
        let request = self.request(after);
        let (marked, claim) = if marks_wait {
            work.scan.passes_own();
            tokio::join!(biased; self.make_marks(work), self.storage.claim_batch(&request))
        } else {
            (Ok(()), self.storage.claim_batch(&request).await)
        };
        let claim = match claim {
            // Another relay is claiming. Twice in a row, another client has the table locked, which is an outage.
            Err(OutboxError::Postgres(PgError::Locked { .. })) if !work.was_locked => {
                work.was_locked = true;
                return Ok(Pass::Idle { due_in: Some(Duration::ZERO) });
            }
            claim => claim?,
        };
        work.was_locked = false;
        let starts_over = work.scan.advance(Instant::now(), claim.events.len(), claim.next);
        if !claim.events.is_empty() {
            self.observer.claimed(claim.events.len());
            let claimed = Claimed { token: request.token, begun, deadline, events: claim.events };
            // At the end of the queue there is probably nothing more, and a look costs less than a claim.
            work.looks_first = claim.next.is_none();
            // What could not be marked is tried again with these.
            let may_wait = claim.next.is_some() && marked.is_ok();
            self.carry(work, claimed, may_wait, stop).await?;
            return Ok(Pass::Busy);
        }
        marked?;
        if claim.next.is_some() || starts_over {
            return Ok(Pass::Busy);
        }
        let due_in = self.storage.due_in(types, work.scan.next(Instant::now())).await?;
        Ok(Pass::Idle { due_in })
    }

    fn request(&self, after: Option<Position>) -> ClaimRequest {
        let nonce: String = self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect();
        ClaimRequest {
            token: ClaimToken::new(&self.settings.relay_id, &nonce),
            types: self.settings.types.clone(),
            after,
            limit: self.settings.batch_size,
            max_bytes: self.settings.max_claim_bytes,
            max_event_bytes: self.settings.max_event_bytes,
        }
    }

    /// Publishes the events of a claim, and marks them, at once unless the marks may wait.
    async fn carry(
        &self,
        work: &mut Work,
        claimed: Claimed,
        may_wait: bool,
        stop: &CancellationToken,
    ) -> Result<(), Outage> {
        let (outcomes, outage) = self.publish(&claimed, stop).await;
        let had_failed = claimed.events.iter().filter(|event| event.attempts > 0);
        let frees_a_key = had_failed.map(|event| event.event_id).any(|id| outcomes.ends(id));
        work.marks_wait =
            may_wait && are_all_delivered(&claimed.events, &outcomes) && keys_are_many(&claimed.events);
        work.marks.add(claimed.token, claimed.begun + self.settings.lease_timeout, outcomes);
        if work.marks_wait {
            return Ok(());
        }
        self.make_marks(work).await?;
        if frees_a_key {
            work.scan.freed(Instant::now());
        }
        outage.map_or(Ok(()), Err)
    }

    /// Publishes chunk by chunk until the stop, an outage, or the end of the lease is near.
    async fn publish(&self, claimed: &Claimed, stop: &CancellationToken) -> (Outcomes, Option<Outage>) {
        let mut judge = Judge::new(self.settings.retry, &*self.jitter);
        let publish_until = claimed.begun + self.settings.lease_timeout.mul_f64(PUBLISHING_PART);
        let mut rest = &claimed.events[..];
        while !rest.is_empty() {
            if stop.is_cancelled() || Instant::now() >= publish_until {
                judge.release(rest);
                break;
            }
            let (chunk, later) = rest.split_at(chunk_end(rest));
            let publishable = judge.publishable(chunk);
            let publications = if publishable.is_empty() {
                Vec::new()
            } else {
                match self.publisher.publish(&publishable, claimed.deadline).await {
                    Ok(publications) => publications,
                    Err(outage) => {
                        judge.release(rest);
                        return (judge.outcomes, Some(outage.into()));
                    }
                }
            };
            self.observe(&publishable, &publications);
            judge.judge(chunk, publications);
            rest = later;
        }
        (judge.outcomes, None)
    }

    fn observe(&self, events: &[Event], publications: &[Publication]) {
        let now = self.clock.now();
        for (event, _) in
            events.iter().zip(publications).filter(|(_, publication)| **publication == Publication::Done)
        {
            if let Some(created_at) = event.created_at {
                self.observer.published(now.saturating_since(created_at));
            }
        }
    }

    async fn make_marks(&self, work: &mut Work) -> Result<(), OutboxError> {
        work.marks_tried = Instant::now();
        work.marks.flush(&self.storage, &self.observer).await
    }
}
