//! One candidate leads, and every term has a higher fence than earlier ones.

use std::time::Duration;

use domain::ports::{Election, Term, TermEnd};
use tokio::time::timeout;

/// An election under test.
pub trait ElectionFixture {
    /// A candidate for the one leadership of this fixture.
    fn candidate(&self) -> impl Election;

    /// Ends the current term without its leader stepping down, as when its lease expires.
    fn end_term(&self) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::election`], each on a fixture of its own.
#[macro_export]
macro_rules! election_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            election, $fixture;
            one_candidate_leads_at_a_time,
            each_term_has_a_higher_fence_than_the_one_before,
            a_raised_fence_is_below_those_of_all_later_terms,
            raising_to_a_fence_that_is_passed_changes_nothing,
            a_term_that_lasts_is_not_lost,
            a_term_that_ended_without_its_leader_is_lost_and_another_candidate_wins,
            a_leader_that_steps_down_after_its_term_ended_takes_nothing_from_its_successor,
            a_candidate_need_not_wait_while_no_process_leads,
        );
    };
}

/// The time limit of a wait: longer than a candidate waits before it campaigns again, and than a leader needs
/// to notice that its term is over.
const BOUND: Duration = Duration::from_secs(60);

async fn win<E: Election>(candidate: &E) -> E::Term {
    candidate.campaign().await.expect("the store is there").expect("no other process leads")
}

async fn loses(candidate: &impl Election) -> bool {
    candidate.campaign().await.expect("the store is there").is_none()
}

pub async fn one_candidate_leads_at_a_time(fixture: impl ElectionFixture) {
    let (one, other) = (fixture.candidate(), fixture.candidate());
    let term = win(&one).await;
    assert!(loses(&other).await);
    term.step_down().await;
    let next = win(&other).await;
    assert!(loses(&one).await);
    next.step_down().await;
}

pub async fn each_term_has_a_higher_fence_than_the_one_before(fixture: impl ElectionFixture) {
    let candidates = [fixture.candidate(), fixture.candidate()];
    let mut fences = Vec::new();
    for turn in 0..4 {
        let term = win(&candidates[turn / 2]).await;
        fences.push(term.fence());
        term.step_down().await;
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert!(fences[0] > 0);
}

pub async fn a_raised_fence_is_below_those_of_all_later_terms(fixture: impl ElectionFixture) {
    let candidate = fixture.candidate();
    candidate.raise_fence(1_000).await.expect("the store is there");
    assert!(win(&fixture.candidate()).await.fence() > 1_000);
}

pub async fn raising_to_a_fence_that_is_passed_changes_nothing(fixture: impl ElectionFixture) {
    let candidate = fixture.candidate();
    candidate.raise_fence(1_000).await.expect("the store is there");
    candidate.raise_fence(10).await.expect("the store is there");
    assert!(win(&candidate).await.fence() > 1_000);
}

pub async fn a_term_that_lasts_is_not_lost(fixture: impl ElectionFixture) {
    let term = win(&fixture.candidate()).await;
    assert!(timeout(Duration::ZERO, term.over()).await.is_err());
    term.step_down().await;
}

pub async fn a_term_that_ended_without_its_leader_is_lost_and_another_candidate_wins(
    fixture: impl ElectionFixture,
) {
    let term = win(&fixture.candidate()).await;
    fixture.end_term().await;
    assert_eq!(timeout(BOUND, term.over()).await.expect("its leader notices"), TermEnd::Lost);
    assert!(win(&fixture.candidate()).await.fence() > term.fence());
}

pub async fn a_leader_that_steps_down_after_its_term_ended_takes_nothing_from_its_successor(
    fixture: impl ElectionFixture,
) {
    let term = win(&fixture.candidate()).await;
    fixture.end_term().await;
    let next = win(&fixture.candidate()).await;
    term.step_down().await;
    assert!(loses(&fixture.candidate()).await);
    next.step_down().await;
}

pub async fn a_candidate_need_not_wait_while_no_process_leads(fixture: impl ElectionFixture) {
    let (one, other) = (fixture.candidate(), fixture.candidate());
    let term = win(&one).await;
    assert!(loses(&other).await);
    term.step_down().await;
    timeout(BOUND, other.leader_change()).await.expect("the leader has changed");
    win(&other).await;
}
