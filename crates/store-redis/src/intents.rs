//! The intents stream: producers append, one reader at a time reads.
//!
//! Reading blocks on a connection of its own, which takes no more bytes than the read allows. Everything else uses the
//! shared connection and asks for ids only, because an entry may be as large as Redis lets its producer make it.

use std::time::Duration;

use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{IntentStream, Read, ReadLimit, StoreError, StreamState};
use redis::{Script, Value, cmd};

use crate::blocking::{BlockingConnection, ask_within};
use crate::connect::{RedisClient, ScriptCall, millis, unavailable, unexpected};
use crate::socket::Connection;
use crate::stream_state::{self, entry_id, parse_state};

const FIRST_IN_RANGE: &str = include_str!("scripts/first_in_range.lua");
const INSPECT: &str = include_str!("scripts/inspect_stream.lua");

/// The intents stream at one key. Clones share the reader's connection.
#[derive(Clone)]
pub struct RedisIntentStream {
    client: RedisClient,
    key: String,
    reader: BlockingConnection,
    first_in_range: Script,
    inspect: Script,
}

impl std::fmt::Debug for RedisIntentStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisIntentStream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RedisIntentStream {
    /// The stream at `key`.
    pub fn new(client: &RedisClient, key: String) -> Self {
        Self {
            client: client.clone(),
            key,
            reader: BlockingConnection::new(client),
            first_in_range: Script::new(FIRST_IN_RANGE),
            inspect: stream_state::script(INSPECT),
        }
    }

    /// Entries from `end` backwards, at most `count` of them; `None` if they exceed `bytes`, and the connection is gone.
    async fn page_back(
        &self,
        connection: &mut Connection,
        end: &str,
        count: usize,
        bytes: usize,
    ) -> Result<Option<Vec<RawEntry>>, StoreError> {
        const OPERATION: &str = "list the last intents";
        let mut command = cmd("XREVRANGE");
        command.arg(&self.key).arg(end).arg("-").arg("COUNT").arg(count);
        let bound = self.client.operation_timeout();
        let answer = ask_within(OPERATION, connection, &command, bytes, bound).await?;
        answer.map(|answer| entries(OPERATION, answer)).transpose()
    }
}

impl IntentStream for RedisIntentStream {
    async fn read(&self, after: EntryId, limit: ReadLimit, block: Duration) -> Result<Read, StoreError> {
        const OPERATION: &str = "read the intents stream";
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(limit.entries);
        // To Redis, zero means no timeout.
        if !block.is_zero() {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("STREAMS").arg(&self.key).arg(after.to_string());
        let answer = self.reader.ask(OPERATION, &command, block, limit.bytes).await?;
        let Some(answer) = answer else { return Ok(Read::TooLarge) };
        match answer {
            Value::Nil => Ok(Read::Entries(Vec::new())),
            Value::Array(streams) => match streams.into_iter().next() {
                Some(Value::Array(mut stream)) if stream.len() == 2 => {
                    entries(OPERATION, stream.remove(1)).map(Read::Entries)
                }
                Some(other) => Err(unexpected(OPERATION, &other)),
                None => Ok(Read::Entries(Vec::new())),
            },
            other => Err(unexpected(OPERATION, &other)),
        }
    }

    async fn reconnect(&self) {
        self.reader.close();
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        const OPERATION: &str = "find the next intent";
        // Redis refuses a range after the highest possible id.
        if after == EntryId::new(u64::MAX, u64::MAX) {
            return Ok(None);
        }
        let mut call = ScriptCall::new(&self.first_in_range, [&self.key].into_iter());
        call.arg(format!("({after}"));
        match self.client.script(OPERATION, &call).await? {
            Value::Nil => Ok(None),
            id => entry_id(&id).map(Some).ok_or_else(|| unexpected(OPERATION, &id)),
        }
    }

    /// The pages double in size until one exceeds the bytes that are left; from then on they are halved.
    async fn list_last(&self, limit: ReadLimit) -> Result<Vec<RawEntry>, StoreError> {
        let mut found: Vec<RawEntry> = Vec::new();
        let (mut count, mut grows, mut bytes) = (1, true, limit.bytes);
        let mut connection = None;
        while found.len() < limit.entries {
            let mut open = match connection.take() {
                Some(open) => open,
                None => self.client.dedicated("list the last intents").await?,
            };
            let end = found.last().map_or_else(|| "+".to_owned(), |last| format!("({}", last.id));
            let asked = count.min(limit.entries - found.len());
            match self.page_back(&mut open, &end, asked, bytes).await? {
                Some(page) => {
                    let last = page.len() < asked;
                    found.extend(page);
                    if last {
                        break;
                    }
                    bytes = bytes.saturating_sub(open.received());
                    count = if grows { count * 2 } else { count };
                    connection = Some(open);
                }
                None if asked == 1 => break,
                None => (count, grows) = (asked / 2, false),
            }
        }
        Ok(found)
    }

    async fn trim(&self, before: EntryId) -> Result<u64, StoreError> {
        const OPERATION: &str = "trim the intents stream";
        let command = cmd("XTRIM").arg(&self.key).arg("MINID").arg("~").arg(before.to_string()).to_owned();
        match self.client.command(OPERATION, &command).await? {
            Value::Int(removed) => Ok(removed.unsigned_abs()),
            other => Err(unexpected(OPERATION, &other)),
        }
    }

    async fn inspect(&self) -> Result<Option<StreamState>, StoreError> {
        const OPERATION: &str = "inspect the intents stream";
        let call = ScriptCall::new(&self.inspect, [&self.key].into_iter());
        let state = parse_state(OPERATION, &self.client.script(OPERATION, &call).await?)?;
        Ok(state.map(|state| StreamState { first: state.first, last_generated: state.last_generated }))
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
            // The entry was deleted after its id was found.
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
