//! Where events go: the port that a relay publishes through.

use std::future::Future;
use std::time::Duration;

use crate::Event;

/// A moment by the publisher's own clock, in milliseconds: after it, the publisher itself refuses to publish for a claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline(pub u64);

/// What became of one event.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Publication {
    /// It is published, now or by an earlier call.
    Done,
    /// The destination answered with an error: a failed attempt.
    Failed(String),
    /// It can never be published as it is: DEAD.
    Rejected(String),
    /// It was not published: an earlier event of its partition key failed in this call, or the deadline has passed.
    Withheld,
}

/// The publisher cannot be reached, or cannot publish at present. Which events it published is unknown. Not an attempt.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct PublisherOutage {
    /// What could not be done.
    pub operation: &'static str,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Publishes events, with a receipt for each if it can.
pub trait Publisher: Send + Sync + 'static {
    /// The publisher's own time, `after` from now; never later than that, however slow the answer is. Fails if it could not
    /// publish at present, so that nothing is claimed.
    fn deadline(&self, after: Duration) -> impl Future<Output = Result<Deadline, PublisherOutage>> + Send;

    /// Publishes the events in their order, and gives one outcome for each. Once one has failed, the later ones with its partition key are
    /// withheld. Nothing is published after `deadline`, even if this process was paused on its way there.
    fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Publication>, PublisherOutage>> + Send;
}
