//! The port through which a relay uses the outbox, with its requests and results.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use pg::RawTimestamp;
use uuid::Uuid;

use crate::{Event, OutboxError, RelayId};

/// The value of `locked_by` under one claim, `<relay id>#<nonce>`, unique to the claim.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClaimToken(pub(crate) String);

impl ClaimToken {
    /// Creates the token of one claim of `relay`; `nonce` must never have been used before.
    pub fn new(relay: &RelayId, nonce: &str) -> Self {
        Self(format!("{relay}#{nonce}"))
    }

    /// Returns the column's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The event types that a relay carries. Other types are ignored: they neither block nor count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventTypes {
    /// All types.
    All,
    /// Only these types.
    Only(Vec<String>),
}

impl EventTypes {
    /// True if events of this type are included.
    pub(crate) fn includes(&self, event_type: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == event_type),
        }
    }

    /// Returns the types that both include.
    pub(crate) fn intersection(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, types) | (types, Self::All) => types,
            (Self::Only(names), other) => {
                Self::Only(names.into_iter().filter(|name| other.includes(name)).collect())
            }
        }
    }

    /// Returns the same types, sorted and without duplicates.
    pub(crate) fn sorted(self) -> Self {
        match self {
            Self::All => Self::All,
            Self::Only(mut names) => {
                names.sort();
                names.dedup();
                Self::Only(names)
            }
        }
    }
}

/// A position in the order in which events become due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The column `available_at`.
    pub available_at: RawTimestamp,
    /// The column `created_at`.
    pub created_at: RawTimestamp,
    /// The primary key.
    pub event_id: Uuid,
}

/// A request to claim due events.
#[derive(Clone, Debug)]
pub struct BatchClaim {
    /// The token under which the rows are claimed.
    pub token: ClaimToken,
    /// The event types.
    pub types: EventTypes,
    /// The position after which the claim begins; `None` for all.
    pub after: Option<Position>,
    /// The largest number of events that are examined, and so of events that are claimed.
    pub limit: u32,
    /// The largest total size of the claimed events in bytes, payloads and other columns. The first event may
    /// exceed it alone.
    pub max_bytes: u64,
    /// The size in bytes above which an event is not read: of its payload, or of its headers and names.
    pub max_event_bytes: u64,
    /// The number of attempts of an event: the last attempt of an event that was reaped is made alone.
    pub max_attempts: u32,
    /// True to skip events that were reaped, and the later ones of their keys.
    pub passes_reaped: bool,
    /// Events that are not claimed, nor the later ones of their keys.
    pub set_aside: Vec<Uuid>,
    /// True if the claim gives up soon, because the last ones took too long.
    pub hurries: bool,
}

/// The exponent of two by which a group of reaped events shrinks with each attempt.
pub(crate) const REAPED_SHIFT: u32 = 4;

/// The result of a claim.
#[must_use]
#[derive(Clone, PartialEq, Debug)]
pub struct ClaimedRows {
    /// The events that are now DELIVERING under the token; those of one partition key in their order.
    pub events: Vec<Event>,
    /// The selected events that the table left as they are, because a trigger of the producer skips the
    /// update.
    pub unchanged: Vec<Uuid>,
    /// The last position examined; `None` if nothing is due after it.
    pub next: Option<Position>,
    /// True if the events were reaped.
    pub of_reaped: bool,
}

/// A failed attempt of a claimed event.
#[derive(Clone, PartialEq, Debug)]
pub struct FailedEvent {
    /// The event.
    pub event_id: Uuid,
    /// The number of its failed attempts, this one included.
    pub attempts: u32,
    /// The error.
    pub error: String,
    /// The consequence.
    pub kind: FailureKind,
}

/// The consequence of a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// PENDING again, available after this delay.
    Retry(Duration),
    /// DEAD.
    Dead,
}

/// The outcome of marking one event.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked {
    /// The event is marked.
    Applied,
    /// The claim has ended: the event was reaped, or changed by hand. Nothing was changed.
    Lost,
    /// Another transaction has locked the row. Nothing was changed; the same call may succeed later.
    Busy,
}

/// A DELIVERED event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeliveredEvent {
    /// Its primary key.
    pub event_id: Uuid,
    /// Its type, clipped if longer than any valid type.
    pub event_type: String,
    /// The time at which it was marked.
    pub delivered_at: RawTimestamp,
}

/// The position at which the search for the newest DELIVERED event continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewestCursor {
    /// The search continues before this time: no event that was delivered later has one of the types.
    Before(RawTimestamp),
    /// The search continues after this event, in the order of the primary key; the time is the newest found
    /// so far.
    Key(Uuid, Option<RawTimestamp>),
}

/// A page of the search for the newest DELIVERED event.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewestPage {
    /// The newest time of delivery found so far.
    pub newest: Option<RawTimestamp>,
    /// The position at which the search continues; `None` at its end.
    pub next: Option<NewestCursor>,
}

/// The outcome of requeueing DELIVERED events. Events in neither list were changed in the meantime.
#[must_use]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequeuedDelivered {
    /// Events that are now PENDING.
    pub requeued: Vec<Uuid>,
    /// Events that another transaction has locked. They are still DELIVERED as read.
    pub locked: Vec<Uuid>,
}

/// The position at which a list of DELIVERED events continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveredCursor {
    /// The list continues after this event, in the order of delivery.
    After(RawTimestamp, Uuid),
    /// The list continues after this event, in the order of the primary key: the table has no index of
    /// DELIVERED events.
    Key(Uuid),
}

/// A page of the list of DELIVERED events.
#[must_use]
#[derive(Clone, PartialEq, Debug)]
pub struct DeliveredPage {
    /// The events: at most the limit of the request, or ten times as many in the order of the primary key.
    pub events: Vec<DeliveredEvent>,
    /// The position at which the list continues; `None` at the end.
    pub next: Option<DeliveredCursor>,
}

/// A request to end expired leases.
#[derive(Clone, Debug)]
pub struct ReapRequest {
    /// The event types.
    pub types: EventTypes,
    /// The age at which a lease has expired; a lease without a time has expired too.
    pub lease_timeout: Duration,
    /// The largest number of rows of one call.
    pub limit: u32,
    /// Events that are not reaped, because the table rejects their change.
    pub except: Vec<Uuid>,
}

/// The outcome of one call that ends expired leases.
#[must_use]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reaped {
    /// The number of leases ended.
    pub count: u64,
    /// The events whose change the table rejects.
    pub refused: Vec<Uuid>,
    /// True if there may be more expired leases.
    pub is_followed: bool,
}

/// The counts of an outbox. Each count is capped at the limit of its request.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Stats {
    /// Events that are PENDING, due, and never tried.
    pub pending: u64,
    /// Events that are PENDING and have been tried.
    pub retrying: u64,
    /// Events that are PENDING, not yet due, and never tried.
    pub scheduled: u64,
    /// Events that are DELIVERING.
    pub delivering: u64,
    /// Events that are DEAD.
    pub dead: u64,
    /// The time since the creation of the oldest due event; zero if none is due.
    pub oldest_age: Duration,
}

/// The outbox as a relay uses it. All times are those of the store's clock, never a client's.
pub trait Storage: Send + Sync + 'static {
    /// Returns the time until the next event is due: zero if one is due, `None` if none waits. Cheaper than a
    /// claim that finds nothing.
    ///
    /// Examines a bounded number of events. If none of those is of these types, the result is the time of the
    /// last of them, so that a claim looks further.
    fn due_in(
        &self,
        types: &EventTypes,
        after: Option<&Position>,
    ) -> impl Future<Output = Result<Option<Duration>, OutboxError>> + Send;

    /// Claims due events in the order of their due times, and those of one partition key in the order of
    /// `created_at` and `event_id`. After an error it is unknown whether the rows are claimed; if they are,
    /// their lease ends the claim.
    ///
    /// No event of a partition key is claimed while another claim holds one of that key, or while an earlier
    /// one waits for its next attempt. Events that were reaped are claimed apart from others, in groups that
    /// shrink with their failed attempts. The first claimable event decides which of the two kinds is
    /// claimed.
    fn claim_batch(
        &self,
        request: &BatchClaim,
    ) -> impl Future<Output = Result<ClaimedRows, OutboxError>> + Send;

    /// Returns the first event that this claim would take. Changes nothing.
    fn first_claimable(
        &self,
        request: &BatchClaim,
    ) -> impl Future<Output = Result<Option<Uuid>, OutboxError>> + Send;

    /// Marks events as DELIVERED. Returns one outcome for each id, in their order.
    fn mark_delivered_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// Marks events as PENDING with a later attempt, or as DEAD.
    fn mark_failed_batch(
        &self,
        token: &ClaimToken,
        failures: &[FailedEvent],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// Makes events PENDING as before the claim.
    fn release_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// Ends expired leases. Each counts as a failed attempt with the error `lease expired`; `kind` computes
    /// the consequence from the number of attempts. A lease that begins in the future was written by another
    /// clock, and is set to begin now.
    fn reap_expired_leases(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> impl Future<Output = Result<Reaped, OutboxError>> + Send;

    /// Returns the identity of this outbox, which is unique and constant while the outbox exists.
    fn identity(&self) -> impl Future<Output = Result<String, OutboxError>> + Send;

    /// Returns the time by the store's clock.
    fn now(&self) -> impl Future<Output = Result<RawTimestamp, OutboxError>> + Send;

    /// Searches a bounded part of the outbox for the newest time at which an event of these types was
    /// DELIVERED. Times in the future, written by another clock, are ignored.
    fn newest_delivered(
        &self,
        types: &EventTypes,
        cursor: Option<NewestCursor>,
    ) -> impl Future<Output = Result<NewestPage, OutboxError>> + Send;

    /// Lists a page of the events of these types that were DELIVERED at `since` or later.
    fn list_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<DeliveredPage, OutboxError>> + Send;

    /// Makes events PENDING, as if new, if they are still DELIVERED as read and no other transaction has
    /// locked them.
    fn requeue_delivered(
        &self,
        events: &[DeliveredEvent],
    ) -> impl Future<Output = Result<RequeuedDelivered, OutboxError>> + Send;

    /// Returns the time of the oldest claim that still holds an event, if that time is at or before `time`.
    /// The event may still be marked as DELIVERED, with a time not before its claim.
    fn oldest_claim_until(
        &self,
        time: RawTimestamp,
    ) -> impl Future<Output = Result<Option<RawTimestamp>, OutboxError>> + Send;

    /// Counts the events, each count up to `limit`.
    fn stats(
        &self,
        types: &EventTypes,
        limit: u64,
    ) -> impl Future<Output = Result<Stats, OutboxError>> + Send;
}
