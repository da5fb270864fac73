//! The checkpoints: the durable one in PostgreSQL, which is authoritative, and its cached copy in Redis.

use std::future::Future;

use super::{CheckpointMove, StoreError, Swap};
use crate::accept::ProcessedTrace;
use crate::checkpoint::{CachedCheckpoint, Checkpoint, Claim, Fence, Witness};
use crate::entry::EntryId;
use crate::republish::ServerId;

/// The durable checkpoint, and what it is compared with. It moves forward with the outcomes:
/// [`AcceptanceStore::accept`](super::AcceptanceStore::accept).
pub trait CheckpointStore: Send + Sync {
    /// The last of these entries of `stream` that has a record or a malformed row of the same content under
    /// its id.
    fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> impl Future<Output = Result<Option<EntryId>, StoreError>> + Send;

    /// Writes `fence` over the fence of the checkpoint, so that no earlier term can move it any more, and
    /// returns where it is. At the start of a term (`begins`) a checkpoint that carries `fence` itself is
    /// superseded, too: another term had the same fence, because PostgreSQL was restored.
    fn claim_checkpoint(
        &self,
        stream: &str,
        fence: Fence,
        begins: bool,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// The durable checkpoint of `stream`; `None` if it has none.
    fn load_checkpoint(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<Checkpoint>, StoreError>> + Send;

    /// The witness of the checkpoint of `stream`; an empty one if the stream has no checkpoint.
    fn load_witness(&self, stream: &str) -> impl Future<Output = Result<Witness, StoreError>> + Send;

    /// Moves the checkpoint of a stream that lost its newest entries back to `to`, the last entry that has an
    /// outcome, and saves the server that has the stream beside it. A conflict if the checkpoint is not the
    /// expected one or has a higher fence.
    fn move_checkpoint_back(
        &self,
        to: CheckpointMove<'_>,
        server: &ServerId,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// Saves the server that has `stream` beside the checkpoint, if there is one.
    fn save_intents_server(
        &self,
        stream: &str,
        server: &ServerId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The checkpoint in Redis. A cache: the durable checkpoint in PostgreSQL is authoritative.
pub trait CheckpointCache: Send + Sync {
    /// Reads it.
    fn load(&self, stream: &str) -> impl Future<Output = Result<CachedCheckpoint, StoreError>> + Send;

    /// Moves it forward. A conflict if Redis has a higher fence, or if it would not advance under the same
    /// fence. A value that is garbled for the fence of `checkpoint` ([`crate::checkpoint::MAX_FENCE_LEAD`])
    /// is overwritten.
    fn save(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// As [`CheckpointCache::save`], but to any entry, an earlier one too: for a stream that was recreated,
    /// and for a new leader that writes its fence over the stored one.
    fn reset(
        &self,
        stream: &str,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}
