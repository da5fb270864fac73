//! Who leads, as everyone can look up.

use domain::ports::{Election, LeaderLookup, Term};
use domain::query::LeaderTerm;

use super::election::ElectionFixture;

/// A leadership to look up.
pub trait LeaderFixture: ElectionFixture {
    /// What is asked.
    fn lookup(&self) -> impl LeaderLookup;
}

/// Runs every case of [`crate::contract::leader`], each on a fixture of its own.
#[macro_export]
macro_rules! leader_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            leader, $fixture;
            before_the_first_term_no_one_leads,
            a_term_is_found_under_its_fence_and_began_once,
            a_term_that_its_leader_has_ended_is_not_found,
            a_term_that_ended_without_its_leader_is_not_found,
            a_later_term_began_no_earlier_and_has_a_higher_fence,
        );
    };
}

async fn leader(fixture: &impl LeaderFixture) -> Option<LeaderTerm> {
    fixture.lookup().leader().await.expect("the store is there")
}

async fn win<E: Election>(candidate: &E) -> E::Term {
    candidate.campaign().await.expect("the store is there").expect("no other process leads")
}

pub async fn before_the_first_term_no_one_leads(fixture: impl LeaderFixture) {
    assert_eq!(leader(&fixture).await, None);
}

pub async fn a_term_is_found_under_its_fence_and_began_once(fixture: impl LeaderFixture) {
    let (candidate, other) = (fixture.candidate(), fixture.candidate());
    let term = win(&candidate).await;
    let found = leader(&fixture).await.expect("it leads");
    assert_eq!(found.fence, term.fence());
    assert!(other.campaign().await.expect("the store is there").is_none());
    assert_eq!(leader(&fixture).await, Some(found), "a candidate that loses changes nothing");
    term.step_down().await;
}

pub async fn a_term_that_its_leader_has_ended_is_not_found(fixture: impl LeaderFixture) {
    let candidate = fixture.candidate();
    win(&candidate).await.step_down().await;
    assert_eq!(leader(&fixture).await, None);
}

pub async fn a_term_that_ended_without_its_leader_is_not_found(fixture: impl LeaderFixture) {
    let candidate = fixture.candidate();
    let _term = win(&candidate).await;
    fixture.end_term().await;
    assert_eq!(leader(&fixture).await, None);
}

pub async fn a_later_term_began_no_earlier_and_has_a_higher_fence(fixture: impl LeaderFixture) {
    let candidate = fixture.candidate();
    let first = win(&candidate).await;
    let earlier = leader(&fixture).await.expect("it leads");
    first.step_down().await;
    let second = win(&candidate).await;
    let later = leader(&fixture).await.expect("it leads");
    assert!(later.fence > earlier.fence && later.since >= earlier.since, "{earlier:?}, {later:?}");
    second.step_down().await;
}
