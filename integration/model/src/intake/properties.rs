//! The promises of the protocol, and situations that the exploration must meet to mean something.

use stateright::Property;

use super::{Entry, Intake, State, Work};
use crate::Server;

/// Promises of the protocol.
pub mod promises {
    /// A key is accepted once.
    pub const ONCE: &str = "an intent is accepted at most once";
    /// The fence guards the durable checkpoint.
    pub const FENCE: &str = "no older term moves the durable checkpoint";
    /// The fence guards the cached checkpoint.
    pub const CACHED_FENCE: &str = "no older term writes the cached checkpoint";
    /// Nothing is skipped.
    pub const REST: &str = "at rest every entry of the stream has its outcome";
}

pub(super) fn properties() -> Vec<Property<Intake>> {
    vec![
        Property::always(promises::ONCE, |_, state: &State| !state.was_accepted_twice),
        Property::always(promises::FENCE, |_, state: &State| !state.was_moved_by_older),
        Property::always(promises::CACHED_FENCE, |_, state: &State| !state.was_cached_by_older),
        Property::always(promises::REST, |model: &Intake, state: &State| {
            let has_outcome =
                |entry: &Entry| state.postgres.accepted.records[usize::from(entry.intent)].is_some();
            state.redis.entries.iter().all(has_outcome) || !model.is_at_rest(state)
        }),
        Property::sometimes("an older term is about to commit", |_, state: &State| {
            let fence = state.postgres.accepted.checkpoint.map_or(0, |checkpoint| checkpoint.fence);
            let is_older = |work| matches!(work, Work::Commit { at, .. } if at.fence < fence);
            state.replicas.iter().any(|replica| is_older(replica.work))
        }),
        Property::sometimes("an older term is about to cache its checkpoint", |_, state: &State| {
            let fence = state.redis.cached.map_or(0, |cached| cached.fence);
            let is_older = |work| matches!(work, Work::SaveCache(at) if at.fence < fence);
            state.replicas.iter().any(|replica| is_older(replica.work))
        }),
        Property::sometimes("the checkpoint is about to go back", |_, state: &State| {
            state.replicas.iter().any(|replica| matches!(replica.work, Work::MoveBack { .. }))
        }),
        Property::sometimes("a recreated stream is read from its beginning", |_, state: &State| {
            let is_recreated =
                |work| matches!(work, Work::Read(at) if at.processed == 0 && at.durable.is_some());
            state.replicas.iter().any(|replica| is_recreated(replica.work))
        }),
        Property::sometimes("an id is given to another intent", |_, state: &State| {
            let Some(checkpoint) = state.postgres.accepted.checkpoint else { return false };
            let same_id = |entry: &&Entry| entry.id == checkpoint.entry.id;
            state.redis.entries.iter().find(same_id).is_some_and(|entry| *entry != checkpoint.entry)
        }),
        Property::sometimes("at rest after the change", |model: &Intake, state: &State| {
            state.redis.server == Server::Second && model.is_at_rest(state)
        }),
    ]
}
