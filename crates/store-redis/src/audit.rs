//! Reading a stream from one end to the other, for an audit (ADR 0038).
//!
//! The entries are read with `XRANGE` on a connection of its own that accepts no more bytes than the read
//! allows, as intake does: a script would block Redis while it copies payloads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::entry::{EntryId, Unread};
use domain::ports::{OutboundState, ReadLimit, StoreError, StreamEntry, StreamReader};
use redis::{Script, Value, cmd};

use crate::blocking::BlockingConnection;
use crate::connect::MAX_COPY_TIME;
use crate::connect::RedisClient;
use crate::error::{TimedOut, unexpected};
use crate::intents::{FIRST_IN_RANGE, entries};
use crate::script_call::ScriptCall;
use crate::stream_state::{self, entry_id, parse_state};

/// The time that a read may take beyond the operation timeout: it may return megabytes, and nothing waits for
/// it.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
const OBSERVE: &str = "return redis.call('TYPE', KEYS[1]).ok == 'stream' and state(KEYS[1])";

/// Streams of one Redis. Clones share the connection.
#[derive(Clone)]
pub struct RedisStreamReader {
    client: RedisClient,
    /// The reader of the last stream that was read. In a Cluster, another stream may be on another node.
    reader: Arc<Mutex<Option<(String, BlockingConnection)>>>,
    /// The number of entries that the last successful read requested; the next one requests twice as many.
    /// Zero after an entry that did not fit into a read alone.
    fitted: Arc<AtomicUsize>,
    first_in_range: Script,
    observe: Script,
}

impl std::fmt::Debug for RedisStreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStreamReader").finish_non_exhaustive()
    }
}

impl RedisStreamReader {
    /// A reader of all streams in the Redis of `client`.
    pub fn new(client: &RedisClient) -> Self {
        Self {
            client: client.clone(),
            reader: Arc::default(),
            fitted: Arc::new(AtomicUsize::new(usize::MAX / 2)),
            first_in_range: Script::new(FIRST_IN_RANGE),
            observe: stream_state::script(OBSERVE),
        }
    }

    /// The reader of `stream`. Ignores poisoning: no code panics while it holds the lock.
    fn reader(&self, stream: &str) -> BlockingConnection {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match &*reader {
            Some((of, reader)) if of == stream || !self.client.is_cluster() => reader.clone(),
            _ => {
                let opened = BlockingConnection::new(&self.client.for_key(stream));
                *reader = Some((stream.to_owned(), opened.clone()));
                opened
            }
        }
    }

    /// The id of the next entry, which could not be read even alone. An error if Redis does not return the id
    /// either.
    async fn unread(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        why: Unread,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        const OPERATION: &str = "find the id of an entry";
        // The next entry may be as large or slow.
        self.fitted.store(0, Ordering::Relaxed);
        let mut call = ScriptCall::new(&self.first_in_range, [stream].into_iter());
        call.arg(format!("({after}"));
        let id = match self.client.for_key(stream).script_within(OPERATION, &call, MAX_COPY_TIME).await? {
            Value::Nil => return Ok(Vec::new()),
            id => entry_id(&id).ok_or_else(|| unexpected(OPERATION, &id))?,
        };
        Ok((id <= until).then_some(StreamEntry { id, fields: Err(why) }).into_iter().collect())
    }
}

impl StreamReader for RedisStreamReader {
    /// Requests fewer entries until they fit; an entry that does not fit alone is returned without its
    /// fields. After a timeout it requests one entry: halving would take as long each time.
    async fn list_entries(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        limit: ReadLimit,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        const OPERATION: &str = "read a stream";
        // Redis rejects a range after the highest possible id.
        if after >= until {
            return Ok(Vec::new());
        }
        let reader = self.reader(stream);
        let mut count = self.fitted.load(Ordering::Relaxed).saturating_mul(2).clamp(1, limit.entries.max(1));
        loop {
            let mut command = cmd("XRANGE");
            command.arg(stream).arg(format!("({after}")).arg(until.to_string()).arg("COUNT").arg(count);
            match reader.ask(OPERATION, &command, MAX_READ_TIME, limit.bytes).await {
                Ok(Some(answer)) => {
                    self.fitted.store(count, Ordering::Relaxed);
                    let whole = |entry: domain::entry::RawEntry| StreamEntry {
                        id: entry.id,
                        fields: Ok(entry.fields),
                    };
                    return Ok(entries(OPERATION, answer)?.into_iter().map(whole).collect());
                }
                Ok(None) if count == 1 => {
                    return self.unread(stream, after, until, Unread::TooLarge).await;
                }
                Ok(None) => count /= 2,
                // Entries with very many fields take long to read.
                Err(error) if is_late(&error) && count > 1 => count = 1,
                Err(error) if is_late(&error) => {
                    return self.unread(stream, after, until, Unread::TooSlow).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn inspect_stream(&self, stream: &str) -> Result<Option<OutboundState>, StoreError> {
        const OPERATION: &str = "inspect a stream";
        let call = ScriptCall::new(&self.observe, [stream].into_iter());
        parse_state(OPERATION, &self.client.for_key(stream).script(OPERATION, &call).await?)
    }

    async fn key_type(&self, key: &str) -> Result<Option<String>, StoreError> {
        const OPERATION: &str = "ask for the type of a key";
        let mut command = cmd("TYPE");
        match self.client.for_key(key).command(OPERATION, command.arg(key)).await? {
            Value::SimpleString(kind) => Ok(Some(kind).filter(|kind| kind != "none")),
            other => Err(unexpected(OPERATION, &other)),
        }
    }
}

/// True if the time limit of the read passed, rather than that the server refused or ended the connection.
fn is_late(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { source, .. } if source.is::<TimedOut>())
}
