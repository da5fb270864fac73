//! A round: compares all events since a given time once, in steps short enough to claim between them.

use pg::{PgError, RawTimestamp};
use tokio::time::Instant;

use super::tally::{RoundTally, report_given_up};
use super::{Comparison, MAX_ROUNDS, REPEAT_INTERVAL};
use crate::error::{Blame, UnclearRows};
use crate::relay::engine::Relay;
use crate::relay::pass::Outage;
use crate::{
    DeliveredCursor, DeliveredEvent, OutboxError, Progress, Publisher, RecordWrite, RelayObserver, Storage,
};

/// The number of events made PENDING together.
const REQUEUE_EVENTS: usize = 500;
/// The largest number of lost events of a round that the table rejects one by one.
const MAX_REFUSED: usize = 100;

/// An unfinished round.
#[derive(Debug)]
pub(super) struct Round {
    /// Its number, unique among all rounds.
    number: u64,
    started: RawTimestamp,
    /// The time of the oldest claim held at its start that was made before the comparison began.
    oldest_claim: Option<RawTimestamp>,
    place: Place,
    pub(super) tally: RoundTally,
}

/// The next step of a round.
#[derive(Debug)]
enum Place {
    /// List the events at this position.
    List(Option<DeliveredCursor>),
    /// Look up the entries of these events, which have no published markers; then continue the list.
    Look(Vec<DeliveredEvent>, Option<DeliveredCursor>),
    /// All events were compared.
    End,
}

/// The end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Another step follows.
    More,
    /// The server's record differs from the one this relay expected: the next look shows it.
    Changed,
    /// The comparison is over: all is settled until this time.
    Ended(RawTimestamp),
}

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Takes the next step of a comparison.
    pub(super) async fn step(
        &self,
        comparison: &mut Comparison,
        rounds: &mut u64,
        outbox: &str,
    ) -> Result<Step, Outage> {
        let Some(round) = &mut comparison.round else {
            *rounds += 1;
            return self.start_round(comparison, *rounds).await.map(|()| Step::More);
        };
        match &round.place {
            Place::List(cursor) => {
                let cursor = *cursor;
                self.list(comparison, cursor).await.map(|()| Step::More)
            }
            Place::Look(suspects, next) => {
                let Some(found) = self.publisher.has_entries(suspects, round.number).await? else {
                    return Ok(Step::More);
                };
                let lost = suspects.iter().zip(found).filter(|(_, found)| !found);
                let lost: Vec<DeliveredEvent> = lost.map(|(event, _)| event.clone()).collect();
                let next = next.map_or(Place::End, |next| Place::List(Some(next)));
                self.requeue(comparison, &lost).await?;
                if let Some(round) = &mut comparison.round {
                    round.place = next;
                }
                Ok(Step::More)
            }
            Place::End => self.end_round(comparison, outbox).await,
        }
    }

    async fn start_round(&self, comparison: &mut Comparison, number: u64) -> Result<(), Outage> {
        let started = self.storage.now().await?;
        // Read before the round, because the round may miss a mark that becomes visible while events are
        // compared.
        let oldest_claim = self.storage.oldest_claim_until(comparison.begun).await?;
        let (place, tally) = (Place::List(None), RoundTally::default());
        comparison.round = Some(Round { number, started, oldest_claim, place, tally });
        let held = comparison.held.take();
        let requeued = self.requeue(comparison, &held).await;
        if requeued.is_err() {
            // The round starts again and includes the held events.
            comparison.held.add(held.iter());
            comparison.round = None;
        }
        requeued
    }

    async fn list(&self, comparison: &mut Comparison, cursor: Option<DeliveredCursor>) -> Result<(), Outage> {
        let Comparison { extent, limit, round: Some(round), .. } = comparison else { return Ok(()) };
        let listed = self.storage.list_delivered(&self.compared, extent.since, cursor, *limit).await;
        let mut page = match listed {
            Err(OutboxError::Postgres(PgError::TimedOut { .. })) if *limit > 1 => {
                *limit /= 2;
                return Ok(());
            }
            page => page?,
        };
        page.events.retain(|event| extent.has(event));
        let found = self.publisher.has_markers(&page.events).await?;
        round.tally.compared += page.events.len();
        let suspects = page.events.into_iter().zip(found).filter(|(_, found)| !found);
        let suspects: Vec<DeliveredEvent> = suspects.map(|(event, _)| event).collect();
        round.place = match (suspects.is_empty(), page.next) {
            (false, next) => Place::Look(suspects, next),
            (true, Some(next)) => Place::List(Some(next)),
            (true, None) => Place::End,
        };
        Ok(())
    }

    /// Makes lost events PENDING, and halves them if the table rejects some. Events that are locked, that
    /// fail for a cause that may be the server, or that are rejected together with too many others, are held
    /// for the next round.
    async fn requeue(&self, comparison: &mut Comparison, lost: &[DeliveredEvent]) -> Result<(), Outage> {
        let Comparison { held, round: Some(round), .. } = comparison else { return Ok(()) };
        let tally = &mut round.tally;
        let mut parts: Vec<&[DeliveredEvent]> = lost.chunks(REQUEUE_EVENTS).rev().collect();
        let mut unclear = UnclearRows::new();
        while let Some(part) = parts.pop() {
            let error = match self.storage.requeue_delivered(part).await {
                Ok(outcome) => {
                    held.add(part.iter().filter(|event| outcome.locked.contains(&event.event_id)));
                    tally.requeued(part, outcome.requeued);
                    continue;
                }
                Err(error) => error,
            };
            match (error.blame(), part) {
                (Blame::Server, _) => return Err(error.into()),
                // A table that rejects so many events rejects the others, too.
                _ if tally.refused.len() >= MAX_REFUSED || unclear.are_too_many() => held.add(part.iter()),
                (blame @ Blame::Unclear, [event]) => {
                    unclear.add(blame);
                    held.add_failed(event);
                }
                (Blame::Row, [event]) => tally.refused.push(event.event_id),
                (_, []) => {}
                (_, [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        Ok(())
    }

    /// Records and reports a round.
    async fn end_round(&self, comparison: &mut Comparison, outbox: &str) -> Result<Step, Outage> {
        let Some(round) = &comparison.round else { return Ok(Step::More) };
        let is_unsettled = round.oldest_claim.is_some() || !comparison.held.is_empty();
        let may_be_last = comparison.rounds > 0 || (comparison.had_nothing && round.tally.compared == 0);
        let is_given_up = is_unsettled && comparison.rounds + 1 >= MAX_ROUNDS;
        let is_last = (may_be_last && !is_unsettled) || is_given_up;
        let next_since = match comparison.held.is_full() {
            true => comparison.extent.since,
            // A mark that was not visible at the start may have waited for long, but its time is not before
            // its claim.
            false => comparison.extent.since.max(round.oldest_claim.unwrap_or(round.started)),
        };
        let since = comparison.held.oldest().map_or(next_since, |oldest| oldest.min(next_since));
        let (types, until) = (&self.compared, self.storage.now().await?);
        let progress = match is_last {
            true => Progress::Settled(until),
            false => Progress::Unfinished { since, comparison: comparison.id },
        };
        let server = self.publisher.server(outbox).await?;
        match comparison.recorded_on(&server, types) {
            None => return Ok(Step::Changed),
            // Another relay has more to compare.
            Some(recorded) if recorded < comparison.recorded => return Ok(Step::Changed),
            // Another relay has found that less is left to compare.
            Some(recorded) if !is_last && recorded > since => comparison.recorded = recorded,
            Some(_) => {
                let recorded = self.publisher.record_server(outbox, &server, types, progress, until).await?;
                if recorded == RecordWrite::Changed {
                    return Ok(Step::Changed);
                }
                comparison.recorded = since;
            }
        }
        if let Some(round) = comparison.round.take() {
            self.report(&round.tally, comparison.held.len());
        }
        if is_given_up {
            report_given_up(self.settings.relay_id.as_str(), since, &comparison.held);
        }
        comparison.extent.since = next_since;
        comparison.rounds += 1;
        comparison.continues_at = Instant::now() + REPEAT_INTERVAL;
        Ok(if is_last { Step::Ended(until) } else { Step::More })
    }
}
