//! Abandons claims that no caller waits for, until the store responds.
//!
//! A claim whose response was lost, or whose store was unavailable when its request had failed, would block
//! its key until its lock TTL ends. So it is queued here and abandoned as soon as the store is reachable, by
//! one task, in batches. A claim whose lock TTL has passed is free and is dropped. A claim that exceeds the
//! queue's limit is dropped too: its lock TTL frees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::{ClaimId, Guarded, LockTtl, Store};

/// The largest number of claims that wait to be abandoned.
pub const MAX_ABANDONED: usize = 10_000;
/// The largest number of claims that one call abandons.
const MAX_ABANDON_BATCH: usize = 256;
/// The time for which a claim whose response was lost may still be on its way to the store: longer than a
/// statement may take. An abandon that overtakes its claim finds nothing, so it is repeated until then.
const LATE_CLAIM_WINDOW: Duration = Duration::from_secs(15);
/// The pause after the first call that left some claims; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two calls.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Abandons claims in the background. Clones share everything.
pub struct Abandoner<S> {
    store: Arc<S>,
    tasks: TaskTracker,
    queue: Arc<Mutex<Queue>>,
}

impl<S> Clone for Abandoner<S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), tasks: self.tasks.clone(), queue: self.queue.clone() }
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<WaitingClaim>,
    /// The number of claims that the task has taken.
    taken: usize,
    is_running: bool,
}

struct WaitingClaim {
    id: ClaimId,
    late_until: Instant,
    free_at: Instant,
}

impl<S: Store> Abandoner<S> {
    /// Creates an abandoner of claims in `store`, which runs as a task of `tasks`.
    pub fn new(store: Arc<S>, tasks: TaskTracker) -> Self {
        Self { store, tasks, queue: Arc::default() }
    }

    /// Abandons the claims soon, without waiting for it. They were requested with `lock_ttl`, not long ago.
    ///
    /// The claims need not exist: an abandon changes nothing but the claim with that very token.
    pub fn abandon_later(&self, ids: impl IntoIterator<Item = ClaimId>, lock_ttl: LockTtl) {
        let now = Instant::now();
        let (late_until, free_at) = (now + LATE_CLAIM_WINDOW, now + lock_ttl.as_duration());
        let mut queue = self.queue();
        let room = MAX_ABANDONED.saturating_sub(queue.waiting.len() + queue.taken);
        let waiting = ids.into_iter().take(room).map(|id| WaitingClaim { id, late_until, free_at });
        queue.waiting.extend(waiting);
        if !queue.is_running && !queue.waiting.is_empty() {
            queue.is_running = true;
            drop(queue);
            self.tasks.spawn(self.clone().run());
        }
    }

    /// Returns the number of claims that wait to be abandoned.
    pub fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + queue.taken
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No step between two states of the queue can panic, so the queue is consistent even if another
        // thread panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        while let Some(mut waiting) = self.take() {
            self.abandon(&mut waiting).await;
            let is_empty = waiting.is_empty();
            {
                let mut queue = self.queue();
                queue.taken = 0;
                queue.waiting.extend(waiting);
            }
            if is_empty {
                pause = FIRST_PAUSE;
                continue;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Takes all claims whose lock TTL has not passed; `None` ends the task.
    fn take(&self) -> Option<Vec<WaitingClaim>> {
        let now = Instant::now();
        let mut queue = self.queue();
        queue.waiting.retain(|waiting| waiting.free_at > now);
        queue.taken = queue.waiting.len();
        queue.is_running = queue.taken > 0;
        queue.is_running.then(|| std::mem::take(&mut queue.waiting))
    }

    /// Abandons the claims and leaves those that must be tried again.
    async fn abandon(&self, waiting: &mut Vec<WaitingClaim>) {
        let mut outcomes = Vec::with_capacity(waiting.len());
        for batch in waiting.chunks(MAX_ABANDON_BATCH) {
            let ids: Vec<ClaimId> = batch.iter().map(|waiting| waiting.id.clone()).collect();
            match self.store.abandon(&ids).await {
                Ok(of_batch) => outcomes.extend(of_batch),
                // The failure belongs to the operation before, whose caller has reported it.
                Err(_) => break,
            }
        }
        let now = Instant::now();
        let mut outcomes = outcomes.into_iter();
        waiting.retain(|waiting| match outcomes.next() {
            Some(Guarded::Applied) => false,
            Some(Guarded::Fenced) => waiting.late_until > now,
            Some(Guarded::Busy) | None => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use ambient::RandomTokens;

    use super::*;
    use crate::{Key, MemoryStore, Owner, Token};

    #[tokio::test(start_paused = true)]
    async fn more_claims_than_fit_in_are_left_to_their_lock_ttl() {
        let abandoner = Abandoner::new(Arc::new(MemoryStore::new(1)), TaskTracker::new());
        let (owner, key) = (Owner::new("s").expect("an owner"), Key::new("k").expect("a key"));
        let id = || ClaimId { owner: owner.clone(), key: key.clone(), token: Token::next(&RandomTokens) };
        for _ in 0..2 {
            abandoner.abandon_later((0..MAX_ABANDONED).map(|_| id()), LockTtl::default());
            assert_eq!(abandoner.waiting(), MAX_ABANDONED);
        }
        abandoner.tasks.close();
        abandoner.tasks.wait().await;
        assert_eq!(abandoner.waiting(), 0);
    }
}
