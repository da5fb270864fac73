//! A key has one claim at a time, and its response is stored together with its intents or not at all.

use std::time::Duration;

use domain::catalog::MAX_NAME;
use domain::intent::MAX_IDENTIFIER;
use domain::outcome::Outcome;
use domain::ports::{
    AbandonOutcome, AcceptanceBatch, AcceptanceStore, Fate, IdempotencyStore, KeyClaim, KeyClaimRequest,
    KeyClaimToken, KeyCondition, Known, ResponseToStore,
};
use domain::record::IdempotencyKey;
use domain::submission::{AcceptedRequest, StoredResponse};

use super::accepted::{accept, at, decide, entry};

/// The lifetime of a claim.
const LOCK_TTL: Duration = Duration::from_secs(60);
/// The fingerprint of an intent that no test accepts.
const OTHER: &str = "another fingerprint";

/// A store under test, and a test's actions on it.
pub trait IdempotencyFixture {
    /// The store.
    fn store(&self) -> &(impl AcceptanceStore + IdempotencyStore);

    /// Ends the claim of a key, or the retention of its response.
    fn expire(&self, key: &IdempotencyKey) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::idempotency`], each on a fixture of its own.
#[macro_export]
macro_rules! idempotency_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            idempotency, $fixture;
            a_claimed_key_is_in_progress_for_every_intent,
            of_several_claims_of_a_key_in_one_call_one_wins,
            the_longest_producer_with_the_longest_key_is_claimed_and_found_again,
            a_stored_response_is_replayed_to_the_same_intent_only,
            a_claim_that_has_expired_is_won_by_the_next_request,
            a_response_that_has_expired_leaves_its_key_free,
            a_claim_that_has_expired_stores_its_response_unless_another_request_has_won_the_key,
            a_batch_that_lost_one_claim_writes_nothing,
            a_batch_that_meets_a_taken_key_stores_no_response,
            a_free_key_is_taken_together_with_its_response,
            a_batch_that_finds_one_key_taken_writes_nothing,
            of_two_batches_that_take_a_key_one_is_written,
            a_claim_is_abandoned_by_its_own_token_and_while_it_is_not_completed,
            accepted_intents_are_found_with_their_time_and_number_of_routes,
        );
    };
}

fn key(number: u64) -> IdempotencyKey {
    IdempotencyKey { producer: "game_master".to_owned(), key: format!("key-{number}") }
}

fn token(number: u8) -> KeyClaimToken {
    KeyClaimToken([number; 16])
}

fn response(text: &str) -> StoredResponse {
    StoredResponse { status: 202, body: text.as_bytes().to_vec() }
}

/// Intents with these numbers, each under its own key.
fn intents(numbers: impl IntoIterator<Item = u64>) -> Vec<Outcome> {
    decide(
        numbers.into_iter().map(|number| entry(number, &format!("key-{number}"), 54)),
        &Known::default(),
        at(0),
    )
}

fn fingerprint(number: u64) -> String {
    intents([number])[0].acceptance().expect("accepted").record.fingerprint.clone()
}

/// Claims keys by their numbers, each for the intent with this fingerprint and under this token.
async fn claim(fixture: &impl IdempotencyFixture, claims: &[(u64, &str, u8)]) -> Vec<KeyClaim> {
    let keys: Vec<_> = claims.iter().map(|(number, ..)| key(*number)).collect();
    let claims: Vec<_> = claims
        .iter()
        .zip(&keys)
        .map(|((_, fingerprint, by), key)| KeyClaimRequest { key, fingerprint, token: token(*by) })
        .collect();
    fixture.store().claim_keys(&claims, LOCK_TTL).await.expect("the store is there")
}

/// Accepts the intents with these numbers. Stores a response by `by` for each that has a condition on its
/// key.
async fn commit_under(
    fixture: &impl IdempotencyFixture,
    intents_under: &[(u64, Option<KeyCondition>, &str)],
) -> Fate {
    let outcomes = intents(intents_under.iter().map(|(number, ..)| *number));
    let response = |(number, _, by): &(u64, _, &str)| response(&format!("response {number} by {by}"));
    let stored: Vec<StoredResponse> = intents_under.iter().map(response).collect();
    let to_store = outcomes.iter().zip(intents_under).zip(&stored);
    let to_store = to_store.filter_map(|((outcome, (_, condition, _)), response)| {
        let record = &outcome.acceptance()?.record;
        Some(ResponseToStore { record, condition: (*condition)?, response })
    });
    let responses = to_store.collect();
    let batch = AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint: None, responses };
    fixture.store().accept(batch).await.expect("the store is there")
}

/// Accepts the intents with these numbers, and stores a response for each that has a token.
async fn commit(fixture: &impl IdempotencyFixture, intents_by: &[(u64, Option<u8>)]) -> Fate {
    let names: Vec<String> = intents_by.iter().map(|(_, by)| by.unwrap_or_default().to_string()).collect();
    let claimed = |by: u8| KeyCondition::Claimed(token(by));
    let intents =
        intents_by.iter().zip(&names).map(|((number, by), name)| (*number, by.map(claimed), &**name));
    commit_under(fixture, &intents.collect::<Vec<_>>()).await
}

/// Accepts the intents with these numbers, with a response for each, whose key must be free.
async fn commit_free(fixture: &impl IdempotencyFixture, numbers: &[u64], by: &str) -> Fate {
    let intents: Vec<_> = numbers.iter().map(|number| (*number, Some(KeyCondition::Free), by)).collect();
    commit_under(fixture, &intents).await
}

/// The outcomes of a lookup for requests with these numbers and fingerprints.
async fn lookup(fixture: &impl IdempotencyFixture, lookups: &[(u64, &str)]) -> Vec<Option<KeyClaim>> {
    let keys: Vec<_> = lookups.iter().map(|(number, _)| key(*number)).collect();
    let lookups: Vec<_> =
        keys.iter().zip(lookups).map(|(key, (_, fingerprint))| (key, *fingerprint)).collect();
    fixture.store().lookup_keys(&lookups).await.expect("the store is there")
}

async fn abandon(fixture: &impl IdempotencyFixture, claims: &[(u64, u8)]) -> Vec<AbandonOutcome> {
    let claims: Vec<_> = claims.iter().map(|(number, by)| (key(*number), token(*by))).collect();
    fixture.store().abandon_keys(&claims).await.expect("the store is there")
}

/// The numbers of the keys, from 1 to 3, that accepted intents have.
async fn accepted(fixture: &impl IdempotencyFixture) -> Vec<u64> {
    let keys: Vec<_> = (1..=3).map(key).collect();
    let found = fixture.store().find_requests(&keys).await.expect("the store is there");
    (1..=3).filter(|number| found.contains_key(&key(*number))).collect()
}

fn is_in_progress(outcome: &KeyClaim) -> bool {
    matches!(outcome, KeyClaim::Pending(free_in) if !free_in.is_zero() && *free_in <= LOCK_TTL)
}

pub async fn a_claimed_key_is_in_progress_for_every_intent(fixture: impl IdempotencyFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [KeyClaim::New]);
    let again = claim(&fixture, &[(1, &same, 2), (2, &same, 3), (1, OTHER, 4)]).await;
    assert!(is_in_progress(&again[0]) && is_in_progress(&again[2]), "{again:?}");
    assert_eq!(again[1], KeyClaim::New, "the outcomes are in the order of the claims");
}

pub async fn of_several_claims_of_a_key_in_one_call_one_wins(fixture: impl IdempotencyFixture) {
    let same = fingerprint(1);
    let outcomes = claim(&fixture, &[(2, OTHER, 1), (1, &same, 2), (1, &same, 3), (1, OTHER, 4)]).await;
    assert_eq!(outcomes[..2], [KeyClaim::New, KeyClaim::New]);
    assert!(outcomes[2..].iter().all(is_in_progress), "{outcomes:?}");
    assert_eq!(abandon(&fixture, &[(1, 2)]).await, [AbandonOutcome::Applied], "the first one has won");
}

pub async fn the_longest_producer_with_the_longest_key_is_claimed_and_found_again(
    fixture: impl IdempotencyFixture,
) {
    let key = IdempotencyKey { producer: "p".repeat(MAX_NAME), key: "k".repeat(MAX_IDENTIFIER) };
    let claim = async |by| {
        let claims = [KeyClaimRequest { key: &key, fingerprint: OTHER, token: token(by) }];
        fixture.store().claim_keys(&claims, LOCK_TTL).await.expect("no key is too long")
    };
    assert_eq!(claim(1).await, [KeyClaim::New]);
    assert!(is_in_progress(&claim(2).await[0]));
}

pub async fn a_stored_response_is_replayed_to_the_same_intent_only(fixture: impl IdempotencyFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Fate::Committed);
    let replayed = KeyClaim::Completed(response("response 1 by 1"));
    let outcomes = claim(&fixture, &[(1, &same, 2), (1, OTHER, 3)]).await;
    assert_eq!(outcomes, [replayed.clone(), KeyClaim::Conflict]);
    assert_eq!(claim(&fixture, &[(1, &same, 4)]).await, [replayed]);
}

pub async fn a_claim_that_has_expired_is_won_by_the_next_request(fixture: impl IdempotencyFixture) {
    assert_eq!(claim(&fixture, &[(1, OTHER, 1)]).await, [KeyClaim::New]);
    fixture.expire(&key(1)).await;
    assert_eq!(claim(&fixture, &[(1, &fingerprint(1), 2)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(2))]).await, Fate::Committed);
    let told = claim(&fixture, &[(1, &fingerprint(1), 3)]).await;
    assert_eq!(told, [KeyClaim::Completed(response("response 1 by 2"))]);
}

pub async fn a_response_that_has_expired_leaves_its_key_free(fixture: impl IdempotencyFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Fate::Committed);
    fixture.expire(&key(1)).await;
    assert_eq!(claim(&fixture, &[(1, &same, 2)]).await, [KeyClaim::New]);
    assert_eq!(accepted(&fixture).await, [1], "the record stays");
}

pub async fn a_claim_that_has_expired_stores_its_response_unless_another_request_has_won_the_key(
    fixture: impl IdempotencyFixture,
) {
    let claims = [(1, fingerprint(1), 1), (2, fingerprint(2), 2)];
    let claims: Vec<_> = claims.iter().map(|(number, print, by)| (*number, print.as_str(), *by)).collect();
    assert_eq!(claim(&fixture, &claims).await, [KeyClaim::New, KeyClaim::New]);
    fixture.expire(&key(1)).await;
    fixture.expire(&key(2)).await;
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Fate::Committed);
    assert_eq!(claim(&fixture, &[(2, &fingerprint(2), 3)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(2, Some(2))]).await, Fate::KeyTaken);
    assert_eq!(accepted(&fixture).await, [1]);
}

pub async fn a_batch_that_lost_one_claim_writes_nothing(fixture: impl IdempotencyFixture) {
    assert_eq!(claim(&fixture, &[(1, &fingerprint(1), 1)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(1)), (2, Some(2)), (3, None)]).await, Fate::KeyTaken);
    assert_eq!(accepted(&fixture).await, [0; 0]);
    let still = claim(&fixture, &[(1, &fingerprint(1), 4)]).await;
    assert!(is_in_progress(&still[0]), "{still:?}");
    assert_eq!(commit(&fixture, &[(1, Some(1)), (3, None)]).await, Fate::Committed);
    assert_eq!(accepted(&fixture).await, [1, 3]);
}

pub async fn a_batch_that_meets_a_taken_key_stores_no_response(fixture: impl IdempotencyFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let claims = [(1, fingerprint(1), 1), (2, fingerprint(2), 2)];
    let claims: Vec<_> = claims.iter().map(|(number, print, by)| (*number, print.as_str(), *by)).collect();
    assert_eq!(claim(&fixture, &claims).await, [KeyClaim::New, KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(1)), (2, Some(2))]).await, Fate::WriteConflict);
    assert_eq!(accepted(&fixture).await, [1]);
    assert_eq!(
        abandon(&fixture, &[(1, 1), (2, 2)]).await,
        [AbandonOutcome::Applied, AbandonOutcome::Applied]
    );
}

pub async fn a_free_key_is_taken_together_with_its_response(fixture: impl IdempotencyFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(2, OTHER, 2)]).await, [KeyClaim::New]);
    fixture.expire(&key(2)).await;
    assert_eq!(lookup(&fixture, &[(1, &same), (2, OTHER)]).await, [None, None]);
    assert_eq!(commit_free(&fixture, &[2, 1], "one").await, Fate::Committed);
    assert_eq!(accepted(&fixture).await, [1, 2]);
    let told = [KeyClaim::Completed(response("response 1 by one")), KeyClaim::Conflict];
    assert_eq!(claim(&fixture, &[(1, &same, 1), (2, OTHER, 2)]).await, told);
    assert_eq!(lookup(&fixture, &[(1, &same), (2, OTHER)]).await, told.map(Some));
    assert_eq!(abandon(&fixture, &[(1, 1), (2, 2)]).await, [AbandonOutcome::Fenced, AbandonOutcome::Fenced]);
    fixture.expire(&key(1)).await;
    assert_eq!(lookup(&fixture, &[(1, &same)]).await, [None]);
}

pub async fn a_batch_that_finds_one_key_taken_writes_nothing(fixture: impl IdempotencyFixture) {
    assert_eq!(claim(&fixture, &[(2, OTHER, 2)]).await, [KeyClaim::New]);
    let read = lookup(&fixture, &[(2, OTHER), (1, OTHER)]).await;
    assert!(read[0].as_ref().is_some_and(is_in_progress) && read[1].is_none(), "{read:?}");
    assert_eq!(commit_free(&fixture, &[1, 2, 3], "one").await, Fate::KeyTaken);
    assert_eq!(accepted(&fixture).await, [0; 0]);
    assert_eq!(lookup(&fixture, &[(1, OTHER), (3, OTHER)]).await, [None, None]);
    assert_eq!(abandon(&fixture, &[(2, 2)]).await, [AbandonOutcome::Applied]);
    assert_eq!(commit_free(&fixture, &[1, 2, 3], "one").await, Fate::Committed);
}

pub async fn of_two_batches_that_take_a_key_one_is_written(fixture: impl IdempotencyFixture) {
    let (one, other) =
        tokio::join!(commit_free(&fixture, &[1, 2], "one"), commit_free(&fixture, &[2, 3], "other"));
    let (written, by) = match (one, other) {
        (Fate::Committed, Fate::KeyTaken) => ([1, 2], "one"),
        (Fate::KeyTaken, Fate::Committed) => ([2, 3], "other"),
        outcomes => panic!("{outcomes:?}"),
    };
    assert_eq!(accepted(&fixture).await, written);
    let told = claim(&fixture, &[(2, &fingerprint(2), 1)]).await;
    assert_eq!(told, [KeyClaim::Completed(response(&format!("response 2 by {by}")))]);
}

pub async fn a_claim_is_abandoned_by_its_own_token_and_while_it_is_not_completed(
    fixture: impl IdempotencyFixture,
) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1), (2, OTHER, 2)]).await, [KeyClaim::New, KeyClaim::New]);
    let outcomes = abandon(&fixture, &[(2, 1), (3, 3), (2, 2)]).await;
    assert_eq!(outcomes, [AbandonOutcome::Fenced, AbandonOutcome::Fenced, AbandonOutcome::Applied]);
    assert_eq!(abandon(&fixture, &[(2, 2)]).await, [AbandonOutcome::Fenced]);
    assert_eq!(claim(&fixture, &[(2, OTHER, 4)]).await, [KeyClaim::New]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Fate::Committed);
    assert_eq!(abandon(&fixture, &[(1, 1)]).await, [AbandonOutcome::Fenced]);
    let told = claim(&fixture, &[(1, &same, 5)]).await;
    assert_eq!(told, [KeyClaim::Completed(response("response 1 by 1"))]);
}

pub async fn accepted_intents_are_found_with_their_time_and_number_of_routes(
    fixture: impl IdempotencyFixture,
) {
    let outcomes = accept(fixture.store(), [1, 2], at(7)).await;
    let found = fixture.store().find_requests(&[key(2), key(3)]).await.expect("the store is there");
    let record = &outcomes[1].acceptance().expect("accepted").record;
    let expected = AcceptedRequest {
        notification_id: record.notification_id.clone(),
        fingerprint: record.fingerprint.clone(),
        accepted_at: at(7),
        routes: 2,
    };
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(key(2), expected)]);
    assert!(fixture.store().find_requests(&[]).await.expect("the store is there").is_empty());
}
