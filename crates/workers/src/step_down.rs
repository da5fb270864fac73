//! Hands over the leadership of intake when an operator requests it (ADR 0037).
//!
//! A leader looks for a request every [`STEP_DOWN_POLL_INTERVAL`]. The meaning of a request is a rule of
//! [`domain::step_down`]. The term ends as it does on a stop: the batch is finished, the lock is released,
//! and the leader-change notice is sent. If a look fails, the leader continues and looks again soon, so that
//! it reads a request before the request expires.
//!
//! Crash recovery: the time for which this replica does not campaign is not stored. After a restart it
//! campaigns at once, like a new replica.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{Election, Fence, StepDownStore, StoreError, Term, TermEnd, error_chain};
use domain::step_down::StepDownState;
use tokio::time::{Instant, sleep};

/// The interval at which a leader looks for a request to step down. It is long enough that an idle replica
/// sends PostgreSQL less than one query a second, and shorter than the time after which a request expires.
const STEP_DOWN_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The pause before a failed look is tried again.
const STEP_DOWN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a replica that has handed over checks whether it may campaign again.
const REST_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// An election whose leader hands over when an operator requests it. After that, the replica does not
/// campaign for a while.
#[derive(Debug)]
pub struct StepDownElection<E, S> {
    election: E,
    requests: Arc<StepDownRequests<S>>,
}

/// The requests of operators to this replica.
#[derive(Debug)]
struct StepDownRequests<S> {
    store: S,
    replica: String,
    /// The start of the time for which this replica does not campaign: set when it is to hand over, and again
    /// when it has released the lock.
    rests_since: Mutex<Option<Instant>>,
}

impl<E, S> StepDownElection<E, S> {
    /// Wraps the election, for the replica with this name.
    pub fn new(election: E, store: S, replica: &str) -> Self {
        let rests_since = Mutex::default();
        let requests = Arc::new(StepDownRequests { store, replica: replica.to_owned(), rests_since });
        Self { election, requests }
    }
}

impl<S: StepDownStore> StepDownRequests<S> {
    async fn state(&self) -> Option<StepDownState> {
        match self.store.get_step_down(&self.replica).await {
            Ok(state) => Some(state),
            Err(error) => {
                tracing::debug!(
                    error = error_chain(&error),
                    "could not look for a request to step down; looking again"
                );
                None
            }
        }
    }

    /// Resolves when a leader whose term began at `began` is to hand over.
    async fn requested(&self, began: Instant) {
        let mut pause = STEP_DOWN_POLL_INTERVAL;
        loop {
            sleep(pause).await;
            // Read before the request, so that the term does not seem longer than it is.
            let term = began.elapsed();
            let state = self.state().await;
            if state.is_some_and(|state| state.hands_over(term)) {
                *self.rests_since() = Some(Instant::now());
                return;
            }
            pause = if state.is_some() { STEP_DOWN_POLL_INTERVAL } else { STEP_DOWN_RETRY_INTERVAL };
        }
    }

    /// True if this replica has handed over and another one is to follow it.
    async fn rests(&self) -> bool {
        let Some(since) = *self.rests_since() else { return false };
        // If the store does not respond, another replica may be running.
        let unknown = StepDownState { requested_ago: None, other_replica: true };
        let state = self.state().await.unwrap_or(unknown);
        let rests = !state.may_campaign(since.elapsed());
        if !rests {
            *self.rests_since() = None;
        }
        rests
    }
}

impl<S> StepDownRequests<S> {
    /// Locks the start of the rest. Nothing panics while the lock is held.
    fn rests_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the lock was released. A replica that handed over on request begins its rest now,
    /// regardless of how long its last batch took.
    fn released(&self) {
        if let Some(since) = &mut *self.rests_since() {
            *since = Instant::now();
        }
    }
}

impl<E: Election, S: StepDownStore> Election for StepDownElection<E, S> {
    type Term = StepDownTerm<E::Term, S>;

    async fn campaign(&self) -> Result<Option<Self::Term>, StoreError> {
        if self.requests.rests().await {
            return Ok(None);
        }
        let began = Instant::now();
        let Some(term) = self.election.campaign().await? else { return Ok(None) };
        Ok(Some(StepDownTerm { term, began, requests: Arc::clone(&self.requests) }))
    }

    async fn leader_change(&self) {
        // The notice reaches only one replica. A replica that rests leaves it to the others.
        let rests = self.requests.rests_since().is_some();
        match rests {
            true => sleep(REST_POLL_INTERVAL).await,
            false => self.election.leader_change().await,
        }
    }

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        self.election.raise_fence(floor).await
    }
}

/// A term that also ends when an operator requests it.
#[derive(Debug)]
pub struct StepDownTerm<T, S> {
    term: T,
    began: Instant,
    requests: Arc<StepDownRequests<S>>,
}

impl<T: Term, S: StepDownStore> Term for StepDownTerm<T, S> {
    fn fence(&self) -> Fence {
        self.term.fence()
    }

    async fn over(&self) -> TermEnd {
        tokio::select! {
            biased;
            end = self.term.over() => end,
            () = self.requests.requested(self.began) => TermEnd::StepDownRequested,
        }
    }

    async fn step_down(self) {
        self.term.step_down().await;
        self.requests.released();
    }
}

#[cfg(test)]
mod tests {
    use domain::ports::ReplicaStore;
    use domain::replica::ReplicaReport;
    use domain::step_down::{STEP_DOWN_REST, StepDown};
    use memory_stores::{Effect, MemoryElection, MemoryReplicas, Scripted};
    use tokio::time::timeout;

    use super::*;
    use crate::fixtures::{World, down, now};

    type Candidate = StepDownElection<Scripted<MemoryElection>, Scripted<MemoryReplicas>>;

    async fn report(world: &World, replica: &str) {
        let report = ReplicaReport {
            replica: replica.to_owned(),
            version: "0.1.0".to_owned(),
            started_at: now(),
            leader_of: Vec::new(),
            workers: Vec::new(),
            stopped: false,
        };
        world.replicas.save_replica(&report).await.expect("the store is there");
    }

    async fn ask(world: &World, replica: &str) {
        let request = StepDown { replica: replica.into(), actor: "ops".into(), request_id: "r".into() };
        assert!(world.replicas.request_step_down(&request).await.expect("the store is there"));
    }

    fn candidate(world: &World, replica: &str) -> Candidate {
        StepDownElection::new(world.election.clone(), world.replicas.clone(), replica)
    }

    /// Advances the time of the replica and of the stores.
    async fn wait(world: &World, time: Duration) {
        world.clock.advance(time);
        tokio::time::sleep(time).await;
    }

    async fn win(candidate: &Candidate) -> Option<StepDownTerm<impl Term + use<>, Scripted<MemoryReplicas>>> {
        candidate.campaign().await.expect("the store is there")
    }

    async fn world(replicas: &[&str]) -> World {
        let world = World::new(now());
        for replica in replicas {
            report(&world, replica).await;
        }
        world
    }

    /// Longer than the interval of two looks. The clock of the stores stands still meanwhile.
    const SOON: Duration = Duration::from_secs(12);

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_asked_hands_over_and_campaigns_again_15_s_after_it_released_the_lock() {
        let world = world(&["a", "b"]).await;
        let (a, b) = (candidate(&world, "a"), candidate(&world, "b"));
        let term = win(&a).await.expect("no other leads");
        assert!(timeout(SOON, term.over()).await.is_err(), "it was not asked");
        ask(&world, "a").await;
        assert_eq!(timeout(SOON, term.over()).await, Ok(TermEnd::StepDownRequested));
        // The last batch takes 6 s.
        wait(&world, Duration::from_secs(6)).await;
        term.step_down().await;
        assert!(win(&a).await.is_none(), "it rests");
        let other = win(&b).await.expect("the other follows");
        // The request was made to the other replica.
        assert!(timeout(SOON, other.over()).await.is_err());
        world.clock.advance(SOON);
        other.step_down().await;
        wait(&world, STEP_DOWN_REST - SOON - Duration::from_millis(1)).await;
        assert!(win(&a).await.is_none(), "it rests");
        wait(&world, Duration::from_millis(1)).await;
        let again = win(&a).await.expect("it campaigns again");
        assert!(timeout(SOON, again.over()).await.is_err(), "the request is older than the term");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_runs_alone_continues_to_lead() {
        let world = world(&["a"]).await;
        let a = candidate(&world, "a");
        let term = win(&a).await.expect("no other leads");
        wait(&world, SOON).await;
        ask(&world, "a").await;
        assert!(timeout(SOON, term.over()).await.is_err());
        // The leader hands over once another replica starts before the request expires.
        report(&world, "b").await;
        assert_eq!(timeout(SOON, term.over()).await, Ok(TermEnd::StepDownRequested));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_rests_campaigns_as_soon_as_no_other_is_seen() {
        let world = world(&["a", "b"]).await;
        let a = candidate(&world, "a");
        let term = win(&a).await.expect("no other leads");
        world.clock.advance(Duration::from_secs(25));
        report(&world, "a").await;
        ask(&world, "a").await;
        assert_eq!(timeout(SOON, term.over()).await, Ok(TermEnd::StepDownRequested));
        term.step_down().await;
        assert!(win(&a).await.is_none(), "it rests");
        // The report of the other replica is older than 30 s.
        world.clock.advance(Duration::from_secs(6));
        assert!(win(&a).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_ends_no_term_and_no_rest_and_is_asked_again_after_a_second() {
        let world = world(&["a", "b"]).await;
        let a = candidate(&world, "a");
        let term = win(&a).await.expect("no other leads");
        wait(&world, SOON).await;
        ask(&world, "a").await;
        world.script.on("get_step_down", |_| Effect::Fail(down("get_step_down")));
        {
            let mut over = std::pin::pin!(term.over());
            assert!(timeout(SOON, &mut over).await.is_err());
            world.script.off("get_step_down");
            let soon = 2 * STEP_DOWN_RETRY_INTERVAL;
            assert_eq!(timeout(soon, over).await, Ok(TermEnd::StepDownRequested), "it looks again");
        }
        term.step_down().await;
        world.script.on("get_step_down", |_| Effect::Fail(down("get_step_down")));
        assert!(win(&a).await.is_none(), "it rests");
        tokio::time::sleep(STEP_DOWN_REST).await;
        assert!(win(&a).await.is_some(), "its time is over");
    }
}
