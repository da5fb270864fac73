//! The cached checkpoints.

use std::collections::HashMap;
use std::sync::Mutex;

use domain::checkpoint::{CachedCheckpoint, Checkpoint, MAX_FENCE_LEAD};
use domain::ports::{CheckpointCache, StoreError, Swap};

use super::lock;

/// The cached checkpoints of streams.
#[derive(Debug, Default)]
pub struct MemoryCheckpoints(Mutex<HashMap<String, CachedCheckpoint>>);

/// A copy of all cached checkpoints at one moment.
#[derive(Clone, Debug)]
pub struct CheckpointsBackup(HashMap<String, CachedCheckpoint>);

impl MemoryCheckpoints {
    /// Returns a copy of all cached checkpoints.
    pub fn backup(&self) -> CheckpointsBackup {
        CheckpointsBackup(lock(&self.0).clone())
    }

    /// Restores the cached checkpoints of `backup`.
    pub fn restore(&self, backup: &CheckpointsBackup) {
        lock(&self.0).clone_from(&backup.0);
    }

    /// Replaces the checkpoint of `stream` with a value that is not a checkpoint.
    pub fn garble(&self, stream: &str) {
        lock(&self.0).insert(stream.to_owned(), CachedCheckpoint::Garbled("garbled".to_owned()));
    }

    /// Sets the checkpoint of `stream` to any value, whatever its fence.
    pub fn set(&self, stream: &str, checkpoint: Checkpoint) {
        lock(&self.0).insert(stream.to_owned(), CachedCheckpoint::At(checkpoint));
    }

    /// The checkpoint of `stream`, if it exists.
    pub fn get(&self, stream: &str) -> Option<Checkpoint> {
        match lock(&self.0).get(stream) {
            Some(CachedCheckpoint::At(checkpoint)) => Some(*checkpoint),
            Some(CachedCheckpoint::Missing | CachedCheckpoint::Garbled(_)) | None => None,
        }
    }

    /// Loses every checkpoint, as a server that restarts empty.
    pub fn lose_all(&self) {
        lock(&self.0).clear();
    }

    fn write(&self, stream: &str, checkpoint: Checkpoint, must_advance: bool) -> Swap {
        let mut all = lock(&self.0);
        if let Some(CachedCheckpoint::At(stored)) = all.get(stream)
            && *stored != checkpoint
            && stored.fence <= checkpoint.fence.saturating_add(MAX_FENCE_LEAD)
        {
            let advances = stored.fence < checkpoint.fence
                || !must_advance
                || checkpoint.last_entry_id > stored.last_entry_id;
            if stored.fence > checkpoint.fence || !advances {
                return Swap::Conflict;
            }
        }
        all.insert(stream.to_owned(), CachedCheckpoint::At(checkpoint));
        Swap::Applied
    }
}

impl CheckpointCache for MemoryCheckpoints {
    async fn load(&self, stream: &str) -> Result<CachedCheckpoint, StoreError> {
        Ok(lock(&self.0).get(stream).cloned().unwrap_or(CachedCheckpoint::Missing))
    }

    async fn save(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        Ok(self.write(stream, checkpoint, true))
    }

    async fn reset(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        Ok(self.write(stream, checkpoint, false))
    }
}
