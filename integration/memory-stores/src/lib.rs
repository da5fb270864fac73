//! The ports in memory, with the relevant behaviour of the servers: transactions, versions, fences, locks,
//! expiry, lost tails.
//!
//! Each keeps the contract of its port: the suites in `harness::contract` run on it and on the real store.
//! Queries, searches and receipts have none, because no loop uses them: tests run them on PostgreSQL.
//! Of operators' changes there is what a loop of the workers needs.
//! [`Scripted`] puts a script in front of one, for failures and delays; [`Remote`] any other [`Link`]. Time
//! is a clock of the test; waiting is tokio's, which a test can pause.
//!
//! A value behind a lock is consistent whenever the lock is free, so a panic elsewhere does not make it
//! unusable.

mod audit;
mod checkpoints;
mod clock;
mod database;
mod directory;
mod election;
mod holds;
mod idempotency;
mod inspection;
mod intents;
mod operations;
mod publishing;
mod remote;
mod replicas;
mod republish;
mod retention;
mod routes;
mod rows;
mod script;
mod sessions;
mod test_access;

pub use checkpoints::{CheckpointsBackup, MemoryCheckpoints};
pub use database::{MemoryDatabase, RowLock};
pub use directory::MemoryDirectory;
pub use election::{MemoryElection, MemoryTerm};
pub use intents::{IntentsBackup, MemoryIntents};
pub use publishing::{MemoryPublishing, PublishedFields, PublishingBackup};
pub use remote::{Link, Remote, Scripted};
pub use replicas::MemoryReplicas;
pub use rows::RecordedAction;
pub use script::{Call, Effect, Script};
pub use sessions::MemorySessions;
pub use test_access::{Backup, StoredRouteState};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
