//! Appending the events of an outbox: markers, order and deadlines.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::ports::StoreError;
use store_redis::{
    NewOutboxRecord, OutboxAppend, OutboxEntry, OutboxProgress, OutboxServer, RedisOutboxStreams,
    outbox_marker,
};
use tokio::time::Instant;

use crate::*;

const STREAM: &str = "notification:intents";
const OTHER: &str = "orders";
const LEASE: Duration = Duration::from_secs(60);

fn event(id: &'static str, partition_key: &'static str) -> OutboxEntry<'static> {
    event_of(STREAM, id, partition_key)
}

fn event_of(stream: &'static str, id: &'static str, partition_key: &'static str) -> OutboxEntry<'static> {
    OutboxEntry {
        stream,
        producer: "game_master",
        event_id: id.to_owned(),
        partition_key,
        fields: vec![(b"id".into(), id.as_bytes().into()), (b"payload".into(), b"\xff\x00".into())],
    }
}

fn marker(event: &OutboxEntry<'_>) -> String {
    outbox_marker(event.stream, event.producer, &event.event_id).key
}

async fn append(
    streams: &RedisOutboxStreams,
    events: &[OutboxEntry<'_>],
) -> Result<Vec<OutboxAppend>, StoreError> {
    let deadline = streams.deadline(LEASE).await?;
    streams.append(events, deadline, streams.known_server()).await
}

/// The ids of the events in a stream, in its order.
async fn events_in(world: &World, stream: &str) -> Vec<String> {
    let entries: Vec<(String, Vec<Vec<u8>>)> = world.ask(&["XRANGE", stream, "-", "+"]).await;
    entries.into_iter().map(|(_, fields)| String::from_utf8_lossy(&fields[1]).into_owned()).collect()
}

#[track_caller]
fn id(append: &OutboxAppend) -> String {
    let OutboxAppend::Done(id) = append else { panic!("not appended: {append:?}") };
    id.clone()
}

#[tokio::test]
async fn an_event_that_is_appended_again_keeps_its_entry_and_its_marker_lives_on() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let events = [event("e-1", ""), event("e-2", "")];
    let first = append(&streams, &events).await.expect("Redis is there");
    let marker = &marker(&events[0]);
    assert_eq!(world.ask::<String>(&["GET", marker]).await, id(&first[0]));
    world.ask::<i64>(&["PEXPIRE", marker, "30000"]).await;
    let again = append(&streams, &events).await.expect("Redis is there");
    assert_eq!(again, first);
    assert_eq!(events_in(&world, STREAM).await, ["e-1", "e-2"]);
    assert_life(world.ask(&["PTTL", marker]).await, DEDUPE_TTL);
}

#[tokio::test]
async fn names_and_values_arrive_byte_for_byte() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let _ = append(&streams, &[event("e-1", "")]).await.expect("Redis is there");
    let entries: Vec<(String, Vec<Vec<u8>>)> = world.ask(&["XRANGE", STREAM, "-", "+"]).await;
    assert_eq!(entries[0].1, [&b"id"[..], b"e-1", b"payload", b"\xff\x00"]);
}

#[tokio::test]
async fn after_the_deadline_nothing_is_appended_and_markers_are_not_looked_at() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let past = streams.deadline(Duration::ZERO).await.expect("Redis is there") - 1_000;
    let answers = streams.append(&[event("e-1", "")], past, 0).await.expect("Redis is there");
    assert_eq!(answers, [OutboxAppend::Withheld]);
    assert_eq!(world.ask::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_deadline_is_no_later_than_redis_itself_would_say() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let (begun, mut deadlines) = (Instant::now(), BTreeSet::new());
    // The time since a reading counts.
    while deadlines.len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{deadlines:?}");
        let deadline = streams.deadline(LEASE).await.expect("Redis is there");
        let [seconds, micros]: [u64; 2] = world.ask(&["TIME"]).await;
        let latest = seconds * 1_000 + micros / 1_000 + LEASE.as_millis() as u64;
        assert!(deadline <= latest && deadline + 5_000 > latest, "{deadline} against {latest}");
        deadlines.insert(deadline);
    }
}

#[tokio::test]
async fn after_a_refusal_the_later_events_of_its_key_are_withheld_and_no_others() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    world.ask::<()>(&["SET", OTHER, "not a stream"]).await;
    let events = [
        event("e-1", "k"),
        event_of(OTHER, "e-2", "k"),
        event("e-3", "k"),
        event("e-4", "l"),
        event_of(OTHER, "e-5", ""),
        event("e-6", ""),
    ];
    let answers = append(&streams, &events).await.expect("Redis is there");
    let refused =
        |answer: &OutboxAppend| matches!(answer, OutboxAppend::Refused(error) if error.contains("WRONGTYPE"));
    assert!(refused(&answers[1]) && refused(&answers[4]), "{answers:?}");
    assert_eq!(answers[2], OutboxAppend::Withheld);
    assert_eq!(events_in(&world, STREAM).await, ["e-1", "e-4", "e-6"]);
}

#[tokio::test]
async fn a_marker_that_is_none_is_overwritten() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let events = [event("e-1", ""), event("e-2", "")];
    world.ask::<()>(&["SET", &marker(&events[0]), "by hand"]).await;
    world.ask::<i64>(&["RPUSH", &marker(&events[1]), "a list"]).await;
    let answers = append(&streams, &events).await.expect("Redis is there");
    for (event, answer) in events.iter().zip(&answers) {
        assert_eq!(world.ask::<String>(&["GET", &marker(event)]).await, id(answer));
    }
}

#[tokio::test]
async fn the_same_event_id_of_another_producer_or_stream_is_another_event() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    let foreign = OutboxEntry { producer: "", ..event("e-1", "") };
    let events = [event("e-1", ""), foreign, event_of(OTHER, "e-1", "")];
    let _ = append(&streams, &events).await.expect("Redis is there");
    assert_eq!(events_in(&world, STREAM).await, ["e-1", "e-1"]);
    assert_eq!(events_in(&world, OTHER).await, ["e-1"]);
}

#[tokio::test]
async fn a_redis_without_memory_is_an_outage_and_no_refusal() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL);
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let failed = append(&streams, &[event("e-1", "")]).await;
    assert!(matches!(failed, Err(StoreError::Unavailable { .. })), "{failed:?}");
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let answers = append(&streams, &[event("e-1", "")]).await.expect("Redis is there");
    assert!(matches!(answers[0], OutboxAppend::Done(_)), "{answers:?}");
}

/// Streams that watch the server.
fn watching(world: &World) -> RedisOutboxStreams {
    RedisOutboxStreams::new(&world.client, STREAM, DEDUPE_TTL).watching()
}

#[tokio::test]
async fn another_server_appends_nothing_for_a_claim_of_the_one_before() {
    let mut world = World::new().await;
    let streams = watching(&world);
    let first = streams.server("table").await.expect("Redis is there").expect("it is watched");
    let deadline = streams.deadline(LEASE).await.expect("Redis is there");
    world.redis.stop().await;
    world.redis.start_again().await.expect("it starts");
    world.client.ping().await.ok();
    let events = [event("e-1", "")];
    let refused = streams.append(&events, deadline, first.number).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert_eq!(events_in(&world, STREAM).await, Vec::<String>::new());
    let second = streams.server("table").await.expect("Redis is there").expect("it is watched");
    assert_ne!(second.number, first.number);
    let stale = streams.append(&events, deadline, first.number).await;
    assert!(stale.is_err(), "{stale:?}");
    let _ = streams.append(&events, deadline, second.number).await.expect("Redis is there");
    assert_eq!(events_in(&world, STREAM).await, ["e-1"]);
}

async fn server(streams: &RedisOutboxStreams, outbox: &str) -> OutboxServer {
    streams.server(outbox).await.expect("Redis is there").expect("it is watched")
}

/// The progress in the record of all types, and true if that record is about the current server.
fn of_all_types(server: &OutboxServer) -> Option<(bool, OutboxProgress)> {
    let record = server.records.iter().find(|record| record.types.is_none())?;
    Some((*record.server == *server.identity, record.progress))
}

#[tokio::test]
async fn a_record_is_that_of_its_outbox_and_of_the_server_that_it_was_made_with() {
    let mut world = World::new().await;
    let streams = watching(&world);
    let new = server(&streams, "table").await;
    assert_eq!((&new.records[..], &*new.seen), (&[][..], &b""[..]));
    let unfinished = OutboxProgress::Unfinished { since: -7, comparison: 1 };
    let written = streams.record_server("table", new.number, &new.seen, record(None, unfinished)).await;
    assert_eq!(written.ok(), Some(true));
    let begun = server(&watching(&world), "table").await;
    assert_eq!(of_all_types(&begun), Some((true, unfinished)));
    let (seen, settled) = (server(&streams, "table").await.seen, OutboxProgress::Settled(9));
    let written = streams.record_server("table", new.number, &seen, record(None, settled)).await;
    assert_eq!(written.ok(), Some(true));
    let done = server(&watching(&world), "table").await;
    assert_eq!(of_all_types(&done), Some((true, settled)));
    assert_eq!(server(&watching(&world), "another table").await.records.len(), 0);
    world.ask::<String>(&["SAVE"]).await;
    world.redis.stop().await;
    world.redis.start_again().await.expect("it starts");
    world.client.ping().await.ok();
    let restored = server(&watching(&world), "table").await;
    assert_eq!(of_all_types(&restored), Some((false, settled)));
}

#[tokio::test]
async fn each_set_of_types_has_a_record_of_its_own() {
    let world = World::new().await;
    let streams = watching(&world);
    for (types, until) in [(None, 1), (Some(vec!["a".to_owned()]), 2), (None, 3)] {
        let seen = server(&streams, "table").await;
        let settled = OutboxProgress::Settled(until);
        let written = streams.record_server("table", seen.number, &seen.seen, record(types, settled)).await;
        assert_eq!(written.ok(), Some(true));
    }
    let read = server(&watching(&world), "table").await;
    assert_eq!(of_all_types(&read), Some((true, OutboxProgress::Settled(3))));
    assert_eq!(read.records.len(), 2);
    assert_eq!(read.records, server(&streams, "table").await.records);
}

#[tokio::test]
async fn a_record_is_written_only_in_place_of_the_one_that_was_seen() {
    let world = World::new().await;
    let (streams, other) = (watching(&world), watching(&world));
    let (seen, seen_by_other) = (server(&streams, "table").await, server(&other, "table").await);
    let begun = |comparison| OutboxProgress::Unfinished { since: 0, comparison };
    let record = async |streams: &RedisOutboxStreams, seen: &OutboxServer, progress| {
        let written = streams.record_server("table", seen.number, &seen.seen, record(None, progress)).await;
        written.expect("Redis is there")
    };
    assert!(record(&streams, &seen, begun(1)).await);
    assert!(!record(&other, &seen_by_other, begun(2)).await, "another relay was quicker");
    let seen_by_other = server(&other, "table").await;
    assert_eq!(of_all_types(&seen_by_other), Some((true, begun(1))), "the next look asks Redis");
    let seen = server(&streams, "table").await;
    let _: () = world.ask(&["FLUSHALL"]).await;
    assert!(!record(&streams, &seen, OutboxProgress::Settled(1)).await, "it was emptied");
    assert_eq!(server(&streams, "table").await.records.len(), 0);
}

/// All ids in the stream that are read, from the newest entry back.
async fn newest(streams: &RedisOutboxStreams) -> Vec<String> {
    let (mut reading, mut found) = (streams.newest_entries(STREAM, "id", None), Vec::new());
    while !reading.is_over() {
        let page = reading.read().await.expect("Redis is there");
        found.extend(page.into_iter().map(|id| String::from_utf8_lossy(&id).into_owned()));
    }
    found
}

#[tokio::test]
async fn markers_are_found_and_entries_are_listed_from_the_newest_down() {
    let world = World::new().await;
    let streams = watching(&world);
    server(&streams, "table").await;
    assert_eq!(newest(&streams).await, [""; 0], "there is no stream");
    let events = [event("e-1", ""), event("e-2", ""), event("e-3", "")];
    let _ = append(&streams, &events).await.expect("Redis is there");
    let asked = [&events[0], &event("e-4", ""), &events[2]].map(|event| (STREAM, event.event_id.clone()));
    assert_eq!(
        streams.find_markers("game_master", &asked).await.expect("Redis is there"),
        [true, false, true]
    );
    assert_eq!(newest(&streams).await, ["e-3", "e-2", "e-1"]);
    let fill = "for n = 1, 1000 do redis.call('XADD', KEYS[1], '*', 'id', n) end";
    let _: () = world.ask(&["EVAL", fill, "1", STREAM]).await;
    let expected: Vec<String> = (1..=1000).rev().map(|n| n.to_string()).collect();
    assert_eq!(newest(&streams).await[..1000], expected);
    let _: () = world.ask(&["DEL", STREAM]).await;
    let _: () = world.ask(&["SET", STREAM, "no stream"]).await;
    assert_eq!(newest(&streams).await, [""; 0], "it is no stream");
}

#[tokio::test]
async fn large_entries_are_read_in_small_pages_and_one_that_is_larger_than_any_event_ends_the_reading() {
    let world = World::new().await;
    let streams = watching(&world);
    let add = "for n = 1, ARGV[2] do redis.call('XADD', KEYS[1], '*', 'payload', string.rep('x', ARGV[1]), 'id', ARGV[3] .. n) end";
    let mib = |count: u32| (count * 1024 * 1024).to_string();
    let fill = async |bytes: String, count: &str, name: &str| {
        let _: () = world.ask(&["EVAL", add, "1", STREAM, &bytes, count, name]).await;
    };
    fill("1".to_owned(), "3", "old-").await;
    fill(mib(20), "1", "foreign-").await;
    fill(mib(6), "12", "large-").await;
    fill("1".to_owned(), "200", "small-").await;
    let found = newest(&streams).await;
    assert_eq!(found.len(), 212, "{found:?}");
    assert_eq!(found.last().map(String::as_str), Some("large-1"));
}

fn record(types: Option<Vec<String>>, progress: OutboxProgress) -> NewOutboxRecord {
    NewOutboxRecord { types, destination: String::new(), progress, now: 0 }
}
