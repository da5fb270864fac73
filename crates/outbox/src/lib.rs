//! A transactional outbox in PostgreSQL, and the relay that empties it.
//!
//! **The promise.** A producer writes an event in its own transaction, next to its own rows. A committed
//! event is published at least once, in the order of its partition key; an event that was rolled back is
//! never published. If a relay crashes, its claimed events are claimed again after their lease expires. A
//! relay whose lease has expired can neither publish under it nor record an outcome.
//!
//! [`enqueue`] is the producer's side. [`Relay`] claims due events from a [`Storage`], passes them to a
//! [`Publisher`], and marks them with their outcome. [`PostgresStorage`] is the table, [`Administration`] the
//! operators' interface.
//!
//! **What it cannot promise** is that an event is published only once: a relay may crash between publishing
//! and marking. A publisher that keeps published markers closes that window.

mod relay;
mod storage;

mod administration;
mod age;
mod check;
mod enqueue;
mod error;
mod event;
#[cfg(feature = "memory")]
mod memory;
mod postgres;
mod publisher;
mod retry;
mod row_id;
mod schema;
mod statements;
mod table;

pub use administration::{
    Administration, EventDetail, MAX_LISTED, PruneRequest, Pruned, RequeuePlan, RequeueReport,
    RequeueRequest, Requeued, SHOWN_BY_DRY_RUN, StoredEvent,
};
pub use age::{Age, AgeError};
pub use check::{Checked, relay_grants};
pub use enqueue::{NewEvent, enqueue, enqueue_on};
pub use error::OutboxError;
pub(crate) use event::REAPED;
pub use event::{Event, EventContent, MAX_ERROR_CHARS};
#[cfg(feature = "memory")]
pub use memory::MemoryStorage;
pub use postgres::PostgresStorage;
pub use publisher::{
    Deadline, Progress, Publication, Publisher, PublisherOutage, RecordWrite, Server, ServerNumber,
    ServerRecord,
};
pub use relay::{Relay, RelayId, RelayIdError, RelayObserver, RelaySettings, RelayState, RelayStatus};
pub use retry::RetryPolicy;
pub use schema::{ChannelName, ChannelNameError, notify_sql, schema_sql};
pub use statements::PLANNER_PARAMETERS;
pub use storage::{
    BatchClaim, ClaimToken, ClaimedRows, DeliveredCursor, DeliveredEvent, DeliveredPage, EventTypes,
    FailedEvent, FailureKind, Marked, NewestCursor, NewestPage, Position, ReapRequest, Reaped,
    RequeuedDelivered, Stats, Storage,
};
pub use table::{TableName, TableNameError};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
