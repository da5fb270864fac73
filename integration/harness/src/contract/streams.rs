//! The intents stream: a reader reads the entries that a producer appends, in order and within its limit.

use std::time::Duration;

use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{IntentProducer, IntentStream, ReadLimit, StreamRead};

/// A stream under test.
pub trait StreamsFixture {
    /// The stream as its reader uses it.
    fn stream(&self) -> &impl IntentStream;

    /// The stream as its producers use it.
    fn producer(&self) -> &impl IntentProducer;

    /// Deletes the key of the stream.
    fn delete(&self) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::streams`], each on a fixture of its own.
#[macro_export]
macro_rules! streams_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            streams, $fixture;
            what_is_appended_is_read_in_order_byte_for_byte,
            a_read_returns_at_most_its_entries_and_the_next_one_continues,
            a_read_without_entries_is_empty,
            a_blocked_read_returns_what_is_appended_meanwhile,
            a_reply_beyond_the_bytes_is_too_large,
            a_stream_is_inspected_as_a_whole,
            the_last_entries_are_listed_newest_first,
            the_first_entry_after_another_is_found,
        );
    };
}

const LIMIT: ReadLimit = ReadLimit { entries: 100, bytes: 1024 * 1024 };
/// A time longer than any case takes.
const LONG: Duration = Duration::from_secs(60);

fn fields(n: u8) -> RawFields {
    RawFields::from_iter([
        (b"n".to_vec(), vec![n]),
        (b"z\xff".to_vec(), b"\0\r\n".to_vec()),
        (vec![], vec![]),
    ])
}

async fn append(fixture: &impl StreamsFixture, n: u8) -> EntryId {
    fixture.producer().append(&fields(n)).await.expect("the stream is there")
}

async fn read(fixture: &impl StreamsFixture, after: EntryId, entries: usize) -> Vec<RawEntry> {
    let limit = ReadLimit { entries, ..LIMIT };
    match fixture.stream().read(after, limit, Duration::ZERO).await.expect("the stream is there") {
        StreamRead::Entries(entries) => entries,
        StreamRead::TooLarge => panic!("the entries are small"),
    }
}

pub async fn what_is_appended_is_read_in_order_byte_for_byte(fixture: impl StreamsFixture) {
    let mut expected = Vec::new();
    for n in 1..=3 {
        expected.push(RawEntry { id: append(&fixture, n).await, fields: fields(n) });
    }
    assert!(expected.is_sorted_by(|one, next| one.id < next.id));
    assert_eq!(read(&fixture, EntryId::ZERO, 100).await, expected);
}

pub async fn a_read_returns_at_most_its_entries_and_the_next_one_continues(fixture: impl StreamsFixture) {
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(append(&fixture, n).await);
    }
    let (mut seen, mut after) = (Vec::new(), EntryId::ZERO);
    loop {
        let entries = read(&fixture, after, 2).await;
        assert!(entries.len() <= 2);
        let Some(last) = entries.last() else { break };
        after = last.id;
        seen.extend(entries.iter().map(|entry| entry.id));
    }
    assert_eq!(seen, ids);
}

pub async fn a_read_without_entries_is_empty(fixture: impl StreamsFixture) {
    assert_eq!(read(&fixture, EntryId::ZERO, 9).await, []);
    let id = append(&fixture, 1).await;
    assert_eq!(read(&fixture, id, 9).await, []);
}

pub async fn a_blocked_read_returns_what_is_appended_meanwhile(fixture: impl StreamsFixture) {
    let appending = async {
        tokio::task::yield_now().await;
        append(&fixture, 1).await
    };
    let (read, id) = tokio::join!(fixture.stream().read(EntryId::ZERO, LIMIT, LONG), appending);
    assert_eq!(
        read.expect("the stream is there"),
        StreamRead::Entries(vec![RawEntry { id, fields: fields(1) }])
    );
}

pub async fn a_reply_beyond_the_bytes_is_too_large(fixture: impl StreamsFixture) {
    let large = RawFields::from_iter([("n", "x".repeat(64 * 1024))]);
    fixture.producer().append(&large).await.expect("the stream is there");
    let limit = ReadLimit { entries: 9, bytes: 1024 };
    let read = fixture.stream().read(EntryId::ZERO, limit, Duration::ZERO).await;
    assert_eq!(read.expect("the stream is there"), StreamRead::TooLarge);
}

pub async fn a_stream_is_inspected_as_a_whole(fixture: impl StreamsFixture) {
    let inspect = async || fixture.stream().inspect().await.expect("the stream is there");
    assert_eq!(inspect().await, None);
    let first = append(&fixture, 1).await;
    let last = append(&fixture, 2).await;
    let state = inspect().await.expect("it has entries");
    assert_eq!((state.first, state.last_generated), (Some(first), last));
    fixture.delete().await;
    assert_eq!(inspect().await, None);
}

pub async fn the_last_entries_are_listed_newest_first(fixture: impl StreamsFixture) {
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(append(&fixture, n).await);
    }
    let limit = ReadLimit { entries: 2, ..LIMIT };
    let list = async |last, limit| {
        let (listed, is_all) = fixture.stream().list_newest(last, limit).await.expect("the stream is there");
        (listed.iter().map(|entry| entry.id).collect::<Vec<_>>(), is_all)
    };
    assert_eq!(list(ids[2], limit).await, (vec![ids[2], ids[1]], false));
    assert_eq!(list(ids[1], LIMIT).await, (vec![ids[1], ids[0]], true));
    let before = ids[0].before().expect("it is not the first id that there is");
    assert_eq!(list(before, LIMIT).await, (Vec::new(), true));
}

pub async fn the_first_entry_after_another_is_found(fixture: impl StreamsFixture) {
    let first = append(&fixture, 1).await;
    let second = append(&fixture, 2).await;
    for (after, expected) in [(EntryId::ZERO, Some(first)), (first, Some(second)), (second, None)] {
        let found = fixture.stream().first_after(after).await.expect("the stream is there");
        assert_eq!(found, expected);
    }
}
