//! A transactional outbox in PostgreSQL, and the relay that empties it.
//!
//! **The promise.** A producer writes an event in its own transaction, next to its own rows. What was committed is published at
//! least once, in the order of its partition key; what was rolled back never is. An event that was claimed by a relay that
//! crashed is claimed again after its lease; a relay whose lease has ended can neither publish under it nor record an outcome.
//!
//! `enqueue` is the producer's side. `Relay` claims due events from a [`Storage`], hands them to a [`Publisher`], and marks
//! them with their outcome. `PostgresStorage` is the table, `Administration` what operators do with it.
//!
//! **What it cannot promise** is that an event is published only once: a relay may crash between publishing and marking. A
//! publisher that keeps receipts closes that window.

mod relay;
mod storage;

mod error;
mod event;
mod publisher;
mod retry;
mod table;

pub use error::OutboxError;
pub use event::{Content, Event, MAX_ERROR_CHARS};
pub use publisher::{Deadline, Publication, Publisher, PublisherOutage};
pub use relay::{Observer, RelayId, RelayIdError, RelaySettings, RelayState, RelayStatus};
pub use retry::RetryPolicy;
pub use storage::{
    Claim, ClaimRequest, ClaimToken, EventTypes, Failure, FailureKind, Marked, Position, ReapRequest, Stats,
    Storage,
};
pub use table::{TableName, TableNameError};
