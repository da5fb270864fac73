//! Reading a stream from one end to the other.

use domain::entry::Unread;
use domain::ports::{ReadLimit, StreamEntry, StreamReader};
use store_redis::RedisStreamReader;

use crate::*;

const STREAM: &str = "gateway:client-events";
const LAST: EntryId = EntryId { millis: u64::MAX, sequence: u64::MAX };

async fn add(world: &World, id: &str, value: &str) {
    world.ask::<String>(&["XADD", STREAM, id, "event_id", value]).await;
}

/// All entries up to `until`, read with `limit`, and how many reads that took.
async fn read(reader: &RedisStreamReader, until: EntryId, limit: ReadLimit) -> (Vec<StreamEntry>, usize) {
    let (mut all, mut reads): (Vec<StreamEntry>, usize) = (Vec::new(), 0);
    loop {
        let after = all.last().map_or(EntryId::ZERO, |last| last.id);
        let page = reader.list_entries(STREAM, after, until, limit).await.expect("Redis is there");
        assert!(page.len() <= limit.entries, "{} entries", page.len());
        if page.is_empty() {
            return (all, reads);
        }
        reads += 1;
        all.extend(page);
    }
}

#[tokio::test]
async fn every_entry_up_to_the_last_is_read_once_whatever_the_page() {
    let world = World::new().await;
    let reader = RedisStreamReader::new(&world.client);
    assert_eq!(read(&reader, LAST, ReadLimit { entries: 10, bytes: 100_000 }).await.0, []);
    for n in 1..=25 {
        add(&world, &format!("{n}-0"), "x").await;
    }
    let (all, reads) = read(&reader, EntryId::new(22, 0), ReadLimit { entries: 10, bytes: 100_000 }).await;
    let ids: Vec<u64> = all.iter().map(|entry| entry.id.millis).collect();
    assert_eq!((ids, reads), ((1..=22).collect(), 3));
    assert!(all.iter().all(|entry| entry.fields.is_ok()));
    assert_eq!(
        reader.list_entries(STREAM, LAST, LAST, ReadLimit { entries: 1, bytes: 1 }).await.ok(),
        Some(vec![])
    );
}

#[tokio::test]
async fn an_entry_that_exceeds_the_bytes_is_given_without_its_fields_and_its_neighbours_with_theirs() {
    let world = World::new().await;
    let reader = RedisStreamReader::new(&world.client);
    for (id, length) in [("1-0", 10), ("2-0", 60_000), ("3-0", 10), ("4-0", 10)] {
        add(&world, id, &"x".repeat(length)).await;
    }
    let (all, _) = read(&reader, LAST, ReadLimit { entries: 10, bytes: 20_000 }).await;
    let read: Vec<(u64, bool)> = all.iter().map(|entry| (entry.id.millis, entry.fields.is_ok())).collect();
    assert_eq!(read, [(1, true), (2, false), (3, true), (4, true)]);
    assert_eq!(all[1].fields, Err(Unread::TooLarge));
    let (some, _) = self::read(&reader, EntryId::new(1, 0), ReadLimit { entries: 10, bytes: 20_000 }).await;
    assert_eq!(some.len(), 1, "the large one is after the end");
}

#[tokio::test]
async fn a_stream_is_inspected_and_a_key_of_another_type_is_none() {
    let world = World::new().await;
    let reader = RedisStreamReader::new(&world.client);
    assert_eq!(reader.inspect_stream(STREAM).await.ok(), Some(None));
    add(&world, "5-0", "x").await;
    add(&world, "6-0", "x").await;
    world.ask::<i64>(&["XDEL", STREAM, "5-0"]).await;
    let state = reader.inspect_stream(STREAM).await.expect("Redis is there").expect("a stream");
    assert_eq!((state.first, state.last_generated), (Some(EntryId::new(6, 0)), EntryId::new(6, 0)));
    world.ask::<()>(&["SET", "other", "x"]).await;
    assert_eq!(reader.inspect_stream("other").await.ok(), Some(None));
}
