//! Publishing: leases, markers, versions, completions that wait, and the comparison after a change of server.
//!
//! Each of three routes is live at the beginning: its acceptance is committed. Each replica has one chunk of
//! one route at a time, and one completion that was deferred. All routes are of one channel.
//!
//! Time appears only as an order of steps, where the code relies on it: the settle time makes every
//! acknowledgement of the first server too old to be committed without confirmation ([`Action::Settle`]); the
//! repetition begins when no statement from before the first comparison is on its way; a marker expires only
//! when no completion waits for it, and makes the copies of its route old. Everything else may take any time.
//!
//! What is deliberately not in the model: trimming and consumers that delete, operators' changes, holds, the
//! scan lock, several channels, a stream that is absent or comes back empty, two comparisons at the same
//! time.

mod comparison;
mod properties;
mod publisher;
mod redis;
mod symmetry;
mod task;

use stateright::{Model, Property};

use crate::{Fault, Faults, REPLICAS, Server};
pub use comparison::{Ids, Saved, Watch};
pub use properties::promises;
pub use redis::{Key, Redis};
pub use task::{Completion, Place, Stage, Task};

/// The number of routes: one of each intent.
pub const ROUTES: usize = 3;

/// The rule that a broken protocol leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// The append does not look at the lease.
    AppendWithoutToken,
    /// The append leaves the lease as it is.
    MarkerNotWritten,
    /// A completion is written whatever the row is by then.
    CompleteWithoutVersion,
    /// A completion that waited is committed without a look at the stream.
    CompletionWithoutConfirmation,
    /// A marker is renewed on a server that has not acknowledged its entry.
    MarkerOnAnotherServer,
    /// A copy that is older than a marker lives is appended without reading the route again.
    OldCopyNotReadAgain,
    /// A copy that is older than a marker lives is appended under a permit.
    PermitOutlivesMarker,
    /// An entry is found by its id alone.
    EntryFoundByIdAlone,
    /// The comparison appends without looking for a marker.
    AppendAgainWithoutMarker,
    /// The comparison appends and writes no marker.
    AppendAgainLeavesNoMarker,
    /// The comparison appends over a lease.
    AppendAgainOverLease,
    /// The comparison begins at once.
    ComparisonBeforeSettle,
    /// The comparison is not repeated.
    NoRepetition,
    /// The observation of the new server is saved before the comparison.
    SavedBeforeComparison,
    /// A comparison that met a lease counts as complete.
    HeldNotComparedAgain,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Publishing {
    /// The rule that is left out.
    pub mutation: Option<Mutation>,
    /// The number of routes that are live at the beginning. If it is not all, the last one is published.
    pub live: usize,
    /// The most faults on a path, besides the change of the server.
    pub faults: u8,
}

/// A row of `routes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Row {
    /// The version, which rises with each change.
    pub version: u8,
    /// The id of the entry; `None` while the route is live.
    pub entry: Option<u8>,
}

/// A replica: its chunk and its deferred completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Replica {
    /// The chunk.
    pub task: Task,
    /// The deferred completion.
    pub deferred: Option<Completion>,
}

/// The state of the servers and of the memory of the replicas.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct State {
    /// The rows in PostgreSQL.
    pub rows: [Row; ROUTES],
    /// The saved observation in PostgreSQL.
    pub saved: Saved,
    /// Redis.
    pub redis: Redis,
    /// The replicas.
    pub replicas: [Replica; REPLICAS],
    /// The comparison.
    pub watch: Watch,
    /// True once both stores have responded for the settle time after the change.
    pub is_settled: bool,
    /// The faults that may still happen.
    pub faults: Faults,
    /// Routes whose completion was on its way when the settle time was over. Nothing decides by it.
    pub was_in_flight: [bool; ROUTES],
    /// True if a publisher changed a row that it had not read as it was. Nothing decides by it.
    pub was_overwritten: bool,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are named after what they are")]
pub enum Action {
    /// PostgreSQL lists a due route for a replica, or hands it over after acceptance.
    Read { replica: u8, route: u8 },
    /// Redis acquires the lease, or returns the marker.
    Lease { replica: u8 },
    /// Redis acquires the lease, and the reply is lost.
    LoseLeaseReply { replica: u8 },
    /// PostgreSQL returns a route whose copy is old, if it is still live.
    ReadAgain { replica: u8 },
    /// Redis appends the entry and writes the marker, or returns what it finds.
    Append { replica: u8 },
    /// The same, and the reply is lost.
    LoseAppendReply { replica: u8 },
    /// Redis appends the entry of a route that nobody has leased, under a permit, and writes the marker, or
    /// returns what it finds.
    AppendUnderPermit { replica: u8 },
    /// The same, and the reply is lost.
    LoseReplyUnderPermit { replica: u8 },
    /// The stream refuses the entry.
    Refuse { replica: u8 },
    /// PostgreSQL counts a failed attempt.
    Fail { replica: u8 },
    /// PostgreSQL completes the route.
    Commit { replica: u8, place: Place },
    /// Redis looks for the entry of a completion that waited.
    Confirm { replica: u8, place: Place },
    /// PostgreSQL cannot commit the completion, or does not say that it did.
    Defer { replica: u8, committed: bool },
    /// Redis renews the marker of a completion that waits.
    Renew { replica: u8, place: Place },
    /// The lease of a process that forgot it expires.
    ExpireAbandoned { route: u8 },
    /// The lease of a process that goes on expires.
    ExpireLease { route: u8 },
    /// The marker of a completed route expires.
    ExpireMarker { route: u8 },
    /// A process dies and starts again. It is the one that compares if `compares`.
    Crash { replica: u8, compares: bool },
    /// The Redis server is replaced: the `kept` oldest entries are there, and their markers; leases and the
    /// leases that lost markers had replaced are there if `leases`; lost ids are given again if `is_behind`.
    Change { kept: u8, leases: bool, is_behind: bool },
    /// Both stores have responded for the settle time. Completions of the first server need a confirmation,
    /// but those in the mask are on their way to PostgreSQL.
    Settle { in_flight: u8 },
    /// A replica begins a comparison, or its repetition: PostgreSQL returns the published entries.
    List,
    /// Redis looks for these entries.
    Find,
    /// Redis appends missing entries again, unless a marker or a lease is there.
    AppendAgain,
    /// The same, and the reply is lost.
    LoseAppendAgainReply,
    /// PostgreSQL records the new ids.
    Record,
    /// PostgreSQL saves the observation.
    Save,
}

impl Publishing {
    /// The protocol as it is.
    pub fn new(live: usize, faults: u8) -> Self {
        Self { mutation: None, live, faults }
    }

    /// The protocol without one rule.
    pub fn without(mutation: Mutation, live: usize, faults: u8) -> Self {
        Self { mutation: Some(mutation), live, faults }
    }

    fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The steps that the service, or time alone, takes sooner or later.
    fn steps(&self, state: &State, steps: &mut Vec<Action>) {
        for replica in 0..REPLICAS as u8 {
            self.publisher_steps(state, replica, steps);
        }
        steps.extend((0..ROUTES as u8).map(|route| Action::ExpireAbandoned { route }));
        self.comparison_steps(state, steps);
    }

    /// The steps that may never happen.
    fn faults(&self, state: &State, steps: &mut Vec<Action>) {
        steps.extend((0..ROUTES as u8).map(|route| Action::ExpireMarker { route }));
        if state.redis.server == Server::First {
            for kept in 0..=state.redis.length() {
                for (leases, is_behind) in [(true, false), (true, true), (false, false), (false, true)] {
                    steps.push(Action::Change { kept, leases, is_behind });
                }
            }
        }
        if state.faults.is_none() {
            return;
        }
        for replica in 0..REPLICAS as u8 {
            steps.extend([
                Action::LoseLeaseReply { replica },
                Action::LoseAppendReply { replica },
                Action::LoseReplyUnderPermit { replica },
                Action::Refuse { replica },
                Action::Defer { replica, committed: false },
                Action::Defer { replica, committed: true },
                Action::Crash { replica, compares: false },
                Action::Crash { replica, compares: true },
            ]);
        }
        steps.extend((0..ROUTES as u8).map(|route| Action::ExpireLease { route }));
        steps.push(Action::LoseAppendAgainReply);
    }

    /// True if nothing more happens without a fault.
    fn is_at_rest(&self, state: &State) -> bool {
        let mut steps = Vec::with_capacity(16);
        self.steps(state, &mut steps);
        steps.into_iter().all(|step| self.next_state(state, step).is_none())
    }
}

impl State {
    /// True if the row names an entry that is in the stream as that of this route.
    fn has_entry(&self, route: usize) -> bool {
        self.rows[route].entry.is_some_and(|id| self.redis.is_entry_of(id, route))
    }

    /// True if a comparison will still look at every published route.
    fn is_to_be_compared(&self) -> bool {
        self.redis.server == Server::Second && (self.saved != Saved::Second || self.watch.is_running())
    }
}

impl Model for Publishing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let entry = |route: usize| (route >= self.live).then_some(0);
        vec![State {
            rows: std::array::from_fn(|route| Row { version: 1, entry: entry(route) }),
            saved: Saved::First,
            redis: Redis::with_first_of((self.live < ROUTES).then_some(ROUTES - 1)),
            replicas: [Replica { task: Task::Idle, deferred: None }; REPLICAS],
            watch: Watch::Idle,
            is_settled: false,
            faults: Faults::at_most(self.faults),
            was_in_flight: [false; ROUTES],
            was_overwritten: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.steps(state, actions);
        self.faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Read { replica, route } => next.read(replica, route),
            Action::Lease { replica } => next.lease(replica),
            Action::LoseLeaseReply { replica } => {
                next.faults = state.faults.after(Fault::LostReply)?;
                next.lease(replica)?;
                next.forget_reply(state, replica)
            }
            Action::ReadAgain { replica } => next.read_again(replica),
            Action::Append { replica } => self.append(&mut next, replica),
            Action::LoseAppendReply { replica } => {
                next.faults = state.faults.after(Fault::LostReply)?;
                self.append(&mut next, replica)?;
                next.forget_reply(state, replica)
            }
            Action::AppendUnderPermit { replica } => self.append_under_permit(&mut next, replica),
            Action::LoseReplyUnderPermit { replica } => {
                next.faults = state.faults.after(Fault::LostReply)?;
                self.append_under_permit(&mut next, replica)?;
                next.forget_reply(state, replica)
            }
            Action::Refuse { replica } => {
                next.faults = state.faults.after(Fault::Refusal)?;
                next.refuse(replica)
            }
            Action::Fail { replica } => self.fail(&mut next, replica),
            Action::Commit { replica, place } => self.commit(&mut next, replica, place),
            Action::Confirm { replica, place } => self.confirm(&mut next, replica, place),
            Action::Defer { replica, committed } => {
                next.faults = state.faults.after(Fault::Deferral)?;
                self.defer(&mut next, replica, committed)
            }
            Action::Renew { replica, place } => self.renew(&mut next, replica, place),
            Action::ExpireAbandoned { route } => next.expire_abandoned(route.into()),
            Action::ExpireLease { route } => {
                next.faults = state.faults.after(Fault::Expiry)?;
                next.expire_lease(route.into())
            }
            Action::ExpireMarker { route } => next.expire_marker(route.into()),
            Action::Crash { replica, compares } => {
                next.faults = state.faults.after(Fault::Crash)?;
                next.crash(replica, compares)
            }
            Action::Change { kept, leases, is_behind } => next.change_server(kept, leases, is_behind),
            Action::Settle { in_flight } => next.settle(in_flight),
            Action::List => self.list(&mut next),
            Action::Find => self.find(&mut next),
            Action::AppendAgain => self.append_again(&mut next),
            Action::LoseAppendAgainReply => {
                next.faults = state.faults.after(Fault::LostReply)?;
                self.append_again(&mut next)?;
                next.watch = state.watch;
                Some(())
            }
            Action::Record => next.record(),
            Action::Save => self.save(&mut next),
        }?;
        next.forget_what_is_past();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::properties()
    }
}
