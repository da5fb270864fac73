//! What of the intents stream has no outcome yet, counted within bounds.

use domain::entry::{EntryId, RawFields};
use domain::ports::{IntentProducer, StreamQueries};
use domain::query::{Counted, StreamBacklog};

use super::streams::StreamsFixture;

/// A stream to ask about.
pub trait BacklogFixture: StreamsFixture {
    /// What is asked.
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

async fn after(fixture: &impl BacklogFixture, checkpoint: EntryId) -> StreamBacklog {
    fixture.queries().backlog(checkpoint).await.expect("the stream can be asked")
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
