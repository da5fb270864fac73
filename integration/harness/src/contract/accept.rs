//! Acceptance commits its rows or nothing; the durable checkpoint moves in the same commit or not at all.

use domain::accept::Known;

use domain::checkpoint::{Checkpoint, Witness};
use domain::entry::EntryId;
use domain::outcome::Outcome;
use domain::ports::{
    AcceptanceStore, CheckpointMove, CheckpointStore, Fate, Fence, FenceWrite, ServerId, Swap,
};
use domain::record::IdempotencyKey;

use super::accepted::{STREAM, at, broken, commit, decide, decode, entry, id};

/// A store under test, and a test's observations of it.
pub trait AcceptanceFixture {
    /// The store.
    fn store(&self) -> &(impl AcceptanceStore + CheckpointStore);

    /// The ids of all records, sorted.
    fn records(&self) -> impl Future<Output = Vec<String>>;

    /// The keys of all routes, `<notification_id>/<route_id>`, sorted.
    fn routes(&self) -> impl Future<Output = Vec<String>>;

    /// The entry ids of all malformed intents, sorted.
    fn malformed(&self) -> impl Future<Output = Vec<String>>;
}

/// Runs every case of [`crate::contract::accept`], each on a fixture of its own.
#[macro_export]
macro_rules! acceptance_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            accept, $fixture;
            a_batch_writes_records_routes_malformed_rows_and_checkpoint_together,
            a_batch_without_a_checkpoint_to_move_leaves_every_checkpoint,
            a_key_that_was_taken_meanwhile_leaves_nothing_of_the_batch,
            a_key_that_is_twice_in_a_batch_leaves_nothing_of_it,
            an_id_that_was_taken_never_gives_its_routes_to_another_record,
            a_checkpoint_moves_only_from_the_expected_entry_and_not_under_a_lower_fence,
            the_first_checkpoint_of_a_stream_is_written_once,
            known_keys_come_with_their_fingerprints,
            a_claim_fences_every_earlier_term,
            the_last_processed_entry_is_recognised_by_id_and_content,
            the_witness_moves_with_the_checkpoint,
            a_checkpoint_moves_back_only_from_the_expected_entry_and_not_under_a_lower_fence,
            an_entry_that_is_malformed_twice_is_one_row,
        );
    };
}

fn scope(key: &str) -> IdempotencyKey {
    IdempotencyKey { producer: "game_master".to_owned(), key: key.to_owned() }
}

fn to(fence: Fence, expected: Option<u64>, last: u64) -> Option<CheckpointMove<'static>> {
    let (expected, last_entry_id) = (expected.map(id), id(last));
    Some(CheckpointMove { stream: STREAM, fence, expected, last_entry_id, fingerprint: "of the entry" })
}

fn unknown(entries: impl IntoIterator<Item = domain::entry::RawEntry>) -> Vec<Outcome> {
    decide(entries, &Known::default(), at(0))
}

async fn checkpoint(fixture: &impl AcceptanceFixture) -> Option<(Fence, EntryId)> {
    let stored = fixture.store().load_checkpoint(STREAM).await.expect("the store is there");
    stored.map(|Checkpoint { fence, last_entry_id }| (fence, last_entry_id))
}

pub async fn a_batch_writes_records_routes_malformed_rows_and_checkpoint_together(
    fixture: impl AcceptanceFixture,
) {
    let outcomes = unknown([entry(1, "key-1", 54), broken(2)]);
    assert_eq!(commit(fixture.store(), &outcomes, to(3, None, 2)).await, Fate::Committed);
    assert_eq!(fixture.records().await, ["1-0"]);
    assert_eq!(fixture.routes().await, ["1-0/email:user:u-1", "1-0/push:user:u-1"]);
    assert_eq!(fixture.malformed().await, ["2-0"]);
    assert_eq!(checkpoint(&fixture).await, Some((3, id(2))));
}

pub async fn a_batch_without_a_checkpoint_to_move_leaves_every_checkpoint(fixture: impl AcceptanceFixture) {
    let first = unknown([entry(1, "key-1", 54), broken(2)]);
    assert_eq!(commit(fixture.store(), &first, None).await, Fate::Committed);
    assert_eq!(checkpoint(&fixture).await, None);
    let second = unknown([entry(3, "key-3", 54)]);
    assert_eq!(commit(fixture.store(), &second, to(1, None, 3)).await, Fate::Committed);
    let third = unknown([entry(4, "key-4", 54)]);
    assert_eq!(commit(fixture.store(), &third, None).await, Fate::Committed);
    assert_eq!(checkpoint(&fixture).await, Some((1, id(3))));
    assert_eq!(fixture.records().await, ["1-0", "3-0", "4-0"]);
}

pub async fn a_key_that_was_taken_meanwhile_leaves_nothing_of_the_batch(fixture: impl AcceptanceFixture) {
    let first = unknown([entry(1, "key-1", 54)]);
    assert_eq!(commit(fixture.store(), &first, to(1, None, 1)).await, Fate::Committed);
    let second = unknown([broken(2), entry(3, "key-3", 54), entry(4, "key-1", 54)]);
    assert_eq!(commit(fixture.store(), &second, to(1, Some(1), 4)).await, Fate::WriteConflict);
    assert_eq!(fixture.records().await, ["1-0"]);
    assert_eq!(fixture.routes().await.len(), 2);
    assert_eq!(fixture.malformed().await, [""; 0]);
    assert_eq!(checkpoint(&fixture).await, Some((1, id(1))));
}

pub async fn a_key_that_is_twice_in_a_batch_leaves_nothing_of_it(fixture: impl AcceptanceFixture) {
    // A decision never contains a key twice; the store does not rely on that.
    let mut outcomes = unknown([entry(1, "key-1", 54)]);
    outcomes.extend(unknown([entry(2, "key-1", 54)]));
    assert_eq!(commit(fixture.store(), &outcomes, to(1, None, 2)).await, Fate::WriteConflict);
    assert_eq!(fixture.records().await, [""; 0]);
    assert_eq!(checkpoint(&fixture).await, None);
}

pub async fn an_id_that_was_taken_never_gives_its_routes_to_another_record(fixture: impl AcceptanceFixture) {
    let first = unknown([entry(1, "key-1", 54)]);
    assert_eq!(commit(fixture.store(), &first, None).await, Fate::Committed);
    let recreated = unknown([entry(1, "another key", 55)]);
    assert_eq!(commit(fixture.store(), &recreated, None).await, Fate::WriteConflict);
    for (key, number) in [("another key", 1), ("a third key", 2)] {
        let known = fixture.store().find_known(&[(scope(key), id(1))]).await.expect("the store is there");
        assert_eq!(known.taken_ids.get(&id(1)), Some(&number));
        let outcomes = decide([entry(1, key, 55)], &known, at(0));
        assert_eq!(commit(fixture.store(), &outcomes, None).await, Fate::Committed);
    }
    assert_eq!(fixture.records().await, ["1-0", "1-0~1", "1-0~2"]);
}

pub async fn a_checkpoint_moves_only_from_the_expected_entry_and_not_under_a_lower_fence(
    fixture: impl AcceptanceFixture,
) {
    let first = unknown([entry(5, "key-5", 54)]);
    assert_eq!(commit(fixture.store(), &first, to(5, None, 5)).await, Fate::Committed);
    let next = unknown([entry(6, "key-6", 54)]);
    for (fence, expected) in [(5, Some(4)), (5, Some(6)), (4, Some(5)), (5, None), (9, None)] {
        let moved = commit(fixture.store(), &next, to(fence, expected, 6)).await;
        assert_eq!(moved, Fate::CheckpointMoved, "{fence} {expected:?}");
    }
    assert_eq!(fixture.records().await, ["5-0"]);
    assert_eq!(checkpoint(&fixture).await, Some((5, id(5))));
    assert_eq!(commit(fixture.store(), &next, to(6, Some(5), 6)).await, Fate::Committed);
    assert_eq!(checkpoint(&fixture).await, Some((6, id(6))));
}

pub async fn the_first_checkpoint_of_a_stream_is_written_once(fixture: impl AcceptanceFixture) {
    let outcomes = unknown([broken(1)]);
    assert_eq!(commit(fixture.store(), &outcomes, to(1, Some(0), 1)).await, Fate::CheckpointMoved);
    assert_eq!(commit(fixture.store(), &outcomes, to(1, None, 1)).await, Fate::Committed);
    assert_eq!(commit(fixture.store(), &outcomes, to(1, None, 1)).await, Fate::CheckpointMoved);
}

pub async fn known_keys_come_with_their_fingerprints(fixture: impl AcceptanceFixture) {
    let outcomes = unknown([entry(1, "key-1", 54)]);
    assert_eq!(commit(fixture.store(), &outcomes, None).await, Fate::Committed);
    let asked = [(scope("key-1"), id(1)), (scope("key-8"), id(1)), (scope("key-9"), id(9))];
    let known = fixture.store().find_known(&asked).await.expect("the store is there");
    let fingerprint = outcomes[0].acceptance().expect("accepted").record.fingerprint.clone();
    assert_eq!(known.fingerprints.get(&scope("key-1")), Some(&fingerprint));
    assert_eq!((known.fingerprints.len(), known.taken_ids.get(&id(9))), (1, None));
}

pub async fn a_claim_fences_every_earlier_term(fixture: impl AcceptanceFixture) {
    let claim = async |fence, begins| {
        fixture.store().write_fence(STREAM, fence, begins).await.expect("the store is there")
    };
    assert_eq!(claim(7, true).await, FenceWrite::NoCheckpoint);
    let outcomes = unknown([broken(1)]);
    assert_eq!(commit(fixture.store(), &outcomes, to(7, None, 1)).await, Fate::Committed);
    assert_eq!(claim(7, true).await, FenceWrite::Superseded(7));
    assert_eq!(claim(7, false).await, FenceWrite::At(id(1)));
    assert_eq!(claim(6, false).await, FenceWrite::Superseded(7));
    assert_eq!(claim(8, true).await, FenceWrite::At(id(1)));
    let next = unknown([broken(2)]);
    assert_eq!(commit(fixture.store(), &next, to(7, Some(1), 2)).await, Fate::CheckpointMoved);
    assert_eq!(checkpoint(&fixture).await, Some((8, id(1))));
}

pub async fn the_last_processed_entry_is_recognised_by_id_and_content(fixture: impl AcceptanceFixture) {
    let outcomes = unknown([entry(1, "key-1", 54), broken(2)]);
    assert_eq!(commit(fixture.store(), &outcomes, None).await, Fate::Committed);
    let found = async |entries: Vec<domain::entry::RawEntry>| {
        let traces: Vec<_> = decode(entries, at(0)).iter().map(|entry| entry.trace()).collect();
        fixture.store().find_last_processed(STREAM, &traces).await.expect("the store is there")
    };
    assert_eq!(found(vec![entry(1, "key-1", 54), broken(2), broken(3)]).await, Some(id(2)));
    assert_eq!(found(vec![entry(1, "key-1", 54), entry(2, "key-2", 54)]).await, Some(id(1)));
    assert_eq!(found(vec![entry(1, "key-1", 55), broken(3)]).await, None);
    assert_eq!(found(vec![entry(2, "key-1", 54)]).await, None);
}

// INV-07
pub async fn the_witness_moves_with_the_checkpoint(fixture: impl AcceptanceFixture) {
    let witness = async || fixture.store().load_witness(STREAM).await.expect("the store is there");
    assert_eq!(witness().await, Witness::default());
    let server = ServerId { run_id: "a".into(), replication_id: "b".into() };
    let saved = fixture.store().save_intents_server(STREAM, &server).await;
    saved.expect("the store is there");
    assert_eq!(witness().await, Witness::default(), "there is no checkpoint");
    for (expected, last) in [(None, 1), (Some(1), 2)] {
        let batch = unknown([broken(last)]);
        assert_eq!(commit(fixture.store(), &batch, to(7, expected, last)).await, Fate::Committed);
        assert_eq!(witness().await.fingerprint, Some((id(last), "of the entry".to_owned())));
    }
    fixture.store().save_intents_server(STREAM, &server).await.expect("the store is there");
    assert_eq!(witness().await.server, Some(server));
}

// INV-07, INV-08
pub async fn a_checkpoint_moves_back_only_from_the_expected_entry_and_not_under_a_lower_fence(
    fixture: impl AcceptanceFixture,
) {
    let server = ServerId { run_id: "a".into(), replication_id: "b".into() };
    let back = async |fence, expected| {
        let to = to(fence, expected, 4).expect("it has a checkpoint");
        fixture.store().move_checkpoint_back(to, &server).await.expect("the store is there")
    };
    assert_eq!(back(7, Some(9)).await, Swap::Conflict, "there is no checkpoint");
    assert_eq!(back(7, None).await, Swap::Conflict, "a first checkpoint comes with its batch");
    assert_eq!(checkpoint(&fixture).await, None);
    let batch = unknown([broken(9)]);
    assert_eq!(commit(fixture.store(), &batch, to(7, None, 9)).await, Fate::Committed);
    for (fence, expected) in [(6, 9), (7, 8), (7, 10)] {
        assert_eq!(back(fence, Some(expected)).await, Swap::Conflict, "{fence} {expected}");
    }
    assert_eq!(checkpoint(&fixture).await, Some((7, id(9))));
    assert_eq!(back(7, Some(9)).await, Swap::Applied);
    assert_eq!(checkpoint(&fixture).await, Some((7, id(4))));
    let witness = fixture.store().load_witness(STREAM).await.expect("the store is there");
    let fingerprint = Some((id(4), "of the entry".to_owned()));
    assert_eq!(witness, Witness { server: Some(server.clone()), fingerprint });
    // A batch that expects the previous checkpoint, and whose reply was lost, is not committed later.
    assert_eq!(commit(fixture.store(), &batch, to(7, Some(9), 12)).await, Fate::CheckpointMoved);
}

pub async fn an_entry_that_is_malformed_twice_is_one_row(fixture: impl AcceptanceFixture) {
    for _ in 0..2 {
        assert_eq!(commit(fixture.store(), &unknown([broken(1)]), None).await, Fate::Committed);
    }
    assert_eq!(fixture.malformed().await, ["1-0"]);
}
