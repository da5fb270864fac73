//! Appending the events of an outbox: receipts, order and deadlines.

use std::collections::BTreeSet;

use domain::ports::StoreError;
use store_redis::{OutboxAppend, OutboxEntry, OutboxTarget, RedisOutboxStreams, outbox_receipt};

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
        receipt: outbox_receipt(stream, "game_master", id),
        partition_key,
        fields: vec![(b"id".into(), id.as_bytes().into()), (b"payload".into(), b"\xff\x00".into())],
    }
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
async fn an_event_that_is_appended_again_keeps_its_entry_and_its_receipt_lives_on() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let events = [event("e-1", ""), event("e-2", "")];
    let first = append(&streams, &events).await.expect("Redis is there");
    let receipt = events[0].receipt.as_str();
    assert_eq!(world.ask::<String>(&["GET", receipt]).await, id(&first[0]));
    world.ask::<i64>(&["PEXPIRE", receipt, "30000"]).await;
    let again = append(&streams, &events).await.expect("Redis is there");
    assert_eq!(again, first);
    assert_eq!(events_in(&world, STREAM).await, ["e-1", "e-2"]);
    assert_life(world.ask(&["PTTL", receipt]).await, DEDUPE_TTL);
}

#[tokio::test]
async fn names_and_values_arrive_byte_for_byte() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let _ = append(&streams, &[event("e-1", "")]).await.expect("Redis is there");
    let entries: Vec<(String, Vec<Vec<u8>>)> = world.ask(&["XRANGE", STREAM, "-", "+"]).await;
    assert_eq!(entries[0].1, [&b"id"[..], b"e-1", b"payload", b"\xff\x00"]);
}

#[tokio::test]
async fn after_the_deadline_nothing_is_appended_and_receipts_are_not_looked_at() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let past = streams.deadline(Duration::ZERO).await.expect("Redis is there") - 1_000;
    let answers = streams.append(&[event("e-1", "")], past, 0).await.expect("Redis is there");
    assert_eq!(answers, [OutboxAppend::Withheld]);
    assert_eq!(world.ask::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_deadline_is_no_later_than_redis_itself_would_say() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let mut deadlines = BTreeSet::new();
    for _ in 0..20 {
        let deadline = streams.deadline(LEASE).await.expect("Redis is there");
        let [seconds, micros]: [u64; 2] = world.ask(&["TIME"]).await;
        let latest = seconds * 1_000 + micros / 1_000 + LEASE.as_millis() as u64;
        assert!(deadline <= latest && deadline + 5_000 > latest, "{deadline} against {latest}");
        deadlines.insert(deadline);
    }
    assert!(deadlines.len() > 1, "the time that passes since a reading counts");
}

#[tokio::test]
async fn after_a_refusal_the_later_events_of_its_key_are_withheld_and_no_others() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
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
async fn a_receipt_that_is_none_is_overwritten() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let events = [event("e-1", ""), event("e-2", "")];
    world.ask::<()>(&["SET", &events[0].receipt, "by hand"]).await;
    world.ask::<i64>(&["RPUSH", &events[1].receipt, "a list"]).await;
    let answers = append(&streams, &events).await.expect("Redis is there");
    for (event, answer) in events.iter().zip(&answers) {
        assert_eq!(world.ask::<String>(&["GET", &event.receipt]).await, id(answer));
    }
}

#[tokio::test]
async fn the_same_event_id_of_another_producer_or_stream_is_another_event() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    let foreign = OutboxEntry { receipt: outbox_receipt(STREAM, "", "e-1"), ..event("e-1", "") };
    let events = [event("e-1", ""), foreign, event_of(OTHER, "e-1", "")];
    let _ = append(&streams, &events).await.expect("Redis is there");
    assert_eq!(events_in(&world, STREAM).await, ["e-1", "e-1"]);
    assert_eq!(events_in(&world, OTHER).await, ["e-1"]);
}

#[tokio::test]
async fn a_redis_without_memory_is_an_outage_and_no_refusal() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, DEDUPE_TTL);
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let failed = append(&streams, &[event("e-1", "")]).await;
    assert!(matches!(failed, Err(StoreError::Unavailable { .. })), "{failed:?}");
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let answers = append(&streams, &[event("e-1", "")]).await.expect("Redis is there");
    assert!(matches!(answers[0], OutboxAppend::Done(_)), "{answers:?}");
}

/// Streams that watch which server is there.
fn watching(world: &World) -> RedisOutboxStreams {
    let target = OutboxTarget { stream: STREAM.to_owned(), producer: "game_master".to_owned() };
    RedisOutboxStreams::new(&world.client, DEDUPE_TTL).watching(target)
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

#[tokio::test]
async fn a_server_is_compared_once_that_is_recorded_for_the_same_outbox() {
    let world = World::new().await;
    let streams = watching(&world);
    let server = async |streams: &RedisOutboxStreams, outbox| {
        streams.server(outbox).await.expect("Redis is there").expect("it is watched")
    };
    let new = server(&streams, "table").await;
    assert_eq!((new.is_compared, new.unfinished_since), (false, None));
    streams.record_server("table", new.number, Some(-7)).await.expect("it is there");
    let begun = server(&watching(&world), "table").await;
    assert_eq!((begun.is_compared, begun.unfinished_since), (false, Some(-7)));
    streams.record_server("table", new.number, None).await.expect("it is there");
    let done = server(&watching(&world), "table").await;
    assert_eq!((done.is_compared, done.unfinished_since), (true, None));
    assert!(!server(&watching(&world), "another table").await.is_compared);
}

#[tokio::test]
async fn receipts_are_found_and_entries_are_listed_from_the_newest_down() {
    let world = World::new().await;
    let streams = watching(&world);
    streams.server("table").await.expect("Redis is there");
    let events = [event("e-1", ""), event("e-2", ""), event("e-3", "")];
    let _ = append(&streams, &events).await.expect("Redis is there");
    let receipts = [&events[0], &event("e-4", ""), &events[2]].map(|event| event.receipt.clone());
    assert_eq!(streams.find_receipts(&receipts).await.expect("Redis is there"), [true, false, true]);
    let (last, values) = streams.list_values_down(STREAM, "+", 2, "id").await.expect("Redis is there");
    assert_eq!(values, [b"e-3", b"e-2"]);
    let from = format!("({}", last.expect("there were entries"));
    let (last, values) = streams.list_values_down(STREAM, &from, 2, "id").await.expect("Redis is there");
    assert_eq!((last.is_some(), values), (true, vec![b"e-1".to_vec()]));
    let (last, _) = streams.list_values_down(STREAM, "(0-1", 2, "id").await.expect("Redis is there");
    assert_eq!(last, None);
}
