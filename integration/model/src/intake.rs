//! Intake: terms and fences, reading, the acceptance transaction, both checkpoints, and a stream that lost
//! its tail.
//!
//! Producers append three entries: three intents, or two and one of them a second time. The recipients of an
//! intent are not modelled: an entry is accepted, or is a duplicate of its key. A term reads all entries
//! after its position, or one; what is read ahead while a batch is committed is the same as a slow commit.
//!
//! What is deliberately not in the model: malformed entries and entries that wait, trimming and consumers
//! that delete, the retention of records, a PostgreSQL that loses more than its last transaction, and the
//! counter of fences going back.

mod properties;
mod redis;
mod term;

use stateright::{Model, Property, Representative};

use crate::{Fault, Faults, REPLICAS, Server};
pub use properties::promises;
pub use redis::{Entries, Entry, Redis};
pub use term::{Position, Work};

/// The number of intents.
pub const INTENTS: usize = 3;

/// The rule that a broken protocol leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// The durable checkpoint is moved whatever fence it has.
    CheckpointWithoutFence,
    /// The durable checkpoint is moved whatever entry it has.
    CheckpointWithoutEquality,
    /// The durable checkpoint is moved if that advances it.
    CheckpointOnlyAdvances,
    /// The durable checkpoint is moved before the outcomes are written.
    CheckpointBeforeOutcomes,
    /// A term does not write its fence before it reads.
    FenceNotWritten,
    /// The cached checkpoint is written whatever fence it has.
    CacheWithoutFence,
    /// Records are inserted although their key was taken since it was looked up.
    KeyNotUnique,
    /// A stream that ends before the checkpoint is not noticed.
    CutStreamNotNoticed,
    /// A stream that reaches beyond the checkpoint is not searched for the processed entry.
    WitnessNotLookedFor,
    /// The processed entry is recognised by its id alone.
    WitnessWithoutContent,
    /// After a loss, intake resumes after the end of the stream.
    ResumeAfterEnd,
    /// The identity of the server is not compared before a read.
    ServerNotCompared,
    /// A reader takes the server of its first connection for that on which the term resumed.
    FirstConnectionTrusted,
    /// PostgreSQL loses a transaction that moved the checkpoint to another entry with the same id.
    LostCommitWithSameId,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    /// The rule that is left out.
    pub mutation: Option<Mutation>,
    /// The most faults on a path, besides the change of the server.
    pub faults: u8,
}

/// The durable checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Checkpoint {
    /// The last processed entry, with its content.
    pub entry: Entry,
    /// The fence of the term that wrote it.
    pub fence: u8,
}

/// The records and the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Accepted {
    /// The durable checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// For each intent, the entry under whose id its record is; 0 for an intent that came by HTTP.
    pub records: [Option<u8>; INTENTS],
}

/// PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Postgres {
    /// The replica that holds the lock.
    pub leader: Option<u8>,
    /// The fence of the last term.
    pub fence: u8,
    /// The present rows.
    pub accepted: Accepted,
    /// The rows before the last transaction, if that was an acceptance and nothing was written since.
    pub before: Option<Accepted>,
}

/// A replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Replica {
    /// The work of the term.
    pub work: Work,
    /// The server of the last connection of the reader.
    pub reader: Option<Server>,
}

/// The state of the servers and of the memory of the replicas.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct State {
    /// PostgreSQL.
    pub postgres: Postgres,
    /// Redis.
    pub redis: Redis,
    /// The replicas.
    pub replicas: [Replica; REPLICAS],
    /// The number of entries that were sent.
    pub sends: u8,
    /// The entry of each intent that was sent, when it was sent first.
    pub sent: [Option<u8>; INTENTS],
    /// The faults that may still happen.
    pub faults: Faults,
    /// The highest fence that a term has shown to the durable checkpoint. Nothing decides by it.
    pub shown_fence: u8,
    /// True if an older term moved the durable checkpoint. Nothing decides by it.
    pub was_moved_by_older: bool,
    /// True if an older term wrote the cached checkpoint. Nothing decides by it.
    pub was_cached_by_older: bool,
    /// True if an intent was accepted twice. Nothing decides by it.
    pub was_accepted_twice: bool,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are named after what they are")]
pub enum Action {
    /// PostgreSQL grants the lock and the next fence.
    Campaign { replica: u8 },
    /// A replica notices that its term is over.
    StepDown { replica: u8 },
    /// The next step of the work of a term. `only_one`: a read returns one entry although there are more.
    Work { replica: u8, only_one: bool },
    /// The same, and the reply of PostgreSQL to a commit is lost.
    LoseCommitReply { replica: u8 },
    /// An idle term finds that the stream or the durable checkpoint is another one.
    CheckIdle { replica: u8 },
    /// A producer appends the next intent.
    Send,
    /// A producer appends an intent again.
    SendCopy { intent: u8 },
    /// The HTTP API accepts an intent.
    Submit { intent: u8 },
    /// The lock expires while its holder continues.
    ExpireLock,
    /// A process dies and starts again.
    Crash { replica: u8 },
    /// PostgreSQL loses its last transaction.
    LoseCommit,
    /// The Redis server is replaced: the `kept` oldest entries are there, and the cached checkpoint if
    /// `keeps_cache`; lost ids are given again if `is_behind`.
    Change { kept: u8, keeps_cache: bool, is_behind: bool },
}

impl Intake {
    /// The protocol as it is.
    pub fn new(faults: u8) -> Self {
        Self { mutation: None, faults }
    }

    /// The protocol without one rule.
    pub fn without(mutation: Mutation, faults: u8) -> Self {
        Self { mutation: Some(mutation), faults }
    }

    fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The steps that the service, or time alone, takes sooner or later.
    fn steps(&self, steps: &mut Vec<Action>) {
        for replica in 0..REPLICAS as u8 {
            steps.extend([
                Action::Campaign { replica },
                Action::StepDown { replica },
                Action::Work { replica, only_one: false },
                Action::CheckIdle { replica },
            ]);
        }
    }

    /// The steps that may never happen.
    fn faults(&self, state: &State, steps: &mut Vec<Action>) {
        steps.extend((0..REPLICAS as u8).map(|replica| Action::Work { replica, only_one: true }));
        steps.push(Action::Send);
        if state.redis.server == Server::First {
            for kept in 0..=state.redis.entries.len() as u8 {
                for (keeps_cache, is_behind) in [(true, false), (true, true), (false, false), (false, true)] {
                    steps.push(Action::Change { kept, keeps_cache, is_behind });
                }
            }
        }
        if state.faults.is_none() {
            return;
        }
        for replica in 0..REPLICAS as u8 {
            steps.extend([Action::LoseCommitReply { replica }, Action::Crash { replica }]);
        }
        for intent in 0..INTENTS as u8 {
            steps.extend([Action::SendCopy { intent }, Action::Submit { intent }]);
        }
        steps.extend([Action::ExpireLock, Action::LoseCommit]);
    }

    /// True if nothing more happens without a fault or an intent.
    fn is_at_rest(&self, state: &State) -> bool {
        let mut steps = Vec::with_capacity(4 * REPLICAS);
        self.steps(&mut steps);
        steps.into_iter().all(|step| self.next_state(state, step).is_none())
    }
}

impl State {
    fn replica(&mut self, replica: u8) -> &mut Replica {
        &mut self.replicas[usize::from(replica)]
    }

    fn campaign(&mut self, replica: u8) -> Option<()> {
        if self.postgres.leader.is_some() || self.replica(replica).work != Work::Idle {
            return None;
        }
        self.postgres.fence += 1;
        self.postgres.leader = Some(replica);
        self.postgres.before = None;
        self.replica(replica).work = Work::Claim { fence: self.postgres.fence };
        Some(())
    }

    /// Ends a term, and releases the lock if the replica still holds it.
    fn end_term(&mut self, replica: u8) {
        self.replica(replica).work = Work::Idle;
        if self.postgres.leader == Some(replica) {
            self.postgres.leader = None;
        }
    }

    fn crash(&mut self, replica: u8) -> Option<()> {
        self.end_term(replica);
        self.replica(replica).reader = None;
        Some(())
    }

    fn send(&mut self, intent: u8) -> Option<()> {
        if usize::from(self.sends) == INTENTS {
            return None;
        }
        self.sends += 1;
        let first = &mut self.sent[usize::from(intent)];
        let id = self.redis.add(intent, *first);
        first.get_or_insert(id);
        Some(())
    }

    fn submit(&mut self, intent: u8) -> Option<()> {
        let record = &mut self.postgres.accepted.records[usize::from(intent)];
        let is_new = record.is_none();
        record.get_or_insert(0);
        self.postgres.before = None;
        is_new.then_some(())
    }

    /// Loses the last transaction, unless it wrote the first checkpoint, or one with the id of the checkpoint
    /// before it: no statement could tell the two apart.
    fn lose_commit(&mut self, may_have_same_id: bool) -> Option<()> {
        let before = self.postgres.before.take()?;
        let id = |accepted: &Accepted| accepted.checkpoint.map(|checkpoint| checkpoint.entry.id);
        let is_lost =
            before.checkpoint.is_some() && (may_have_same_id || id(&before) != id(&self.postgres.accepted));
        is_lost.then(|| self.postgres.accepted = before)
    }
}

impl Representative for State {
    /// Replicas differ in nothing but their number.
    fn representative(&self) -> Self {
        let [one, other] = self.replicas;
        let mut swapped = Self { replicas: [other, one], ..*self };
        swapped.postgres.leader = self.postgres.leader.map(|leader| 1 - leader);
        swapped.min(*self)
    }
}

impl Model for Intake {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            postgres: Postgres::default(),
            redis: Redis::default(),
            replicas: [Replica { work: Work::Idle, reader: None }; REPLICAS],
            sends: 0,
            sent: [None; INTENTS],
            faults: Faults::at_most(self.faults),
            shown_fence: 0,
            was_moved_by_older: false,
            was_cached_by_older: false,
            was_accepted_twice: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.steps(actions);
        self.faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Campaign { replica } => next.campaign(replica),
            Action::StepDown { replica } => {
                let is_over = state.postgres.leader != Some(replica);
                next.end_term(replica);
                is_over.then_some(())
            }
            Action::Work { replica, only_one } => self.work(&mut next, replica, only_one),
            Action::LoseCommitReply { replica } => {
                next.faults = state.faults.after(Fault::LostReply)?;
                let Work::Commit { at, .. } = state.replicas[usize::from(replica)].work else { return None };
                self.work(&mut next, replica, false)?;
                next.replica(replica).work = Work::Claim { fence: at.fence };
                Some(())
            }
            Action::CheckIdle { replica } => self.check_idle(&mut next, replica),
            Action::Send => {
                let intent = state.sent.iter().position(Option::is_none)?;
                next.send(intent as u8)
            }
            Action::SendCopy { intent } => {
                next.faults = state.faults.after(Fault::Copy)?;
                state.sent[usize::from(intent)]?;
                next.send(intent)
            }
            Action::Submit { intent } => {
                next.faults = state.faults.after(Fault::Submission)?;
                next.submit(intent)
            }
            Action::ExpireLock => {
                next.faults = state.faults.after(Fault::Expiry)?;
                next.postgres.leader.take().map(drop)
            }
            Action::Crash { replica } => {
                next.faults = state.faults.after(Fault::Crash)?;
                next.crash(replica)
            }
            Action::LoseCommit => {
                next.faults = state.faults.after(Fault::LostCommit)?;
                next.lose_commit(self.lacks(Mutation::LostCommitWithSameId))
            }
            Action::Change { kept, keeps_cache, is_behind } => {
                next.redis.change(kept, keeps_cache, is_behind)
            }
        }?;
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::properties()
    }
}
