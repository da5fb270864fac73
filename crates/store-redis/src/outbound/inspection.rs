//! Inspecting the outbound streams as a whole, and appending lost entries again (ADR 0021).
//!
//! Each call is one script, so that its whole result is from one server at one moment. An entry belongs to a route only if its first
//! value is the `event_id` or `delivery_id` of the route: after a loss, a server may give the same id to another entry.

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{Append, OutboundInspection, OutboundServer, OutboundState, StoreError};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use super::{RedisOutbound, add_entries, append_script};
use crate::connect::{ScriptCall, millis, unavailable, unexpected};
use crate::stream_state::{self, parse_state};

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
            observe: stream_state::script(OBSERVE),
            find: stream_state::script(FIND),
            append_again: append_script(APPEND_AGAIN),
        }
    }
}

impl OutboundInspection for RedisOutbound {
    async fn observe(&self) -> Result<OutboundServer, StoreError> {
        const OPERATION: &str = "inspect the outbound streams";
        let keys = Channel::ALL.map(|channel| &self.target(channel).key);
        let call = ScriptCall::new(&self.inspection.observe, keys.into_iter());
        let answer = array(OPERATION, self.client.script(OPERATION, &call).await?)?;
        let [Value::BulkString(server), Value::BulkString(replication), states @ ..] = &answer[..] else {
            return Err(unavailable(OPERATION, "Redis gave no information about itself"));
        };
        let (server, replication) = (String::from_utf8_lossy(server), String::from_utf8_lossy(replication));
        let property = |info: &str, name: &str| {
            let lines = info.lines().filter_map(|line| line.split_once(':'));
            let found = lines.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
            found.ok_or_else(|| unavailable(OPERATION, format!("INFO has no {name}")))
        };
        if property(&replication, "role")? != "master" {
            return Err(unavailable(OPERATION, "Redis is a replica: the master is elsewhere"));
        }
        let streams = Channel::ALL
            .into_iter()
            .zip(states)
            .map(|(channel, state)| {
                Ok((channel, self.target(channel).key.clone(), parse_state(OPERATION, state)?))
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(OutboundServer {
            run_id: property(&server, "run_id")?,
            replication_id: property(&replication, "master_replid")?,
            streams,
        })
    }

    async fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<(Option<OutboundState>, Vec<bool>), StoreError> {
        const OPERATION: &str = "find published entries";
        let key = &self.target(channel).key;
        let mut call = ScriptCall::new(&self.inspection.find, [key].into_iter());
        for (route, id) in entries {
            call.arg(id.to_string()).arg(route.to_string());
        }
        let answer = array(OPERATION, self.client.script(OPERATION, &call).await?)?;
        match &answer[..] {
            [state, found @ ..] if found.len() == entries.len() => {
                let found = found.iter().map(|found| *found == Value::Int(1)).collect();
                Ok((parse_state(OPERATION, state)?, found))
            }
            _ => Err(unavailable(OPERATION, "Redis gave another number of answers")),
        }
    }

    async fn append_again(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        receipt_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        const OPERATION: &str = "append lost entries again";
        let mut call =
            ScriptCall::new(&self.inspection.append_again, self.append_keys(channel, entries).iter());
        call.arg(millis(receipt_ttl)).arg(self.target(channel).max_len.unwrap_or(0));
        add_entries(&mut call, entries);
        let answers = array(OPERATION, self.client.script(OPERATION, &call).await?)?;
        if answers.len() != entries.len() {
            return Err(unavailable(OPERATION, "Redis gave another number of answers"));
        }
        answers.into_iter().map(|answer| self.appended(OPERATION, answer)).collect()
    }
}

fn array(operation: &'static str, value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(operation, &other)),
    }
}
