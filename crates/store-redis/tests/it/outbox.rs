//! Appending the events of an outbox: receipts, order and deadlines.

use std::collections::BTreeSet;

use domain::ports::StoreError;
use store_redis::{OutboxAppend, OutboxEntry, RedisOutboxStreams, outbox_receipt};

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
    streams.append(events, deadline).await
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
    let answers = streams.append(&[event("e-1", "")], past).await.expect("Redis is there");
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
