//! The ports in memory, with the relevant behaviour of the servers: transactions, versions, fences, locks,
//! expiry, lost tails.
//!
//! Each keeps the contract of its port: the suites in `harness::contract` run on it and on the real store.
//! Queries, searches and receipts have none, because no loop uses them: tests run them on PostgreSQL.
//! Of operators' changes there is what a loop of the workers needs.
//! [`Scripted`] puts a script in front of one, for failures and delays. Time is an `ambient::ManualClock`
//! that the test advances; waiting is tokio's, which a test can pause.
//!
//! A value behind a lock is consistent whenever the lock is free, so a panic elsewhere does not make it
//! unusable.

mod checkpoints;
mod database;
mod directory;
mod election;
mod holds;
mod idempotency;
mod inspection;
mod intents;
mod operations;
mod publishing;
mod replicas;
mod republish;
mod retention;
mod routes;
mod rows;
mod script;
mod scripted;
mod sessions;
mod test_access;

pub use checkpoints::MemoryCheckpoints;
pub use database::{MemoryDatabase, RowLock};
pub use directory::MemoryDirectory;
pub use election::{MemoryElection, MemoryTerm};
pub use intents::MemoryIntents;
pub use publishing::{MemoryPublishing, PublishedFields};
pub use replicas::MemoryReplicas;
pub use rows::RecordedAction;
pub use script::{Call, Effect, Script};
pub use scripted::Scripted;
pub use sessions::MemorySessions;
pub use test_access::{Backup, StoredRouteState};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
