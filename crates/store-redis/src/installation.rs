//! Claiming a stream for an installation, so that no two of them read the same one (ADR 0019).

use domain::ports::StoreError;
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::unexpected;
use crate::keyspace;
use crate::script_call::ScriptCall;

const CLAIM: &str = include_str!("scripts/claim_installation.lua");

/// Claims `stream` for the installation `id` unless another one has claimed it, and returns the id of the
/// installation that serves it. If Redis lost the key, the first installation to call this claims the stream
/// again.
pub async fn claim_stream(client: &RedisClient, stream: &str, id: &str) -> Result<String, StoreError> {
    const OPERATION: &str = "claim the intents stream";
    let script = Script::new(CLAIM);
    let client = client.for_key(stream);
    let mut call = ScriptCall::new(&script, client.names(keyspace::installation(stream)).iter());
    call.arg(id);
    match client.script(OPERATION, &call).await? {
        Value::BulkString(held) => Ok(String::from_utf8_lossy(&held).into_owned()),
        other => Err(unexpected(OPERATION, &other)),
    }
}
