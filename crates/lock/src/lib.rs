//! A lock that several processes share through PostgreSQL, with a fence for the data that it protects.
//!
//! **The promise.** For each key at most one lease is live at a time, by the clock of the database alone.
//! Every grant of a key has a higher fence than all grants of it before. A lease that has ended is never live
//! again, and a release succeeds at most once. A holder that crashes loses the lock when its lease ends.
//!
//! **What a lock cannot promise** is that its holder learns in time that it has lost the lock: a process may
//! be suspended for longer than its lease. So each write that the lock protects carries the fence, and the
//! target of the write rejects a fence lower than one that it has seen. The lock only saves work; the fence
//! keeps the order.
//!
//! **The recipe.** One database with two tables ([`schema_sql`]). A lease lives until 1,000 ms after its end
//! ([`TIME_TOLERANCE_MS`]), for every client alike. To acquire: read without waiting whether the lease is
//! live; if not, create the key's fence counter, lock its row (so that one client at a time acquires a key),
//! lock the lock's row, and only then read the clock, raise the counter and grant in one statement. Counters
//! are never deleted: a counter that restarts would grant fences that were seen before. So **the set of keys
//! must be bounded**: never one per message or per user.
//!
//! **A holder that dies** keeps its lock until the lease ends, unless the lock is tied to a session
//! ([`LockManager::tied_to_sessions`]): other clients may release it as soon as PostgreSQL has ended the
//! session, which is at once if the process has ended, and after 5 s if its host has vanished.
//!
//! It deliberately lacks: queues and fairness, re-entrance, shared locks, and locks within the
//! caller's own transaction.
//!
//! ```no_run
//! # async fn run(pool: pg::PgPool) -> Result<(), lock::LockError> {
//! let locks = lock::LockManager::new(pool, lock::TableNames::default());
//! if let Some(guard) = locks.try_hold("report:daily", lock::DEFAULT_TTL).await? {
//!     let lost = guard.lost();
//!     lost.run_until_cancelled(async { /* write, each time with guard.fence() */ }).await;
//!     let _freed = guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```

mod manager;

mod attempt;
mod error;
mod fence;
mod guard;
mod key;
mod lock_id;
#[cfg(feature = "memory")]
mod memory;
mod outcome;
mod retry;
mod schema;
mod statements;
mod store;
mod tables;
mod telemetry;

pub use error::{ErrorCode, LockError};
pub use fence::{FENCE_DIGITS, FENCE_MAX, FENCE_WARN, format_fence};
pub use guard::Guard;
pub use key::{MAX_KEY_BYTES, STORAGE_KEY_LIMIT, hash_key, storage_key};
pub use lock_id::LockId;
pub use manager::{DEFAULT_TTL, Lease, LockManager, LockOptions, MAX_TTL, PURGE_BATCH};
#[cfg(feature = "memory")]
pub use memory::{Gate, LocksBackup, MemoryLocks};
pub use outcome::{Acquisition, Extension, GrantedLock, LockInfo, Release};
pub use retry::{Backoff, Retry, RetryJitter};
pub use schema::{MAX_TABLE_NAME_BYTES, TableNames, schema_sql};
pub use statements::{PLANNER_PARAMETERS, TIME_TOLERANCE_MS};
pub use telemetry::{LockEvent, LockObserver, LockOperation, LockOutcome, Reason};
