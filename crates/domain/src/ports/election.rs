//! Leadership of a key: what only one replica does at a time.

use std::future::Future;

use super::StoreError;
use crate::checkpoint::Fence;

/// Why a leader stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TermEnd {
    /// The term can no longer be relied on: before it ends for the others, by this process's own clock.
    Lost,
    /// An operator asked for it.
    StepDownRequested,
}

/// A leader's term: while it lasts, no other process has one with a higher fence.
pub trait Term: Send + Sync {
    /// Higher than the fence of every earlier term.
    fn fence(&self) -> Fence;

    /// Resolves when the leader must stop: the term can no longer be relied on, or it is to be handed over.
    fn over(&self) -> impl Future<Output = TermEnd> + Send;

    /// Ends the term, so that another process can win at once.
    fn step_down(self) -> impl Future<Output = ()> + Send;
}

/// The election of one process for work that runs on one replica at a time.
pub trait Election: Send + Sync {
    /// The leadership that the winner holds.
    type Term: Term;

    /// Campaigns once. `None` if another process leads.
    fn campaign(&self) -> impl Future<Output = Result<Option<Self::Term>, StoreError>> + Send;

    /// Returns when another campaign may succeed: soon after a leader steps down or its term ends, otherwise
    /// at an interval.
    fn leader_change(&self) -> impl Future<Output = ()> + Send;

    /// Makes the fences of all later terms higher than `floor`: for a database that was restored to an older
    /// state.
    fn raise_fence(&self, floor: Fence) -> impl Future<Output = Result<(), StoreError>> + Send;
}
