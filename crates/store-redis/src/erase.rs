//! Deleting entries of streams, for erasing a person (ADR 0064).

use domain::entry::EntryId;
use domain::ports::{EntryDeletion, StoreError};
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::unexpected;
use crate::script_call::ScriptCall;

const DELETE: &str = include_str!("scripts/delete_entries.lua");

/// Deletes entries of any stream of one Redis.
#[derive(Clone, Debug)]
pub struct RedisEntryDeletion {
    client: RedisClient,
    delete: Script,
}

impl RedisEntryDeletion {
    /// Deletes entries in the Redis of `client`. Its user needs the command XDEL.
    pub fn new(client: &RedisClient) -> Self {
        Self { client: client.clone(), delete: Script::new(DELETE) }
    }
}

impl EntryDeletion for RedisEntryDeletion {
    async fn delete_entries(&self, stream: &str, ids: &[EntryId]) -> Result<u64, StoreError> {
        const OPERATION: &str = "delete entries of a person";
        if ids.is_empty() {
            return Ok(0);
        }
        let mut call = ScriptCall::new(&self.delete, [stream].into_iter());
        for id in ids {
            call.arg(id.to_string());
        }
        match self.client.for_key(stream).script(OPERATION, &call).await? {
            Value::Int(deleted) => Ok(deleted.unsigned_abs()),
            other => Err(unexpected(OPERATION, &other)),
        }
    }
}
