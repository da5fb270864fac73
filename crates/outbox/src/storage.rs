//! Where events are kept: what a relay asks of the outbox, and what it answers.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use pg::RawTimestamp;
use uuid::Uuid;

use crate::{Event, OutboxError, RelayId};

/// The value of `locked_by` under one claim, `<relay id>#<nonce>`: no two claims have the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClaimToken(String);

impl ClaimToken {
    /// The token of one claim of `relay`; `nonce` was never used before.
    pub fn new(relay: &RelayId, nonce: &str) -> Self {
        Self(format!("{relay}#{nonce}"))
    }

    /// The column's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The event types that a relay carries. It leaves the others alone: they block nothing and count nowhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventTypes {
    /// All of them.
    All,
    /// These.
    Only(Vec<String>),
}

impl EventTypes {
    /// Whether events of this type are among them.
    pub(crate) fn includes(&self, event_type: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == event_type),
        }
    }

    /// The same types, each once and in their order.
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

/// A place in the order in which events fall due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The column `available_at`.
    pub available_at: RawTimestamp,
    /// The column `created_at`.
    pub created_at: RawTimestamp,
    /// The primary key.
    pub event_id: Uuid,
}

/// The wish to claim due events.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What the rows are claimed under.
    pub token: ClaimToken,
    /// Which types.
    pub types: EventTypes,
    /// Look only at what falls due after this; `None` for all.
    pub after: Option<Position>,
    /// The most events that are looked at, and so the most that are claimed.
    pub limit: u32,
    /// The most bytes that are claimed, payloads and the rest as they are read, unless the first event alone
    /// exceeds that.
    pub max_bytes: u64,
    /// An event whose payload exceeds this, or whose headers and names do, is not read.
    pub max_event_bytes: u64,
    /// How often an event is tried: one that was reaped has its last attempt alone.
    pub max_attempts: u32,
    /// Whether events that were reaped are passed, with the later ones of their keys.
    pub passes_reaped: bool,
    /// Events that are not claimed, nor later ones of their keys.
    pub set_aside: Vec<Uuid>,
}

impl ClaimRequest {
    /// The most events that are claimed together with one that was reaped and has failed so often: a
    /// sixteenth each time. Which of them ended its relay is unknown.
    pub(crate) fn max_reaped(&self, attempts: u32) -> u32 {
        if attempts.saturating_add(1) >= self.max_attempts {
            return 1;
        }
        let shift = attempts.saturating_mul(REAPED_SHIFT);
        self.limit.checked_shr(shift).unwrap_or(0).max(1)
    }
}

/// A group of reaped events is this power of two smaller with each attempt.
pub(crate) const REAPED_SHIFT: u32 = 4;

/// What a claim found.
#[must_use]
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// The events that are now DELIVERING under the token; those of one partition key in their order.
    pub events: Vec<Event>,
    /// How far it looked; `None` if nothing is due after that.
    pub next: Option<Position>,
    /// Whether they are events that were reaped.
    pub of_reaped: bool,
}

/// A failed attempt of an event that is claimed.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// Which event.
    pub event_id: Uuid,
    /// How often it has failed, this time included.
    pub attempts: u32,
    /// Why.
    pub error: String,
    /// What follows.
    pub kind: FailureKind,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// PENDING again, available after this delay.
    Retry(Duration),
    /// DEAD.
    Dead,
}

/// What became of marking one event.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked {
    /// It is marked.
    Applied,
    /// The claim is over: the event was reaped, or changed by hand. Nothing was changed.
    Lost,
    /// Another transaction holds the row open. Nothing was changed; the same call may succeed later.
    Busy,
}

/// An event that is DELIVERED.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeliveredEvent {
    /// Its primary key.
    pub event_id: Uuid,
    /// Its type; one that is too long for any type is clipped.
    pub event_type: String,
    /// When it was marked.
    pub delivered_at: RawTimestamp,
}

/// The place at which the search for the newest DELIVERED event continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewestCursor {
    /// Before this time: no later event is of the types.
    Before(RawTimestamp),
    /// After this event, in the order of the primary key; with the newest time until there.
    Key(Uuid, Option<RawTimestamp>),
}

/// A part of the search for the newest DELIVERED event.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewestPage {
    /// The newest time of delivery, as far as the search came.
    pub newest: Option<RawTimestamp>,
    /// The place at which the search continues; `None` at its end.
    pub next: Option<NewestCursor>,
}

/// The outcome of requeueing events that are DELIVERED. Those that are in neither list were changed
/// meanwhile.
#[must_use]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequeuedDelivered {
    /// They are PENDING.
    pub requeued: Vec<Uuid>,
    /// Another transaction has locked them: they are DELIVERED as they were read.
    pub locked: Vec<Uuid>,
}

/// The place at which a list of DELIVERED events continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveredCursor {
    /// After this event, in the order of delivery.
    After(RawTimestamp, Uuid),
    /// After this event, in the order of the primary key: the table has no index of DELIVERED events.
    Key(Uuid),
}

/// A part of the list of DELIVERED events.
#[must_use]
#[derive(Clone, PartialEq, Debug)]
pub struct DeliveredPage {
    /// The events: at most the limit of the request, or ten times as many in the order of the primary key.
    pub events: Vec<DeliveredEvent>,
    /// The place at which the list continues; `None` at the end.
    pub next: Option<DeliveredCursor>,
}

/// Which leases have ended, and what follows.
#[derive(Clone, Debug)]
pub struct ReapRequest {
    /// Which types.
    pub types: EventTypes,
    /// Leases older than this have ended, and those without a time.
    pub lease_timeout: Duration,
    /// The most rows of one call.
    pub limit: u32,
    /// Events that are not reaped, because the table refuses to change them.
    pub except: Vec<Uuid>,
}

/// The outcome of one call for the leases.
#[must_use]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reaped {
    /// How many were ended.
    pub count: u64,
    /// The events that the table refuses to change.
    pub refused: Vec<Uuid>,
    /// Whether there may be more.
    pub is_followed: bool,
}

/// What is in the outbox. Each count ends at the limit that it was asked with.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Stats {
    /// PENDING, due, never tried.
    pub pending: u64,
    /// PENDING, tried.
    pub retrying: u64,
    /// PENDING, not yet due, never tried.
    pub scheduled: u64,
    /// DELIVERING.
    pub delivering: u64,
    /// DEAD.
    pub dead: u64,
    /// Since the creation of the oldest event that is due; zero if none is.
    pub oldest_age: Duration,
}

/// What a relay asks of an outbox. Time is that of the store; no client's clock takes part.
pub trait Storage: Send + Sync + 'static {
    /// How long until the next event falls due: zero if one is due, `None` if none waits. Cheaper than a
    /// claim that finds nothing.
    ///
    /// It looks at a bounded number of events. If none of those is of these types, it is the time of the last
    /// of them, so that a claim looks further.
    fn due_in(
        &self,
        types: &EventTypes,
        after: Option<&Position>,
    ) -> impl Future<Output = Result<Option<Duration>, OutboxError>> + Send;

    /// Claims due events, in the order in which they fell due, and those of one partition key in the order of
    /// `created_at` and `event_id`. After an error it is unknown whether the rows are claimed; their lease
    /// ends then.
    ///
    /// No event of a partition key is claimed while another claim holds one of that key, or while an earlier
    /// one waits for its next attempt. Events that were reaped are claimed without others, and the fewer
    /// together the more often they have failed: the first that can be claimed decides whether it is a claim
    /// of these.
    fn claim_batch(&self, request: &ClaimRequest) -> impl Future<Output = Result<Claim, OutboxError>> + Send;

    /// The first event that such a claim would take. Changes nothing.
    fn first_claimable(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<Uuid>, OutboxError>> + Send;

    /// DELIVERED. One outcome for each id, in their order.
    fn mark_delivered_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// PENDING with a later attempt, or DEAD.
    fn mark_failed_batch(
        &self,
        token: &ClaimToken,
        failures: &[Failure],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// PENDING as before the claim.
    fn release_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Marked>, OutboxError>> + Send;

    /// Ends leases that are over: each counts as a failed attempt with the error `lease expired`; `kind` says
    /// what follows from the number of attempts. A lease that begins in the future was written by another
    /// clock, and begins now.
    fn reap_expired_leases(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> impl Future<Output = Result<Reaped, OutboxError>> + Send;

    /// The name of this outbox, unlike that of any other, for as long as it exists.
    fn identity(&self) -> impl Future<Output = Result<String, OutboxError>> + Send;

    /// Now, by the clock of the store.
    fn now(&self) -> impl Future<Output = Result<RawTimestamp, OutboxError>> + Send;

    /// Looks for the newest time at which an event of these types was DELIVERED, in a bounded part of the
    /// outbox. Times in the future, written by another clock, do not count.
    fn newest_delivered(
        &self,
        types: &EventTypes,
        cursor: Option<NewestCursor>,
    ) -> impl Future<Output = Result<NewestPage, OutboxError>> + Send;

    /// Some of the events of these types that were DELIVERED at `since` or later.
    fn list_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<DeliveredPage, OutboxError>> + Send;

    /// Sets events to PENDING, as if they were new, if they are still DELIVERED as they were read and no
    /// other transaction has locked them.
    fn requeue_delivered(
        &self,
        events: &[DeliveredEvent],
    ) -> impl Future<Output = Result<RequeuedDelivered, OutboxError>> + Send;

    /// When the oldest claim was made under which an event is held, if it was made at this time or before.
    /// The event may still be marked as DELIVERED, with a time that is not before its claim.
    fn oldest_claim_until(
        &self,
        time: RawTimestamp,
    ) -> impl Future<Output = Result<Option<RawTimestamp>, OutboxError>> + Send;

    /// What there is, each count up to `limit`.
    fn stats(
        &self,
        types: &EventTypes,
        limit: u64,
    ) -> impl Future<Output = Result<Stats, OutboxError>> + Send;
}
