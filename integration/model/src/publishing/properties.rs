//! The promises of the protocol, and situations that the exploration must meet to mean something.

use stateright::Property;

use super::{Key, Publishing, ROUTES, Saved, State, Task, Watch};
use crate::Server;

/// Promises of the protocol.
pub mod promises {
    /// A route has at most one entry in the stream.
    pub const ONE_ENTRY: &str = "a route has at most one entry in the stream";
    /// No published route is lost.
    pub const FOUND_OR_COMPARED: &str = "a published route has its entry, or a comparison will look for it";
    /// The settle time makes the first comparison find everything but late statements.
    pub const FIRST_COMPARISON: &str = "the first comparison leaves nothing but statements on their way";
    /// The version guards the rows.
    pub const VERSION: &str = "a publisher changes a row only as it read it";
    /// The marker is there as long as it is needed.
    pub const MARKER: &str = "a live route with an entry in the stream has its marker";
    /// Every path that ends, ends well.
    pub const REST: &str = "at rest every route is published with exactly one entry";
}

pub(super) fn properties() -> Vec<Property<Publishing>> {
    vec![
        Property::always(promises::ONE_ENTRY, |_, state: &State| {
            (0..ROUTES).all(|route| state.redis.entries_of(route) <= 1)
        }),
        Property::always(promises::FOUND_OR_COMPARED, |_, state: &State| {
            let is_safe = |route: usize| state.rows[route].entry.is_none() || state.has_entry(route);
            state.is_to_be_compared() || (0..ROUTES).all(is_safe)
        }),
        Property::always(promises::FIRST_COMPARISON, |_, state: &State| {
            let is_found = |route: usize| {
                state.rows[route].entry.is_none() || state.has_entry(route) || state.was_in_flight[route]
            };
            state.saved != Saved::Repeat || (0..ROUTES).all(is_found)
        }),
        Property::always(promises::VERSION, |_, state: &State| !state.was_overwritten),
        Property::always(promises::MARKER, |_, state: &State| {
            let has_marker = |route: usize| match (state.rows[route].entry, state.redis.entry_of(route)) {
                (None, Some(id)) => state.redis.keys[route] == Key::Marker(id),
                _ => true,
            };
            (0..ROUTES).all(has_marker)
        }),
        Property::always(promises::REST, |model: &Publishing, state: &State| {
            let ends_well = |route: usize| state.has_entry(route) && state.redis.entries_of(route) == 1;
            (0..ROUTES).all(ends_well) || !model.is_at_rest(state)
        }),
        Property::sometimes("both replicas have a lease of one route", |_, state: &State| {
            let leased = |replica: usize| match state.replicas[replica].task {
                Task::Leased { route, .. } => Some(route),
                _ => None,
            };
            leased(0).is_some() && leased(0) == leased(1)
        }),
        Property::sometimes("an old copy is leased", |_, state: &State| {
            state.replicas.iter().any(|replica| matches!(replica.task, Task::Leased { is_old: true, .. }))
        }),
        Property::sometimes("a completion waits whose entry is lost", |_, state: &State| {
            state.redis.server == Server::Second
                && state
                    .replicas
                    .iter()
                    .filter_map(|replica| replica.deferred)
                    .any(|completion| !state.redis.is_entry_of(completion.id, completion.route.into()))
        }),
        Property::sometimes("the comparison appends again", |_, state: &State| {
            matches!(state.watch, Watch::Appended(..))
        }),
        Property::sometimes("the comparison meets a lease", |_, state: &State| state.watch == Watch::Held),
        Property::sometimes("the repetition has something to find", |_, state: &State| {
            let is_lost = |route: usize| state.rows[route].entry.is_some() && !state.has_entry(route);
            state.saved == Saved::Repeat && (0..ROUTES).any(is_lost)
        }),
        Property::sometimes("an id is given to another route", |_, state: &State| {
            let is_taken = |route: usize| {
                let other = |id: u8| state.redis.owner(id).is_some_and(|owner| owner != route);
                state.rows[route].entry.is_some_and(other)
            };
            (0..ROUTES).any(is_taken)
        }),
        Property::sometimes("at rest after the change", |model: &Publishing, state: &State| {
            state.saved == Saved::Second && model.is_at_rest(state)
        }),
    ]
}
