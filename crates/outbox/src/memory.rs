//! An outbox in memory, for tests of publishers and for small uses. Its content is lost when the process
//! ends.

mod row;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::Timestamp;
use pg::RawTimestamp;
use tokio::time::Instant;
use uuid::Uuid;

use self::row::{EventRow, EventStatus, choose, is_of};
use crate::{
    BatchClaim, ClaimToken, ClaimedRows, DeliveredCursor, DeliveredEvent, DeliveredPage, EventTypes,
    FailedEvent, FailureKind, Marked, NewEvent, NewestCursor, NewestPage, OutboxError, Position, REAPED,
    ReapRequest, Reaped, RequeuedDelivered, Stats, Storage, StoredEvent,
};

/// An outbox in memory; clones share it. Its clock starts at a given time and advances with the runtime's
/// clock.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    rows: Arc<Mutex<BTreeMap<Uuid, EventRow>>>,
    /// Events that another transaction has locked.
    locked: Arc<Mutex<HashSet<Uuid>>>,
    start: Timestamp,
    started: Instant,
}

impl MemoryStorage {
    /// Creates an empty outbox whose clock shows `start` now.
    pub fn new(start: Timestamp) -> Self {
        Self { rows: Arc::default(), locked: Arc::default(), start, started: Instant::now() }
    }

    /// Returns the time by its clock.
    pub fn now(&self) -> Timestamp {
        self.start + self.started.elapsed()
    }

    /// Adds an event, like a producer's commit. `created_at` is the start of the producer's transaction. An
    /// existing event with this id is not changed.
    pub fn insert(&self, event: NewEvent, created_at: Timestamp) {
        let row = EventRow {
            status: EventStatus::Pending,
            attempts: 0,
            last_error: String::new(),
            available_at: event.available_at.unwrap_or(created_at),
            locked: None,
            created_at,
            updated_at: created_at,
            event,
        };
        self.rows().entry(row.event.event_id).or_insert(row);
    }

    /// Returns the event, whatever its status.
    pub fn get(&self, event_id: Uuid) -> Option<StoredEvent> {
        let rows = self.rows();
        let row = rows.get(&event_id)?;
        let status = match row.status {
            EventStatus::Pending => "PENDING",
            EventStatus::Delivering => "DELIVERING",
            EventStatus::Delivered => "DELIVERED",
            EventStatus::Dead => "DEAD",
        };
        Some(StoredEvent {
            event_id,
            event_type: row.event.event_type.clone(),
            partition_key: row.event.partition_key.clone(),
            status: status.to_owned(),
            attempts: row.attempts,
            last_error: row.last_error.clone(),
            available_at: Some(row.available_at),
            created_at: Some(row.created_at),
            updated_at: Some(row.updated_at),
            payload_bytes: row.event.payload.len() as u64,
        })
    }

    /// Simulates another transaction that locks exactly these events: they can be neither marked, requeued
    /// nor reaped.
    pub fn lock(&self, event_ids: &[Uuid]) {
        *self.locked() = event_ids.iter().copied().collect();
    }

    /// Marks events claimed under `token` as DELIVERED, like a transaction that began at `begun` and commits
    /// now.
    pub fn commit_mark(&self, token: &ClaimToken, event_ids: &[Uuid], begun: Timestamp) -> Vec<Marked> {
        let mark = |row: &mut EventRow, _: &Uuid| {
            (row.status, row.locked, row.updated_at) = (EventStatus::Delivered, None, begun);
        };
        self.mark(token, event_ids, |id| *id, mark)
    }

    fn locked(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<Uuid, EventRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes events claimed under `token`.
    fn mark<T>(
        &self,
        token: &ClaimToken,
        elements: &[T],
        id: impl Fn(&T) -> Uuid,
        change: impl Fn(&mut EventRow, &T),
    ) -> Vec<Marked> {
        let (mut rows, locked) = (self.rows(), self.locked());
        let mut mark = |element: &T| match rows.get_mut(&id(element)) {
            Some(_) if locked.contains(&id(element)) => Marked::Busy,
            Some(row) if row.locked.as_ref().is_some_and(|(holder, _)| holder == token) => {
                change(row, element);
                Marked::Applied
            }
            _ => Marked::Lost,
        };
        elements.iter().map(&mut mark).collect()
    }
}

impl Storage for MemoryStorage {
    async fn due_in(
        &self,
        types: &EventTypes,
        after: Option<&Position>,
    ) -> Result<Option<Duration>, OutboxError> {
        let (now, rows) = (Self::now(self), self.rows());
        let next = rows
            .values()
            .filter(|row| row.status == EventStatus::Pending && is_of(types, row))
            .filter(|row| after.is_none_or(|after| row.position() > *after))
            .map(|row| row.available_at)
            .min();
        Ok(next.map(|at| at.saturating_since(now)))
    }

    async fn claim_batch(&self, request: &BatchClaim) -> Result<ClaimedRows, OutboxError> {
        let now = Self::now(self);
        let mut rows = self.rows();
        let chosen = choose(&rows, now, request);
        let mut events = Vec::with_capacity(chosen.events.len());
        for id in chosen.events {
            // Cannot fail: they were found above, under the same lock.
            let row = rows.get_mut(&id).expect("a row that was found");
            (row.status, row.locked, row.updated_at) =
                (EventStatus::Delivering, Some((request.token.clone(), now)), now);
            events.push(row.claimed(request.max_event_bytes));
        }
        Ok(ClaimedRows { events, unchanged: Vec::new(), next: chosen.next, of_reaped: chosen.of_reaped })
    }

    async fn first_claimable(&self, request: &BatchClaim) -> Result<Option<Uuid>, OutboxError> {
        Ok(choose(&self.rows(), Self::now(self), request).events.first().copied())
    }

    async fn mark_delivered_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        Ok(self.commit_mark(token, event_ids, Self::now(self)))
    }

    async fn mark_failed_batch(
        &self,
        token: &ClaimToken,
        failures: &[FailedEvent],
    ) -> Result<Vec<Marked>, OutboxError> {
        let now = Self::now(self);
        Ok(self.mark(
            token,
            failures,
            |failure| failure.event_id,
            |row, failure| {
                row.fail(now, failure.attempts, &failure.error, failure.kind);
            },
        ))
    }

    async fn release_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        let now = Self::now(self);
        Ok(self.mark(
            token,
            event_ids,
            |id| *id,
            |row, _| {
                (row.status, row.locked, row.updated_at) = (EventStatus::Pending, None, now);
            },
        ))
    }

    async fn reap_expired_leases(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> Result<Reaped, OutboxError> {
        let now = Self::now(self);
        let (mut rows, locked) = (self.rows(), self.locked());
        let ended = |row: &&mut EventRow| {
            is_of(&request.types, row)
                && !locked.contains(&row.event.event_id)
                && !request.except.contains(&row.event.event_id)
                && row.locked.as_ref().is_some_and(|(_, at)| *at < now - request.lease_timeout)
        };
        let mut expired: Vec<&mut EventRow> = rows.values_mut().filter(ended).collect();
        expired.sort_by_key(|row| row.locked.as_ref().map(|(_, at)| *at));
        expired.truncate(request.limit as usize);
        let count = expired.len() as u64;
        for row in expired {
            let attempts = row.attempts.saturating_add(1);
            row.fail(now, attempts, REAPED, kind(attempts));
        }
        Ok(Reaped { count, refused: Vec::new(), is_followed: count >= u64::from(request.limit) })
    }

    async fn identity(&self) -> Result<String, OutboxError> {
        Ok("memory".to_owned())
    }

    async fn now(&self) -> Result<RawTimestamp, OutboxError> {
        Ok(Self::now(self).into())
    }

    async fn newest_delivered(
        &self,
        types: &EventTypes,
        _: Option<NewestCursor>,
    ) -> Result<NewestPage, OutboxError> {
        let rows = self.rows();
        let ours = rows.values().filter(|row| row.status == EventStatus::Delivered && is_of(types, row));
        Ok(NewestPage { newest: ours.map(|row| row.updated_at.into()).max(), next: None })
    }

    async fn list_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> Result<DeliveredPage, OutboxError> {
        let rows = self.rows();
        let is_after = |event: &DeliveredEvent| match cursor {
            Some(DeliveredCursor::After(at, id)) => (event.delivered_at, event.event_id) > (at, id),
            _ => true,
        };
        let ours = rows.values().filter(|row| row.status == EventStatus::Delivered && is_of(types, row));
        let mut events: Vec<DeliveredEvent> = ours
            .map(EventRow::delivered)
            .filter(|event| event.delivered_at >= since && is_after(event))
            .collect();
        events.sort_by_key(|event| (event.delivered_at, event.event_id));
        events.truncate(limit as usize);
        let last = events.last().filter(|_| events.len() >= limit as usize);
        let next = last.map(|last| DeliveredCursor::After(last.delivered_at, last.event_id));
        Ok(DeliveredPage { events, next })
    }

    async fn requeue_delivered(&self, events: &[DeliveredEvent]) -> Result<RequeuedDelivered, OutboxError> {
        let (now, mut rows, locked) = (Self::now(self), self.rows(), self.locked());
        let mut outcome = RequeuedDelivered::default();
        for event in events {
            let row = rows.get_mut(&event.event_id);
            let Some(row) =
                row.filter(|row| row.status == EventStatus::Delivered && row.delivered() == *event)
            else {
                continue;
            };
            if locked.contains(&event.event_id) {
                outcome.locked.push(event.event_id);
                continue;
            }
            (row.status, row.attempts, row.available_at, row.updated_at) =
                (EventStatus::Pending, 0, now, now);
            row.last_error.clear();
            outcome.requeued.push(event.event_id);
        }
        Ok(outcome)
    }

    async fn oldest_claim_until(&self, time: RawTimestamp) -> Result<Option<RawTimestamp>, OutboxError> {
        let rows = self.rows();
        let claims =
            rows.values().filter_map(|row| row.locked.as_ref().map(|(_, at)| RawTimestamp::from(*at)));
        Ok(claims.filter(|at| *at <= time).min())
    }

    async fn stats(&self, types: &EventTypes, limit: u64) -> Result<Stats, OutboxError> {
        let (now, rows) = (Self::now(self), self.rows());
        let count = |of: &dyn Fn(&EventRow) -> bool| {
            limit.min(rows.values().filter(|row| is_of(types, row) && of(row)).count() as u64)
        };
        let due = rows.values().filter(|row| is_of(types, row) && row.is_due(now));
        let oldest = due.map(|row| row.created_at).min();
        let pending = |row: &EventRow| row.status == EventStatus::Pending;
        Ok(Stats {
            pending: count(&|row| row.is_due(now) && row.attempts == 0),
            retrying: count(&|row| pending(row) && row.attempts > 0),
            scheduled: count(&|row| pending(row) && !row.is_due(now) && row.attempts == 0),
            delivering: count(&|row| row.status == EventStatus::Delivering),
            dead: count(&|row| row.status == EventStatus::Dead),
            oldest_age: oldest.map(|at| now.saturating_since(at)).unwrap_or_default(),
        })
    }
}
