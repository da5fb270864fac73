//! Rows of an outbox in memory, and the selection of those that a claim takes.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use ambient::Timestamp;
use uuid::Uuid;

use crate::event::stored_error;
use crate::storage::REAPED_SHIFT;
use crate::{
    BatchClaim, ClaimToken, DeliveredEvent, Event, EventContent, EventTypes, FailureKind, MAX_ERROR_CHARS,
    NewEvent, Position, REAPED,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EventStatus {
    Pending,
    Delivering,
    Delivered,
    Dead,
}

#[derive(Debug)]
pub(super) struct EventRow {
    pub(super) event: NewEvent,
    pub(super) status: EventStatus,
    pub(super) attempts: u32,
    pub(super) last_error: String,
    pub(super) available_at: Timestamp,
    pub(super) locked: Option<(ClaimToken, Timestamp)>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

impl EventRow {
    fn key(&self) -> &str {
        &self.event.partition_key
    }

    pub(super) fn position(&self) -> Position {
        Position {
            available_at: self.available_at.into(),
            created_at: self.created_at.into(),
            event_id: self.event.event_id,
        }
    }

    pub(super) fn delivered(&self) -> DeliveredEvent {
        let NewEvent { event_id, event_type, .. } = self.event.clone();
        DeliveredEvent { event_id, event_type, delivered_at: self.updated_at.into() }
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.status == EventStatus::Pending && self.available_at <= now
    }

    /// True if the event was reaped and must be claimed apart from others.
    pub(super) fn is_reaped(&self) -> bool {
        self.last_error.starts_with(REAPED)
    }

    /// Returns the size in bytes of everything except the payload.
    pub(super) fn rest(&self) -> u64 {
        let NewEvent { headers, event_type, partition_key, .. } = &self.event;
        let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        (headers + event_type.len() + partition_key.len()) as u64
    }

    pub(super) fn is_too_large(&self, max_event_bytes: u64) -> bool {
        self.event.payload.len() as u64 > max_event_bytes || self.rest() > max_event_bytes
    }

    pub(super) fn claimed(&self, max_event_bytes: u64) -> Event {
        let NewEvent { event_id, event_type, partition_key, payload, headers, .. } = self.event.clone();
        let content = if self.is_too_large(max_event_bytes) {
            EventContent::TooLarge { bytes: self.rest().max(payload.len() as u64) }
        } else {
            EventContent::Whole { payload, headers: serde_json::json!(headers).to_string() }
        };
        let created_at = Some(self.created_at);
        Event { event_id, event_type, partition_key, content, attempts: self.attempts, created_at }
    }

    pub(super) fn fail(&mut self, now: Timestamp, attempts: u32, error: &str, kind: FailureKind) {
        let (status, delay) = match kind {
            FailureKind::Retry(delay) => (EventStatus::Pending, delay),
            FailureKind::Dead => (EventStatus::Dead, Duration::ZERO),
        };
        let error = stored_error(error);
        self.last_error =
            if status == EventStatus::Pending && self.last_error.starts_with(REAPED) && error != REAPED {
                format!("{REAPED}; {error}").chars().take(MAX_ERROR_CHARS).collect()
            } else {
                error
            };
        (self.status, self.attempts, self.available_at) = (status, attempts, now + delay);
        (self.locked, self.updated_at) = (None, now);
    }
}

pub(super) fn is_of(types: &EventTypes, row: &EventRow) -> bool {
    types.includes(&row.event.event_type)
}

/// A place in a claim: the due event that holds it, and the event that is claimed there.
struct ClaimSlot {
    position: Position,
    chosen: Option<Uuid>,
}

/// Returns the next due events, claimable or not.
fn window<'a>(rows: &'a BTreeMap<Uuid, EventRow>, now: Timestamp, request: &BatchClaim) -> Vec<&'a EventRow> {
    let is_after = |row: &&EventRow| request.after.is_none_or(|after| row.position() > after);
    let mut due: Vec<&EventRow> = rows.values().filter(|row| row.is_due(now)).filter(is_after).collect();
    due.sort_by_key(|row| row.position());
    due.truncate(request.limit as usize);
    due
}

/// Returns as many claimable events of the key as possible, in their order, at most `limit`.
fn head(
    rows: &BTreeMap<Uuid, EventRow>,
    now: Timestamp,
    key: &str,
    types: &EventTypes,
    limit: usize,
) -> Vec<Uuid> {
    let of_key = rows.values().filter(|row| row.event.partition_key == key && is_of(types, row));
    let mut open: Vec<&EventRow> =
        of_key.filter(|row| !matches!(row.status, EventStatus::Delivered | EventStatus::Dead)).collect();
    if open.iter().any(|row| row.status == EventStatus::Delivering) {
        return Vec::new();
    }
    open.retain(|row| row.attempts > 0 || row.is_due(now));
    open.sort_by_key(|row| (row.created_at, row.event.event_id));
    open.iter().take_while(|row| row.is_due(now)).take(limit).map(|row| row.event.event_id).collect()
}

fn slots(rows: &BTreeMap<Uuid, EventRow>, now: Timestamp, request: &BatchClaim) -> Vec<ClaimSlot> {
    let window = window(rows, now, request);
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for row in window.iter().filter(|row| is_of(&request.types, row)) {
        *places.entry(&row.event.partition_key).or_default() += 1;
    }
    let mut heads: BTreeMap<&str, std::vec::IntoIter<Uuid>> = places
        .into_iter()
        .filter(|(key, _)| !key.is_empty())
        .map(|(key, count)| (key, head(rows, now, key, &request.types, count).into_iter()))
        .collect();
    let mut slot = |row: &&EventRow| {
        let chosen = match heads.get_mut(&*row.event.partition_key) {
            _ if !is_of(&request.types, row) => None,
            Some(head) => head.next(),
            None => Some(row.event.event_id),
        };
        ClaimSlot { position: row.position(), chosen }
    };
    window.iter().map(&mut slot).collect()
}

/// The events that a claim takes.
pub(super) struct Chosen {
    pub(super) events: Vec<Uuid>,
    pub(super) next: Option<Position>,
    pub(super) of_reaped: bool,
}

pub(super) fn choose(rows: &BTreeMap<Uuid, EventRow>, now: Timestamp, request: &BatchClaim) -> Chosen {
    let slots = slots(rows, now, request);
    let (mut events, mut of_reaped, mut bytes, mut together) = (Vec::new(), None, 0, request.limit as usize);
    // `passed`: keys with a skipped event. `left`: keys with an event left for the next claim.
    let (mut passed, mut left) = (HashSet::new(), HashSet::new());
    let (mut last, mut is_cut) = (None, false);
    let mut is_full = false;
    for slot in &slots {
        let row = slot.chosen.and_then(|id| rows.get(&id));
        let row = row.filter(|row| !passed.contains(row.key()));
        let is_passed = |row: &&EventRow| {
            request.set_aside.contains(&row.event.event_id) || (request.passes_reaped && row.is_reaped())
        };
        let Some(row) = row.filter(|row| !is_passed(row)) else {
            passed.extend(
                slot.chosen.and_then(|id| rows.get(&id)).map(EventRow::key).filter(|key| !key.is_empty()),
            );
            last = if is_cut { last } else { Some(slot.position) };
            continue;
        };
        let is_alike = *of_reaped.get_or_insert(row.is_reaped()) == row.is_reaped();
        let is_next = is_alike && !left.contains(row.key()) && !is_full;
        if is_next {
            let size = row.event.payload.len() as u64 + row.rest();
            bytes += if row.is_too_large(request.max_event_bytes) { 0 } else { size };
            if row.is_reaped() {
                together = together.min(max_reaped(request, row.attempts) as usize);
            }
            is_full = !events.is_empty() && (bytes > request.max_bytes || events.len() >= together);
        }
        if is_next && !is_full {
            events.push(row.event.event_id);
            last = if is_cut { last } else { Some(slot.position) };
        } else {
            is_cut = true;
            left.extend(Some(row.key()).filter(|key| !key.is_empty()));
        }
    }
    let next = last.filter(|_| is_cut || slots.len() >= request.limit as usize);
    Chosen { events, next, of_reaped: of_reaped.unwrap_or(false) }
}

/// Returns the largest number of events claimed together with a reaped one that has failed `attempts` times:
/// a sixteenth with each failure, because it is unknown which of them crashed the relay.
fn max_reaped(request: &BatchClaim, attempts: u32) -> u32 {
    if attempts.saturating_add(1) >= request.max_attempts {
        return 1;
    }
    let shift = attempts.saturating_mul(REAPED_SHIFT);
    request.limit.checked_shr(shift).unwrap_or(0).max(1)
}
