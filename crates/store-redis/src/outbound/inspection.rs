//! Inspecting the outbound streams as a whole, and appending lost entries again (ADR 0021).
//!
//! Each call is one script, so that its whole result is from one server at one moment. An entry belongs to a
//! route only if its first value is the `event_id` or `delivery_id` of the route: after a loss, a server may
//! give the same id to another entry.

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, FoundEntries, Leasable, ObservedStream, OutboundInspection, OutboundState, StoreError,
};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use super::{RedisOutbound, add_entries, append_script, appended, stream_script};
use crate::error::{unavailable, unexpected};
use crate::script_call::{ScriptCall, millis};
use crate::server;
use crate::stream_state::parse_state;

const OBSERVE: &str = include_str!("../scripts/observe_outbound.lua");
const FIND: &str = include_str!("../scripts/find_entries.lua");
const APPEND_AGAIN: &str = include_str!("../scripts/append_again.lua");

/// The scripts of this module.
#[derive(Clone, Debug)]
pub(super) struct InspectionScripts {
    observe: Script,
    find: Script,
    append_again: Script,
}

impl Default for InspectionScripts {
    fn default() -> Self {
        Self {
            observe: stream_script(OBSERVE),
            find: stream_script(FIND),
            append_again: append_script(APPEND_AGAIN),
        }
    }
}

/// Parses the result of the Lua function `outbound_state`.
fn outbound_state(operation: &'static str, value: &Value) -> Result<Option<OutboundState>, StoreError> {
    let Some(state) = parse_state(operation, value)? else { return Ok(None) };
    let changes = match value {
        Value::Array(values) => values.get(4),
        _ => None,
    };
    Ok(Some(OutboundState { gaps: changes.map(server::parse_gaps).unwrap_or_default(), ..state }))
}

impl OutboundInspection for RedisOutbound {
    async fn observe(&self, channel: Channel) -> Result<ObservedStream, StoreError> {
        const OPERATION: &str = "inspect an outbound stream";
        let stream = &self.target(channel).key;
        let keys = self.keyspace.stream_keys(&self.client, stream).await?;
        let call = ScriptCall::new(&self.inspection.observe, keys.iter());
        let response = array(OPERATION, self.client(channel).script(OPERATION, &call).await?)?;
        let [Value::BulkString(role), run_id, replication_id, state] = &response[..] else {
            return Err(unavailable(OPERATION, "Redis gave no information about itself"));
        };
        if &**role != b"master" {
            return Err(unavailable(OPERATION, "Redis is a replica: the master is elsewhere"));
        }
        let server = server::parse(&[run_id.clone(), replication_id.clone()]);
        Ok(ObservedStream {
            channel,
            stream: stream.clone(),
            server: server.ok_or_else(|| unavailable(OPERATION, "Redis gave no server id"))?,
            state: outbound_state(OPERATION, state)?,
        })
    }

    async fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        self.find_entries_in(&self.target(channel).key, entries).await
    }

    async fn find_entries_in(
        &self,
        stream: &str,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        const OPERATION: &str = "find published entries";
        let keys = self.keyspace.stream_keys(&self.client, stream).await?;
        let mut call = ScriptCall::new(&self.inspection.find, keys.iter());
        for (route, id) in entries {
            call.arg(id.to_string()).arg(route.to_string());
        }
        let response = array(OPERATION, self.client.for_key(stream).script(OPERATION, &call).await?)?;
        match &response[..] {
            [run_id, replication_id, state, found @ ..] if found.len() == entries.len() => {
                let server = server::parse(&[run_id.clone(), replication_id.clone()])
                    .ok_or_else(|| unavailable(OPERATION, "Redis gave no server id"))?;
                let present = found.iter().map(|found| *found == Value::Int(1));
                Ok(FoundEntries::new(server, outbound_state(OPERATION, state)?, entries, present))
            }
            _ => Err(unavailable(OPERATION, "Redis gave another number of results")),
        }
    }

    async fn append_again<R: Leasable>(
        &self,
        channel: Channel,
        entries: &[(&R, &OutboundEntry<'_>)],
        marker_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        const OPERATION: &str = "append lost entries again";
        let mut call = self.append_call(&self.inspection.append_again, channel, [], entries).await?;
        let max_len = self.target(channel).max_len.unwrap_or(0);
        call.arg(millis(marker_ttl)).arg(max_len).arg(entries.len());
        for (route, _) in entries {
            call.arg(route.replaces().unwrap_or_default());
        }
        add_entries(&mut call, entries);
        let client = self.client(channel);
        let appended = appended(&client, OPERATION, client.script(OPERATION, &call).await?, entries.len())?;
        Ok(appended.entries)
    }
}

fn array(operation: &'static str, value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(operation, &other)),
    }
}
