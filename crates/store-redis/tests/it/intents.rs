//! Reading the intents stream.

use std::time::Instant;

use domain::entry::{RawEntry, RawFields};
use domain::ports::{IntentStream, ReadLimit, StoreError, StreamQueries, StreamRead, StreamState};
use redis::Value;
use store_redis::RedisIntentStream;
use tokio::time::timeout;

use crate::*;

const STREAM: &str = "notification:intents";
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
const MIB: usize = 1024 * 1024;

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

/// A limit on the number of entries alone.
fn upto(entries: usize) -> ReadLimit {
    ReadLimit { entries, bytes: 64 * MIB }
}

#[track_caller]
fn entries_of(read: Result<StreamRead, StoreError>) -> Vec<RawEntry> {
    match read.expect("Redis is there") {
        StreamRead::Entries(entries) => entries,
        StreamRead::TooLarge => panic!("the read was given up"),
    }
}

/// Appends an entry whose value has `size` bytes.
async fn add_large(world: &World, id: &str, size: usize) {
    let value = "x".repeat(size);
    world.ask::<String>(&["XADD", STREAM, id, "n", &value]).await;
}

fn ids(entries: &[RawEntry]) -> Vec<String> {
    entries.iter().map(|entry| entry.id.to_string()).collect()
}

/// A read that has begun to block until an entry arrives.
async fn blocked_read(world: &World, stream: &RedisIntentStream) -> tokio::task::JoinHandle<Vec<RawEntry>> {
    let reader = stream.clone();
    let read = tokio::spawn(async move { entries_of(reader.read(EntryId::ZERO, upto(10), LONG).await) });
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
async fn repeated_names_their_order_and_raw_bytes_survive() {
    let world = World::new().await;
    let words: [&[u8]; 9] = [b"XADD", STREAM.as_bytes(), b"5-1", b"z", b"1", b"a", b"\xff\0\r\n", b"z", b""];
    world.ask_bytes(&words).await;
    let largest = format!("{}-{}", u64::MAX, u64::MAX);
    world.ask_bytes(&[b"XADD", STREAM.as_bytes(), largest.as_bytes(), b"", b"\x80"]).await;
    let found = entries_of(stream(&world).read(EntryId::ZERO, upto(10), SHORT).await);
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
    // Neither a stream that does not exist nor one that was read to its end.
    for after in [EntryId::ZERO, EntryId::new(5, 1)] {
        let began = Instant::now();
        assert_eq!(entries_of(stream.read(after, upto(10), block).await), []);
        assert!(began.elapsed() >= block, "{:?}", began.elapsed());
        add(&world, if after == EntryId::ZERO { "5-1" } else { "5-2" }).await;
    }
}

#[tokio::test]
async fn a_read_wakes_with_the_first_entry_and_holds_up_no_other_call() {
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
    assert_eq!(entries_of(stream.read(EntryId::ZERO, upto(10), Duration::from_millis(1200)).await), []);
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
    let found = timeout(BOUND, stream.read(EntryId::new(5, 1), upto(10), LONG)).await.expect("in time");
    assert_eq!(entries_of(found), [entry(5, 2)]);
}

#[tokio::test]
async fn reads_one_after_another_share_one_connection() {
    let world = World::new().await;
    let stream = stream(&world);
    entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await);
    let before = connections(&world).await;
    for _ in 0..5 {
        entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await);
    }
    assert_eq!(connections(&world).await, before);
}

#[tokio::test]
async fn a_key_of_another_type_refuses_and_recovers_when_it_is_gone() {
    let world = World::new().await;
    let stream = stream(&world);
    world.ask::<()>(&["SET", STREAM, "no stream"]).await;
    let refusals = [
        stream.read(EntryId::ZERO, upto(1), SHORT).await.expect_err("no stream"),
        stream.first_after(EntryId::ZERO).await.expect_err("no stream"),
        stream.inspect().await.expect_err("no stream"),
    ];
    for error in refusals {
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    }
    world.ask::<()>(&["DEL", STREAM]).await;
    add(&world, "5-1").await;
    assert_eq!(entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await), [entry(5, 1)]);
}

#[tokio::test]
async fn a_missing_stream_a_full_one_and_one_trimmed_to_nothing_are_distinguished() {
    let world = World::new().await;
    let stream = stream(&world);
    let inspect = async || {
        let state = stream.inspect().await.expect("Redis is there");
        state.map(|state| StreamState { copied_bytes: 0, ..state })
    };
    let state = |first, max_deleted| StreamState {
        first,
        last_generated: EntryId::new(7, 0),
        max_deleted,
        copied_bytes: 0,
    };
    assert_eq!(inspect().await, None);
    add(&world, "5-1").await;
    add(&world, "7-0").await;
    assert_eq!(inspect().await, Some(state(Some(EntryId::new(5, 1)), EntryId::ZERO)));
    world.ask::<i64>(&["XDEL", STREAM, "5-1"]).await;
    assert_eq!(inspect().await, Some(state(Some(EntryId::new(7, 0)), EntryId::new(5, 1))));
    assert_eq!(world.ask_bytes(&["XTRIM", STREAM, "MAXLEN", "0"]).await, Value::Int(1));
    assert_eq!(inspect().await, Some(state(None, EntryId::new(5, 1))));
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

#[tokio::test]
async fn entries_that_were_deleted_are_not_unread() {
    let world = World::new().await;
    let stream = stream(&world);
    let has_unread = async || stream.has_unread(EntryId::new(5, 1)).await.expect("Redis is there");
    for id in ["5-1", "6-0", "7-0"] {
        add(&world, id).await;
    }
    world.ask::<i64>(&["XDEL", STREAM, "7-0"]).await;
    assert!(has_unread().await, "the last entry was deleted, and one before it was not");
    world.ask::<i64>(&["XDEL", STREAM, "6-0"]).await;
    assert!(!has_unread().await, "nothing is left after the checkpoint");
    world.ask::<i64>(&["XDEL", STREAM, "5-1"]).await;
    assert!(!has_unread().await, "nothing is left");
}

#[tokio::test]
async fn a_read_that_exceeds_its_bytes_is_given_up_and_its_entries_come_one_by_one() {
    let world = World::new().await;
    let stream = stream(&world);
    add(&world, "5-1").await;
    for id in ["5-2", "5-3", "5-4"] {
        add_large(&world, id, MIB).await;
    }
    let limit = |entries| ReadLimit { entries, bytes: 2 * MIB };
    let all = stream.read(EntryId::ZERO, limit(256), SHORT).await.expect("Redis is there");
    assert_eq!(all, StreamRead::TooLarge);
    let mut after = EntryId::ZERO;
    for id in ["5-1", "5-2", "5-3", "5-4"] {
        let found = entries_of(stream.read(after, limit(1), SHORT).await);
        assert_eq!(ids(&found), [id]);
        after = found[0].id;
    }
    assert_eq!(entries_of(stream.read(after, limit(1), SHORT).await), []);
}

#[tokio::test]
async fn an_entry_that_exceeds_the_bytes_alone_is_given_up_again_and_again() {
    let world = World::new().await;
    let stream = stream(&world);
    add_large(&world, "5-1", 2 * MIB).await;
    for _ in 0..2 {
        let limit = ReadLimit { entries: 1, bytes: MIB };
        assert_eq!(
            stream.read(EntryId::ZERO, limit, SHORT).await.expect("Redis is there"),
            StreamRead::TooLarge
        );
    }
    let found = entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await);
    assert_eq!(found[0].fields.0[0].1.len(), 2 * MIB);
}

#[tokio::test]
async fn a_limit_counts_one_read_and_not_those_before_it() {
    let world = World::new().await;
    let stream = stream(&world);
    add_large(&world, "5-1", MIB / 2).await;
    let limit = ReadLimit { entries: 10, bytes: MIB };
    for _ in 0..5 {
        assert_eq!(entries_of(stream.read(EntryId::ZERO, limit, SHORT).await).len(), 1);
    }
}

async fn connections(world: &World) -> String {
    let info: String = world.ask(&["INFO", "stats"]).await;
    info.lines().find(|line| line.starts_with("total_connections_received")).expect("a number").to_owned()
}

#[tokio::test]
async fn a_connection_with_a_large_buffer_is_not_used_again() {
    let world = World::new().await;
    let stream = stream(&world);
    add_large(&world, "5-1", 2 * MIB).await;
    entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await);
    let before = connections(&world).await;
    entries_of(stream.read(EntryId::new(5, 1), upto(1), SHORT).await);
    assert_ne!(connections(&world).await, before);
}

#[tokio::test]
async fn reconnecting_waits_for_no_read_and_the_next_read_opens_another_connection() {
    let world = World::new().await;
    let stream = stream(&world);
    let read = blocked_read(&world, &stream).await;
    timeout(BOUND, stream.reconnect()).await.expect("it does not wait for the read");
    add(&world, "5-1").await;
    assert_eq!(timeout(BOUND, read).await.expect("in time").expect("no panic"), [entry(5, 1)]);
    let before = connections(&world).await;
    entries_of(stream.read(EntryId::ZERO, upto(1), SHORT).await);
    assert_ne!(connections(&world).await, before, "the connection of the read before was kept");
}

#[tokio::test]
async fn the_last_entries_are_listed_newest_first_within_entries_and_bytes() {
    let world = World::new().await;
    let stream = stream(&world);
    let newest = EntryId::new(u64::MAX, u64::MAX);
    let last = async |limit| ids(&stream.list_newest(newest, limit).await.expect("Redis is there").0);
    assert_eq!(last(upto(10)).await, Vec::<String>::new());
    for sequence in 1..=9 {
        add(&world, &format!("5-{sequence}")).await;
    }
    assert_eq!(last(upto(3)).await, ["5-9", "5-8", "5-7"]);
    assert_eq!(last(upto(100)).await.len(), 9);
    add_large(&world, "6-1", MIB).await;
    add(&world, "7-1").await;
    add(&world, "7-2").await;
    let within = |bytes| ReadLimit { entries: 100, bytes };
    assert_eq!(last(within(MIB / 2)).await, ["7-2", "7-1"]);
    assert_eq!(last(within(2 * MIB)).await.len(), 12);
    add_large(&world, "8-1", MIB).await;
    assert_eq!(last(within(MIB / 2)).await, Vec::<String>::new());
}

#[tokio::test]
async fn looking_at_a_stream_transfers_none_of_its_entries() {
    let world = World::new().await;
    let stream = stream(&world);
    add_large(&world, "5-1", MIB).await;
    let sent = async || -> u64 {
        let info: String = world.ask(&["INFO", "stats"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.expect("a number").trim().parse().expect("a number")
    };
    let before = sent().await;
    stream.inspect().await.expect("Redis is there");
    assert_eq!(stream.first_after(EntryId::ZERO).await.expect("Redis is there"), Some(EntryId::new(5, 1)));
    assert!(sent().await - before < MIB as u64 / 2);
}

#[tokio::test]
async fn trimming_removes_nothing_from_the_given_id_on() {
    let world = World::new().await;
    let stream = stream(&world);
    for millis in 1..=1_000 {
        add(&world, &format!("{millis}-1")).await;
    }
    let removed = stream.trim(EntryId::new(501, 1)).await.expect("Redis is there");
    assert!((400..=500).contains(&removed), "{removed}");
    let first = stream.first_after(EntryId::ZERO).await.expect("Redis is there").expect("it is not empty");
    assert_eq!(first, EntryId::new(removed + 1, 1));
    assert_eq!(stream.trim(EntryId::ZERO).await.expect("Redis is there"), 0);
}

#[tokio::test]
async fn one_trim_removes_more_entries_than_one_command_does() {
    let world = World::new().await;
    let stream = stream(&world);
    let add = "for n = 1, 35000 do redis.call('XADD', KEYS[1], n .. '-1', 'a', 'b') end";
    world.ask::<()>(&["EVAL", add, "1", "notification:intents"]).await;
    let removed = stream.trim(EntryId::new(34_901, 1)).await.expect("Redis is there");
    assert!((34_800..=34_900).contains(&removed), "{removed}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_under_an_open_connection_is_another_server() {
    let world = World::new().await;
    let stream = stream(&world);
    world.ask::<String>(&["XADD", "notification:intents", "5-1", "a", "b"]).await;
    let read = async || stream.read(EntryId::ZERO, upto(10), SHORT).await;
    assert_eq!(entries_of(read().await).len(), 1);
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let noticed = async {
        while let Ok(read) = read().await {
            assert_eq!(entries_of(Ok(read)).len(), 1);
        }
    };
    timeout(BOUND, noticed).await.expect("the reader notices it although the connection stays open");
    // Returned once: the caller then determines again where to resume.
    assert_eq!(entries_of(read().await).len(), 1);
}

#[tokio::test]
async fn the_first_read_fails_once_if_it_leads_to_another_server_than_the_identified_one() {
    let mut world = World::new().await;
    let stream = stream(&world);
    add(&world, "5-1").await;
    stream.server().await.expect("Redis is there");
    world.restart_from_snapshot().await;
    let error = stream.read(EntryId::ZERO, upto(10), SHORT).await.expect_err("another process");
    assert!(domain::ports::error_chain(&error).contains("another server"), "{error:?}");
    // Returned once: the caller then determines again where to resume.
    entries_of(stream.read(EntryId::ZERO, upto(10), SHORT).await);
}
