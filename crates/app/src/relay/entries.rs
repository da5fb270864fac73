//! Lookup of events in a stream by id, for events whose published marker has expired.
//!
//! Each round of a comparison reads the newest entries once, from the end of the stream back, until the
//! events are found. Entries that are appended later still have a marker. An event is recognised by its id.
//! An event whose payload has an idempotency key of its own cannot be recognised, and counts as not found.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::ports::StoreError;
use store_redis::NewestEntries;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// The time for which one call reads entries before it returns control to the relay.
const MAX_READ_TIME: Duration = Duration::from_millis(50);

/// The entries that were read from streams in one round.
#[derive(Debug, Default)]
pub(super) struct EntryCache(Mutex<RoundEntries>);

#[derive(Debug, Default)]
struct RoundEntries {
    round: u64,
    streams: HashMap<String, EntryIds>,
}

/// The ids of the entries of a stream that were read so far.
#[derive(Debug)]
struct EntryIds {
    ids: HashSet<Uuid>,
    rest: NewestEntries,
}

impl EntryCache {
    /// Returns true for each event that has an entry in its stream, as read from `newest`. Returns `None`
    /// after [`MAX_READ_TIME`] if there may be more entries.
    pub(super) async fn find(
        &self,
        newest: impl Fn(&str) -> NewestEntries,
        round: u64,
        events: &[(&str, Uuid)],
    ) -> Result<Option<Vec<bool>>, StoreError> {
        let begun = Instant::now();
        let mut cache = self.0.lock().await;
        if cache.round != round {
            *cache = RoundEntries { round, streams: HashMap::new() };
        }
        for (stream, event_id) in events {
            if !cache.streams.contains_key(*stream) {
                let read = EntryIds { ids: HashSet::new(), rest: newest(stream) };
                cache.streams.insert((*stream).to_owned(), read);
            }
            let Some(read) = cache.streams.get_mut(*stream) else { continue };
            while !read.ids.contains(event_id) && !read.rest.is_over() {
                if begun.elapsed() >= MAX_READ_TIME {
                    return Ok(None);
                }
                let values = read.rest.read().await?;
                read.ids.extend(values.iter().filter_map(|value| Uuid::try_parse_ascii(value).ok()));
            }
        }
        let is_there = |(stream, event_id): &(&str, Uuid)| {
            cache.streams.get(*stream).is_some_and(|read| read.ids.contains(event_id))
        };
        Ok(Some(events.iter().map(is_there).collect()))
    }
}
