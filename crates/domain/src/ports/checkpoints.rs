//! The checkpoints: the durable one in PostgreSQL, which is authoritative, and its cached copy in Redis.

use std::future::Future;

use super::{CheckpointMove, StoreError, Swap};
use crate::accept::ProcessedTrace;
use crate::checkpoint::{CachedCheckpoint, Checkpoint, Fence, FenceWrite, Witness};
use crate::entry::EntryId;
use crate::republish::ServerId;

/// The durable checkpoint, and the rows to which it is compared. It moves forward together with the outcomes
/// in [`AcceptanceStore::accept`](super::AcceptanceStore::accept).
pub trait CheckpointStore: Send + Sync {
    /// Returns the last of these entries of `stream` that has a record or a malformed row with the same
    /// content under its id.
    fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> impl Future<Output = Result<Option<EntryId>, StoreError>> + Send;

    /// Replaces the fence of the checkpoint by `fence`, so that no earlier term can move it, and returns its
    /// position. At the start of a term (`begins`), a checkpoint that already has `fence` is superseded as
    /// well: another term had the same fence, because PostgreSQL was restored.
    fn write_fence(
        &self,
        stream: &str,
        fence: Fence,
        begins: bool,
    ) -> impl Future<Output = Result<FenceWrite, StoreError>> + Send;

    /// Returns the durable checkpoint of `stream`; `None` if it has none.
    fn load_checkpoint(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<Checkpoint>, StoreError>> + Send;

    /// Returns the witness of the checkpoint of `stream`; an empty one if the stream has no checkpoint.
    fn load_witness(&self, stream: &str) -> impl Future<Output = Result<Witness, StoreError>> + Send;

    /// Moves the checkpoint of a stream that lost its newest entries back to `to`, the last entry that has an
    /// outcome, and saves the stream's present server with it. Returns a conflict if the checkpoint is not
    /// the expected one or has a higher fence.
    fn move_checkpoint_back(
        &self,
        to: CheckpointMove<'_>,
        server: &ServerId,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// Saves the present server of `stream` with the checkpoint, if there is one.
    fn save_intents_server(
        &self,
        stream: &str,
        server: &ServerId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The checkpoint in Redis. A cache: the durable checkpoint in PostgreSQL is authoritative.
pub trait CheckpointCache: Send + Sync {
    /// Reads the checkpoint.
    fn load(&self, stream: &str) -> impl Future<Output = Result<CachedCheckpoint, StoreError>> + Send;

    /// Moves the checkpoint forward. Returns a conflict if Redis has a higher fence, or if the checkpoint
    /// would not advance under the same fence. A value that is garbled for the fence of `checkpoint`
    /// ([`crate::checkpoint::MAX_FENCE_LEAD`]) is overwritten.
    fn save(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// Saves the checkpoint like [`CheckpointCache::save`], but to any entry, even an earlier one. For a
    /// stream that was recreated, and for a new leader that replaces the stored fence by its own.
    fn reset(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}
