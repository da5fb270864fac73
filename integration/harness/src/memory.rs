//! The ports in memory, with what matters of the servers: transactions, versions, fences, locks, expiry, lost tails.
//!
//! Each keeps the contract of its port (the suites in [`crate::contract`] run on both). Time is an `ambient::ManualClock`
//! that the test advances. A value that a lock protects is consistent whenever the lock is free, so a panic elsewhere
//! does not make it unusable.

mod checkpoints;
mod database;
mod intents;
mod operations;
mod publishing;
mod queries;

pub use checkpoints::MemoryCheckpoints;
pub use database::{MemoryDatabase, RowLock};
pub use intents::MemoryIntents;
pub use operations::RecordedAction;
pub use publishing::{MemoryPublishing, PublishedFields};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
