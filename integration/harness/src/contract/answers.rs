//! A key has one claim at a time, and its response is stored together with its intents or not at all.

use std::time::Duration;

use domain::catalog::MAX_NAME;
use domain::intent::MAX_IDENTIFIER;
use domain::outcome::Outcome;
use domain::ports::{
    Abandonment, AcceptanceBatch, AcceptanceStore, AnswerClaim, AnswerCondition, AnswerStore, AnswerToStore,
    ClaimOutcome, ClaimToken, Commit, Known,
};
use domain::record::IdempotencyScope;
use domain::submission::{AcceptedRequest, StoredAnswer};

use super::accepted::{accept, at, decide, entry};

/// The lifetime of a claim.
const LOCK_TTL: Duration = Duration::from_secs(60);
/// The retention of a response.
const KEPT_FOR: Duration = Duration::from_secs(3_600);
/// The fingerprint of an intent that no test accepts.
const OTHER: &str = "another fingerprint";

/// A store under test, and a test's actions on it.
pub trait AnswersFixture {
    /// The store.
    fn store(&self) -> &(impl AcceptanceStore + AnswerStore);

    /// Ends the claim of a key, or the retention of its response.
    fn expire(&self, scope: &IdempotencyScope) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::answers`], each on a fixture of its own.
#[macro_export]
macro_rules! answers_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            answers, $fixture;
            a_claimed_key_is_in_progress_for_every_intent,
            of_several_claims_of_a_key_in_one_call_one_wins,
            the_longest_producer_with_the_longest_key_is_claimed_and_found_again,
            a_stored_answer_is_replayed_to_the_same_intent_only,
            a_claim_that_has_expired_is_won_by_the_next_request,
            an_answer_that_has_expired_leaves_its_key_free,
            a_claim_that_has_expired_stores_its_answer_unless_another_request_has_won_the_key,
            a_batch_that_lost_one_claim_writes_nothing,
            a_batch_that_meets_a_taken_key_stores_no_answer,
            a_free_key_is_taken_together_with_its_answer,
            a_batch_that_finds_one_key_taken_writes_nothing,
            of_two_batches_that_take_a_key_one_is_written,
            a_claim_is_abandoned_by_its_own_token_and_while_it_is_not_answered,
            accepted_intents_are_found_with_their_time_and_number_of_routes,
        );
    };
}

fn scope(number: u64) -> IdempotencyScope {
    IdempotencyScope { producer: "game_master".to_owned(), key: format!("key-{number}") }
}

fn token(number: u8) -> ClaimToken {
    ClaimToken([number; 16])
}

fn answer(text: &str) -> StoredAnswer {
    StoredAnswer { status: 202, body: text.as_bytes().to_vec() }
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
async fn claim(fixture: &impl AnswersFixture, claims: &[(u64, &str, u8)]) -> Vec<ClaimOutcome> {
    let scopes: Vec<_> = claims.iter().map(|(number, ..)| scope(*number)).collect();
    let claims: Vec<_> = claims
        .iter()
        .zip(&scopes)
        .map(|((_, fingerprint, by), scope)| AnswerClaim { scope, fingerprint, token: token(*by) })
        .collect();
    fixture.store().claim_answers(&claims, LOCK_TTL).await.expect("the store is there")
}

/// Accepts the intents with these numbers, and stores a response for each that has a token.
async fn commit(fixture: &impl AnswersFixture, intents_by: &[(u64, Option<u8>)]) -> Commit {
    let outcomes = intents(intents_by.iter().map(|(number, _)| *number));
    let stored = |(number, by): &(u64, Option<u8>)| {
        Some(AnswerToStore {
            scope: scope(*number),
            condition: AnswerCondition::Claimed(token((*by)?)),
            answer: answer(&format!("answer {number} by {}", (*by)?)),
            kept_for: KEPT_FOR,
        })
    };
    let answers = intents_by.iter().filter_map(stored).collect();
    let batch = AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint: None, answers };
    fixture.store().accept(batch).await.expect("the store is there")
}

/// Accepts the intents with these numbers, with a response for each, whose key must be free.
async fn commit_free(fixture: &impl AnswersFixture, numbers: &[u64], by: &str) -> Commit {
    let outcomes = intents(numbers.iter().copied());
    let stored = |number: &u64| AnswerToStore {
        scope: scope(*number),
        condition: AnswerCondition::Free { fingerprint: fingerprint(*number) },
        answer: answer(&format!("answer {number} by {by}")),
        kept_for: KEPT_FOR,
    };
    let answers = numbers.iter().map(stored).collect();
    let batch = AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint: None, answers };
    fixture.store().accept(batch).await.expect("the store is there")
}

/// The outcomes of a lookup for requests with these numbers and fingerprints.
async fn lookup(fixture: &impl AnswersFixture, keys: &[(u64, &str)]) -> Vec<Option<ClaimOutcome>> {
    let scopes: Vec<_> = keys.iter().map(|(number, _)| scope(*number)).collect();
    let keys: Vec<_> =
        scopes.iter().zip(keys).map(|(scope, (_, fingerprint))| (scope, *fingerprint)).collect();
    fixture.store().lookup_answers(&keys).await.expect("the store is there")
}

async fn abandon(fixture: &impl AnswersFixture, claims: &[(u64, u8)]) -> Vec<Abandonment> {
    let claims: Vec<_> = claims.iter().map(|(number, by)| (scope(*number), token(*by))).collect();
    fixture.store().abandon_answers(&claims).await.expect("the store is there")
}

/// The numbers of the keys, from 1 to 3, that accepted intents have.
async fn accepted(fixture: &impl AnswersFixture) -> Vec<u64> {
    let scopes: Vec<_> = (1..=3).map(scope).collect();
    let found = fixture.store().find_requests(&scopes).await.expect("the store is there");
    (1..=3).filter(|number| found.contains_key(&scope(*number))).collect()
}

fn is_in_progress(outcome: &ClaimOutcome) -> bool {
    matches!(outcome, ClaimOutcome::InProgress(free_in) if !free_in.is_zero() && *free_in <= LOCK_TTL)
}

pub async fn a_claimed_key_is_in_progress_for_every_intent(fixture: impl AnswersFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [ClaimOutcome::Claimed]);
    let again = claim(&fixture, &[(1, &same, 2), (2, &same, 3), (1, OTHER, 4)]).await;
    assert!(is_in_progress(&again[0]) && is_in_progress(&again[2]), "{again:?}");
    assert_eq!(again[1], ClaimOutcome::Claimed, "the outcomes are in the order of the claims");
}

pub async fn of_several_claims_of_a_key_in_one_call_one_wins(fixture: impl AnswersFixture) {
    let same = fingerprint(1);
    let outcomes = claim(&fixture, &[(2, OTHER, 1), (1, &same, 2), (1, &same, 3), (1, OTHER, 4)]).await;
    assert_eq!(outcomes[..2], [ClaimOutcome::Claimed, ClaimOutcome::Claimed]);
    assert!(outcomes[2..].iter().all(is_in_progress), "{outcomes:?}");
    assert_eq!(abandon(&fixture, &[(1, 2)]).await, [Abandonment::Freed], "the first one has won");
}

pub async fn the_longest_producer_with_the_longest_key_is_claimed_and_found_again(
    fixture: impl AnswersFixture,
) {
    let scope = IdempotencyScope { producer: "p".repeat(MAX_NAME), key: "k".repeat(MAX_IDENTIFIER) };
    let claim = async |by| {
        let claims = [AnswerClaim { scope: &scope, fingerprint: OTHER, token: token(by) }];
        fixture.store().claim_answers(&claims, LOCK_TTL).await.expect("no scope is too long")
    };
    assert_eq!(claim(1).await, [ClaimOutcome::Claimed]);
    assert!(is_in_progress(&claim(2).await[0]));
}

pub async fn a_stored_answer_is_replayed_to_the_same_intent_only(fixture: impl AnswersFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Commit::Committed);
    let replayed = ClaimOutcome::Answered(answer("answer 1 by 1"));
    let outcomes = claim(&fixture, &[(1, &same, 2), (1, OTHER, 3)]).await;
    assert_eq!(outcomes, [replayed.clone(), ClaimOutcome::OtherIntent]);
    assert_eq!(claim(&fixture, &[(1, &same, 4)]).await, [replayed]);
}

pub async fn a_claim_that_has_expired_is_won_by_the_next_request(fixture: impl AnswersFixture) {
    assert_eq!(claim(&fixture, &[(1, OTHER, 1)]).await, [ClaimOutcome::Claimed]);
    fixture.expire(&scope(1)).await;
    assert_eq!(claim(&fixture, &[(1, &fingerprint(1), 2)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(2))]).await, Commit::Committed);
    let told = claim(&fixture, &[(1, &fingerprint(1), 3)]).await;
    assert_eq!(told, [ClaimOutcome::Answered(answer("answer 1 by 2"))]);
}

pub async fn an_answer_that_has_expired_leaves_its_key_free(fixture: impl AnswersFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(1, &same, 1)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Commit::Committed);
    fixture.expire(&scope(1)).await;
    assert_eq!(claim(&fixture, &[(1, &same, 2)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(accepted(&fixture).await, [1], "the record stays");
}

pub async fn a_claim_that_has_expired_stores_its_answer_unless_another_request_has_won_the_key(
    fixture: impl AnswersFixture,
) {
    let claims = [(1, fingerprint(1), 1), (2, fingerprint(2), 2)];
    let claims: Vec<_> = claims.iter().map(|(number, print, by)| (*number, print.as_str(), *by)).collect();
    assert_eq!(claim(&fixture, &claims).await, [ClaimOutcome::Claimed, ClaimOutcome::Claimed]);
    fixture.expire(&scope(1)).await;
    fixture.expire(&scope(2)).await;
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Commit::Committed);
    assert_eq!(claim(&fixture, &[(2, &fingerprint(2), 3)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(2, Some(2))]).await, Commit::AnswerRefused);
    assert_eq!(accepted(&fixture).await, [1]);
}

pub async fn a_batch_that_lost_one_claim_writes_nothing(fixture: impl AnswersFixture) {
    assert_eq!(claim(&fixture, &[(1, &fingerprint(1), 1)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(1)), (2, Some(2)), (3, None)]).await, Commit::AnswerRefused);
    assert_eq!(accepted(&fixture).await, [0; 0]);
    let still = claim(&fixture, &[(1, &fingerprint(1), 4)]).await;
    assert!(is_in_progress(&still[0]), "{still:?}");
    assert_eq!(commit(&fixture, &[(1, Some(1)), (3, None)]).await, Commit::Committed);
    assert_eq!(accepted(&fixture).await, [1, 3]);
}

pub async fn a_batch_that_meets_a_taken_key_stores_no_answer(fixture: impl AnswersFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let claims = [(1, fingerprint(1), 1), (2, fingerprint(2), 2)];
    let claims: Vec<_> = claims.iter().map(|(number, print, by)| (*number, print.as_str(), *by)).collect();
    assert_eq!(claim(&fixture, &claims).await, [ClaimOutcome::Claimed, ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(1)), (2, Some(2))]).await, Commit::WriteConflict);
    assert_eq!(accepted(&fixture).await, [1]);
    assert_eq!(abandon(&fixture, &[(1, 1), (2, 2)]).await, [Abandonment::Freed, Abandonment::Freed]);
}

pub async fn a_free_key_is_taken_together_with_its_answer(fixture: impl AnswersFixture) {
    let same = fingerprint(1);
    assert_eq!(claim(&fixture, &[(2, OTHER, 2)]).await, [ClaimOutcome::Claimed]);
    fixture.expire(&scope(2)).await;
    assert_eq!(lookup(&fixture, &[(1, &same), (2, OTHER)]).await, [None, None]);
    assert_eq!(commit_free(&fixture, &[2, 1], "one").await, Commit::Committed);
    assert_eq!(accepted(&fixture).await, [1, 2]);
    let told = [ClaimOutcome::Answered(answer("answer 1 by one")), ClaimOutcome::OtherIntent];
    assert_eq!(claim(&fixture, &[(1, &same, 1), (2, OTHER, 2)]).await, told);
    assert_eq!(lookup(&fixture, &[(1, &same), (2, OTHER)]).await, told.map(Some));
    assert_eq!(abandon(&fixture, &[(1, 1), (2, 2)]).await, [Abandonment::NotFound, Abandonment::NotFound]);
    fixture.expire(&scope(1)).await;
    assert_eq!(lookup(&fixture, &[(1, &same)]).await, [None]);
}

pub async fn a_batch_that_finds_one_key_taken_writes_nothing(fixture: impl AnswersFixture) {
    assert_eq!(claim(&fixture, &[(2, OTHER, 2)]).await, [ClaimOutcome::Claimed]);
    let read = lookup(&fixture, &[(2, OTHER), (1, OTHER)]).await;
    assert!(read[0].as_ref().is_some_and(is_in_progress) && read[1].is_none(), "{read:?}");
    assert_eq!(commit_free(&fixture, &[1, 2, 3], "one").await, Commit::AnswerRefused);
    assert_eq!(accepted(&fixture).await, [0; 0]);
    assert_eq!(lookup(&fixture, &[(1, OTHER), (3, OTHER)]).await, [None, None]);
    assert_eq!(abandon(&fixture, &[(2, 2)]).await, [Abandonment::Freed]);
    assert_eq!(commit_free(&fixture, &[1, 2, 3], "one").await, Commit::Committed);
}

pub async fn of_two_batches_that_take_a_key_one_is_written(fixture: impl AnswersFixture) {
    let (one, other) =
        tokio::join!(commit_free(&fixture, &[1, 2], "one"), commit_free(&fixture, &[2, 3], "other"));
    let (written, by) = match (one, other) {
        (Commit::Committed, Commit::AnswerRefused) => ([1, 2], "one"),
        (Commit::AnswerRefused, Commit::Committed) => ([2, 3], "other"),
        outcomes => panic!("{outcomes:?}"),
    };
    assert_eq!(accepted(&fixture).await, written);
    let told = claim(&fixture, &[(2, &fingerprint(2), 1)]).await;
    assert_eq!(told, [ClaimOutcome::Answered(answer(&format!("answer 2 by {by}")))]);
}

pub async fn a_claim_is_abandoned_by_its_own_token_and_while_it_is_not_answered(
    fixture: impl AnswersFixture,
) {
    let same = fingerprint(1);
    assert_eq!(
        claim(&fixture, &[(1, &same, 1), (2, OTHER, 2)]).await,
        [ClaimOutcome::Claimed, ClaimOutcome::Claimed]
    );
    let outcomes = abandon(&fixture, &[(2, 1), (3, 3), (2, 2)]).await;
    assert_eq!(outcomes, [Abandonment::NotFound, Abandonment::NotFound, Abandonment::Freed]);
    assert_eq!(abandon(&fixture, &[(2, 2)]).await, [Abandonment::NotFound]);
    assert_eq!(claim(&fixture, &[(2, OTHER, 4)]).await, [ClaimOutcome::Claimed]);
    assert_eq!(commit(&fixture, &[(1, Some(1))]).await, Commit::Committed);
    assert_eq!(abandon(&fixture, &[(1, 1)]).await, [Abandonment::NotFound]);
    let told = claim(&fixture, &[(1, &same, 5)]).await;
    assert_eq!(told, [ClaimOutcome::Answered(answer("answer 1 by 1"))]);
}

pub async fn accepted_intents_are_found_with_their_time_and_number_of_routes(fixture: impl AnswersFixture) {
    let outcomes = accept(fixture.store(), [1, 2], at(7)).await;
    let found = fixture.store().find_requests(&[scope(2), scope(3)]).await.expect("the store is there");
    let record = &outcomes[1].acceptance().expect("accepted").record;
    let expected = AcceptedRequest {
        notification_id: record.notification_id.clone(),
        fingerprint: record.fingerprint.clone(),
        accepted_at: at(7),
        routes: 2,
    };
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(scope(2), expected)]);
    assert!(fixture.store().find_requests(&[]).await.expect("the store is there").is_empty());
}
