//! The intents stream from the producer's side.

use domain::entry::{EntryId, RawFields};
use domain::ports::{IntentProducer, StoreError};
use redis::{Cmd, cmd};

use crate::connect::RedisClient;
use crate::error::unexpected;
use crate::stream_state::entry_id;

/// Appends to the intents stream at one key.
#[derive(Clone, Debug)]
pub struct RedisIntentProducer {
    client: RedisClient,
    key: String,
}

impl RedisIntentProducer {
    /// A producer for the stream at `key`.
    pub fn new(client: &RedisClient, key: String) -> Self {
        Self { client: client.for_key(&key), key }
    }
}

impl IntentProducer for RedisIntentProducer {
    async fn append(&self, fields: &RawFields) -> Result<EntryId, StoreError> {
        const OPERATION: &str = "append the intent";
        let answer = self.client.command(OPERATION, &append_command(&self.key, fields)).await?;
        entry_id(&answer).ok_or_else(|| unexpected(OPERATION, &answer))
    }
}

/// The command that appends an entry with these fields to the stream at `key`, for the caller's own pipeline.
pub fn append_command(key: &str, fields: &RawFields) -> Cmd {
    let mut add = cmd("XADD");
    add.arg(key).arg("*").arg(&fields.0);
    add
}
