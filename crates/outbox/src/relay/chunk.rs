//! Outcomes of the events of a claim: rules without I/O.

use std::borrow::Cow;
use std::collections::HashSet;

use ambient::Jitter;
use uuid::Uuid;

use crate::{Event, EventContent, FailedEvent, FailureKind, Publication, RetryPolicy};

/// The largest number of events published together.
pub(crate) const MAX_CHUNK_EVENTS: usize = 512;
/// The largest total size of payloads, headers and keys published together, in bytes; a larger event is
/// published alone.
pub(crate) const MAX_CHUNK_BYTES: usize = 1024 * 1024;

/// The fraction of events that may repeat a key in [`keys_are_many`]: one in this many. With random keys,
/// twice that fraction recurs in the next claim.
const REPEATED_KEY_DIVISOR: usize = 10;

/// The marks of events that were claimed together.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Outcomes {
    pub(crate) delivered: Vec<Uuid>,
    pub(crate) failed: Vec<FailedEvent>,
    pub(crate) released: Vec<Uuid>,
}

impl Outcomes {
    /// True if the event is not tried again: it is delivered or dead.
    pub(crate) fn ends(&self, event_id: Uuid) -> bool {
        let died = |failure: &FailedEvent| failure.event_id == event_id && failure.kind == FailureKind::Dead;
        self.delivered.contains(&event_id) || self.failed.iter().any(died)
    }
}

/// Returns the end of the next chunk of `events`. An event that is too large counts without its size.
pub(crate) fn chunk_end(events: &[Event]) -> usize {
    let mut bytes = 0_usize;
    let fits = |event: &&Event| {
        bytes = bytes.saturating_add(size(event));
        bytes <= MAX_CHUNK_BYTES
    };
    events.iter().take(MAX_CHUNK_EVENTS).take_while(fits).count().max(1).min(events.len())
}

fn size(event: &Event) -> usize {
    match &event.content {
        EventContent::Whole { payload, headers } => payload.len() + headers.len() + event.partition_key.len(),
        EventContent::TooLarge { .. } => 0,
    }
}

/// True if few of the next events can share a key with these: at most one event in [`REPEATED_KEY_DIVISOR`]
/// of these repeats a key.
pub(crate) fn keys_are_many(events: &[Event]) -> bool {
    let keys = events.iter().map(|event| event.partition_key.as_str()).filter(|key| !key.is_empty());
    let (mut seen, mut repeats) = (HashSet::new(), 0);
    for key in keys {
        repeats += usize::from(!seen.insert(key));
    }
    repeats * REPEATED_KEY_DIVISOR <= events.len()
}

/// Decides the outcomes of the events of one claim, in their order.
pub(crate) struct Judge<'a> {
    retry: RetryPolicy,
    jitter: &'a dyn Jitter,
    /// The keys of unpublished events; their later events must not be published either.
    blocked: HashSet<String>,
    pub(crate) outcomes: Outcomes,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(retry: RetryPolicy, jitter: &'a dyn Jitter) -> Self {
        Self { retry, jitter, blocked: HashSet::new(), outcomes: Outcomes::default() }
    }

    /// Returns the events of a chunk that are to be published.
    pub(crate) fn publishable<'b>(&self, chunk: &'b [Event]) -> Cow<'b, [Event]> {
        let wanted =
            |event: &&Event| matches!(event.content, EventContent::Whole { .. }) && !self.is_blocked(event);
        if chunk.iter().all(|event| wanted(&event)) {
            Cow::Borrowed(chunk)
        } else {
            chunk.iter().filter(wanted).cloned().collect()
        }
    }

    /// Records the outcomes of those events; an event without a publication was withheld.
    pub(crate) fn judge(&mut self, chunk: &[Event], publications: Vec<Publication>) {
        let published: HashSet<Uuid> = self.publishable(chunk).iter().map(|event| event.event_id).collect();
        let mut publications = publications.into_iter();
        for event in chunk {
            let publication = match &event.content {
                _ if published.contains(&event.event_id) => {
                    publications.next().unwrap_or(Publication::Withheld)
                }
                EventContent::TooLarge { bytes } if !self.is_blocked(event) => {
                    Publication::Rejected(format!("entry_too_large: it has {bytes} bytes"))
                }
                _ => Publication::Withheld,
            };
            self.take(event, publication);
        }
    }

    /// Releases events that are not known to be published.
    pub(crate) fn release(&mut self, events: &[Event]) {
        self.outcomes.released.extend(events.iter().map(|event| event.event_id));
    }

    fn is_blocked(&self, event: &Event) -> bool {
        self.blocked.contains(&event.partition_key)
    }

    fn take(&mut self, event: &Event, publication: Publication) {
        let attempts = event.attempts.saturating_add(1);
        let failure = |error, kind| FailedEvent { event_id: event.event_id, attempts, error, kind };
        match publication {
            Publication::Done => self.outcomes.delivered.push(event.event_id),
            Publication::Rejected(error) => self.outcomes.failed.push(failure(error, FailureKind::Dead)),
            Publication::Failed(error) => {
                let kind = failure_kind(&self.retry, attempts, self.jitter);
                self.outcomes.failed.push(failure(error, kind));
                self.block(event);
            }
            Publication::Withheld => {
                self.outcomes.released.push(event.event_id);
                self.block(event);
            }
        }
    }

    fn block(&mut self, event: &Event) {
        if !event.partition_key.is_empty() {
            self.blocked.insert(event.partition_key.clone());
        }
    }
}

/// Returns the consequence if the attempt with this number fails.
pub(crate) fn failure_kind(retry: &RetryPolicy, attempts: u32, jitter: &dyn Jitter) -> FailureKind {
    retry.delay_after(attempts, jitter.fraction()).map_or(FailureKind::Dead, FailureKind::Retry)
}
