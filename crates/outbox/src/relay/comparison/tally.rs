//! The results of a round, and the lost events that are left for the next round.

use std::collections::{BTreeMap, BTreeSet};

use pg::RawTimestamp;
use uuid::Uuid;

use super::{Comparison, shown};
use crate::relay::engine::Relay;
use crate::relay::loop_state::LoopState;
use crate::relay::marks::list_ids;
use crate::{DeliveredEvent, Publisher, RelayObserver, Storage};

/// The largest number of lost events that wait for another round; with more, the next round compares from the
/// same time.
const MAX_HELD_EVENTS: usize = 10_000;
/// The largest number of ids that are kept for the report of a round.
const MAX_REPORTED_IDS: usize = 500;

/// The result of a round.
#[derive(Debug, Default)]
pub(super) struct RoundTally {
    pub(super) compared: usize,
    requeued: Vec<Uuid>,
    requeued_count: usize,
    /// The first and the last time of delivery of requeued events.
    range: Option<(RawTimestamp, RawTimestamp)>,
    /// The lost events whose change the table rejects.
    pub(super) refused: Vec<Uuid>,
}

impl RoundTally {
    pub(super) fn requeued(&mut self, part: &[DeliveredEvent], requeued: Vec<Uuid>) {
        for event in part.iter().filter(|event| requeued.contains(&event.event_id)) {
            let (first, last) = self.range.unwrap_or((event.delivered_at, event.delivered_at));
            self.range = Some((first.min(event.delivered_at), last.max(event.delivered_at)));
        }
        self.requeued_count += requeued.len();
        if self.requeued.len() < MAX_REPORTED_IDS {
            self.requeued.extend(requeued);
        }
    }
}

/// Lost events that could not be made PENDING yet: another transaction has locked them, or the table rejects
/// many.
#[derive(Debug, Default)]
pub(super) struct HeldEvents {
    events: BTreeMap<Uuid, DeliveredEvent>,
    /// Those that failed alone.
    failed: BTreeSet<Uuid>,
    /// True if some events were dropped because the limit was reached.
    is_full: bool,
}

impl HeldEvents {
    pub(super) fn add<'a>(&mut self, events: impl Iterator<Item = &'a DeliveredEvent>) {
        for event in events {
            if self.events.len() < MAX_HELD_EVENTS || self.events.contains_key(&event.event_id) {
                self.events.insert(event.event_id, event.clone());
            } else {
                self.is_full = true;
            }
        }
    }

    /// Adds an event that failed alone.
    pub(super) fn add_failed(&mut self, event: &DeliveredEvent) {
        self.failed.insert(event.event_id);
        self.add(std::iter::once(event));
    }

    /// Takes all events, to be tried again: last those that failed alone, because a round ends after some of
    /// them and leaves the others.
    pub(super) fn take(&mut self) -> Vec<DeliveredEvent> {
        self.is_full = false;
        let mut events: Vec<_> = std::mem::take(&mut self.events).into_values().collect();
        events.sort_by_key(|event| self.failed.contains(&event.event_id));
        events
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the earliest time at which one of them was delivered.
    pub(super) fn oldest(&self) -> Option<RawTimestamp> {
        self.events.values().map(|event| event.delivered_at).min()
    }
}

/// Reports the events that stay lost after the last round.
pub(super) fn report_given_up(relay: &str, since: RawTimestamp, held: &HeldEvents) {
    tracing::error!(
        relay,
        delivered_since = shown(since),
        events = held.len(),
        event_ids = %list_ids(held.events.keys().copied()),
        "events or claims of the outbox were held by other transactions for too long to be compared; requeue these delivered events by hand"
    );
}

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Reports the results of a round that will not be completed, because another comparison replaces it or
    /// the relay stops.
    pub(super) fn report_partly(&self, comparison: Option<Comparison>) {
        let Some(Comparison { round: Some(round), held, .. }) = comparison else { return };
        if round.tally.requeued_count > 0 || !round.tally.refused.is_empty() {
            self.report(&round.tally, held.len());
        }
    }

    /// Reports the results of a round that the stop of the relay ends.
    pub(in crate::relay) fn report_at_stop(&self, work: &mut LoopState) {
        self.report_partly(work.comparing.current.take());
    }

    pub(super) fn report(&self, tally: &RoundTally, held: usize) {
        let relay = self.settings.relay_id.as_str();
        if let Some((first, last)) = tally.range {
            self.observer.requeued(tally.requeued_count);
            tracing::warn!(
                relay,
                events = tally.requeued_count,
                event_ids = %list_ids(tally.requeued.iter().copied()),
                first_delivered_at = shown(first),
                last_delivered_at = shown(last),
                "delivered outbox events were lost by their server; they are PENDING again"
            );
        }
        if !tally.refused.is_empty() {
            tracing::error!(
                relay,
                events = tally.refused.len(),
                event_ids = %list_ids(tally.refused.iter().copied()),
                "delivered outbox events were lost by their server, and their table rejects their return to PENDING; requeue them by hand"
            );
        }
        tracing::info!(
            relay,
            compared = tally.compared,
            requeued = tally.requeued_count,
            held,
            "delivered outbox events were compared with the entries on their server"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_failed_alone_are_tried_last_in_every_later_round() {
        let event = |number: u128| DeliveredEvent {
            event_id: Uuid::from_u128(number),
            event_type: String::new(),
            delivered_at: RawTimestamp::NEG_INFINITY,
        };
        let numbers = |events: Vec<DeliveredEvent>| -> Vec<u128> {
            events.iter().map(|event| event.event_id.as_u128()).collect()
        };
        let all: Vec<DeliveredEvent> = (1..=4).map(event).collect();
        let mut held = HeldEvents::default();
        held.add_failed(&all[0]);
        held.add(all[1..].iter());
        assert_eq!(numbers(held.take()), [2, 3, 4, 1]);
        held.add_failed(&all[1]);
        held.add([&all[0], &all[3]].into_iter());
        assert_eq!(numbers(held.take()), [4, 1, 2], "the first failed in the round before");
    }
}
