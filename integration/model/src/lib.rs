//! A model of the protocol between the replicas, PostgreSQL and Redis, explored completely by stateright.
//!
//! Two models share this file and [`Faults`]. The product of both would be too large, and they meet at one
//! place only: a committed row of a route.
//!
//! * [`intake`]: terms and fences, reading, the acceptance transaction, both checkpoints, and a stream that
//!   lost its tail.
//! * [`publishing`]: leases, markers, versions, completions that wait, and the comparison after a change of
//!   server.
//!
//! Both have two replicas, three intents and at most one change of the Redis server. A step of a model is
//! what one server does at once: a command, a script or a transaction. Between any two steps the other
//! replica may act, and a fault may happen. The rules that need no server are those of the crate `domain`
//! itself. The README lists the assumptions and where the code must keep them.

pub mod intake;
pub mod publishing;

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Representative};

/// The number of replicas.
pub const REPLICAS: usize = 2;

/// The Redis server, before its change and after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Server {
    /// The server at the beginning.
    First,
    /// The server after its restart, or after it was restored to an older state.
    Second,
}

/// A failure, other than the change of the Redis server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A process dies and starts again without its memory.
    Crash,
    /// A lease, or the lock of a term, expires while its holder continues.
    Expiry,
    /// A server acts, and its reply is lost.
    LostReply,
    /// PostgreSQL cannot commit a completion for now.
    Deferral,
    /// The outbound stream refuses an entry.
    Refusal,
    /// PostgreSQL loses its last transaction.
    LostCommit,
    /// The HTTP API accepts an intent with the key of an entry of the stream.
    Submission,
    /// A producer sends an intent a second time.
    Copy,
}

/// The failures that may still happen: each kind once, and a number of them in all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Faults {
    left: u8,
    spent: u8,
}

impl Faults {
    /// At most `left` failures of different kinds.
    pub fn at_most(left: u8) -> Self {
        Self { left, spent: 0 }
    }

    /// True if no more may happen.
    pub fn is_none(self) -> bool {
        self.left == 0
    }

    /// The failures that are left after this one; `None` if it may not happen.
    #[must_use]
    pub fn after(self, fault: Fault) -> Option<Self> {
        let kind = 1 << fault as u8;
        let may_happen = self.left > 0 && self.spent & kind == 0;
        // When none is left, it does not matter which ones happened.
        let spent = if self.left > 1 { self.spent | kind } else { 0 };
        may_happen.then(|| Self { left: self.left - 1, spent })
    }
}

/// The result of a complete exploration.
#[derive(Debug)]
pub struct Exploration {
    /// The number of different states, up to symmetry.
    pub states: usize,
    /// The length of the longest path that was followed.
    pub depth: usize,
    /// The time that it took.
    pub time: Duration,
    /// The names of the violated promises.
    pub violated: Vec<&'static str>,
    /// The names of the situations that do not occur.
    pub unseen: Vec<&'static str>,
}

/// Explores every state of a model.
pub fn explore<M>(model: M) -> Exploration
where
    M: Model + Send + Sync + 'static,
    M::State: Representative + Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let started = Instant::now();
    let checker = model.checker().symmetry().spawn_dfs().join();
    assert!(checker.is_done(), "the exploration ended early");
    let found = checker.discoveries();
    let (mut violated, mut unseen) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        match (property.expectation.discovery_is_failure(), found.contains_key(property.name)) {
            (true, true) => violated.push(property.name),
            (false, false) => unseen.push(property.name),
            _ => {}
        }
    }
    for name in &violated {
        println!("{name}:");
        found[name].clone().into_actions().iter().for_each(|step| println!("  {step:?}"));
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Exploration { states, depth, time: started.elapsed(), violated, unseen }
}

/// Returns a shortest path to a violation of the promise with this name: each step, with the state before it.
pub fn counterexample<M>(model: M, promise: &'static str) -> Option<Vec<(M::State, M::Action)>>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let until = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    let path = checker.discovery(promise)?.into_vec();
    Some(path.into_iter().filter_map(|(state, step)| Some((state, step?))).collect())
}

/// True if no path returns to a state, up to symmetry. Then every path ends at a state at rest.
pub fn always_ends<M>(model: &M) -> bool
where
    M: Model,
    M::State: Representative + Clone + Eq + Hash,
{
    enum Visit<S> {
        Enter(S),
        Leave(S),
    }
    let mut is_left = HashMap::new();
    let mut visits: Vec<_> = model.init_states().into_iter().map(Visit::Enter).collect();
    while let Some(visit) = visits.pop() {
        let state = match visit {
            Visit::Enter(state) => state,
            Visit::Leave(state) => {
                is_left.insert(state, true);
                continue;
            }
        };
        match is_left.get(&state) {
            Some(true) => continue,
            Some(false) => return false,
            None => {}
        }
        let next = model.next_states(&state);
        visits.push(Visit::Leave(state.clone()));
        visits.extend(next.into_iter().map(|next| Visit::Enter(next.representative())));
        is_left.insert(state, false);
    }
    true
}
