//! The commands and keys that the service needs, tried at its start (`docs/operations.md` has the same list
//! as an ACL line).
//!
//! `ACL DRYRUN` would need a permission of its own, so each command is tried in a form that changes nothing:
//! with an id that is rejected, on a key that only this check uses, or for a range without entries.

use domain::ports::StoreError;
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::{is_missing_permission, unexpected};
use crate::keyspace::permission_check;
use crate::script_call::ScriptCall;

const TRY: &str = include_str!("scripts/try_commands.lua");

/// The purpose of the commands on a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyUse {
    /// Leases, markers, checkpoints and notices of the service.
    Own,
    /// Markers of a relay, and the record of the server that it compared.
    OwnOfRelay,
    /// The intents stream: appended to, read and trimmed.
    Intents,
    /// A stream in which entries are appended and looked up.
    Outbound,
    /// A stream that a relay appends events to.
    Relayed,
}

/// Commands that change nothing, with `%` for the key.
const OWN: &[&str] = &[
    "INFO server",
    "TIME",
    "SET % x XX PX 1",
    "GET %",
    "EXISTS %",
    "TYPE %",
    "PTTL %",
    "RPUSH % x",
    "HSET % a b",
    "HMGET % a",
    "HDEL % a",
    "PEXPIRE % 1000",
    "DEL %",
];
const OWN_OF_RELAY: &[&str] =
    &["INFO server", "TIME", "SET % x XX PX 1", "GET %", "EXISTS %", "PEXPIRE % 1000"];
const INTENTS: &[&str] = &[
    "XADD % refused field value",
    "XLEN %",
    "XRANGE % 0-1 0-1 COUNT 1",
    "XREVRANGE % 0-1 0-1 COUNT 1",
    "XREAD COUNT 1 STREAMS % 18446744073709551615-18446744073709551615",
    "XTRIM % MINID 0",
    "XINFO STREAM %",
    "EXISTS %",
    "TYPE %",
];
const OUTBOUND: &[&str] = &[
    "XADD % refused field value",
    "XLEN %",
    "XRANGE % 0-1 0-1 COUNT 1",
    "XREVRANGE % 0-1 0-1 COUNT 1",
    "XINFO STREAM %",
    "EXISTS %",
    "TYPE %",
];

const RELAYED: &[&str] = &["XADD % refused field value", "XREVRANGE % 0-1 0-1 COUNT 1", "TYPE %"];

impl KeyUse {
    fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Own => OWN,
            Self::OwnOfRelay => OWN_OF_RELAY,
            Self::Intents => INTENTS,
            Self::Outbound => OUTBOUND,
            Self::Relayed => RELAYED,
        }
    }
}

impl RedisClient {
    /// The commands on keys of a process and on these streams that Redis does not permit, as text; empty if
    /// it permits all. `own` is [`KeyUse::Own`] or [`KeyUse::OwnOfRelay`].
    pub async fn missing_permissions(
        &self,
        own: KeyUse,
        streams: &[(KeyUse, &str)],
    ) -> Result<Vec<String>, StoreError> {
        let mut missing = Vec::new();
        for (at, (purpose, stream)) in streams.iter().enumerate() {
            // In a Cluster each stream may be on another node, together with the keys of its slot. The other
            // keys of the service begin with `notification:`, as this one does.
            let client = self.for_key(stream);
            let own_key = permission_check(stream);
            let own = Some((own, own_key.as_str())).filter(|_| at == 0 || self.is_cluster());
            for (purpose, key) in own.into_iter().chain([(*purpose, *stream)]) {
                for found in client.try_commands(key, purpose.commands()).await? {
                    // Commands without a key are tried with each key.
                    if !missing.contains(&found) {
                        missing.push(found);
                    }
                }
            }
        }
        Ok(missing)
    }

    async fn try_commands(&self, key: &str, commands: &[&str]) -> Result<Vec<String>, StoreError> {
        const OPERATION: &str = "check the permissions in Redis";
        let script = Script::new(TRY);
        let mut call = ScriptCall::new(&script, [key].into_iter());
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            call.arg(words.len()).arg(words);
        }
        let errors = match self.script(OPERATION, &call).await {
            Ok(Value::Array(errors)) => errors,
            Ok(other) => return Err(unexpected(OPERATION, &other)),
            // Scripts, or this key in a script, are not permitted.
            Err(error) => {
                let text = domain::ports::error_chain(&error);
                return if is_missing_permission(&text) {
                    Ok(vec![format!("EVALSHA or SCRIPT LOAD with the key {key} ({text})")])
                } else {
                    Err(error)
                };
            }
        };
        let refused = commands.iter().zip(errors).filter(|(_, error)| match error {
            Value::BulkString(text) => is_missing_permission(&String::from_utf8_lossy(text)),
            _ => false,
        });
        Ok(refused.map(|(command, _)| in_words(command, key)).collect())
    }
}

fn in_words(command: &str, key: &str) -> String {
    let name = command.split(' ').next().unwrap_or(command);
    if command.contains('%') { format!("{name} on {key}") } else { name.to_owned() }
}
