//! The model of publishing: the protocol keeps its promises, and no rule of it can be left out.

use model::publishing::{Mutation, Publishing, ROUTES, promises};
use model::{always_ends, counterexample, explore};

fn keeps_its_promises(model: Publishing, states: usize) {
    let Publishing { live, faults, .. } = model;
    let explored = explore(model);
    println!(
        "publishing, {live} routes, {faults} faults: {} states, depth {}, {:?}",
        explored.states, explored.depth, explored.time
    );
    assert_eq!((explored.violated, explored.unseen), (vec![], vec![]));
    assert_eq!(explored.states, states, "the model has changed");
}

#[test]
fn the_protocol_keeps_its_promises_in_every_state_of_three_routes() {
    keeps_its_promises(Publishing::new(ROUTES, 1), 3_497_585);
}

#[test]
fn the_protocol_keeps_its_promises_in_every_state_of_two_routes_with_two_faults() {
    keeps_its_promises(Publishing::new(2, 2), 856_199);
}

#[test]
fn every_path_ends() {
    assert!(always_ends(&Publishing::new(2, 1)));
}

/// Without this rule, a path leads to a violation of the promise.
fn breaks(mutation: Mutation, promise: &'static str) {
    let path = counterexample(Publishing::without(mutation, 2, 1), promise);
    let path = path.unwrap_or_else(|| panic!("without {mutation:?} nothing breaks: {promise}"));
    println!("{mutation:?}, {} steps:", path.len());
    path.iter().for_each(|(_, step)| println!("  {step:?}"));
}

#[test]
fn an_append_without_token_adds_a_second_entry() {
    breaks(Mutation::AppendWithoutToken, promises::ONE_ENTRY);
}

#[test]
fn an_append_without_marker_is_repeated() {
    breaks(Mutation::MarkerNotWritten, promises::ONE_ENTRY);
}

#[test]
fn a_completion_without_version_overwrites_another_one() {
    breaks(Mutation::CompleteWithoutVersion, promises::VERSION);
}

#[test]
fn a_completion_that_is_not_confirmed_publishes_an_entry_that_is_lost() {
    breaks(Mutation::CompletionWithoutConfirmation, promises::FOUND_OR_COMPARED);
}

#[test]
fn a_marker_on_another_server_publishes_an_entry_that_is_lost() {
    breaks(Mutation::MarkerOnAnotherServer, promises::FOUND_OR_COMPARED);
}

#[test]
fn an_old_copy_that_is_not_read_again_adds_a_second_entry() {
    breaks(Mutation::OldCopyNotReadAgain, promises::ONE_ENTRY);
}

#[test]
fn an_append_under_a_permit_that_outlives_a_marker_adds_a_second_entry() {
    breaks(Mutation::PermitOutlivesMarker, promises::ONE_ENTRY);
}

#[test]
fn an_entry_that_is_found_by_its_id_alone_may_be_that_of_another_route() {
    breaks(Mutation::EntryFoundByIdAlone, promises::REST);
}

#[test]
fn a_comparison_that_does_not_look_for_markers_adds_a_second_entry() {
    breaks(Mutation::AppendAgainWithoutMarker, promises::ONE_ENTRY);
}

#[test]
fn a_comparison_that_writes_no_marker_adds_a_second_entry() {
    breaks(Mutation::AppendAgainLeavesNoMarker, promises::ONE_ENTRY);
}

#[test]
fn a_comparison_before_the_settle_time_misses_what_is_completed_after_it() {
    breaks(Mutation::ComparisonBeforeSettle, promises::FIRST_COMPARISON);
}

#[test]
fn what_a_comparison_before_the_settle_time_misses_is_found_by_its_repetition() {
    let explored = explore(Publishing::without(Mutation::ComparisonBeforeSettle, 2, 1));
    assert_eq!(explored.violated, [promises::FIRST_COMPARISON]);
}

#[test]
fn a_comparison_that_appends_over_a_lease_adds_no_second_entry() {
    let explored = explore(Publishing::without(Mutation::AppendAgainOverLease, 2, 1));
    assert_eq!(explored.violated, Vec::<&str>::new());
}

#[test]
fn a_comparison_that_is_not_repeated_misses_late_statements() {
    breaks(Mutation::NoRepetition, promises::FOUND_OR_COMPARED);
}

#[test]
fn a_server_that_is_saved_before_its_comparison_is_never_compared_after_a_crash() {
    breaks(Mutation::SavedBeforeComparison, promises::FOUND_OR_COMPARED);
}

#[test]
fn a_comparison_that_counts_although_it_met_a_lease_misses_an_entry() {
    breaks(Mutation::HeldNotComparedAgain, promises::FOUND_OR_COMPARED);
}
