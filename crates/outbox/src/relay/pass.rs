//! One pass: claim, publish, mark.
//!
//! The order: first the publisher's deadline is fixed, then the claim is made, so that the publisher refuses
//! before the lease can expire; then the events are published chunk by chunk, and then marked. A crash in
//! between leaves a claim, which is reaped, and published events without a mark, which are published again
//! unless the publisher keeps published markers.
//!
//! In a backlog of many keys, the next claim and the marks of the previous claim are made while the events of
//! this claim are published. The next claim takes no event of a key that is held, because an event is held
//! until its mark. If a dependency becomes unavailable meanwhile, the events claimed ahead are released.

use std::time::Duration;

use ambient::error_chain;
use pg::PgError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::chunk::{Judge, Outcomes, chunk_end};
use super::claimed::Claimed;
use super::engine::{MARK_RETRY_INTERVAL, Relay};
use super::loop_state::{HURRIED_FOR, LoopState};
use super::marks::list_ids;
use super::scan::QueueScan;
use crate::error::Blame;
use crate::{
    BatchClaim, ClaimToken, ClaimedRows, Deadline, Event, OutboxError, Position, Publication, Publisher,
    PublisherOutage, RelayObserver, Storage,
};

/// The fraction of a lease after which no further chunk is published.
const PUBLISHING_PART: f64 = 0.7;

/// The reason that nothing can be claimed at present.
#[derive(Debug, thiserror::Error)]
pub(super) enum Outage {
    #[error(transparent)]
    Storage(#[from] OutboxError),
    #[error(transparent)]
    Publisher(#[from] PublisherOutage),
}

/// The end of a pass.
#[derive(Debug)]
pub(super) enum PassEnd {
    /// More events may be due at once.
    Busy,
    /// A claim failed, and another one may succeed.
    Trying,
    /// Nothing could be claimed. `due_in` is zero if an event is due nevertheless, otherwise the time until
    /// the next is due.
    Idle { due_in: Option<Duration> },
}

/// The outcome of a claim.
enum ClaimOutcome {
    /// Events to publish.
    Claimed(Claimed),
    /// Nothing was claimed, and the pass ends.
    Nothing(PassEnd),
}

impl ClaimOutcome {
    /// Events may be due, but this relay could not look now.
    const LATER: Self = Self::Nothing(PassEnd::Idle { due_in: Some(Duration::ZERO) });
}

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Publishes and marks events that are claimed now or were claimed ahead.
    pub(super) async fn pass(
        &self,
        work: &mut LoopState,
        stop: &CancellationToken,
    ) -> Result<PassEnd, Outage> {
        let may_mark = work.ahead.is_some() || work.marks_tried.elapsed() >= MARK_RETRY_INTERVAL;
        if work.ahead.is_none() && may_mark {
            self.make_marks(work).await?;
        }
        if let Err(outage) = self.compare(work, stop).await {
            work.release_ahead();
            return Err(outage);
        }
        if stop.is_cancelled() {
            // The loop ends, and releases the events claimed ahead.
            return Ok(PassEnd::Busy);
        }
        let claimed = match work.ahead.take() {
            Some(claimed) => claimed,
            None => {
                let outcome = self.claim(work).await;
                self.log_rejections(
                    work,
                    !matches!(outcome, Ok(ClaimOutcome::Nothing(PassEnd::Busy | PassEnd::Trying))),
                );
                match outcome? {
                    ClaimOutcome::Claimed(claimed) => claimed,
                    ClaimOutcome::Nothing(pass) => return Ok(pass),
                }
            }
        };
        if !claimed.unchanged.is_empty() {
            self.set_unchanged_aside(work, claimed)?;
            return Ok(PassEnd::Busy);
        }
        let claims_ahead = claimed.may_be_overlapped() && !work.marks.is_full() && !stop.is_cancelled();
        let (excepted, hurries) = (work.excepted(Instant::now()), work.hurries(Instant::now()));
        let (scan, marks, limit) = (&mut work.scan, &mut work.marks, work.limit);
        let ((outcomes, outage), marked, ahead) = tokio::join!(
            biased;
            self.publish(&claimed, stop),
            async { if may_mark { marks.flush(&self.storage, &self.observer).await } else { Ok(()) } },
            async { if claims_ahead { self.claim_ahead(scan, limit, excepted, hurries).await } else { None } },
        );
        // At the end of the queue there is probably nothing more, and a check costs less than a claim.
        work.looks_first = !claimed.is_followed || claims_ahead;
        work.ahead = ahead;
        let had_failed = claimed.events.iter().filter(|event| event.attempts > 0);
        let frees_a_key = had_failed.map(|event| event.event_id).any(|id| outcomes.ends(id));
        let all_delivered = outcomes.delivered.len() == claimed.events.len();
        work.marks.add(claimed.token, claimed.lease_end, outcomes);
        if outage.is_some() || marked.is_err() {
            work.release_ahead();
        } else if all_delivered && work.ahead.is_some() {
            return Ok(PassEnd::Busy);
        }
        self.make_marks(work).await?;
        if frees_a_key {
            work.scan.freed(Instant::now());
        }
        outage.map_or(Ok(PassEnd::Busy), Err)
    }

    /// Claims due events.
    async fn claim(&self, work: &mut LoopState) -> Result<ClaimOutcome, Outage> {
        if work.marks.is_full() {
            return Ok(ClaimOutcome::LATER);
        }
        let begun = Instant::now();
        let deadline = self.publisher.deadline(self.settings.lease_timeout).await?;
        let passes_reaped = std::mem::take(&mut work.passes_reaped);
        let scan = if passes_reaped { &mut work.fresh_scan } else { &mut work.scan };
        let after = scan.next(begun).copied();
        let types = &self.settings.types;
        if !passes_reaped && std::mem::take(&mut work.looks_first) {
            let due_in = self.storage.due_in(types, after.as_ref()).await?;
            if due_in != Some(Duration::ZERO) {
                work.end_round()?;
                let starts_over = work.scan.advance(Instant::now(), 0, None);
                let pass = if starts_over { PassEnd::Busy } else { PassEnd::Idle { due_in } };
                return Ok(ClaimOutcome::Nothing(pass));
            }
        }
        let (excepted, hurries) = (work.excepted(begun), work.hurries(begun));
        let request = BatchClaim { passes_reaped, ..self.request(after, work.limit, excepted, hurries) };
        let claim = match self.storage.claim_batch(&request).await {
            // Another relay is claiming. If this happens twice in a row, another client has locked the table,
            // which is an outage.
            Err(OutboxError::Postgres(PgError::Locked { .. })) if !work.was_locked => {
                work.was_locked = true;
                return Ok(ClaimOutcome::LATER);
            }
            Err(error) if error.blame() != Blame::Server => {
                work.looks_first = false;
                self.narrow(work, &request, error).await?;
                return Ok(ClaimOutcome::Nothing(PassEnd::Trying));
            }
            claim => claim?,
        };
        work.was_locked = false;
        work.claimed(&claim.events, begun);
        work.limit = work.limit.saturating_mul(2).min(self.settings.batch_size);
        work.passes_reaped = claim.of_reaped;
        let (is_followed, found) = (claim.next.is_some(), claim.events.len() + claim.unchanged.len());
        let scan = if passes_reaped { &mut work.fresh_scan } else { &mut work.scan };
        let starts_over = scan.advance(Instant::now(), found, claim.next);
        if found > 0 {
            return Ok(ClaimOutcome::Claimed(self.claimed(request.token, begun, deadline, claim)));
        }
        if is_followed || starts_over || passes_reaped {
            let is_trying = work.suspects.event_ids().next().is_some();
            return Ok(ClaimOutcome::Nothing(if is_trying { PassEnd::Trying } else { PassEnd::Busy }));
        }
        let due_in = self.storage.due_in(types, work.scan.next(Instant::now())).await?;
        work.end_round()?;
        Ok(ClaimOutcome::Nothing(PassEnd::Idle { due_in }))
    }

    /// Makes the next claim smaller after a failed one: half as large if the table rejected a row, and one
    /// event otherwise, because each further one may take as long. If the claim was for one event, that event
    /// is set aside, and with it the later ones of its key, once it is known to be the cause.
    async fn narrow(
        &self,
        work: &mut LoopState,
        request: &BatchClaim,
        error: OutboxError,
    ) -> Result<(), OutboxError> {
        let (blame, now) = (error.blame(), Instant::now());
        if pg::is_late(&error) {
            work.hurried_until = Some(now + HURRIED_FOR);
        }
        if request.limit > 1 {
            work.limit = if blame == Blame::Row { request.limit / 2 } else { 1 };
            return Ok(());
        }
        let Some(event_id) = self.storage.first_claimable(request).await? else { return Err(error) };
        if blame == Blame::Unclear && !work.suspects.failed(event_id) {
            if work.suspects.are_many() {
                work.be_patient(now);
                return Err(OutboxError::NoneClaimed { events: work.suspected(), source: error.into() });
            }
            work.unclear = Some(error);
            return Ok(());
        }
        if work.set_aside.add(event_id, now).is_none() {
            return Err(error);
        }
        work.rejections.add(event_id, error_chain(&error), now);
        Ok(())
    }

    /// Sets aside the events that the table left unchanged, and releases the others of the claim: some may be
    /// later ones of the same keys.
    fn set_unchanged_aside(&self, work: &mut LoopState, claimed: Claimed) -> Result<(), OutboxError> {
        let released = claimed.events.iter().map(|event| event.event_id).collect();
        work.marks.add(claimed.token, claimed.lease_end, Outcomes { released, ..Outcomes::default() });
        let now = Instant::now();
        for event_id in claimed.unchanged {
            if work.set_aside.add(event_id, now).is_none() {
                return Err(OutboxError::Unchanged);
            }
            work.rejections.add(event_id, error_chain(&OutboxError::Unchanged), now);
        }
        Ok(())
    }

    /// Logs rejected claims, all of them if no further one is expected (`ends`).
    fn log_rejections(&self, work: &mut LoopState, ends: bool) {
        for (error, event_ids) in work.rejections.take_due(ends, Instant::now()) {
            tracing::error!(
                relay = self.settings.relay_id.as_str(),
                events = event_ids.len(),
                event_ids = %list_ids(event_ids.into_iter()),
                error,
                "the outbox table rejects the claim of events; they and later ones of their keys wait"
            );
        }
    }

    /// Claims further events while others are held. Returns `None` if nothing could be claimed: an error
    /// recurs in the next pass, which reports it.
    async fn claim_ahead(
        &self,
        scan: &mut QueueScan,
        limit: u32,
        excepted: Vec<Uuid>,
        hurries: bool,
    ) -> Option<Claimed> {
        let begun = Instant::now();
        let deadline = self.publisher.deadline(self.settings.lease_timeout).await.ok()?;
        let request = self.request(scan.next(begun).copied(), limit, excepted, hurries);
        scan.passes_own();
        let claim = self.storage.claim_batch(&request).await.ok()?;
        let found = claim.events.len() + claim.unchanged.len();
        scan.advance(Instant::now(), found, claim.next);
        (found > 0).then(|| self.claimed(request.token, begun, deadline, claim))
    }

    fn claimed(&self, token: ClaimToken, begun: Instant, deadline: Deadline, claim: ClaimedRows) -> Claimed {
        let ClaimedRows { events, unchanged, next, of_reaped: _ } = claim;
        self.observer.claimed(events.len());
        let lease = self.settings.lease_timeout;
        let (publish_until, lease_end) = (begun + lease.mul_f64(PUBLISHING_PART), begun + lease);
        Claimed { token, publish_until, lease_end, deadline, events, unchanged, is_followed: next.is_some() }
    }

    fn request(
        &self,
        after: Option<Position>,
        limit: u32,
        set_aside: Vec<Uuid>,
        hurries: bool,
    ) -> BatchClaim {
        let nonce: String = self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect();
        BatchClaim {
            token: ClaimToken::new(&self.settings.relay_id, &nonce),
            types: self.settings.types.clone(),
            after,
            limit,
            max_bytes: self.settings.max_claim_bytes,
            max_event_bytes: self.settings.max_event_bytes,
            max_attempts: self.settings.retry.max_attempts,
            passes_reaped: false,
            set_aside,
            hurries,
        }
    }

    /// Publishes chunk by chunk until the stop, an outage, or shortly before the lease ends.
    async fn publish(&self, claimed: &Claimed, stop: &CancellationToken) -> (Outcomes, Option<Outage>) {
        let mut judge = Judge::new(self.settings.retry, &*self.jitter);
        let mut rest = &claimed.events[..];
        while !rest.is_empty() {
            if stop.is_cancelled() || Instant::now() >= claimed.publish_until {
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

    pub(super) async fn make_marks(&self, work: &mut LoopState) -> Result<(), OutboxError> {
        if work.marks.is_empty() {
            return Ok(());
        }
        work.marks_tried = Instant::now();
        work.marks.flush(&self.storage, &self.observer).await
    }
}
