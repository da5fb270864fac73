//! The steps of publishers: read, lease, append, confirm, complete.

use domain::entry::EntryId;
use domain::ports::OutboundState;
use domain::republish::{EntryState, entry_state};

use super::{
    Action, Completion, Key, Mutation, Place, Publishing, ROUTES, Replica, Saved, Stage, State, Task, Watch,
};
use crate::Server;

impl State {
    pub(super) fn replica(&mut self, replica: u8) -> &mut Replica {
        &mut self.replicas[usize::from(replica)]
    }

    pub(super) fn read(&mut self, replica: u8, route: u8) -> Option<()> {
        let row = self.rows[usize::from(route)];
        let replica = self.replica(replica);
        let is_deferred = replica.deferred.is_some_and(|completion| completion.route == route);
        let may_read = replica.task == Task::Idle && !is_deferred && row.entry.is_none();
        may_read.then(|| replica.task = Task::Read { route, version: row.version, is_old: false })
    }

    /// The script `acquire_leases`. A chunk whose route is held by another token waits here: it would be
    /// dropped and read again, at a later version.
    pub(super) fn lease(&mut self, replica: u8) -> Option<()> {
        let Task::Read { route, version, is_old } = self.replica(replica).task else { return None };
        let server = self.redis.server;
        let key = &mut self.redis.keys[usize::from(route)];
        let task = match *key {
            Key::Empty => {
                *key = Key::Token(replica);
                Task::Leased { route, version, is_old }
            }
            Key::Token(holder) if holder == replica => Task::Leased { route, version, is_old },
            Key::Marker(id) => {
                Task::Completing(Completion { route, version, id, server, stage: Stage::Fresh })
            }
            Key::Token(_) | Key::Abandoned => return None,
        };
        self.replica(replica).task = task;
        Some(())
    }

    /// Gives the replica its task from before a call whose reply was lost.
    pub(super) fn forget_reply(&mut self, before: &State, replica: u8) -> Option<()> {
        self.replica(replica).task = before.replicas[usize::from(replica)].task;
        Some(())
    }

    pub(super) fn read_again(&mut self, replica: u8) -> Option<()> {
        let Task::Leased { route, is_old: true, .. } = self.replica(replica).task else { return None };
        let row = self.rows[usize::from(route)];
        self.replica(replica).task = match row.entry {
            None => Task::Leased { route, version: row.version, is_old: false },
            Some(_) => Task::Idle,
        };
        Some(())
    }

    pub(super) fn refuse(&mut self, replica: u8) -> Option<()> {
        let Task::Leased { route, version, is_old: false } = self.replica(replica).task else { return None };
        let is_held = self.redis.keys[usize::from(route)] == Key::Token(replica);
        is_held.then(|| self.replica(replica).task = Task::Refused { route, version })
    }

    pub(super) fn expire_abandoned(&mut self, route: usize) -> Option<()> {
        (self.redis.keys[route] == Key::Abandoned).then(|| self.redis.keys[route] = Key::Empty)
    }

    pub(super) fn expire_lease(&mut self, route: usize) -> Option<()> {
        matches!(self.redis.keys[route], Key::Token(_)).then(|| self.redis.keys[route] = Key::Empty)
    }

    /// A marker expires when no completion waits for it, and not between a change of the server and the end
    /// of the comparisons. That matters only to copies of the route, which are old then.
    pub(super) fn expire_marker(&mut self, route: usize) -> Option<()> {
        let is_copied =
            |task: &Task| matches!(task, Task::Read { route: of, .. } if usize::from(*of) == route);
        let waits = |replica: &mut Replica| {
            replica
                .completions()
                .into_iter()
                .flatten()
                .any(|completion| usize::from(completion.route) == route)
        };
        let may_expire = matches!(self.redis.keys[route], Key::Marker(_))
            && self.rows[route].entry.is_some()
            && self.replicas.iter().any(|replica| is_copied(&replica.task))
            && !self.replicas.iter_mut().any(waits)
            && !self.is_to_be_compared();
        if !may_expire {
            return None;
        }
        self.redis.keys[route] = Key::Empty;
        for replica in &mut self.replicas {
            if let Task::Read { route: of, is_old, .. } = &mut replica.task {
                *is_old |= usize::from(*of) == route;
            }
        }
        Some(())
    }

    /// A process whose statement is on its way does not die here: the statement would be executed all the
    /// same.
    pub(super) fn crash(&mut self, replica: u8, compares: bool) -> Option<()> {
        let is_in_flight = |completion: &mut Completion| completion.stage == Stage::InFlight;
        let at = self.replica(replica);
        if at.completions().into_iter().flatten().any(is_in_flight) {
            return None;
        }
        *at = Replica { task: Task::Idle, deferred: None };
        if compares {
            self.watch = Watch::Idle;
        }
        Some(())
    }

    pub(super) fn change_server(&mut self, kept: u8, keeps_leases: bool, is_behind: bool) -> Option<()> {
        if self.redis.server == Server::Second {
            return None;
        }
        let mut tokens = [Key::Abandoned; ROUTES];
        for (at, replica) in self.replicas.iter().enumerate() {
            if let Task::Leased { route, .. } = replica.task {
                tokens[usize::from(route)] = Key::Token(at as u8);
            }
        }
        self.redis.change(kept, tokens, keeps_leases, is_behind);
        Some(())
    }

    /// Ends the time for which acknowledgements of the first server are recent.
    pub(super) fn settle(&mut self, in_flight: u8) -> Option<()> {
        if self.redis.server == Server::First || self.is_settled {
            return None;
        }
        self.is_settled = true;
        let mut bit = 1;
        for replica in &mut self.replicas {
            for completion in replica.completions() {
                let is_sent = in_flight & bit != 0;
                bit <<= 1;
                match completion {
                    Some(completion)
                        if completion.stage == Stage::Fresh && completion.server == Server::First =>
                    {
                        completion.stage = if is_sent { Stage::InFlight } else { Stage::Stale };
                        self.was_in_flight[usize::from(completion.route)] |= is_sent;
                    }
                    _ if is_sent => return None,
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Makes states equal that have the same future. Tokens that no process knows any more are all alike. A
    /// version matters only if it is that of the row. What was on its way matters until its entry is there.
    pub(super) fn forget_what_is_past(&mut self) {
        for (route, key) in self.redis.keys.iter_mut().enumerate() {
            if let Key::Token(replica) = *key
                && !self.replicas[usize::from(replica)].task.knows_token(route)
            {
                *key = Key::Abandoned;
            }
        }
        for replica in &mut self.replicas {
            for (route, version) in replica.versions() {
                *version = u8::from(*version == self.rows[usize::from(route)].version);
            }
        }
        for route in 0..ROUTES {
            self.rows[route].version = 1;
            self.was_in_flight[route] &= self.saved != Saved::Second;
        }
    }
}

impl Publishing {
    pub(super) fn publisher_steps(&self, state: &State, replica: u8, steps: &mut Vec<Action>) {
        let at = state.replicas[usize::from(replica)];
        match at.task {
            Task::Idle => steps.extend((0..ROUTES as u8).map(|route| Action::Read { replica, route })),
            Task::Read { .. } => {
                steps.extend([Action::Lease { replica }, Action::AppendUnderPermit { replica }]);
            }
            Task::Leased { is_old: true, .. } if !self.lacks(Mutation::OldCopyNotReadAgain) => {
                steps.push(Action::ReadAgain { replica });
            }
            Task::Leased { .. } => steps.push(Action::Append { replica }),
            Task::Refused { .. } => steps.push(Action::Fail { replica }),
            Task::Completing(_) => completion_steps(replica, Place::Task, steps),
        }
        if at.deferred.is_some() {
            completion_steps(replica, Place::Deferred, steps);
        }
    }

    /// True if Redis has the entry as that of the route.
    pub(super) fn finds(&self, state: &State, id: u8, route: u8) -> bool {
        match state.redis.owner(id) {
            Some(owner) => owner == usize::from(route) || self.lacks(Mutation::EntryFoundByIdAlone),
            None => false,
        }
    }

    /// The state of an entry by the rule of the domain. The stream begins with an older entry, and consumers
    /// delete none.
    pub(super) fn entry_state(&self, state: &State, id: u8, route: u8) -> EntryState {
        let entry_id = |id: u8| EntryId::new(u64::from(id) + 1, 0);
        let stream = OutboundState {
            first: Some(entry_id(0)),
            last_generated: entry_id(state.redis.last),
            ..OutboundState::default()
        };
        entry_state(entry_id(id), self.finds(state, id, route), Some(&stream))
    }

    /// The script `append`. A lost lease leads back to the row: the route is read again.
    pub(super) fn append(&self, state: &mut State, replica: u8) -> Option<()> {
        let Task::Leased { route, version, is_old } = state.replica(replica).task else { return None };
        if is_old && !self.lacks(Mutation::OldCopyNotReadAgain) {
            return None;
        }
        let (server, at) = (state.redis.server, usize::from(route));
        let completing =
            |id| Task::Completing(Completion { route, version, id, server, stage: Stage::Fresh });
        let task = match state.redis.keys[at] {
            key if key == Key::Token(replica) || self.lacks(Mutation::AppendWithoutToken) => {
                let id = state.redis.add(at);
                if !self.lacks(Mutation::MarkerNotWritten) {
                    state.redis.keys[at] = Key::Marker(id);
                }
                completing(id)
            }
            Key::Marker(id) => completing(id),
            Key::Empty | Key::Token(_) | Key::Abandoned => Task::Idle,
        };
        state.replica(replica).task = task;
        Some(())
    }

    /// The script `append` under a permit, for a route without lease. A permit expires before a marker that
    /// is younger than the copy.
    pub(super) fn append_under_permit(&self, state: &mut State, replica: u8) -> Option<()> {
        let Task::Read { route, version, is_old } = state.replica(replica).task else { return None };
        if is_old && !self.lacks(Mutation::PermitOutlivesMarker) {
            return None;
        }
        let (server, at) = (state.redis.server, usize::from(route));
        let id = match state.redis.keys[at] {
            Key::Empty => {
                let id = state.redis.add(at);
                state.redis.keys[at] = Key::Marker(id);
                id
            }
            Key::Marker(id) => id,
            Key::Token(_) | Key::Abandoned => return None,
        };
        state.replica(replica).task =
            Task::Completing(Completion { route, version, id, server, stage: Stage::Fresh });
        Some(())
    }

    /// Changes a row as the completion statements do: only a live one, at the version that was read.
    fn write(&self, state: &mut State, route: u8, version: u8, entry: Option<u8>) {
        let row = &mut state.rows[usize::from(route)];
        let is_as_read = row.version == version && row.entry.is_none();
        if is_as_read || self.lacks(Mutation::CompleteWithoutVersion) {
            state.was_overwritten |= !is_as_read;
            (row.version, row.entry) = (row.version + 1, entry);
        }
    }

    pub(super) fn fail(&self, state: &mut State, replica: u8) -> Option<()> {
        let Task::Refused { route, version } = state.replica(replica).task else { return None };
        self.write(state, route, version, None);
        state.replica(replica).task = Task::Idle;
        Some(())
    }

    pub(super) fn commit(&self, state: &mut State, replica: u8, place: Place) -> Option<()> {
        let Completion { route, version, id, stage, .. } = *state.replica(replica).completion(place)?;
        if stage == Stage::Stale && !self.lacks(Mutation::CompletionWithoutConfirmation) {
            return None;
        }
        self.write(state, route, version, Some(id));
        state.replica(replica).end(place);
        Some(())
    }

    /// The confirmation: on another server, a completion whose entry is missing is dropped.
    pub(super) fn confirm(&self, state: &mut State, replica: u8, place: Place) -> Option<()> {
        let found = state.redis.server;
        let completion = *state.replica(replica).completion(place)?;
        if completion.stage != Stage::Stale || self.lacks(Mutation::CompletionWithoutConfirmation) {
            return None;
        }
        let is_lost = self.entry_state(state, completion.id, completion.route).is_lost();
        if completion.server != found && is_lost {
            state.replica(replica).end(place);
        } else {
            *state.replica(replica).completion(place)? =
                Completion { server: found, stage: Stage::Fresh, ..completion };
        }
        Some(())
    }

    pub(super) fn defer(&self, state: &mut State, replica: u8, committed: bool) -> Option<()> {
        let at = *state.replica(replica);
        let Task::Completing(completion) = at.task else { return None };
        if at.deferred.is_some() || completion.stage == Stage::InFlight {
            return None;
        }
        if committed {
            self.commit(state, replica, Place::Task)?;
        }
        let deferred = Some(Completion { stage: Stage::Stale, ..completion });
        *state.replica(replica) = Replica { task: Task::Idle, deferred };
        Some(())
    }

    /// The script `extend_markers`. On the server that acknowledged the entry it changes nothing here,
    /// because no marker expires that is waited for; on another one it writes no marker.
    pub(super) fn renew(&self, state: &mut State, replica: u8, place: Place) -> Option<()> {
        let completion = *state.replica(replica).completion(place)?;
        let is_elsewhere = completion.server != state.redis.server;
        let may_write = completion.stage == Stage::Stale && is_elsewhere;
        if !may_write || !self.lacks(Mutation::MarkerOnAnotherServer) {
            return None;
        }
        state.redis.keys[usize::from(completion.route)] = Key::Marker(completion.id);
        Some(())
    }
}

fn completion_steps(replica: u8, place: Place, steps: &mut Vec<Action>) {
    steps.extend([
        Action::Commit { replica, place },
        Action::Confirm { replica, place },
        Action::Renew { replica, place },
    ]);
}
