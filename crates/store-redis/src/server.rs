//! The identity of the server that runs a script, and the changes of server that an outbound stream went
//! through.

use domain::entry::EntryId;
use domain::ports::ServerId;
use domain::republish::Gap;
use redis::{Script, Value};

/// The Lua function `server()`.
pub(crate) const FUNCTION: &str = include_str!("scripts/server.lua");

/// A script that returns the result of `server()`.
pub(crate) fn script() -> Script {
    Script::new(&[FUNCTION, "return {server()}"].concat())
}

/// Parses run id and replication id, in this order.
pub(crate) fn parse(ids: &[Value]) -> Option<ServerId> {
    let [Value::BulkString(run_id), Value::BulkString(replication_id)] = ids else { return None };
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(Into::into);
    Some(ServerId { run_id: text(run_id)?, replication_id: text(replication_id)? })
}

/// Parses the gap of each change; a garbled line counts as absent.
pub(crate) fn parse_gaps(changes: &Value) -> Vec<Gap> {
    let Value::BulkString(changes) = changes else { return Vec::new() };
    let gap = |line: &str| {
        let mut words = line.split(' ');
        let (run_id, replication_id) = words.next()?.split_once('/')?;
        let server = ServerId { run_id: run_id.into(), replication_id: replication_id.into() };
        let (after, before): (EntryId, &str) = (words.next()?.parse().ok()?, words.next()?);
        let before = if before == "-" { None } else { Some(before.parse().ok()?) };
        Some(Gap { server, after, before })
    };
    String::from_utf8_lossy(changes).lines().filter_map(gap).collect()
}
