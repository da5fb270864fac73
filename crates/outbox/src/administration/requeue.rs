//! Requeueing all events that are DEAD, or that were DELIVERED since a given time.
//!
//! Events are listed in the order of their times and changed by their ids, so that an event that is locked or
//! rejected is reported by its id and hides no other.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use ambient::{Timestamp, error_chain};
use pg::RawTimestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Administration, MAX_CHUNK, StoredEvent, count, read};
use crate::OutboxError;
use crate::error::Blame;
use crate::postgres::requeue_as_read;
use crate::row_id::{RowId, column};
use crate::statements::{self, Prunable};

/// The number of events that a dry run shows.
pub const SHOWN_BY_DRY_RUN: u32 = 20;
/// The number of retries for events that another transaction has locked.
const LOCKED_RETRIES: u32 = 3;
/// The pause before each retry.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);
/// The largest number of locked events that are retried.
const MAX_LOCKED: usize = 10_000;
/// The number of events rejected by the table at which requeueing ends.
const MAX_REFUSED: usize = 1_000;

/// The events to requeue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequeueRequest<'a> {
    /// The earliest time of delivery of DELIVERED events; `None` for DEAD events.
    pub delivered_since: Option<Timestamp>,
    /// The event type; `None` for all.
    pub event_type: Option<&'a str>,
    /// The latest time of delivery or death: [`Administration::now`].
    pub until: Timestamp,
}

impl RequeueRequest<'_> {
    fn which(&self) -> Prunable {
        if self.delivered_since.is_some() { Prunable::Delivered } else { Prunable::Dead }
    }

    fn times(&self) -> RangeInclusive<RawTimestamp> {
        self.delivered_since.map_or(RawTimestamp::NEG_INFINITY, RawTimestamp::from)..=self.until.into()
    }
}

/// The events that a requeue would change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequeuePlan {
    /// Their number.
    pub count: u64,
    /// The first [`SHOWN_BY_DRY_RUN`] of them.
    pub first: Vec<StoredEvent>,
}

/// The outcome of a requeue.
#[must_use]
#[derive(Default, Debug)]
pub struct RequeueReport {
    /// The number of events that are now PENDING.
    pub requeued: u64,
    /// The number of events left unchanged because other transactions have locked them.
    pub locked: u64,
    /// The events whose change the table rejects, with the error.
    pub refused: Vec<(Uuid, String)>,
    /// True if it was stopped before the end.
    pub stopped: bool,
    /// The error that ended the requeue early.
    pub error: Option<OutboxError>,
}

impl Administration {
    /// Counts the events that [`Administration::requeue_all`] would requeue.
    pub async fn plan_requeue(&self, request: &RequeueRequest<'_>) -> Result<RequeuePlan, OutboxError> {
        let (which, times) = (request.which(), request.times());
        let session = self.pool.session("count events of the outbox").await?;
        let counting = statements::count_done(&self.table, which, request.event_type, &times);
        let counted = session.query(counting).await?;
        let list = statements::list_done(&self.table, which, request.event_type, &times, SHOWN_BY_DRY_RUN);
        let first = session.query(list).await?.iter().map(read).collect::<Result<_, _>>()?;
        Ok(RequeuePlan { count: count(&counted)?, first })
    }

    /// Makes events PENDING, as if new, so that they are tried or published again. An event whose published
    /// marker the publisher still has is not published again. Each chunk is its own transaction, so after an
    /// error or after `stop`, which ends it between two chunks, some events are requeued.
    pub async fn requeue_all(&self, request: &RequeueRequest<'_>, stop: &CancellationToken) -> RequeueReport {
        let mut report = RequeueReport::default();
        report.error = self.requeue_pages(request, stop, &mut report).await.err();
        report
    }

    async fn requeue_pages(
        &self,
        request: &RequeueRequest<'_>,
        stop: &CancellationToken,
        report: &mut RequeueReport,
    ) -> Result<(), OutboxError> {
        let (which, mut times) = (request.which(), request.times());
        let (mut locked, mut passed) = (Vec::new(), Vec::new());
        loop {
            if stop.is_cancelled() {
                report.stopped = true;
                return Ok(());
            }
            let session = self.pool.session("list events of the outbox").await?;
            let listing = statements::list_requeueable(
                &self.table,
                which,
                request.event_type,
                &times,
                &passed,
                MAX_CHUNK,
            );
            let read = |row| Ok((column::<RowId>(row, "event_id")?.0, column::<RawTimestamp>(row, "at")?));
            let page =
                session.query(listing).await?.iter().map(read).collect::<Result<Vec<_>, OutboxError>>()?;
            drop(session);
            let held = self.requeue_page(which, &page, report).await?;
            report.locked += held.len() as u64;
            let room = MAX_LOCKED.saturating_sub(locked.len());
            locked.extend(held.iter().copied().take(room));
            match page.last() {
                Some((_, last)) if page.len() >= MAX_CHUNK as usize => {
                    // The next page begins among events of the same time; unchanged ones are still there.
                    if last > times.start() {
                        passed.clear();
                    }
                    let refused = report.refused.iter().map(|(event_id, _)| *event_id);
                    let unchanged: HashSet<Uuid> =
                        held.iter().map(|(event_id, _)| *event_id).chain(refused).collect();
                    let of_last = page.iter().filter(|(id, at)| at == last && unchanged.contains(id));
                    passed.extend(of_last.map(|(event_id, _)| *event_id));
                    times = *last..=*times.end();
                }
                _ => break,
            }
        }
        for _ in 0..LOCKED_RETRIES {
            if locked.is_empty() {
                break;
            }
            if stop.run_until_cancelled(tokio::time::sleep(LOCKED_PAUSE)).await.is_none() {
                break;
            }
            let mut left = Vec::new();
            for chunk in locked.chunks(MAX_CHUNK as usize) {
                left.extend(self.requeue_page(which, chunk, report).await?);
            }
            report.locked -= (locked.len() - left.len()) as u64;
            locked = left;
        }
        Ok(())
    }

    /// Requeues events, and halves the page if the table rejects some or takes too long. Returns those that
    /// are locked.
    async fn requeue_page(
        &self,
        which: Prunable,
        page: &[(Uuid, RawTimestamp)],
        report: &mut RequeueReport,
    ) -> Result<Vec<(Uuid, RawTimestamp)>, OutboxError> {
        let (mut parts, mut locked) = (vec![page], Vec::new());
        while let Some(part) = parts.pop() {
            let error = match self.requeue_part(which, part).await {
                Ok(outcome) => {
                    report.requeued += outcome.requeued.len() as u64;
                    locked.extend(part.iter().filter(|(id, _)| outcome.locked.contains(id)));
                    continue;
                }
                Err(error) => error,
            };
            match (error.blame() != Blame::Server && report.refused.len() < MAX_REFUSED, part) {
                (true, [(event_id, _)]) => report.refused.push((*event_id, error_chain(&error))),
                (true, [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                _ => return Err(error),
            }
        }
        Ok(locked)
    }

    async fn requeue_part(
        &self,
        which: Prunable,
        part: &[(Uuid, RawTimestamp)],
    ) -> Result<crate::RequeuedDelivered, OutboxError> {
        if part.is_empty() {
            return Ok(crate::RequeuedDelivered::default());
        }
        let session = self.pool.session("requeue events of the outbox").await?;
        requeue_as_read(&session, &self.table, which, part).await
    }
}
