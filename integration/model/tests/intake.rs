//! The model of intake: the protocol keeps its promises, and no rule of it can be left out.

use model::intake::{Action, Intake, Mutation, promises};
use model::{always_ends, counterexample, explore};

/// The most faults on a path, besides the change of the server.
const FAULTS: u8 = 2;

#[test]
fn the_protocol_keeps_its_promises_in_every_state() {
    let explored = explore(Intake::new(FAULTS));
    println!("intake: {} states, depth {}, {:?}", explored.states, explored.depth, explored.time);
    assert_eq!((explored.violated, explored.unseen), (vec![], vec![]));
    assert_eq!(explored.states, 5_535_600, "the model has changed");
}

#[test]
fn every_path_ends() {
    assert!(always_ends(&Intake::new(1)));
}

/// Without this rule, a path leads to a violation of the promise.
fn breaks(mutation: Mutation, promise: &'static str) {
    let path = counterexample(Intake::without(mutation, 1), promise);
    let path = path.unwrap_or_else(|| panic!("without {mutation:?} nothing breaks: {promise}"));
    println!("{mutation:?}, {} steps:", path.len());
    for (state, step) in path {
        match step {
            Action::Work { replica, .. } => {
                println!("  replica {replica}: {:?}", state.replicas[usize::from(replica)].work);
            }
            step => println!("  {step:?}"),
        }
    }
}

#[test]
fn a_checkpoint_without_fence_is_moved_by_an_older_term() {
    breaks(Mutation::CheckpointWithoutFence, promises::FENCE);
}

#[test]
fn a_term_that_does_not_write_its_fence_is_passed_by_an_older_one() {
    breaks(Mutation::FenceNotWritten, promises::FENCE);
}

#[test]
fn a_checkpoint_that_is_not_compared_passes_entries_that_postgresql_lost() {
    breaks(Mutation::CheckpointWithoutEquality, promises::REST);
}

#[test]
fn a_checkpoint_that_only_advances_passes_entries_that_postgresql_lost() {
    breaks(Mutation::CheckpointOnlyAdvances, promises::REST);
}

#[test]
fn a_checkpoint_outside_of_the_transaction_passes_entries_without_outcome() {
    breaks(Mutation::CheckpointBeforeOutcomes, promises::REST);
}

#[test]
fn a_cached_checkpoint_without_fence_is_written_by_an_older_term() {
    breaks(Mutation::CacheWithoutFence, promises::CACHED_FENCE);
}

#[test]
fn a_key_that_is_not_unique_is_accepted_twice() {
    breaks(Mutation::KeyNotUnique, promises::ONCE);
}

#[test]
fn entries_before_the_checkpoint_of_a_stream_that_was_cut_are_not_read_if_the_cut_is_not_noticed() {
    breaks(Mutation::CutStreamNotNoticed, promises::REST);
}

#[test]
fn entries_of_a_stream_that_grew_again_are_not_read_if_the_witness_is_not_looked_for() {
    breaks(Mutation::WitnessNotLookedFor, promises::REST);
}

#[test]
fn entries_of_a_stream_that_grew_again_are_not_read_if_the_witness_is_recognised_by_its_id() {
    breaks(Mutation::WitnessWithoutContent, promises::REST);
}

#[test]
fn entries_that_arrived_after_a_cut_are_not_read_after_the_end_of_the_stream() {
    breaks(Mutation::ResumeAfterEnd, promises::REST);
}

#[test]
fn entries_of_another_server_are_not_read_if_its_identity_is_not_compared() {
    breaks(Mutation::ServerNotCompared, promises::REST);
}

#[test]
fn entries_of_another_server_are_not_read_if_the_first_connection_is_trusted() {
    breaks(Mutation::FirstConnectionTrusted, promises::REST);
}

#[test]
fn a_lost_commit_is_not_noticed_if_its_checkpoint_had_the_same_id() {
    breaks(Mutation::LostCommitWithSameId, promises::REST);
}
