//! The entries of the intents stream without an outcome, counted within bounds.

use domain::checkpoint::StreamState;
use domain::entry::{EntryId, RawFields};
use domain::ports::{IntentProducer, StreamQueries};
use domain::query::{Counted, EntryLook, FoundEntry, MAX_UNREAD_ENTRIES, StreamBacklog, UnreadEntries};

use super::streams::StreamsFixture;

/// A stream under test.
pub trait BacklogFixture: StreamsFixture {
    /// The queries on the stream.
    fn queries(&self) -> &impl StreamQueries;
}

/// Runs every case of [`crate::contract::backlog`], each on a fixture of its own.
#[macro_export]
macro_rules! backlog_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            backlog, $fixture;
            a_stream_that_is_absent_has_no_backlog_and_no_last_entry,
            a_backlog_begins_after_the_checkpoint_and_is_counted,
            a_stream_that_ends_before_the_checkpoint_was_recreated_and_is_all_backlog,
            a_backlog_after_an_entry_is_counted_up_to_a_thousand_and_a_whole_stream_beyond,
            a_backlog_whose_first_entry_is_larger_than_may_be_read_has_that_entry,
            an_entry_is_found_by_its_id_and_one_that_is_not_there_leaves_the_stream_to_judge_by,
            an_entry_that_is_larger_than_may_be_read_is_found_without_its_fields,
            unread_entries_are_listed_in_stream_order_and_no_more_than_may_be_read,
        );
    };
}

/// More bytes than may be read.
const TOO_MANY_BYTES: usize = 5 * 1024 * 1024;

async fn append(fixture: &impl StreamsFixture, entries: usize) -> Vec<EntryId> {
    let mut ids = Vec::with_capacity(entries);
    for _ in 0..entries {
        let fields = RawFields::from_iter([("n", "1")]);
        ids.push(fixture.producer().append(&fields).await.expect("the stream is there"));
    }
    ids
}

/// The backlog after a checkpoint. It has a first entry exactly if there are unread entries.
async fn after(fixture: &impl BacklogFixture, checkpoint: EntryId) -> StreamBacklog {
    let backlog = fixture.queries().backlog(checkpoint).await.expect("the stream can be asked");
    let has_unread = fixture.queries().has_unread(checkpoint).await.expect("the stream can be asked");
    assert_eq!(has_unread, backlog.first.is_some(), "after {checkpoint}: {backlog:?}");
    backlog
}

fn backlog(last: EntryId, first: Option<EntryId>, count: u64, capped: bool) -> StreamBacklog {
    StreamBacklog { last_entry_id: Some(last), first, entries: Counted { count, capped } }
}

pub async fn a_stream_that_is_absent_has_no_backlog_and_no_last_entry(fixture: impl BacklogFixture) {
    let none =
        StreamBacklog { last_entry_id: None, first: None, entries: Counted { count: 0, capped: false } };
    assert_eq!(after(&fixture, EntryId::ZERO).await, none);
    let ids = append(&fixture, 1).await;
    fixture.delete().await;
    assert_eq!(after(&fixture, ids[0]).await, none);
}

pub async fn a_backlog_begins_after_the_checkpoint_and_is_counted(fixture: impl BacklogFixture) {
    let ids = append(&fixture, 5).await;
    assert_eq!(after(&fixture, EntryId::ZERO).await, backlog(ids[4], Some(ids[0]), 5, false));
    assert_eq!(after(&fixture, ids[0]).await, backlog(ids[4], Some(ids[1]), 4, false));
    assert_eq!(after(&fixture, ids[3]).await, backlog(ids[4], Some(ids[4]), 1, false));
    assert_eq!(after(&fixture, ids[4]).await, backlog(ids[4], None, 0, false));
}

pub async fn a_stream_that_ends_before_the_checkpoint_was_recreated_and_is_all_backlog(
    fixture: impl BacklogFixture,
) {
    let ids = append(&fixture, 3).await;
    let beyond = EntryId::new(ids[2].millis + 1_000, 0);
    assert_eq!(after(&fixture, beyond).await, backlog(ids[2], Some(ids[0]), 3, false));
}

pub async fn a_backlog_after_an_entry_is_counted_up_to_a_thousand_and_a_whole_stream_beyond(
    fixture: impl BacklogFixture,
) {
    let ids = append(&fixture, 1_002).await;
    let last = ids[1_001];
    assert_eq!(after(&fixture, ids[2]).await, backlog(last, Some(ids[3]), 999, false));
    assert_eq!(after(&fixture, ids[1]).await, backlog(last, Some(ids[2]), 1_000, true), "there may be more");
    assert_eq!(after(&fixture, ids[0]).await, backlog(last, Some(ids[1]), 1_000, true));
    let whole = after(&fixture, EntryId::ZERO).await;
    assert_eq!(whole, backlog(last, Some(ids[0]), 1_002, false), "the length of a stream costs nothing");
}

pub async fn a_backlog_whose_first_entry_is_larger_than_may_be_read_has_that_entry(
    fixture: impl BacklogFixture,
) {
    let ids = append(&fixture, 1).await;
    let large = RawFields::from_iter([("n", "x".repeat(TOO_MANY_BYTES))]);
    let first = fixture.producer().append(&large).await.expect("the stream is there");
    let last = append(&fixture, 1).await[0];
    assert_eq!(after(&fixture, ids[0]).await, backlog(last, Some(first), 1, true));
}

async fn find(fixture: &impl BacklogFixture, id: EntryId) -> EntryLook {
    let look = fixture.queries().find_entry(id).await.expect("the stream can be asked");
    let stream = look.stream.map(|state| StreamState { copied_bytes: 0, ..state });
    EntryLook { stream, ..look }
}

async fn unread(fixture: &impl BacklogFixture, after: EntryId) -> UnreadEntries {
    fixture.queries().list_unread(after).await.expect("the stream can be asked")
}

pub async fn an_entry_is_found_by_its_id_and_one_that_is_not_there_leaves_the_stream_to_judge_by(
    fixture: impl BacklogFixture,
) {
    assert_eq!(find(&fixture, EntryId::new(1, 0)).await, EntryLook { stream: None, entry: None });
    let ids = append(&fixture, 3).await;
    let stream = Some(StreamState {
        first: Some(ids[0]),
        last_generated: ids[2],
        max_deleted: EntryId::ZERO,
        copied_bytes: 0,
    });
    let entry = Some(FoundEntry::Fields(RawFields::from_iter([("n", "1")])));
    assert_eq!(find(&fixture, ids[1]).await, EntryLook { stream, entry });
    for absent in [EntryId::ZERO, EntryId::new(ids[2].millis + 1_000, 0), EntryId::new(u64::MAX, u64::MAX)] {
        assert_eq!(find(&fixture, absent).await, EntryLook { stream, entry: None }, "{absent}");
    }
}

pub async fn an_entry_that_is_larger_than_may_be_read_is_found_without_its_fields(
    fixture: impl BacklogFixture,
) {
    let large = RawFields::from_iter([("n", "x".repeat(TOO_MANY_BYTES))]);
    let id = fixture.producer().append(&large).await.expect("the stream is there");
    assert_eq!(find(&fixture, id).await.entry, Some(FoundEntry::TooLarge));
}

pub async fn unread_entries_are_listed_in_stream_order_and_no_more_than_may_be_read(
    fixture: impl BacklogFixture,
) {
    let none = UnreadEntries { entries: Vec::new(), is_all: true };
    assert_eq!(unread(&fixture, EntryId::ZERO).await, none, "the stream is absent");
    let ids = append(&fixture, 3).await;
    let found = unread(&fixture, ids[0]).await;
    let found_ids: Vec<EntryId> = found.entries.iter().map(|entry| entry.id).collect();
    assert_eq!((found_ids, found.is_all), (ids[1..].to_vec(), true));
    assert_eq!(found.entries[0].fields, RawFields::from_iter([("n", "1")]));
    assert_eq!(unread(&fixture, ids[2]).await, none);
    assert_eq!(unread(&fixture, EntryId::new(u64::MAX, u64::MAX)).await, none);
    append(&fixture, MAX_UNREAD_ENTRIES).await;
    let found = unread(&fixture, ids[0]).await;
    assert_eq!((found.entries.len(), found.is_all), (MAX_UNREAD_ENTRIES, false));
}
