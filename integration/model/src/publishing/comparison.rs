//! The comparison of the published routes with the stream, and its repetition.
//!
//! The three routes are one page: one list, one look at the stream, one script, one statement. Appending
//! again follows the order of the lost entries; any order would do.

use domain::republish::EntryState;

use super::{Action, Completion, Key, Mutation, Publishing, ROUTES, Replica, Stage, State, Task};
use crate::Server;

/// The observation that is saved in PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Saved {
    /// The first server.
    First,
    /// The second server, and the comparison is to be repeated.
    Repeat,
    /// The second server.
    Second,
}

/// The comparison.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Watch {
    /// None is running.
    Idle,
    /// The last one met a lease and is not complete.
    Held,
    /// PostgreSQL has returned the entries of the published routes.
    Listed(Ids),
    /// Redis does not have these entries.
    Missing(Ids),
    /// Redis has the entries again, under these ids. True if it met a lease.
    Appended(Ids, bool),
    /// PostgreSQL has recorded the new ids. True if a lease was met.
    Compared(bool),
}

/// An entry id for some of the routes.
pub type Ids = [Option<u8>; ROUTES];

impl Watch {
    pub(super) fn is_running(&self) -> bool {
        !matches!(self, Self::Idle | Self::Held)
    }

    pub(super) fn ids(&mut self) -> Option<&mut Ids> {
        match self {
            Self::Listed(ids) | Self::Missing(ids) | Self::Appended(ids, _) => Some(ids),
            Self::Idle | Self::Held | Self::Compared(_) => None,
        }
    }

    pub(super) fn id_of(mut self, route: usize) -> Option<u8> {
        self.ids().and_then(|ids| ids[route])
    }

    pub(super) fn permuted(&self, routes: [usize; ROUTES]) -> Self {
        let permuted = |ids: &Ids| routes.map(|old| ids[old]);
        match self {
            Self::Listed(ids) => Self::Listed(permuted(ids)),
            Self::Missing(ids) => Self::Missing(permuted(ids)),
            Self::Appended(ids, is_held) => Self::Appended(permuted(ids), *is_held),
            Self::Idle | Self::Held | Self::Compared(_) => *self,
        }
    }
}

impl Replica {
    fn has_statement_in_flight(&self) -> bool {
        let is_in_flight = |completion: Completion| completion.stage == Stage::InFlight;
        let of_task = match self.task {
            Task::Completing(completion) => is_in_flight(completion),
            _ => false,
        };
        of_task || self.deferred.is_some_and(is_in_flight)
    }
}

impl State {
    /// True if a lease keeps a missing entry from being appended again.
    fn is_lease_in_the_way(&self) -> bool {
        let is_held = |route: usize| matches!(self.redis.keys[route], Key::Token(_) | Key::Abandoned);
        (0..ROUTES).any(|route| self.rows[route].entry.is_some() && !self.has_entry(route) && is_held(route))
    }

    /// Only a comparison changes a published row, so the version is the one that was read.
    pub(super) fn record(&mut self) -> Option<()> {
        let Watch::Appended(ids, is_held) = self.watch else { return None };
        for (row, id) in self.rows.iter_mut().zip(ids) {
            if row.entry.is_some() && id.is_some() {
                (row.version, row.entry) = (row.version + 1, id);
            }
        }
        self.watch = Watch::Compared(is_held);
        Some(())
    }
}

impl Publishing {
    pub(super) fn comparison_steps(&self, state: &State, steps: &mut Vec<Action>) {
        if state.redis.server == Server::First || (state.saved == Saved::Second && !state.watch.is_running())
        {
            return;
        }
        if !state.is_settled {
            steps.extend((0..16).map(|in_flight| Action::Settle { in_flight }));
        }
        steps.push(match state.watch {
            Watch::Idle | Watch::Held => Action::List,
            Watch::Listed(_) => Action::Find,
            Watch::Missing(_) => Action::AppendAgain,
            Watch::Appended(..) => Action::Record,
            Watch::Compared(_) => Action::Save,
        });
    }

    fn saved_after(&self, saved: Saved) -> Saved {
        match saved {
            Saved::First if !self.lacks(Mutation::NoRepetition) => Saved::Repeat,
            Saved::First | Saved::Repeat | Saved::Second => Saved::Second,
        }
    }

    /// Begins a comparison once the stores have settled; its repetition, when every statement that was sent
    /// before has ended; and one that met a lease, when that is gone.
    pub(super) fn list(&self, state: &mut State) -> Option<()> {
        let may_begin = match state.saved {
            Saved::First => state.is_settled || self.lacks(Mutation::ComparisonBeforeSettle),
            Saved::Repeat => state.is_settled && !state.replicas.iter().any(Replica::has_statement_in_flight),
            Saved::Second => false,
        };
        let waits = state.watch == Watch::Held && state.is_lease_in_the_way();
        if state.redis.server == Server::First || !may_begin || waits || state.watch.is_running() {
            return None;
        }
        if self.lacks(Mutation::SavedBeforeComparison) {
            state.saved = self.saved_after(state.saved);
        }
        state.watch = Watch::Listed(state.rows.map(|row| row.entry));
        Some(())
    }

    pub(super) fn find(&self, state: &mut State) -> Option<()> {
        let Watch::Listed(mut ids) = state.watch else { return None };
        for (route, id) in ids.iter_mut().enumerate() {
            let is_missing = |id: &u8| self.entry_state(state, *id, route as u8) == EntryState::Missing;
            *id = id.filter(is_missing);
        }
        let is_complete = ids.iter().all(Option::is_none);
        state.watch = if is_complete { Watch::Compared(false) } else { Watch::Missing(ids) };
        Some(())
    }

    /// The script `append_again`.
    pub(super) fn append_again(&self, state: &mut State) -> Option<()> {
        let Watch::Missing(missing) = state.watch else { return None };
        let mut lost: Vec<(u8, usize)> =
            missing.iter().enumerate().filter_map(|(route, id)| Some(((*id)?, route))).collect();
        lost.sort_unstable();
        let (mut ids, mut is_held) = ([None; ROUTES], false);
        for (_, route) in lost {
            let found = match state.redis.keys[route] {
                Key::Marker(id) if self.finds(state, id, route as u8) => Some(id),
                _ => None,
            };
            ids[route] = match (state.redis.keys[route], found) {
                (_, Some(id)) if !self.lacks(Mutation::AppendAgainWithoutMarker) => Some(id),
                (Key::Token(_) | Key::Abandoned, _) if !self.lacks(Mutation::AppendAgainOverLease) => {
                    is_held |= !self.lacks(Mutation::HeldNotComparedAgain);
                    None
                }
                _ => {
                    let id = state.redis.add(route);
                    if !self.lacks(Mutation::AppendAgainLeavesNoMarker) {
                        state.redis.keys[route] = Key::Marker(id);
                    }
                    Some(id)
                }
            };
        }
        state.watch = Watch::Appended(ids, is_held);
        Some(())
    }

    pub(super) fn save(&self, state: &mut State) -> Option<()> {
        let Watch::Compared(is_held) = state.watch else { return None };
        state.watch = if is_held { Watch::Held } else { Watch::Idle };
        if !is_held && !self.lacks(Mutation::SavedBeforeComparison) {
            state.saved = self.saved_after(state.saved);
        }
        Some(())
    }
}
