//! The streams: intents come in, client events and delivery commands go out.

use std::sync::Arc;
use std::time::Duration;

use domain::entry::{EntryId, RawEntry, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::{Append, IntentStream, LeaseToken, Outbound, StoreError, StreamState};
use domain::route::{Channel, RouteKey};
use redis::aio::MultiplexedConnection;
use redis::{Script, Value, cmd};
use tokio::sync::Mutex;

use crate::connect::{RedisClient, ScriptCall, TimedOut, is_outage, redis_error, unavailable, unexpected};
use crate::keyspace::route_lease;
use crate::lease::millis;

/// The intents stream. Reading blocks on a connection of its own; everything else uses the shared one.
#[derive(Clone)]
pub struct RedisIntentStream {
    client: RedisClient,
    key: String,
    /// Taken out while a read is under way: a read that is dropped takes its connection with it, because Redis goes on
    /// blocking on that one.
    reader: Arc<Mutex<Option<MultiplexedConnection>>>,
}

impl std::fmt::Debug for RedisIntentStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisIntentStream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RedisIntentStream {
    /// The stream at `key`.
    pub fn new(client: &RedisClient, key: String) -> Self {
        Self { client: client.clone(), key, reader: Arc::default() }
    }

    async fn range_from(&self, operation: &'static str, after: EntryId) -> Result<Value, StoreError> {
        let command =
            cmd("XRANGE").arg(&self.key).arg(format!("({after}")).arg("+").arg("COUNT").arg(1).to_owned();
        self.client.command(operation, &command).await
    }
}

impl IntentStream for RedisIntentStream {
    async fn read(&self, after: EntryId, count: usize, block: Duration) -> Result<Vec<RawEntry>, StoreError> {
        const OPERATION: &str = "read the intents stream";
        let mut reader = self.reader.lock().await;
        let mut connection = match reader.take() {
            Some(connection) => connection,
            None => self.client.dedicated(OPERATION).await?,
        };
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(count);
        // To Redis, no time at all means for ever.
        if !block.is_zero() {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("STREAMS").arg(&self.key).arg(after.to_string());
        let bound = block + self.client.operation_timeout();
        let answer = match tokio::time::timeout(bound, command.query_async::<Value>(&mut connection)).await {
            Ok(answer) => answer.map_err(|error| redis_error(OPERATION, error))?,
            Err(_) => return Err(unavailable(OPERATION, TimedOut(bound))),
        };
        *reader = Some(connection);
        match answer {
            Value::Nil => Ok(Vec::new()),
            Value::Array(streams) => match streams.into_iter().next() {
                Some(Value::Array(mut stream)) if stream.len() == 2 => entries(OPERATION, stream.remove(1)),
                Some(other) => Err(unexpected(OPERATION, &other)),
                None => Ok(Vec::new()),
            },
            other => Err(unexpected(OPERATION, &other)),
        }
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        const OPERATION: &str = "look for the next intent";
        // Redis refuses to look behind the last id that there can be.
        if after == EntryId::new(u64::MAX, u64::MAX) {
            return Ok(None);
        }
        let answer = self.range_from(OPERATION, after).await?;
        Ok(entries(OPERATION, answer)?.first().map(|entry| entry.id))
    }

    async fn inspect(&self) -> Result<StreamState, StoreError> {
        const OPERATION: &str = "inspect the intents stream";
        let command = cmd("XINFO").arg("STREAM").arg(&self.key).to_owned();
        let Value::Array(info) = (match self.client.command(OPERATION, &command).await {
            Ok(value) => value,
            // There is no such key: a stream that nobody has written to.
            Err(StoreError::Refused { source, .. }) if source.to_string().contains("no such key") => {
                return Ok(StreamState::default());
            }
            Err(error) => return Err(error),
        }) else {
            return Err(unavailable(OPERATION, "Redis gave no list of properties"));
        };
        let property = |name: &str| {
            info.chunks_exact(2)
                .find(|pair| matches!(&pair[0], Value::BulkString(key) if key == name.as_bytes()))
                .map(|pair| &pair[1])
        };
        let last_generated = property("last-generated-id")
            .and_then(entry_id)
            .ok_or_else(|| unavailable(OPERATION, "Redis gave no last-generated-id"))?;
        let first = match property("first-entry") {
            Some(Value::Array(entry)) => entry.first().and_then(entry_id),
            _ => None,
        };
        Ok(StreamState { first, last_generated })
    }
}

fn entry_id(value: &Value) -> Option<EntryId> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// Read by hand: the library's own types are maps, which lose repeated names and their order.
fn entries(operation: &'static str, value: Value) -> Result<Vec<RawEntry>, StoreError> {
    let Value::Array(list) = value else { return Err(unexpected(operation, &value)) };
    let mut entries = Vec::with_capacity(list.len());
    for item in list {
        let Value::Array(mut pair) = item else { return Err(unexpected(operation, &item)) };
        let (Some(fields), Some(id)) = (pair.pop(), pair.pop().as_ref().and_then(entry_id)) else {
            return Err(unavailable(operation, "Redis gave an entry without an id"));
        };
        match fields {
            Value::Array(flat) => entries.push(RawEntry { id, fields: raw_fields(operation, flat)? }),
            // Deleted between being found and being read.
            Value::Nil => {}
            other => return Err(unexpected(operation, &other)),
        }
    }
    Ok(entries)
}

fn raw_fields(operation: &'static str, flat: Vec<Value>) -> Result<RawFields, StoreError> {
    let mut texts = flat.into_iter().map(|value| match value {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(unexpected(operation, &other)),
    });
    let mut fields = Vec::with_capacity(texts.len() / 2);
    while let Some(name) = texts.next() {
        let value =
            texts.next().ok_or_else(|| unavailable(operation, "Redis gave a name without a value"))?;
        fields.push((name?, value?));
    }
    Ok(RawFields(fields))
}

/// An outbound stream.
#[derive(Clone, Debug)]
pub struct StreamTarget {
    /// Its key.
    pub key: String,
    /// About how many entries it keeps; `None` for all.
    pub max_len: Option<u64>,
}

/// KEYS: the stream, then a lease for each entry. ARGV: token, life of a receipt, length to keep or 0, then for each
/// entry the number of its names and values, and these. An answer for each: its id, appended now or before; 0, the lease is
/// gone; {error}, the stream refused.
const APPEND: &str = r"
local stream, token, dedupe, keep = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local answers, at = {}, 4
for i = 2, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.pcall('GET', KEYS[i])
  if held == token then
    local id
    if keep == '0' then
      id = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 1, at + n))
    else
      id = redis.pcall('XADD', stream, 'MAXLEN', '~', keep, '*', unpack(ARGV, at + 1, at + n))
    end
    if type(id) == 'table' then
      answers[i - 1] = {id.err}
    else
      redis.pcall('SET', KEYS[i], 'published:' .. id, 'PX', dedupe)
      answers[i - 1] = id
    end
  else
    answers[i - 1] = type(held) == 'string' and string.match(held, '^published:(%d+%-%d+)$') or 0
  end
  at = at + n + 1
end
return answers";

/// The outbound streams.
#[derive(Clone, Debug)]
pub struct RedisOutbound {
    client: RedisClient,
    gateway: StreamTarget,
    mail: StreamTarget,
    append: Script,
}

impl RedisOutbound {
    /// Push routes go to `gateway`, e-mail routes to `mail`.
    pub fn new(client: &RedisClient, gateway: StreamTarget, mail: StreamTarget) -> Self {
        Self { client: client.clone(), gateway, mail, append: Script::new(APPEND) }
    }
}

impl Outbound for RedisOutbound {
    async fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        const OPERATION: &str = "append to the outbound stream";
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let target = match channel {
            Channel::Push => &self.gateway,
            Channel::Email => &self.mail,
        };
        let mut keys = Vec::with_capacity(entries.len() + 1);
        keys.push(target.key.clone());
        keys.extend(entries.iter().map(|(key, _)| route_lease(key)));
        let mut call = ScriptCall::new(&self.append, keys.iter());
        call.arg(&token.0).arg(millis(dedupe_ttl)).arg(target.max_len.unwrap_or(0));
        for (_, OutboundEntry(fields)) in entries {
            call.arg(fields.len() * 2);
            for (name, value) in fields {
                call.arg(*name).arg(&**value);
            }
        }
        match self.client.script(OPERATION, &call).await? {
            Value::Array(answers) if answers.len() == entries.len() => {
                answers.into_iter().map(|answer| appended(OPERATION, answer)).collect()
            }
            other => Err(unexpected(OPERATION, &other)),
        }
    }
}

fn appended(operation: &'static str, answer: Value) -> Result<Append, StoreError> {
    match answer {
        Value::BulkString(id) => Ok(Append::Done(String::from_utf8_lossy(&id).into_owned())),
        Value::Int(_) => Ok(Append::LeaseLost),
        Value::Array(refusal) => match refusal.first() {
            Some(Value::BulkString(error)) => {
                let error = String::from_utf8_lossy(error).into_owned();
                Ok(if is_outage(&error) { Append::Outage(error) } else { Append::Refused(error) })
            }
            _ => Err(unavailable(operation, "Redis gave an answer without an error")),
        },
        other => Err(unexpected(operation, &other)),
    }
}
