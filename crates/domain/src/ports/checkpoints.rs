//! The cached checkpoint. The durable one moves with the outcomes: [`AcceptanceStore`](super::AcceptanceStore).

use std::future::Future;

use super::{StoreError, Swap};
use crate::checkpoint::{CachedCheckpoint, Checkpoint};

/// The checkpoint in Redis. A cache: the durable checkpoint in PostgreSQL is authoritative.
pub trait CheckpointCache: Send + Sync {
    /// Reads it.
    fn load(&self, stream: &str) -> impl Future<Output = Result<CachedCheckpoint, StoreError>> + Send;

    /// Moves it forward. A conflict if Redis has a higher fence, or if it would not advance under the same fence. A value
    /// that is garbled for the fence of `checkpoint` ([`crate::checkpoint::MAX_FENCE_LEAD`]) is overwritten.
    fn save(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// As [`CheckpointCache::save`], but to any entry, an earlier one too: for a stream that was recreated, and for a new
    /// leader that writes its fence over the stored one.
    fn reset(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}
