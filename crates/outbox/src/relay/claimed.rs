//! A claim to publish.

use tokio::time::Instant;
use uuid::Uuid;

use super::chunk::keys_are_many;
use crate::{ClaimToken, Deadline, Event};

/// A claim to publish.
pub(super) struct Claimed {
    pub(super) token: ClaimToken,
    /// The time after which no further chunk of it is published.
    pub(super) publish_until: Instant,
    pub(super) lease_end: Instant,
    pub(super) deadline: Deadline,
    pub(super) events: Vec<Event>,
    /// The events that the table left unchanged.
    pub(super) unchanged: Vec<Uuid>,
    /// True if the queue continues after it.
    pub(super) is_followed: bool,
}

impl Claimed {
    /// True if the next claim may be made while this one is published: this one holds few keys of the
    /// following events, and none of its events has failed before, so that no event waits for its mark.
    pub(super) fn may_be_overlapped(&self) -> bool {
        self.is_followed && self.events.iter().all(|event| event.attempts == 0) && keys_are_many(&self.events)
    }
}
