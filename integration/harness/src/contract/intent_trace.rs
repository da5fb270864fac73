//! The trace of the intents with an idempotency key.

use domain::accept::Known;
use domain::entry::{RawEntry, RawFields};
use domain::ports::{CheckpointMove, Queries};
use domain::query::{IntentOutcome, IntentTrace, Notification};
use domain::record::IdempotencyKey;

use super::accepted::{STREAM, at, commit, decide, entry, id};
use super::queries::QueriesFixture;

/// Runs every case of [`crate::contract::intent_trace`], each on a fixture of its own.
#[macro_export]
macro_rules! intent_trace_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            intent_trace, $fixture;
            a_key_is_traced_to_its_notification_and_to_the_newest_malformed_intent_of_its_producer,
        );
    };
}

pub async fn a_key_is_traced_to_its_notification_and_to_the_newest_malformed_intent_of_its_producer(
    fixture: impl QueriesFixture,
) {
    let (store, queries) = (fixture.store(), fixture.queries());
    let trace = async |producer: &str, key: &str| {
        let scope = IdempotencyKey { producer: producer.to_owned(), key: key.to_owned() };
        queries.get_intent_trace(STREAM, &scope).await.expect("the store is there")
    };
    assert_eq!(trace("game_master", "key-1").await, IntentTrace::default());

    let (last_entry_id, fingerprint) = (id(2), "of the entry");
    let move_to_2 = CheckpointMove { stream: STREAM, fence: 1, expected: None, last_entry_id, fingerprint };
    // Same batch: the second entry has different content under the key of the first.
    let outcomes = decide([entry(1, "key-1", 54), entry(2, "key-1", 55)], &Known::default(), at(1));
    let _ = commit(store, &outcomes, Some(move_to_2)).await;
    let accepted = trace("game_master", "key-1").await;
    let found = queries.get_notification(&"1-0".to_owned().into()).await.expect("the store is there");
    // A trace is not explained, so it has no obstacles.
    let found = found.map(|found| Notification { obstacles: None, ..found });
    assert_eq!((accepted.checkpoint, &accepted.notification), (Some(id(2)), &found));
    assert_eq!(accepted.malformed.as_ref().map(|row| &*row.key.entry_id), Some("2-0"));
    assert!(matches!(accepted.outcome(), Some(IntentOutcome::Conflict(_))), "{accepted:?}");

    // Recorded out of the order of their ids.
    let broken = |number: u64, producer: &str, key: &str| {
        let names = [("producer", producer), ("idempotency_key", key), ("unknown", "x")];
        RawEntry { id: id(number), fields: RawFields::from_iter(names) }
    };
    for (entry, seconds) in [
        (broken(5, "game_master", "key-2"), 4),
        (broken(4, "game_master", "key-2"), 5),
        (broken(6, "game_master", "key-3"), 6),
        (broken(7, "geoprofile", "key-2"), 7),
        (broken(8, "game_master", ""), 8),
    ] {
        let _ = commit(store, &decide([entry], &Known::default(), at(seconds)), None).await;
    }
    let malformed = trace("game_master", "key-2").await;
    assert_eq!(malformed.malformed.as_ref().map(|row| &*row.key.entry_id), Some("4-0"));
    assert!(matches!(malformed.outcome(), Some(IntentOutcome::Malformed(_))), "{malformed:?}");
    let others = trace("geoprofile", "key-1").await;
    assert_eq!(others, IntentTrace { checkpoint: Some(id(2)), ..IntentTrace::default() });
}
