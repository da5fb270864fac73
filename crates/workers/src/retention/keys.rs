//! The deletion of idempotency keys that have expired.
//!
//! The row of a key contains its expiry, by the clock of the database: for a claim the end of its lock TTL,
//! for a stored response the end of its retention TTL. A chunk is one statement, which skips rows that
//! another transaction holds. So a crash leaves the chunks before it deleted, and an operator's open
//! transaction delays only the keys that it holds.

use ambient::Clock;
use domain::ports::{Election, KeySweep, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CHUNK_TARGET_TIME, RetentionWorker, TablePass};
use crate::batch_limit::BatchLimit;

/// The name of the table in metrics and in the log.
pub(super) const TABLE: &str = "idempotency_keys";
/// The number of keys in the first chunk, and in the smallest one that is not caused by a timeout.
const MIN_CHUNK_KEYS: usize = 32;
/// The most keys of a chunk.
const MAX_CHUNK_KEYS: usize = 1_024;

/// The number of keys to delete at once. Their stored responses differ a lot in size, so the duration of a
/// chunk determines it.
pub(super) fn chunk_limit() -> BatchLimit {
    BatchLimit::with_target(MIN_CHUNK_KEYS, MAX_CHUNK_KEYS, CHUNK_TARGET_TIME)
}

impl<E, S, C> RetentionWorker<E, S, C>
where
    E: Election,
    S: KeySweep,
    C: Clock,
{
    /// Deletes chunk after chunk until one is not full, or until `stop`.
    pub(super) async fn sweep_keys(
        &self,
        limit: &mut BatchLimit,
        pass: &mut TablePass,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        while !stop.is_cancelled() {
            let size = limit.get();
            let started = Instant::now();
            let swept = self.store.sweep_idempotency_keys(size).await;
            let took = started.elapsed();
            pass.longest_chunk = pass.longest_chunk.max(took);
            match swept {
                Ok(deleted) => {
                    let keys = usize::try_from(deleted).unwrap_or(usize::MAX);
                    limit.succeeded(keys, took);
                    pass.deleted += deleted;
                    self.metrics.deleted(TABLE, deleted);
                    if keys < size {
                        break;
                    }
                }
                Err(StoreError::TimedOut { .. }) if limit.failed(size) => {}
                Err(error) => return Err(error),
            }
            pass.rest(stop, took).await;
        }
        Ok(())
    }
}
