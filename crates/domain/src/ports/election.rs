//! Leadership of a key: election for work that only one replica does at a time.

use std::future::Future;

use super::StoreError;
use crate::checkpoint::Fence;

/// The reason why a leader stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TermEnd {
    /// The term is no longer reliable. The leader's own clock ends it before it ends for the others.
    Lost,
    /// An operator requested it.
    StepDownRequested,
}

/// A leader's term. While it lasts, no other process has a term with a higher fence.
pub trait Term: Send + Sync {
    /// The fence, higher than that of every earlier term.
    fn fence(&self) -> Fence;

    /// Resolves when the leader must stop: the term is no longer reliable, or an operator requested a
    /// handover.
    fn over(&self) -> impl Future<Output = TermEnd> + Send;

    /// Ends the term, so that another process can win at once.
    fn step_down(self) -> impl Future<Output = ()> + Send;
}

/// The election of one process for work that only one replica does at a time.
pub trait Election: Send + Sync {
    /// The term of the winner.
    type Term: Term;

    /// Campaigns once. `None` if another process leads.
    fn campaign(&self) -> impl Future<Output = Result<Option<Self::Term>, StoreError>> + Send;

    /// Waits until another campaign may succeed: until soon after a leader steps down or its term ends,
    /// otherwise at an interval.
    fn leader_change(&self) -> impl Future<Output = ()> + Send;

    /// Makes the fences of all later terms higher than `floor`, for a database that was restored to an older
    /// state.
    fn raise_fence(&self, floor: Fence) -> impl Future<Output = Result<(), StoreError>> + Send;
}
