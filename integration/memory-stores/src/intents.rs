//! The intents stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::Clock;
use domain::checkpoint::StreamState;
use domain::entry::{EntryId, LargeEntry, LargePart, MAX_HEAD, RawEntry, RawFields};
use domain::ports::{
    IntentProducer, IntentStream, ReadLimit, ServerId, StoreError, StreamQueries, StreamRead,
};
use domain::query::{
    Counted, EntryLook, FoundEntry, MAX_UNREAD_BYTES, MAX_UNREAD_ENTRIES, StreamBacklog, UnreadEntries,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::clock::ServerClock;
use super::lock;
use super::publishing::next_id;

/// An intents stream. Without a clock, ids rise by one millisecond with each entry.
#[derive(Debug, Default)]
pub struct MemoryIntents {
    stream: Mutex<Option<Stream>>,
    clock: Option<ServerClock>,
    appended: Notify,
    is_stale: AtomicBool,
    /// The number of starts of the server.
    starts: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    entries: Vec<RawEntry>,
    last_generated: EntryId,
    max_deleted: EntryId,
    /// True if the key is renamed, so that no call finds it.
    is_hidden: bool,
}

/// A copy of a stream at one moment.
#[derive(Clone, Debug)]
pub struct IntentsBackup(Option<Stream>);

impl MemoryIntents {
    /// A stream on a server with this clock, from which it generates ids as Redis does.
    pub fn on_server(clock: Arc<impl Clock + 'static>) -> Self {
        Self { clock: Some(ServerClock::new(clock)), ..Self::default() }
    }

    /// Returns a copy of the stream.
    pub fn backup(&self) -> IntentsBackup {
        IntentsBackup(lock(&self.stream).clone())
    }

    /// Restores the stream of `backup`. It is on the same server until that is restarted.
    pub fn restore(&self, backup: &IntentsBackup) {
        lock(&self.stream).clone_from(&backup.0);
    }

    /// The entries, in order.
    pub fn entries(&self) -> Vec<RawEntry> {
        lock(&self.stream).iter().flat_map(|stream| &stream.entries).cloned().collect()
    }

    /// Restarts the server with all its data.
    pub fn restart(&self) {
        self.starts.fetch_add(1, Ordering::SeqCst);
    }

    /// Loses the last `entries` entries with their ids, as a server that restarts with an older state.
    pub fn lose_tail(&self, entries: usize) {
        self.restart();
        if let Some(stream) = lock(&self.stream).as_mut() {
            stream.entries.truncate(stream.entries.len().saturating_sub(entries));
            stream.last_generated = stream.entries.last().map_or(EntryId::ZERO, |entry| entry.id);
        }
    }

    /// Deletes the key.
    pub fn delete(&self) {
        *lock(&self.stream) = None;
    }

    /// Appends an entry under its own id, which must be above all earlier ids.
    pub fn put(&self, entry: RawEntry) {
        {
            let mut stream = lock(&self.stream);
            let stream = stream.get_or_insert_default();
            assert!(entry.id > stream.last_generated, "{} is not above the last id", entry.id);
            stream.last_generated = entry.id;
            stream.entries.push(entry);
        }
        self.appended.notify_waiters();
    }

    /// Deletes one entry. The last generated id stays.
    pub fn delete_entry(&self, id: EntryId) {
        if let Some(stream) = lock(&self.stream).as_mut() {
            stream.entries.retain(|entry| entry.id != id);
            stream.max_deleted = stream.max_deleted.max(id);
        }
    }

    /// The ids of the entries.
    pub fn ids(&self) -> Vec<EntryId> {
        lock(&self.stream).iter().flat_map(|stream| &stream.entries).map(|entry| entry.id).collect()
    }

    /// Renames the key of the stream, or restores its name.
    pub fn set_hidden(&self, is_hidden: bool) {
        lock(&self.stream).get_or_insert_default().is_hidden = is_hidden;
    }

    /// Makes the connection on which [`IntentStream::read`] waits lead to an empty server, or no longer.
    pub fn set_stale(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Ordering::SeqCst);
    }

    /// The stream as calls see it.
    fn visible(&self) -> Option<Stream> {
        lock(&self.stream).clone().filter(|stream| !stream.is_hidden)
    }

    fn read_now(&self, after: EntryId, limit: ReadLimit) -> StreamRead {
        let stream = lock(&self.stream);
        let visible =
            stream.iter().filter(|stream| !stream.is_hidden && !self.is_stale.load(Ordering::SeqCst));
        let entries = visible.flat_map(|stream| &stream.entries).filter(|entry| entry.id > after);
        let entries: Vec<RawEntry> = entries.take(limit.entries).cloned().collect();
        match entries.iter().map(|entry| entry.fields.size()).sum::<usize>() > limit.bytes {
            true => StreamRead::TooLarge,
            false => StreamRead::Entries(entries),
        }
    }
}

impl StreamQueries for MemoryIntents {
    async fn backlog(&self, after: EntryId) -> Result<StreamBacklog, StoreError> {
        let Some(stream) = self.visible() else {
            return Ok(StreamBacklog { last_entry_id: None, first: None, entries: Counted::default() });
        };
        let after = if stream.last_generated < after { EntryId::ZERO } else { after };
        let backlog: Vec<&RawEntry> = stream.entries.iter().filter(|entry| entry.id > after).collect();
        let entries = if backlog.len() == stream.entries.len() {
            Counted::up_to_cap(backlog.len() as u64)
        } else {
            let mut bytes = 0;
            let within = backlog.iter().take(MAX_UNREAD_ENTRIES).take_while(|entry| {
                bytes += entry.fields.size();
                bytes <= MAX_UNREAD_BYTES
            });
            let count = within.count();
            let capped = count < backlog.len() || count == MAX_UNREAD_ENTRIES;
            Counted { count: count.max(usize::from(capped)) as u64, capped }
        };
        let first = backlog.first().map(|entry| entry.id);
        Ok(StreamBacklog { last_entry_id: Some(stream.last_generated), first, entries })
    }

    async fn has_unread(&self, after: EntryId) -> Result<bool, StoreError> {
        Ok(self.backlog(after).await?.first.is_some())
    }

    async fn find_entry(&self, id: EntryId) -> Result<EntryLook, StoreError> {
        let stream = self.inspect().await?;
        let visible = self.visible();
        let found = visible.iter().flat_map(|stream| &stream.entries).find(|entry| entry.id == id);
        let entry = found.map(|entry| match entry.fields.size() > MAX_UNREAD_BYTES {
            true => FoundEntry::TooLarge,
            false => FoundEntry::Fields(entry.fields.clone()),
        });
        Ok(EntryLook { stream, entry })
    }

    async fn list_unread(&self, after: EntryId) -> Result<UnreadEntries, StoreError> {
        let visible = self.visible();
        let all: Vec<&RawEntry> =
            visible.iter().flat_map(|stream| &stream.entries).filter(|entry| entry.id > after).collect();
        let mut bytes = 0;
        let within = all.iter().take(MAX_UNREAD_ENTRIES).take_while(|entry| {
            bytes += entry.fields.size();
            bytes <= MAX_UNREAD_BYTES
        });
        let entries: Vec<RawEntry> = within.map(|entry| (*entry).clone()).collect();
        let is_all = entries.len() == all.len() && all.len() < MAX_UNREAD_ENTRIES;
        Ok(UnreadEntries { entries, is_all })
    }
}

impl IntentProducer for MemoryIntents {
    async fn append(&self, fields: &RawFields) -> Result<EntryId, StoreError> {
        let id = {
            let mut stream = lock(&self.stream);
            let stream = stream.get_or_insert_default();
            let id = match &self.clock {
                Some(clock) => next_id(stream.last_generated, clock.now()),
                None => EntryId::new(stream.last_generated.millis + 1, 0),
            };
            stream.last_generated = id;
            stream.entries.push(RawEntry { id, fields: fields.clone() });
            id
        };
        self.appended.notify_waiters();
        Ok(id)
    }
}

impl IntentStream for MemoryIntents {
    async fn read(
        &self,
        after: EntryId,
        limit: ReadLimit,
        block: Duration,
    ) -> Result<StreamRead, StoreError> {
        let some = async {
            loop {
                let appended = self.appended.notified();
                match self.read_now(after, limit) {
                    StreamRead::Entries(entries) if entries.is_empty() => appended.await,
                    read => return read,
                }
            }
        };
        Ok(timeout(block, some).await.unwrap_or(StreamRead::Entries(Vec::new())))
    }

    async fn reconnect(&self) {}

    async fn look_at_large(&self, after: EntryId) -> Result<Option<LargeEntry>, StoreError> {
        let visible = self.visible();
        let entry = visible.iter().flat_map(|stream| &stream.entries).find(|entry| entry.id > after);
        let part = |bytes: &Vec<u8>| LargePart {
            bytes: bytes.len() as u64,
            head: bytes[..bytes.len().min(MAX_HEAD)].to_vec(),
        };
        Ok(entry.map(|entry| LargeEntry {
            id: entry.id,
            fields: entry.fields.0.len() as u64,
            bytes: entry.fields.size() as u64,
            heads: entry.fields.0.iter().map(|(name, value)| (part(name), part(value))).collect(),
        }))
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        let stream = self.visible();
        let mut ids = stream.iter().flat_map(|stream| &stream.entries).map(|entry| entry.id);
        Ok(ids.find(|id| *id > after))
    }

    async fn list_newest(
        &self,
        last: EntryId,
        limit: ReadLimit,
    ) -> Result<(Vec<RawEntry>, bool), StoreError> {
        let stream = self.visible();
        let mut bytes = 0;
        let newest = stream.iter().flat_map(|stream| stream.entries.iter().rev());
        let all: Vec<&RawEntry> = newest.filter(|entry| entry.id <= last).collect();
        let within = all.iter().take(limit.entries).take_while(|entry| {
            bytes += entry.fields.size();
            bytes <= limit.bytes
        });
        let found: Vec<RawEntry> = within.map(|entry| (*entry).clone()).collect();
        let is_all = found.len() == all.len() && found.len() < limit.entries;
        Ok((found, is_all))
    }

    async fn server(&self) -> Result<ServerId, StoreError> {
        let starts = self.starts.load(Ordering::SeqCst);
        Ok(ServerId { run_id: starts.to_string().into(), replication_id: "0".into() })
    }

    async fn inspect(&self) -> Result<Option<StreamState>, StoreError> {
        let stream = self.visible();
        Ok(stream.as_ref().map(|stream| StreamState {
            first: stream.entries.first().map(|entry| entry.id),
            last_generated: stream.last_generated,
            max_deleted: stream.max_deleted,
            copied_bytes: 0,
        }))
    }

    async fn trim(&self, before: EntryId) -> Result<u64, StoreError> {
        let mut stream = lock(&self.stream);
        let Some(stream) = stream.as_mut() else { return Ok(0) };
        let count = stream.entries.len();
        stream.entries.retain(|entry| entry.id >= before);
        Ok((count - stream.entries.len()) as u64)
    }
}
