//! The queue of submissions, in fair order.
//!
//! Single intents and elements of batches wait separately, and are accepted separately: however many elements
//! wait, a single intent is taken with the next group. Within each kind, producers alternate, so that a
//! producer waits for a few submissions of each other producer, not for all of them. A submission with the
//! key of one that is in progress is overtaken by later ones. It is taken when the one in progress is
//! decided.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::record::IdempotencyKey;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::WaitingSubmission;

/// The most submissions of a producer that wait, for single intents and for elements. Further callers wait to
/// be admitted.
pub(super) const MAX_WAITING: usize = 1_024;

/// A kind of submission. Submissions of one kind share a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SubmissionKind {
    /// Single intents, whose response is stored.
    Single,
    /// Elements of batches.
    Element,
}

/// The waiting submissions. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct FairQueue(Arc<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    state: Mutex<QueuedSubmissions>,
    single: Notify,
    element: Notify,
    /// The number of single intents that wait or are in progress. It is not in `state`, because an intent
    /// whose caller has gone is dropped while `state` is locked.
    singles: AtomicUsize,
    /// Notified when no single intent is in progress.
    no_single: Notify,
}

#[derive(Debug, Default)]
struct QueuedSubmissions {
    single: Producers,
    element: Producers,
    /// The keys of submissions that were taken and are not decided.
    in_progress: HashSet<IdempotencyKey>,
    /// True if a submission was passed over because its key is in progress.
    has_passed: bool,
    /// The time at which the last single intent arrived.
    last_single: Option<Instant>,
    is_closed: bool,
}

/// The waiting submissions of one kind.
#[derive(Debug, Default)]
struct Producers {
    /// The producers with a waiting submission, in the order in which they are served.
    order: VecDeque<String>,
    waiting: HashMap<String, VecDeque<Queued>>,
    /// The bound of the waiting submissions of each producer.
    room: HashMap<String, Arc<Semaphore>>,
}

#[derive(Debug)]
struct Queued {
    waiting: WaitingSubmission,
    _room: OwnedSemaphorePermit,
}

/// The key of a submission that is in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct KeyInProgress {
    queue: FairQueue,
    key: IdempotencyKey,
}

/// A single intent that waits or is in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct SingleInProgress(FairQueue);

impl FairQueue {
    /// Counts a single intent.
    pub(super) fn begin_single(&self) -> SingleInProgress {
        self.0.singles.fetch_add(1, Ordering::SeqCst);
        self.state().last_single = Some(Instant::now());
        SingleInProgress(self.clone())
    }

    /// True if a single intent arrived within the last `time`.
    pub(super) fn had_single_within(&self, time: Duration) -> bool {
        self.state().last_single.is_some_and(|at| at.elapsed() < time)
    }

    /// Waits until no single intent waits or is in progress.
    pub(super) async fn until_no_single(&self) {
        loop {
            let notified = self.0.no_single.notified();
            if self.0.singles.load(Ordering::SeqCst) == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Adds a submission, once there is room for one more of its producer. Returns it as `Err` if the queue
    /// is closed.
    pub(super) async fn push(&self, waiting: WaitingSubmission) -> Result<(), WaitingSubmission> {
        let (kind, producer) = (waiting.kind(), waiting.submission.intent.producer.clone());
        let room = {
            let mut state = self.state();
            let room = state.of(kind).room.entry(producer.clone());
            Arc::clone(room.or_insert_with(|| Arc::new(Semaphore::new(MAX_WAITING))))
        };
        // Cannot fail: the semaphore is never closed.
        let Ok(room) = room.acquire_owned().await else { return Err(waiting) };
        {
            let mut state = self.state();
            if state.is_closed {
                return Err(waiting);
            }
            let producers = state.of(kind);
            let queue = producers.waiting.entry(producer.clone()).or_default();
            if queue.is_empty() {
                producers.order.push_back(producer);
            }
            queue.push_back(Queued { waiting, _room: room });
        }
        self.arrived(kind).notify_one();
        Ok(())
    }

    /// Refuses further submissions.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.0.single.notify_one();
        self.0.element.notify_one();
    }

    /// Takes up to `most` waiting submissions, at least one; none once the queue is closed and empty.
    pub(super) async fn take(&self, kind: SubmissionKind, most: usize) -> Vec<WaitingSubmission> {
        loop {
            let arrived = self.arrived(kind).notified();
            {
                let mut state = self.state();
                let taken = self.take_from(&mut state, kind, most);
                if !taken.is_empty() || state.is_closed && state.of(kind).order.is_empty() {
                    return taken;
                }
            }
            arrived.await;
        }
    }

    fn take_from(
        &self,
        state: &mut QueuedSubmissions,
        kind: SubmissionKind,
        most: usize,
    ) -> Vec<WaitingSubmission> {
        let (mut taken, mut passed) = (Vec::new(), VecDeque::new());
        let mut producers = mem::take(state.of(kind));
        for queue in producers.waiting.values_mut() {
            queue.retain(|queued| !queued.waiting.is_abandoned());
        }
        while taken.len() < most
            && let Some(producer) = producers.order.pop_front()
        {
            let Some(queue) = producers.waiting.get_mut(&producer) else { continue };
            let free = |queued: &Queued| !state.in_progress.contains(&queued.waiting.key());
            match queue.iter().position(free).and_then(|at| queue.remove(at)) {
                Some(Queued { mut waiting, _room }) => {
                    let key = waiting.key();
                    state.in_progress.insert(key.clone());
                    waiting.in_progress = Some(KeyInProgress { queue: self.clone(), key });
                    taken.push(waiting);
                    if !queue.is_empty() {
                        producers.order.push_back(producer);
                    }
                }
                // All remaining submissions of this producer wait for keys.
                None if !queue.is_empty() => passed.push_back(producer),
                None => {}
            }
        }
        state.has_passed |= !passed.is_empty();
        producers.order.append(&mut passed);
        *state.of(kind) = producers;
        taken
    }

    /// True if a submission with this key is in progress.
    pub(super) fn is_in_progress(&self, key: &IdempotencyKey) -> bool {
        self.state().in_progress.contains(key)
    }

    fn arrived(&self, kind: SubmissionKind) -> &Notify {
        match kind {
            SubmissionKind::Single => &self.0.single,
            SubmissionKind::Element => &self.0.element,
        }
    }

    fn state(&self) -> MutexGuard<'_, QueuedSubmissions> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedSubmissions {
    fn of(&mut self, kind: SubmissionKind) -> &mut Producers {
        match kind {
            SubmissionKind::Single => &mut self.single,
            SubmissionKind::Element => &mut self.element,
        }
    }
}

impl Drop for KeyInProgress {
    fn drop(&mut self) {
        let has_passed = {
            let mut state = self.queue.state();
            state.in_progress.remove(&self.key);
            mem::take(&mut state.has_passed)
        };
        if has_passed {
            self.queue.0.single.notify_one();
            self.queue.0.element.notify_one();
        }
    }
}

impl Drop for SingleInProgress {
    fn drop(&mut self) {
        if self.0.0.singles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.0.no_single.notify_waiters();
        }
    }
}
