//! The cached checkpoint: how far the intents stream has been processed, and under which fence.
//!
//! The durable checkpoint in PostgreSQL is authoritative. Writes under an older fence are rejected here as
//! well, and under one fence the checkpoint only advances. One script compares and writes, so that a former
//! leader cannot write between the read and the write of the current one. After a crash before a write, the
//! cached checkpoint lags the durable one, which is harmless.

use domain::checkpoint::{CachedCheckpoint, Checkpoint, MAX_FENCE_LEAD};
use domain::entry::EntryId;
use domain::ports::{CheckpointCache, Fence, StoreError, Swap};
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::unexpected;
use crate::keyspace::checkpoint_key;
use crate::script_call::ScriptCall;

const SAVE: &str = include_str!("scripts/save_checkpoint.lua");

/// The cached checkpoints of streams.
#[derive(Clone, Debug)]
pub struct RedisCheckpoints {
    client: RedisClient,
    save: Script,
}

impl RedisCheckpoints {
    /// Checkpoints, read and written on the shared connection of `client`.
    pub fn new(client: &RedisClient) -> Self {
        Self { client: client.clone(), save: Script::new(SAVE) }
    }

    async fn write(
        &self,
        operation: &'static str,
        stream: &str,
        checkpoint: Checkpoint,
        must_advance: bool,
    ) -> Result<Swap, StoreError> {
        let Checkpoint { fence, last_entry_id: id } = checkpoint;
        let mut call = ScriptCall::new(&self.save, [checkpoint_key(stream).key].iter());
        call.arg(id.millis)
            .arg(id.sequence)
            .arg(fence)
            .arg(encode(checkpoint))
            .arg(u8::from(must_advance))
            .arg(fence.saturating_add(MAX_FENCE_LEAD));
        match self.client.for_key(stream).script(operation, &call).await? {
            Value::Int(1) => Ok(Swap::Applied),
            Value::Int(_) => Ok(Swap::Conflict),
            other => Err(unexpected(operation, &other)),
        }
    }
}

impl CheckpointCache for RedisCheckpoints {
    /// Loads the checkpoint, or that of an older version, under the old name of the key, if there is none.
    async fn load(&self, stream: &str) -> Result<CachedCheckpoint, StoreError> {
        let client = self.client.for_key(stream);
        for name in client.names(checkpoint_key(stream)) {
            match load(&client, &name).await? {
                CachedCheckpoint::Missing => {}
                found => return Ok(found),
            }
        }
        Ok(CachedCheckpoint::Missing)
    }

    async fn save(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        self.write("save the cached checkpoint", stream, checkpoint, true).await
    }

    async fn reset(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        self.write("reset the cached checkpoint", stream, checkpoint, false).await
    }
}

async fn load(client: &RedisClient, key: &str) -> Result<CachedCheckpoint, StoreError> {
    const OPERATION: &str = "load the cached checkpoint";
    match client.command(OPERATION, redis::cmd("GET").arg(key)).await {
        Ok(Value::Nil) => Ok(CachedCheckpoint::Missing),
        Ok(Value::BulkString(bytes)) => Ok(decode(&String::from_utf8_lossy(&bytes))),
        Ok(other) => Err(unexpected(OPERATION, &other)),
        // A key of another type is treated like a string that is not a checkpoint.
        Err(StoreError::Refused { source, .. }) => Ok(CachedCheckpoint::Garbled(source.to_string())),
        Err(error) => Err(error),
    }
}

/// `<id>`, or `<id>@<fence>` with the fence's 15 digits if it has one.
fn encode(checkpoint: Checkpoint) -> String {
    match checkpoint.fence {
        0 => checkpoint.last_entry_id.to_string(),
        fence => format!("{}@{fence:015}", checkpoint.last_entry_id),
    }
}

fn decode(text: &str) -> CachedCheckpoint {
    let (id, fence) = text.split_once('@').unwrap_or((text, "0"));
    let id = id.parse::<EntryId>().ok();
    let fence: Option<Fence> =
        fence.bytes().all(|b| b.is_ascii_digit()).then(|| fence.parse().ok()).flatten();
    match (id, fence) {
        (Some(last_entry_id), Some(fence)) => CachedCheckpoint::At(Checkpoint { fence, last_entry_id }),
        _ => CachedCheckpoint::Garbled(text.chars().take(64).collect()),
    }
}
