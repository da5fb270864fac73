//! Handing over the leadership of intake at an operator's request.
//!
//! The request is a time in the row of the replica. How old it is, the store says by its own clock, so that
//! no clocks are compared. A request counts for [`STEP_DOWN_REST`]: until then the replica hands over if it
//! leads and another replica runs. After that it does not campaign for [`STEP_DOWN_REST`] since it released
//! the lock. A replica that runs alone continues to lead, since no other could follow it.

use std::time::Duration;

use serde_json::{Value, json};

/// How long a request counts, and how long after its hand-over the replica does not campaign.
pub const STEP_DOWN_REST: Duration = Duration::from_secs(15);

/// A request by an operator that a replica hand over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepDown {
    /// The replica that leads.
    pub replica: String,
    /// `user@host`.
    pub actor: String,
    /// Names the request in `operator_actions`.
    pub request_id: String,
}

impl StepDown {
    /// As it is spelled in `operator_actions.action`.
    pub const ACTION: &'static str = "step_down";

    /// `operator_actions.arguments`.
    pub fn arguments(&self) -> Value {
        json!({ "replica": self.replica })
    }
}

/// What a replica knows of the last request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepDownState {
    /// How long ago it was made; `None` if none was.
    pub requested_ago: Option<Duration>,
    /// Whether another replica has been seen within [`REPLICA_FRESH_FOR`](crate::query::REPLICA_FRESH_FOR).
    pub other_replica: bool,
}

impl StepDownState {
    /// Whether a replica that has led for `term` hands over now: the request is younger than its term and
    /// still counts.
    pub fn hands_over(&self, term: Duration) -> bool {
        self.other_replica && self.requested_ago.is_some_and(|ago| ago < term && ago < STEP_DOWN_REST)
    }

    /// Whether a replica that released the lock `rested` ago may campaign.
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
            // Made before the term: the replica has stepped down for it, or did not lead.
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
            // The age of the request makes no difference: it may have been read late.
            for ago in [None, Some(0), Some(24)] {
                let given = state(ago, other_replica);
                assert_eq!(given.may_campaign(Duration::from_secs(rested)), expected, "{given:?} {rested}");
            }
        }
    }
}
