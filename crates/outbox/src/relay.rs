//! The relay: claims due events, publishes them, and marks them with their outcome.

mod background;
mod chunk;
mod claimed;
mod comparison;
mod engine;
mod loop_state;
mod marks;
mod pass;
mod scan;
mod set_aside;
mod wake;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use engine::Relay;

use crate::{EventTypes, RetryPolicy, Stats};

/// The maximum length of a relay id, in bytes.
const MAX_RELAY_ID_BYTES: usize = 64;

/// The name of a relay: 1 to 64 characters of `A` to `Z`, `a` to `z`, `0` to `9`, `.`, `_` and `-`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RelayId(String);

/// The text is not a relay id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the id of a relay takes 1 to 64 letters, digits, dots, underscores and hyphens")]
pub struct RelayIdError;

impl RelayId {
    /// Parses the text.
    pub fn parse(text: &str) -> Result<Self, RelayIdError> {
        let valid = (1..=MAX_RELAY_ID_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if valid { Ok(Self(text.to_owned())) } else { Err(RelayIdError) }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Settings of a relay.
#[derive(Clone, Debug)]
pub struct RelaySettings {
    /// Its name.
    pub relay_id: RelayId,
    /// The event types that it carries.
    pub types: EventTypes,
    /// The largest number of events of one claim; at least 1.
    pub batch_size: u32,
    /// The pause between two polls of an outbox in which nothing is due.
    pub poll_interval: Duration,
    /// The lease of a claim.
    pub lease_timeout: Duration,
    /// The largest total size of the payloads of one claim, in bytes.
    pub max_claim_bytes: u64,
    /// The largest payload, in bytes. An event with a larger one becomes DEAD.
    pub max_event_bytes: u64,
    /// The number of attempts and the delays between them.
    pub retry: RetryPolicy,
    /// The window, back from the newest DELIVERED event, of events that are compared with the publisher's
    /// entries after another server has taken over; zero: none are compared.
    pub republish_window: Duration,
}

impl RelaySettings {
    /// Returns the defaults: all event types, 500 events and 16 MiB a claim, a poll every 500 ms, a lease of
    /// one minute, 512 KiB of payload, a window of ten minutes.
    pub fn new(relay_id: RelayId) -> Self {
        Self {
            relay_id,
            types: EventTypes::All,
            batch_size: 500,
            poll_interval: Duration::from_millis(500),
            lease_timeout: Duration::from_secs(60),
            max_claim_bytes: 16 * 1024 * 1024,
            max_event_bytes: 512 * 1024,
            retry: RetryPolicy::default(),
            republish_window: Duration::from_secs(600),
        }
    }
}

/// The state of a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayState {
    /// It works.
    Running,
    /// It claims nothing until the dependency that it waits for is available again.
    Paused {
        /// The error, with its causes.
        waiting_for: String,
    },
}

/// The current state of a relay; clones share it.
#[derive(Clone, Debug)]
pub struct RelayStatus(Arc<Mutex<RelayState>>);

impl Default for RelayStatus {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RelayState::Running)))
    }
}

impl RelayStatus {
    /// Returns the current state.
    pub fn state(&self) -> RelayState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state, and returns true if it differs from before.
    pub fn set(&self, state: RelayState) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *current != state;
        *current = state;
        changed
    }
}

/// Observes a relay. Every method must return at once.
pub trait RelayObserver: Send + Sync + 'static {
    /// Called when a claim took this many events; never 0.
    fn claimed(&self, events: usize);
    /// Called when this many events were marked: `delivered`, `failed`, `dead` or `released`.
    fn marked(&self, result: &'static str, events: usize);
    /// Called when an event was published, with the time since its creation.
    fn published(&self, latency: Duration);
    /// Called when this many marks came too late.
    fn leases_lost(&self, events: usize);
    /// Called when this many DELIVERED events were made PENDING again because their server lost them.
    fn requeued(&self, events: usize);
    /// Called when the relay starts to work or is paused.
    fn state(&self, state: &RelayState);
    /// Called with a sample of the counts of the outbox, each capped.
    fn backlog(&self, stats: &Stats);
}

/// An observer that ignores everything.
impl RelayObserver for () {
    fn claimed(&self, _: usize) {}
    fn marked(&self, _: &'static str, _: usize) {}
    fn published(&self, _: Duration) {}
    fn leases_lost(&self, _: usize) {}
    fn requeued(&self, _: usize) {}
    fn state(&self, _: &RelayState) {}
    fn backlog(&self, _: &Stats) {}
}
