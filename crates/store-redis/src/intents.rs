//! The intents stream: producers append, one reader at a time reads.
//!
//! Reading blocks on a connection of its own, which accepts no more bytes than the read allows. Everything
//! else uses the shared connection and requests ids only, because an entry may be as large as Redis lets its
//! producer make it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::checkpoint::{LARGE_COPY_INTERVAL, MAX_COPIED_BYTES};
use domain::entry::{
    EntryId, LargeEntry, LargePart, MAX_HEAD, MAX_HEAD_FIELDS, MAX_HEADS, RawEntry, RawFields,
};
use domain::ports::{IntentStream, ReadLimit, ServerId, StoreError, StreamQueries, StreamRead, StreamState};
use domain::query::{
    Counted, EntryLook, FoundEntry, MAX_UNREAD_BYTES, MAX_UNREAD_ENTRIES, StreamBacklog, UnreadEntries,
};
use redis::{Script, Value, cmd};
use tokio::time::Instant;

use crate::blocking::{BlockingConnection, ask_within};
use crate::connect::{MAX_COPY_TIME, RedisClient};
use crate::error::{unavailable, unexpected};
use crate::script_call::{ScriptCall, millis};
use crate::server;
use crate::socket::Connection;
use crate::stream_state::{self, entry_id, parse_state};

pub(crate) const FIRST_IN_RANGE: &str = include_str!("scripts/first_in_range.lua");
const LOOK: &str = include_str!("scripts/look_at_entry.lua");
const INSPECT: &str = include_str!("scripts/inspect_stream.lua");

/// The intents stream at one key. Clones share the reader's connection.
#[derive(Clone)]
pub struct RedisIntentStream {
    client: RedisClient,
    key: String,
    reader: BlockingConnection,
    first_in_range: Script,
    inspect: Script,
    server: Script,
    look: Script,
    /// The last state for which Redis copied large entries, and its time.
    copied: Arc<Mutex<Option<Copied>>>,
}

impl std::fmt::Debug for RedisIntentStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisIntentStream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RedisIntentStream {
    /// The stream at `key`.
    pub fn new(client: &RedisClient, key: String) -> Self {
        let client = client.for_key(&key);
        Self {
            key,
            reader: BlockingConnection::new(&client),
            client,
            first_in_range: Script::new(FIRST_IN_RANGE),
            inspect: stream_state::script(INSPECT),
            server: server::script(),
            look: Script::new(LOOK),
            copied: Arc::default(),
        }
    }

    /// The state of the stream, at most [`LARGE_COPY_INTERVAL`] old if Redis has to copy large entries to
    /// return it.
    async fn inspect_rarely(&self) -> Result<Option<StreamState>, StoreError> {
        let copied = *self.copied();
        if let Some(copied) = copied.filter(|copied| copied.at.elapsed() < LARGE_COPY_INTERVAL) {
            return Ok(Some(copied.state));
        }
        let state = self.inspect().await?;
        let large = state.filter(|state| state.copied_bytes > MAX_COPIED_BYTES);
        *self.copied() = large.map(|state| Copied { at: Instant::now(), state });
        Ok(state)
    }

    /// Locks the copied state. Ignores poisoning: no code panics while it holds the lock.
    fn copied(&self) -> MutexGuard<'_, Option<Copied>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `count` entries after `after`, in this order; `None` if they exceed `bytes`, and the
    /// connection is then broken.
    async fn page(
        &self,
        connection: &mut Connection,
        order: Order,
        after: Option<EntryId>,
        count: usize,
        bytes: usize,
    ) -> Result<Option<Vec<RawEntry>>, StoreError> {
        let (operation, name, first, last) = match order {
            Order::OldestFirst => ("read the backlog of intents", "XRANGE", "-".to_owned(), "+"),
            Order::NewestFirst(last) => ("list the last intents", "XREVRANGE", last.to_string(), "-"),
        };
        let begin = after.map_or_else(|| first, |after| format!("({after}"));
        let mut command = cmd(name);
        command.arg(&self.key).arg(begin).arg(last).arg("COUNT").arg(count);
        let bound = self.client.operation_timeout();
        let answer = ask_within(operation, connection, &command, bytes, bound).await?;
        answer.map(|answer| entries(operation, answer)).transpose()
    }

    /// The entries after `after`, in this order and within `limit`, and true if the stream has no more. The
    /// pages double in size until one exceeds the remaining bytes; from then on they are halved.
    async fn pages(
        &self,
        order: Order,
        after: Option<EntryId>,
        limit: ReadLimit,
    ) -> Result<(Vec<RawEntry>, bool), StoreError> {
        let mut found: Vec<RawEntry> = Vec::new();
        let (mut count, mut grows, mut bytes) = (1, true, limit.bytes);
        let mut connection = None;
        while found.len() < limit.entries {
            let mut open = match connection.take() {
                Some(open) => open,
                None => self.client.dedicated("list intents").await?,
            };
            let after = found.last().map(|last| last.id).or(after);
            let asked = count.min(limit.entries - found.len());
            match self.page(&mut open, order, after, asked, bytes).await? {
                Some(page) => {
                    let last = page.len() < asked;
                    found.extend(page);
                    if last {
                        return Ok((found, true));
                    }
                    bytes = bytes.saturating_sub(open.received());
                    count = if grows { count * 2 } else { count };
                    connection = Some(open);
                }
                None if asked == 1 => break,
                None => (count, grows) = (asked / 2, false),
            }
        }
        Ok((found, false))
    }
}

/// The state of a stream for which Redis copied large entries.
#[derive(Clone, Copy)]
struct Copied {
    at: Instant,
    state: StreamState,
}

/// The end of the stream from which entries are listed.
#[derive(Clone, Copy)]
enum Order {
    OldestFirst,
    /// The newest entries first, starting at this one.
    NewestFirst(EntryId),
}

impl IntentStream for RedisIntentStream {
    async fn read(
        &self,
        after: EntryId,
        limit: ReadLimit,
        block: Duration,
    ) -> Result<StreamRead, StoreError> {
        const OPERATION: &str = "read the intents stream";
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(limit.entries);
        // To Redis, zero means no timeout.
        if !block.is_zero() {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("STREAMS").arg(&self.key).arg(after.to_string());
        let answer = self.reader.ask(OPERATION, &command, block, limit.bytes).await?;
        let Some(answer) = answer else { return Ok(StreamRead::TooLarge) };
        match answer {
            Value::Nil => Ok(StreamRead::Entries(Vec::new())),
            Value::Array(streams) => match streams.into_iter().next() {
                Some(Value::Array(mut stream)) if stream.len() == 2 => {
                    entries(OPERATION, stream.remove(1)).map(StreamRead::Entries)
                }
                Some(other) => Err(unexpected(OPERATION, &other)),
                None => Ok(StreamRead::Entries(Vec::new())),
            },
            other => Err(unexpected(OPERATION, &other)),
        }
    }

    async fn reconnect(&self) {
        self.reader.close();
    }

    async fn look_at_large(&self, after: EntryId) -> Result<Option<LargeEntry>, StoreError> {
        const OPERATION: &str = "look at an intent that is too large to be read";
        let mut call = ScriptCall::new(&self.look, [&self.key].into_iter());
        call.arg(format!("({after}")).arg(MAX_HEAD).arg(MAX_HEAD_FIELDS).arg(MAX_HEADS);
        match self.client.script_within(OPERATION, &call, MAX_COPY_TIME).await? {
            Value::Nil => Ok(None),
            found => large_entry(&found).map(Some).ok_or_else(|| unexpected(OPERATION, &found)),
        }
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        const OPERATION: &str = "find the next intent";
        // Redis rejects a range after the highest possible id.
        if after == EntryId::new(u64::MAX, u64::MAX) {
            return Ok(None);
        }
        let mut call = ScriptCall::new(&self.first_in_range, [&self.key].into_iter());
        call.arg(format!("({after}"));
        match self.client.script_within(OPERATION, &call, MAX_COPY_TIME).await? {
            Value::Nil => Ok(None),
            id => entry_id(&id).map(Some).ok_or_else(|| unexpected(OPERATION, &id)),
        }
    }

    async fn list_newest(
        &self,
        last: EntryId,
        limit: ReadLimit,
    ) -> Result<(Vec<RawEntry>, bool), StoreError> {
        self.pages(Order::NewestFirst(last), None, limit).await
    }

    async fn server(&self) -> Result<ServerId, StoreError> {
        const OPERATION: &str = "identify the server of the intents stream";
        let call = ScriptCall::new(&self.server, [&self.key].into_iter());
        let response = self.client.script(OPERATION, &call).await?;
        let Value::Array(ids) = &response else { return Err(unexpected(OPERATION, &response)) };
        let server = server::parse(ids.get(..2).unwrap_or_default());
        let server = server.ok_or_else(|| unexpected(OPERATION, &response))?;
        self.reader.expect(&server);
        Ok(server)
    }

    async fn trim(&self, before: EntryId) -> Result<u64, StoreError> {
        const OPERATION: &str = "trim the intents stream";
        let mut command = cmd("XTRIM");
        command.arg(&self.key).arg("MINID").arg("~").arg(before.to_string()).arg("LIMIT").arg(TRIM_ENTRIES);
        let mut removed = 0;
        for _ in 0..MAX_TRIMS {
            match self.client.command(OPERATION, &command).await? {
                Value::Int(0) => break,
                Value::Int(entries) => removed += entries.unsigned_abs(),
                other => return Err(unexpected(OPERATION, &other)),
            }
        }
        Ok(removed)
    }

    async fn inspect(&self) -> Result<Option<StreamState>, StoreError> {
        const OPERATION: &str = "inspect the intents stream";
        let call = ScriptCall::new(&self.inspect, [&self.key].into_iter());
        let state = parse_state(OPERATION, &self.client.script(OPERATION, &call).await?)?;
        Ok(state.map(StreamState::from))
    }
}

/// The most entries that one command removes, so that it does not hold Redis up; the default of Redis.
const TRIM_ENTRIES: u64 = 10_000;
/// The most commands of one trim. With one trim in a minute, they remove what 33,000 intents/s add.
const MAX_TRIMS: u32 = 200;

/// The limit of reading the backlog.
const BACKLOG_LIMIT: ReadLimit = ReadLimit { entries: MAX_UNREAD_ENTRIES, bytes: MAX_UNREAD_BYTES };

impl StreamQueries for RedisIntentStream {
    /// Returns the length of the stream if all of it is unread, and otherwise reads the unread part. A stream
    /// that ends before `after` was recreated, and none of it has been processed.
    async fn backlog(&self, after: EntryId) -> Result<StreamBacklog, StoreError> {
        const OPERATION: &str = "measure the backlog of intents";
        let none = Counted { count: 0, capped: false };
        let Some(state) = self.inspect_rarely().await? else {
            return Ok(StreamBacklog { last_entry_id: None, first: None, entries: none });
        };
        let last_entry_id = Some(state.last_generated);
        let after = if state.last_generated < after { EntryId::ZERO } else { after };
        if state.first.is_none_or(|_| state.last_generated == after) {
            return Ok(StreamBacklog { last_entry_id, first: None, entries: none });
        }
        if state.first.is_some_and(|first| first > after) {
            let length = cmd("XLEN").arg(&self.key).to_owned();
            return match self.client.command(OPERATION, &length).await? {
                Value::Int(length) => {
                    let entries = Counted::up_to_cap(length.unsigned_abs());
                    Ok(StreamBacklog { last_entry_id, first: state.first, entries })
                }
                other => Err(unexpected(OPERATION, &other)),
            };
        }
        let (found, is_all) = self.pages(Order::OldestFirst, Some(after), BACKLOG_LIMIT).await?;
        let first = match found.first() {
            Some(first) => Some(first.id),
            // The first entry alone exceeds the limit.
            None if !is_all => self.first_after(after).await?,
            None => None,
        };
        let count = (found.len() as u64).max(u64::from(first.is_some()));
        Ok(StreamBacklog { last_entry_id, first, entries: Counted { count, capped: !is_all } })
    }

    async fn has_unread(&self, after: EntryId) -> Result<bool, StoreError> {
        let Some(state) = self.inspect_rarely().await? else { return Ok(false) };
        let is_read = state.first.is_none() || state.last_generated == after;
        // If the last entry was deleted, the entries between it and `after` may be gone, too.
        match state.last_generated > after && state.max_deleted >= state.last_generated {
            true => Ok(self.first_after(after).await?.is_some()),
            false => Ok(!is_read),
        }
    }

    async fn find_entry(&self, id: EntryId) -> Result<EntryLook, StoreError> {
        const OPERATION: &str = "look for an intent";
        let stream = self.inspect().await?;
        let mut command = cmd("XRANGE");
        command.arg(&self.key).arg(id.to_string()).arg(id.to_string());
        let mut connection = self.client.dedicated(OPERATION).await?;
        let bound = self.client.operation_timeout();
        let answer = ask_within(OPERATION, &mut connection, &command, MAX_UNREAD_BYTES, bound).await?;
        let entry = match answer {
            Some(answer) => {
                entries(OPERATION, answer)?.into_iter().next().map(|entry| FoundEntry::Fields(entry.fields))
            }
            None => Some(FoundEntry::TooLarge),
        };
        Ok(EntryLook { stream, entry })
    }

    async fn list_unread(&self, after: EntryId) -> Result<UnreadEntries, StoreError> {
        // Redis rejects a range after the highest possible id.
        if after == EntryId::new(u64::MAX, u64::MAX) {
            return Ok(UnreadEntries { entries: Vec::new(), is_all: true });
        }
        let (entries, is_all) = self.pages(Order::OldestFirst, Some(after), BACKLOG_LIMIT).await?;
        Ok(UnreadEntries { entries, is_all })
    }
}

/// Parses the description that the script returns.
fn large_entry(value: &Value) -> Option<LargeEntry> {
    let Value::Array(values) = value else { return None };
    let [id, Value::Int(fields), Value::Int(bytes), Value::Array(parts)] = &values[..] else { return None };
    let mut parts = parts.chunks_exact(2).map(|part| match part {
        [Value::Int(bytes), Value::BulkString(head)] => {
            Some(LargePart { bytes: u64::try_from(*bytes).ok()?, head: head.clone() })
        }
        _ => None,
    });
    let mut heads = Vec::new();
    while let Some(name) = parts.next() {
        // The last name may have used up the space.
        let empty = Some(LargePart { bytes: 0, head: Vec::new() });
        heads.push((name?, parts.next().unwrap_or(empty)?));
    }
    let (fields, bytes) = (u64::try_from(*fields).ok()?, u64::try_from(*bytes).ok()?);
    Some(LargeEntry { id: entry_id(id)?, fields, bytes, heads })
}

/// Parsed without the library's own types, which are maps and lose repeated names and their order.
pub(crate) fn entries(operation: &'static str, value: Value) -> Result<Vec<RawEntry>, StoreError> {
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
