//! Handover of the leadership of intake at an operator's request.
//!
//! The request is a time in the row of the replica. The store computes its age by its own clock, so no clocks
//! are compared. A request is valid for [`STEP_DOWN_REST`]: during that time the replica hands over if it
//! leads and another replica runs. Afterwards it does not campaign until [`STEP_DOWN_REST`] has passed since
//! it released the lock. A replica that runs alone continues to lead, since no other replica could take over.

use std::time::Duration;

use serde_json::{Value, json};

/// The validity of a request, and the time for which the replica does not campaign after its handover.
pub const STEP_DOWN_REST: Duration = Duration::from_secs(15);

/// An operator's request that a replica hand over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepDown {
    /// Name of the replica that leads.
    pub replica: String,
    /// The operator, `user@host`.
    pub actor: String,
    /// Id of the request in `operator_actions`.
    pub request_id: String,
}

impl StepDown {
    /// Name of the action in `operator_actions.action`.
    pub const ACTION: &'static str = "step_down";

    /// Value of `operator_actions.arguments`.
    pub fn arguments(&self) -> Value {
        json!({ "replica": self.replica })
    }
}

/// The last request as a replica read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepDownState {
    /// Age of the request; `None` if there was none.
    pub requested_ago: Option<Duration>,
    /// True if another replica has been seen within [`REPLICA_FRESH_FOR`](crate::query::REPLICA_FRESH_FOR).
    pub other_replica: bool,
}

impl StepDownState {
    /// True if a replica that has led for `term` must hand over now: the request is younger than its term and
    /// still valid.
    pub fn hands_over(&self, term: Duration) -> bool {
        self.other_replica && self.requested_ago.is_some_and(|ago| ago < term && ago < STEP_DOWN_REST)
    }

    /// True if a replica that released the lock `rested` ago may campaign.
    pub fn may_campaign(&self, rested: Duration) -> bool {
        rested >= STEP_DOWN_REST || !self.other_replica
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(ago: Option<u64>, other_replica: bool) -> StepDownState {
        StepDownState { requested_ago: ago.map(Duration::from_secs), other_replica }
    }

    #[test]
    fn a_leader_hands_over_for_a_request_of_its_term_that_counts_if_another_replica_runs() {
        for (ago, term, other_replica, expected) in [
            (None, 100, true, false),
            (Some(1), 100, true, true),
            (Some(1), 100, false, false),
            (Some(14), 100, true, true),
            (Some(15), 100, true, false),
            // The request precedes the term: the replica stepped down for it, or did not lead then.
            (Some(5), 5, true, false),
            (Some(5), 3, true, false),
        ] {
            let given = state(ago, other_replica);
            assert_eq!(given.hands_over(Duration::from_secs(term)), expected, "{given:?} {term}");
        }
    }

    #[test]
    fn a_replica_does_not_campaign_for_15_s_after_its_hand_over_unless_it_is_alone() {
        for (rested, other_replica, expected) in
            [(0, true, false), (14, true, false), (15, true, true), (0, false, true)]
        {
            // The age of the request does not matter: it may have been read late.
            for ago in [None, Some(0), Some(24)] {
                let given = state(ago, other_replica);
                assert_eq!(given.may_campaign(Duration::from_secs(rested)), expected, "{given:?} {rested}");
            }
        }
    }
}
