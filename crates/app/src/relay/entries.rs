//! Which events have an entry in a stream, for those whose receipt has ended.
//!
//! The newest entries are read once in each round of a comparison, from the end of the stream back, as far as
//! the events are not found. What comes later has a receipt. An event is recognised by its id; one whose
//! payload has an idempotency key of its own is not, and counts as not found.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::ports::StoreError;
use store_redis::{NewestEntries, RedisOutboxStreams};
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// How long one call reads entries before it lets the relay do other things.
const MAX_READ_TIME: Duration = Duration::from_millis(50);

/// What was read of streams in one round.
#[derive(Debug, Default)]
pub(super) struct EntryCache(Mutex<RoundEntries>);

#[derive(Debug, Default)]
struct RoundEntries {
    round: u64,
    streams: HashMap<String, Read>,
}

/// The ids of the entries of a stream, as far as it was read.
#[derive(Debug)]
struct Read {
    ids: HashSet<Uuid>,
    rest: NewestEntries,
}

impl EntryCache {
    /// Whether each event has an entry in its stream, by the ids in `field`. `None` after [`MAX_READ_TIME`],
    /// if there may be more.
    pub(super) async fn find(
        &self,
        streams: &RedisOutboxStreams,
        field: &'static str,
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
                let read = Read { ids: HashSet::new(), rest: streams.newest_entries(stream, field) };
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
