//! The current leader, as any process can look it up.

use domain::ports::{Election, LeaderLookup, Term};
use domain::query::LeaderTerm;

use super::election::ElectionFixture;

/// A leadership under test.
pub trait LeaderFixture: ElectionFixture {
    /// The lookup of the leader.
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
            the_end_of_a_term_is_known_only_if_its_leader_did_not_end_it_and_no_other_leads,
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

pub async fn the_end_of_a_term_is_known_only_if_its_leader_did_not_end_it_and_no_other_leads(
    fixture: impl LeaderFixture,
) {
    let end = async || fixture.lookup().last_term_end().await.expect("the store is there");
    assert_eq!(end().await, None, "there was no term");
    let candidate = fixture.candidate();
    let first = win(&candidate).await;
    assert_eq!(end().await, None, "it is not over");
    first.step_down().await;
    assert_eq!(end().await, None, "its leader ended it");
    let _second = win(&candidate).await;
    fixture.end_term().await;
    assert!(end().await.is_some(), "it ended without its leader");
    let third = win(&candidate).await;
    assert_eq!(end().await, None, "another one leads");
    third.step_down().await;
}
