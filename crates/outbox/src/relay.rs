//! The relay: claims due events, publishes them, marks them with their outcome.

mod background;
mod chunk;
mod comparison;
mod engine;
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

/// The longest relay id, in bytes.
const MAX_RELAY_ID_BYTES: usize = 64;

/// The name of a relay: of `A` to `Z`, `a` to `z`, `0` to `9`, `.`, `_` and `-`, 1 to 64 long.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RelayId(String);

/// The text is not the name of a relay.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the id of a relay takes 1 to 64 letters, digits, dots, underscores and hyphens")]
pub struct RelayIdError;

impl RelayId {
    /// The id that the text holds.
    pub fn parse(text: &str) -> Result<Self, RelayIdError> {
        let valid = (1..=MAX_RELAY_ID_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if valid { Ok(Self(text.to_owned())) } else { Err(RelayIdError) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a relay is told.
#[derive(Clone, Debug)]
pub struct RelaySettings {
    /// Its name.
    pub relay_id: RelayId,
    /// Which events it carries.
    pub types: EventTypes,
    /// The most events of one claim; at least 1.
    pub batch_size: u32,
    /// The pause between two looks at an outbox in which nothing is due.
    pub poll_interval: Duration,
    /// How long a claim lasts.
    pub lease_timeout: Duration,
    /// The most bytes of payloads of one claim.
    pub max_claim_bytes: u64,
    /// Payloads over this are DEAD.
    pub max_event_bytes: u64,
    /// How often and how far apart an event is tried.
    pub retry: RetryPolicy,
    /// How far back from the newest event that is DELIVERED events are compared with what the publisher
    /// holds, when another server acknowledges than before; zero: they are not.
    pub republish_window: Duration,
}

impl RelaySettings {
    /// The defaults: all events, 500 of a claim and 16 MiB, a look each 500 ms, a lease of a minute, 512 KiB
    /// of payload, a window of ten minutes.
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

/// Whether a relay works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayState {
    /// It does.
    Running,
    /// It claims nothing until what it waits for is available again.
    Paused {
        /// The error, with its causes.
        waiting_for: String,
    },
}

/// What a relay does now; clones share it.
#[derive(Clone, Debug)]
pub struct RelayStatus(Arc<Mutex<RelayState>>);

impl Default for RelayStatus {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RelayState::Running)))
    }
}

impl RelayStatus {
    /// What it does now.
    pub fn state(&self) -> RelayState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes it, and returns whether it was another one.
    pub fn set(&self, state: RelayState) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *current != state;
        *current = state;
        changed
    }
}

/// Is told what a relay does. Every method must return at once.
pub trait Observer: Send + Sync + 'static {
    /// A claim took this many events; never 0.
    fn claimed(&self, events: usize);
    /// This many events were marked: `delivered`, `failed`, `dead` or `released`.
    fn marked(&self, result: &'static str, events: usize);
    /// An event was published, this long after its creation.
    fn published(&self, latency: Duration);
    /// This many marks came too late.
    fn leases_lost(&self, events: usize);
    /// This many events that were DELIVERED are PENDING again, because their server has lost them.
    fn requeued(&self, events: usize);
    /// The relay runs, or is paused.
    fn state(&self, state: &RelayState);
    /// What is in the outbox, each count capped.
    fn backlog(&self, stats: &Stats);
}

/// Is told and does nothing.
impl Observer for () {
    fn claimed(&self, _: usize) {}
    fn marked(&self, _: &'static str, _: usize) {}
    fn published(&self, _: Duration) {}
    fn leases_lost(&self, _: usize) {}
    fn requeued(&self, _: usize) {}
    fn state(&self, _: &RelayState) {}
    fn backlog(&self, _: &Stats) {}
}
