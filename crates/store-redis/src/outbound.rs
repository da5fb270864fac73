//! The outbound streams, to which client events and delivery commands are appended.

mod inspection;

use std::time::Duration;

use domain::outbound::OutboundEntry;
use domain::ports::{Acknowledged, Append, Appends, Leasable, LeaseToken, Outbound, ServerId, StoreError};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::{unavailable, unexpected, without_script};
use crate::keyspace::Keyspace;
use crate::script_call::{ScriptCall, millis};
use crate::{marker, server, stream_state};
use inspection::InspectionScripts;

/// An outbound stream.
#[derive(Clone, Debug)]
pub struct StreamTarget {
    /// The key of the stream.
    pub key: String,
    /// The approximate number of entries that it keeps; `None` for all.
    pub max_len: Option<u64>,
}

const APPEND: &str = include_str!("scripts/append.lua");
const ADD_ENTRY_FUNCTION: &str = include_str!("scripts/add_entry.lua");
const SERVER_CHANGES_FUNCTIONS: &str = include_str!("scripts/server_changes.lua");
/// The maximum number of server changes that are recorded of an outbound stream. Beyond it the oldest is
/// dropped, or merged with the next one if it is younger than [`MIN_CHANGE_AGE`]: entries trimmed between the
/// two then count as lost.
const MAX_SERVER_CHANGES: usize = 1_000;
/// The age before the last change at which a change may be dropped: longer than any comparison reads back.
const MIN_CHANGE_AGE: Duration = Duration::from_secs(2_592_000);

/// A script that uses an outbound stream as a whole.
fn stream_script(body: &str) -> Script {
    let min_age = MIN_CHANGE_AGE.as_millis();
    let bound = format!("local MAX_CHANGES, MIN_CHANGE_AGE = {MAX_SERVER_CHANGES}, {min_age}\n");
    stream_state::script(&[server::FUNCTION, &bound, SERVER_CHANGES_FUNCTIONS, body].concat())
}

/// A script that appends entries under published markers.
fn append_script(body: &str) -> Script {
    stream_script(&[marker::FUNCTIONS, ADD_ENTRY_FUNCTION, body].concat())
}

/// The outbound streams.
#[derive(Clone, Debug)]
pub struct RedisOutbound {
    client: RedisClient,
    keyspace: Keyspace,
    gateway: StreamTarget,
    mail: StreamTarget,
    append: Script,
    inspection: InspectionScripts,
}

impl RedisOutbound {
    /// The outbound streams: push routes go to `gateway`, e-mail routes to `mail`; `keyspace` has the leases.
    pub fn new(client: &RedisClient, keyspace: &Keyspace, gateway: StreamTarget, mail: StreamTarget) -> Self {
        Self {
            client: client.clone(),
            keyspace: keyspace.clone(),
            gateway,
            mail,
            append: append_script(APPEND),
            inspection: InspectionScripts::default(),
        }
    }

    /// The client of a channel's stream.
    fn client(&self, channel: Channel) -> RedisClient {
        self.client.for_key(&self.target(channel).key)
    }

    /// The call of a script that appends, with its keys and its first argument. `more` are keys between those
    /// of the stream and those of the routes.
    async fn append_call<'a, R: Leasable>(
        &self,
        script: &'a Script,
        channel: Channel,
        more: impl IntoIterator<Item = String>,
        entries: &[(&R, &OutboundEntry<'_>)],
    ) -> Result<ScriptCall<'a>, StoreError> {
        let routes = entries.iter().map(|(route, _)| route.key());
        let mut keys = self.keyspace.stream_keys(&self.client, &self.target(channel).key).await?;
        keys.extend(more);
        let of_routes = self.keyspace.route_keys(&self.client, routes).await?;
        keys.extend(of_routes.names);
        let mut call = ScriptCall::new(script, keys.iter());
        call.arg(of_routes.runs);
        Ok(call)
    }

    fn target(&self, channel: Channel) -> &StreamTarget {
        match channel {
            Channel::Push => &self.gateway,
            Channel::Email => &self.mail,
        }
    }
}

impl Outbound for RedisOutbound {
    async fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
        server: Option<&ServerId>,
    ) -> Result<Appends, StoreError> {
        const OPERATION: &str = "append to the outbound stream";
        let permit = self.keyspace.permit(channel, token);
        let mut call = self.append_call(&self.append, channel, [permit], entries).await?;
        let max_len = self.target(channel).max_len.unwrap_or(0);
        let (run_id, replication_id) =
            server.map_or(("", ""), |server| (&*server.run_id, &*server.replication_id));
        call.arg(&token.0).arg(millis(dedupe_ttl)).arg(max_len);
        call.arg(run_id).arg(replication_id).arg(entries.len());
        add_entries(&mut call, entries);
        let client = self.client(channel);
        appended(&client, OPERATION, client.script(OPERATION, &call).await?, entries.len())
    }
}

/// Parses the response of a script that appends `count` entries: the server, then the result of each.
fn appended(
    client: &RedisClient,
    operation: &'static str,
    response: Value,
    count: usize,
) -> Result<Appends, StoreError> {
    let mut ids = match response {
        Value::Array(values) if values.len() == count + 2 => values,
        other => return Err(unexpected(operation, &other)),
    };
    let results = ids.split_off(2);
    let server = server::parse(&ids).ok_or_else(|| unavailable(operation, "Redis gave no server id"))?;
    let entries = results.into_iter().map(|result| appended_one(client, operation, result, &server));
    Ok(Appends { entries: entries.collect::<Result<_, _>>()?, server })
}

fn appended_one(
    client: &RedisClient,
    operation: &'static str,
    result: Value,
    server: &ServerId,
) -> Result<Append, StoreError> {
    match result {
        Value::BulkString(id) => Ok(Append::Done(Acknowledged {
            entry_id: String::from_utf8_lossy(&id).into_owned(),
            server: server.clone(),
        })),
        Value::Int(_) => Ok(Append::LeaseLost),
        Value::Array(refusal) => match refusal.first() {
            Some(Value::BulkString(error)) => {
                let error = String::from_utf8_lossy(error).into_owned();
                Ok(if client.is_outage(&error) {
                    Append::Outage(without_script(&error))
                } else {
                    Append::Refused(without_script(&error))
                })
            }
            _ => Err(unavailable(operation, "Redis returned a reply without an error")),
        },
        other => Err(unexpected(operation, &other)),
    }
}

/// Adds to the call, for each entry, the number of its names and values, then these.
fn add_entries<R>(call: &mut ScriptCall<'_>, entries: &[(&R, &OutboundEntry<'_>)]) {
    for (_, OutboundEntry(fields)) in entries {
        call.arg(fields.len() * 2);
        for (name, value) in fields {
            call.arg(*name).arg(&**value);
        }
    }
}
