//! Reading the intents stream.

use std::time::Instant;

use domain::entry::{RawEntry, RawFields};
use domain::ports::{IntentStream, StoreError, StreamState};
use redis::Value;
use store_redis::RedisIntentStream;
use tokio::time::timeout;

use crate::*;

const STREAM: &str = "notification:intents";
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

fn stream(world: &World) -> RedisIntentStream {
    RedisIntentStream::new(&world.client, STREAM.to_owned())
}

async fn add(world: &World, id: &str) {
    world.ask::<String>(&["XADD", STREAM, id, "n", id]).await;
}

fn entry(millis: u64, sequence: u64) -> RawEntry {
    let id = EntryId::new(millis, sequence);
    RawEntry { id, fields: RawFields::from_iter([("n", id.to_string())]) }
}

/// A read that blocks until something is there, and has begun to.
async fn blocked_read(world: &World, stream: &RedisIntentStream) -> tokio::task::JoinHandle<Vec<RawEntry>> {
    let reader = stream.clone();
    let read =
        tokio::spawn(async move { reader.read(EntryId::ZERO, 10, LONG).await.expect("Redis is there") });
    wait_for_blocked(world, 1).await;
    read
}

async fn wait_for_blocked(world: &World, count: usize) {
    harness::wait_for("clients that block", BOUND, async || {
        let info: String = world.ask(&["INFO", "clients"]).await;
        info.contains(&format!("blocked_clients:{count}\r")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn entries_come_in_stream_order_from_behind_the_given_one() {
    let world = World::new().await;
    let stream = stream(&world);
    for id in ["5-1", "5-10", "10-0"] {
        add(&world, id).await;
    }
    let all = stream.read(EntryId::ZERO, 10, SHORT).await.expect("Redis is there");
    assert_eq!(all, [entry(5, 1), entry(5, 10), entry(10, 0)]);
    let rest = stream.read(EntryId::new(5, 1), 10, SHORT).await.expect("Redis is there");
    assert_eq!(rest, [entry(5, 10), entry(10, 0)]);
}

#[tokio::test]
async fn no_more_entries_come_than_were_asked_for() {
    let world = World::new().await;
    for id in ["5-1", "5-2", "5-3"] {
        add(&world, id).await;
    }
    let two = stream(&world).read(EntryId::ZERO, 2, SHORT).await.expect("Redis is there");
    assert_eq!(two, [entry(5, 1), entry(5, 2)]);
}

#[tokio::test]
async fn repeated_names_their_order_and_raw_bytes_survive() {
    let world = World::new().await;
    let words: [&[u8]; 9] = [b"XADD", STREAM.as_bytes(), b"5-1", b"z", b"1", b"a", b"\xff\0\r\n", b"z", b""];
    world.ask_bytes(&words).await;
    let largest = format!("{}-{}", u64::MAX, u64::MAX);
    world.ask_bytes(&[b"XADD", STREAM.as_bytes(), largest.as_bytes(), b"", b"\x80"]).await;
    let found = stream(&world).read(EntryId::ZERO, 10, SHORT).await.expect("Redis is there");
    let pairs: [(&[u8], &[u8]); 3] = [(b"z", b"1"), (b"a", b"\xff\0\r\n"), (b"z", b"")];
    assert_eq!(found[0].fields, RawFields::from_iter(pairs));
    assert_eq!(found[1].fields, RawFields(vec![(Vec::new(), vec![0x80])]));
    assert_eq!(found[1].id, EntryId::new(u64::MAX, u64::MAX));
}

#[tokio::test]
async fn nothing_new_is_an_empty_answer_after_the_block_time() {
    let world = World::new().await;
    let stream = stream(&world);
    let block = Duration::from_millis(200);
    // Neither a stream that is not there nor one that was read to its end.
    for after in [EntryId::ZERO, EntryId::new(5, 1)] {
        let began = Instant::now();
        assert_eq!(stream.read(after, 10, block).await.expect("Redis is there"), []);
        assert!(began.elapsed() >= block, "{:?}", began.elapsed());
        add(&world, if after == EntryId::ZERO { "5-1" } else { "5-2" }).await;
    }
}

#[tokio::test]
async fn a_read_wakes_with_the_first_entry_and_holds_up_nobody_meanwhile() {
    let world = World::new().await;
    let stream = stream(&world);
    let read = blocked_read(&world, &stream).await;
    timeout(BOUND, world.client.ping()).await.expect("in time").expect("Redis is there");
    assert_eq!(
        timeout(BOUND, stream.first_after(EntryId::ZERO)).await.expect("in time").expect("it is there"),
        None
    );
    assert!(!read.is_finished());
    add(&world, "5-1").await;
    assert_eq!(
        timeout(BOUND, read).await.expect("long before the block time").expect("no panic"),
        [entry(5, 1)]
    );
}

#[tokio::test]
async fn a_block_time_longer_than_the_operation_timeout_is_no_timeout() {
    let world = World::new().await;
    let client = client_of(&world.redis.addr(), Duration::from_millis(500));
    let stream = RedisIntentStream::new(&client, STREAM.to_owned());
    assert_eq!(
        stream.read(EntryId::ZERO, 10, Duration::from_millis(1200)).await.expect("Redis is there"),
        []
    );
}

#[tokio::test]
async fn a_dropped_read_does_not_disturb_the_next_and_blocks_no_longer() {
    let world = World::new().await;
    let stream = stream(&world);
    let read = blocked_read(&world, &stream).await;
    read.abort();
    assert!(read.await.expect_err("it was aborted").is_cancelled());
    wait_for_blocked(&world, 0).await;
    add(&world, "5-1").await;
    add(&world, "5-2").await;
    let found = timeout(BOUND, stream.read(EntryId::new(5, 1), 10, LONG)).await.expect("in time");
    assert_eq!(found.expect("Redis is there"), [entry(5, 2)]);
}

#[tokio::test]
async fn reads_one_after_another_share_one_connection() {
    let world = World::new().await;
    let stream = stream(&world);
    let connections = async || -> String {
        let info: String = world.ask(&["INFO", "stats"]).await;
        info.lines().find(|line| line.starts_with("total_connections_received")).expect("a number").to_owned()
    };
    stream.read(EntryId::ZERO, 1, SHORT).await.expect("Redis is there");
    let before = connections().await;
    for _ in 0..5 {
        stream.read(EntryId::ZERO, 1, SHORT).await.expect("Redis is there");
    }
    assert_eq!(connections().await, before);
}

#[tokio::test]
async fn a_key_of_another_type_refuses_and_recovers_when_it_is_gone() {
    let world = World::new().await;
    let stream = stream(&world);
    world.ask::<()>(&["SET", STREAM, "no stream"]).await;
    let refusals = [
        stream.read(EntryId::ZERO, 1, SHORT).await.expect_err("no stream"),
        stream.first_after(EntryId::ZERO).await.expect_err("no stream"),
        stream.inspect().await.expect_err("no stream"),
    ];
    for error in refusals {
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    }
    world.ask::<()>(&["DEL", STREAM]).await;
    add(&world, "5-1").await;
    assert_eq!(stream.read(EntryId::ZERO, 1, SHORT).await.expect("Redis is there"), [entry(5, 1)]);
}

#[tokio::test]
async fn a_missing_stream_a_full_one_and_one_trimmed_to_nothing_are_told_apart() {
    let world = World::new().await;
    let stream = stream(&world);
    let inspect = async || stream.inspect().await.expect("Redis is there");
    assert_eq!(inspect().await, StreamState::default());
    add(&world, "5-1").await;
    add(&world, "7-0").await;
    assert_eq!(
        inspect().await,
        StreamState { first: Some(EntryId::new(5, 1)), last_generated: EntryId::new(7, 0) }
    );
    world.ask::<i64>(&["XDEL", STREAM, "5-1"]).await;
    assert_eq!(
        inspect().await,
        StreamState { first: Some(EntryId::new(7, 0)), last_generated: EntryId::new(7, 0) }
    );
    assert_eq!(world.ask_bytes(&["XTRIM", STREAM, "MAXLEN", "0"]).await, Value::Int(1));
    assert_eq!(inspect().await, StreamState { first: None, last_generated: EntryId::new(7, 0) });
}

#[tokio::test]
async fn the_next_entry_is_found_without_waiting() {
    let world = World::new().await;
    let stream = stream(&world);
    let after = async |id| stream.first_after(id).await.expect("Redis is there");
    assert_eq!(after(EntryId::ZERO).await, None);
    add(&world, "5-1").await;
    add(&world, "5-2").await;
    assert_eq!(after(EntryId::ZERO).await, Some(EntryId::new(5, 1)));
    assert_eq!(after(EntryId::new(5, 1)).await, Some(EntryId::new(5, 2)));
    assert_eq!(after(EntryId::new(5, 2)).await, None);
    assert_eq!(after(EntryId::new(u64::MAX, 0)).await, None);
    assert_eq!(after(EntryId::new(u64::MAX, u64::MAX)).await, None);
}
