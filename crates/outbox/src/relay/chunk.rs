//! What becomes of the events of a claim: rules, without I/O.

use std::borrow::Cow;
use std::collections::HashSet;

use ambient::Jitter;
use uuid::Uuid;

use crate::{Content, Event, Failure, FailureKind, Publication, RetryPolicy};

/// The most events that are published together.
pub(crate) const MAX_CHUNK_EVENTS: usize = 512;
/// The most bytes of payloads and headers that are published together; a larger event is published alone.
pub(crate) const MAX_CHUNK_BYTES: usize = 1024 * 1024;

/// See [`keys_are_many`]: one in so many events may repeat a key. Of keys that are drawn at random, twice
/// that share then recurs in the next claim.
const REPEATED_KEY_DIVISOR: usize = 10;

/// The marks of events that were claimed together.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Outcomes {
    pub(crate) delivered: Vec<Uuid>,
    pub(crate) failed: Vec<Failure>,
    pub(crate) released: Vec<Uuid>,
}

impl Outcomes {
    /// Whether the event is tried no more: it is delivered or dead.
    pub(crate) fn ends(&self, event_id: Uuid) -> bool {
        let died = |failure: &Failure| failure.event_id == event_id && failure.kind == FailureKind::Dead;
        self.delivered.contains(&event_id) || self.failed.iter().any(died)
    }
}

/// Where the next chunk of `events` ends. An event that is too large takes part without its size.
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
        Content::Whole { payload, headers } => payload.len() + headers.len() + event.partition_key.len(),
        Content::TooLarge { .. } => 0,
    }
}

/// Whether few of the events that come next can have a key of these: at most one in [`REPEATED_KEY_DIVISOR`]
/// of these has a key of another.
pub(crate) fn keys_are_many(events: &[Event]) -> bool {
    let keys = events.iter().map(|event| event.partition_key.as_str()).filter(|key| !key.is_empty());
    let (mut seen, mut repeats) = (HashSet::new(), 0);
    for key in keys {
        repeats += usize::from(!seen.insert(key));
    }
    repeats * REPEATED_KEY_DIVISOR <= events.len()
}

/// Judges the events of one claim, in their order.
pub(crate) struct Judge<'a> {
    retry: RetryPolicy,
    jitter: &'a dyn Jitter,
    /// The keys of events that were not published: their later events must not be either.
    blocked: HashSet<String>,
    pub(crate) outcomes: Outcomes,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(retry: RetryPolicy, jitter: &'a dyn Jitter) -> Self {
        Self { retry, jitter, blocked: HashSet::new(), outcomes: Outcomes::default() }
    }

    /// Those of a chunk that are to be published.
    pub(crate) fn publishable<'b>(&self, chunk: &'b [Event]) -> Cow<'b, [Event]> {
        let wanted =
            |event: &&Event| matches!(event.content, Content::Whole { .. }) && !self.is_blocked(event);
        if chunk.iter().all(|event| wanted(&event)) {
            Cow::Borrowed(chunk)
        } else {
            chunk.iter().filter(wanted).cloned().collect()
        }
    }

    /// Takes what became of those; a publication that is missing was withheld.
    pub(crate) fn judge(&mut self, chunk: &[Event], publications: Vec<Publication>) {
        let published: HashSet<Uuid> = self.publishable(chunk).iter().map(|event| event.event_id).collect();
        let mut publications = publications.into_iter();
        for event in chunk {
            let publication = match &event.content {
                _ if published.contains(&event.event_id) => {
                    publications.next().unwrap_or(Publication::Withheld)
                }
                Content::TooLarge { bytes } if !self.is_blocked(event) => {
                    Publication::Rejected(format!("entry_too_large: it has {bytes} bytes"))
                }
                _ => Publication::Withheld,
            };
            self.take(event, publication);
        }
    }

    /// Nothing of these is known to be published.
    pub(crate) fn release(&mut self, events: &[Event]) {
        self.outcomes.released.extend(events.iter().map(|event| event.event_id));
    }

    fn is_blocked(&self, event: &Event) -> bool {
        self.blocked.contains(&event.partition_key)
    }

    fn take(&mut self, event: &Event, publication: Publication) {
        let attempts = event.attempts.saturating_add(1);
        let failure = |error, kind| Failure { event_id: event.event_id, attempts, error, kind };
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

/// What follows the attempt of this number, if it fails.
pub(crate) fn failure_kind(retry: &RetryPolicy, attempts: u32, jitter: &dyn Jitter) -> FailureKind {
    retry.delay_after(attempts, jitter.fraction()).map_or(FailureKind::Dead, FailureKind::Retry)
}
