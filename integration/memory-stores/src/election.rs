//! The election of one of several candidates.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{Election, Fence, LeaderLookup, StoreError, Term, TermEnd};
use domain::query::LeaderTerm;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::lock;

/// The interval at which a candidate campaigns if no leader change is reported.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The leadership of a key. Clones are candidates for the same one. A term ends when its leader steps down or
/// the test ends it; a dropped term continues, as after a crash.
#[derive(Clone, Debug, Default)]
pub struct MemoryElection(Arc<SharedElection>);

#[derive(Debug, Default)]
struct SharedElection {
    state: Mutex<ElectionState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ElectionState {
    /// The fence of the newest term, or a higher one to which it was raised.
    fence: Fence,
    leader: Option<Leader>,
    /// True if the newest term ended without its leader stepping down.
    expired: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leader {
    /// The term with this fence.
    Term(Fence),
    /// A process that the test does not run.
    Elsewhere,
}

/// A term.
#[derive(Debug)]
pub struct MemoryTerm {
    shared: Arc<SharedElection>,
    fence: Fence,
}

impl MemoryElection {
    /// Makes another process the leader. The current term, if there is one, is lost.
    pub fn let_another_lead(&self) {
        self.change(|state| {
            state.fence += 1;
            state.leader = Some(Leader::Elsewhere);
        });
    }

    /// Ends the current term, as when its lease expires: it is lost, and the next candidate wins.
    pub fn end_term(&self) {
        self.change(|state| (state.leader, state.expired) = (None, true));
    }

    fn change(&self, change: impl FnOnce(&mut ElectionState)) {
        change(&mut lock(&self.0.state));
        self.0.changed.notify_waiters();
    }
}

impl Election for MemoryElection {
    type Term = MemoryTerm;

    async fn campaign(&self) -> Result<Option<MemoryTerm>, StoreError> {
        let mut state = lock(&self.0.state);
        if state.leader.is_some() {
            return Ok(None);
        }
        state.fence += 1;
        (state.leader, state.expired) = (Some(Leader::Term(state.fence)), false);
        Ok(Some(MemoryTerm { shared: Arc::clone(&self.0), fence: state.fence }))
    }

    async fn leader_change(&self) {
        let changed = self.0.changed.notified();
        if lock(&self.0.state).leader.is_some() {
            // A timeout ends the wait, too.
            drop(timeout(POLL_INTERVAL, changed).await);
        }
    }

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        let mut state = lock(&self.0.state);
        state.fence = state.fence.max(floor);
        Ok(())
    }
}

impl LeaderLookup for MemoryElection {
    /// Each term begins a millisecond after the previous one, whatever the time.
    async fn leader(&self) -> Result<Option<LeaderTerm>, StoreError> {
        let state = lock(&self.0.state);
        let fence = state.fence;
        let since =
            Timestamp::from_millis(i64::try_from(fence).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX);
        Ok(state.leader.map(|_| LeaderTerm { since, fence }))
    }

    /// A term that ended without its leader stepping down has its start as its end.
    async fn last_term_end(&self) -> Result<Option<Timestamp>, StoreError> {
        let state = lock(&self.0.state);
        let millis = i64::try_from(state.fence).unwrap_or(i64::MAX);
        Ok((state.leader.is_none() && state.expired)
            .then(|| Timestamp::from_millis(millis).unwrap_or(Timestamp::MAX)))
    }
}

impl MemoryTerm {
    fn is_current(&self) -> bool {
        lock(&self.shared.state).leader == Some(Leader::Term(self.fence))
    }
}

impl Term for MemoryTerm {
    fn fence(&self) -> Fence {
        self.fence
    }

    async fn over(&self) -> TermEnd {
        loop {
            let changed = self.shared.changed.notified();
            if !self.is_current() {
                return TermEnd::Lost;
            }
            changed.await;
        }
    }

    async fn step_down(self) {
        if self.is_current() {
            lock(&self.shared.state).leader = None;
            self.shared.changed.notify_waiters();
        }
    }
}
