//! Which events have an entry in a stream, for those whose receipt has ended.
//!
//! The newest entries are read once, from the end of the stream back. What comes later has a receipt. An event is recognised by its
//! id; one whose payload has an idempotency key of its own is not, and counts as not found.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use store_redis::RedisOutboxStreams;
use tokio::time::Instant;
use uuid::Uuid;

/// The most entries that are read.
const MAX_ENTRIES: u32 = 100_000;
/// Entries that are read with one call.
const PAGE_ENTRIES: u32 = 100;
/// How long what was read is used. A receipt lives for longer.
const MAX_AGE: Duration = Duration::from_secs(20);

/// The ids of the newest entries of a stream.
#[derive(Debug, Default)]
pub(super) struct EntryCache(Mutex<Option<Read>>);

#[derive(Clone, Debug)]
struct Read {
    stream: String,
    at: Instant,
    ids: Arc<HashSet<Uuid>>,
}

impl EntryCache {
    /// The ids that the newest entries of `stream` have in `field`.
    pub(super) async fn of(
        &self,
        streams: &RedisOutboxStreams,
        stream: &str,
        field: &str,
    ) -> Result<Arc<HashSet<Uuid>>, StoreError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(read) = known.filter(|read| read.stream == stream && read.at.elapsed() < MAX_AGE) {
            return Ok(read.ids);
        }
        let at = Instant::now();
        let (mut ids, mut from) = (HashSet::new(), "+".to_owned());
        for _ in 0..MAX_ENTRIES / PAGE_ENTRIES {
            let (last, values) = streams.list_values_down(stream, &from, PAGE_ENTRIES, field).await?;
            ids.extend(values.iter().filter_map(|value| Uuid::try_parse_ascii(value).ok()));
            let Some(last) = last else { break };
            from = format!("({last}");
        }
        let ids = Arc::new(ids);
        let read = Read { stream: stream.to_owned(), at, ids: Arc::clone(&ids) };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        Ok(ids)
    }
}
