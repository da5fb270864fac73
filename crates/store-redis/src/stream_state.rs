//! The state of a whole stream without its entries: an entry may be as large as Redis lets its producer make
//! it.

use domain::entry::EntryId;
use domain::ports::{OutboundState, StoreError};
use redis::{Script, Value};

use crate::error::{unavailable, unexpected};

/// The Lua function `state(key)`.
pub(crate) const STATE_FUNCTION: &str = include_str!("scripts/stream_state.lua");

/// A script that calls `state(key)`.
pub(crate) fn script(body: &str) -> Script {
    Script::new(&[STATE_FUNCTION, body].concat())
}

/// Parses the result of `state(key)`; `None` if the key does not exist.
pub(crate) fn parse_state(
    operation: &'static str,
    value: &Value,
) -> Result<Option<OutboundState>, StoreError> {
    let state = match value {
        Value::Nil => return Ok(None),
        Value::Array(state) => state,
        other => return Err(unexpected(operation, other)),
    };
    let id = |at: usize| state.get(at).and_then(entry_id);
    match (id(1), id(2)) {
        (Some(last_generated), Some(max_deleted)) => {
            let copied_bytes = match state.get(3) {
                Some(Value::Int(bytes)) => bytes.unsigned_abs(),
                _ => 0,
            };
            let state = OutboundState {
                first: id(0),
                last_generated,
                max_deleted,
                copied_bytes,
                ..OutboundState::default()
            };
            Ok(Some(state))
        }
        _ => Err(unavailable(operation, "Redis gave a stream without its ids")),
    }
}

pub(crate) fn entry_id(value: &Value) -> Option<EntryId> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}
