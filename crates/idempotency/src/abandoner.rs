//! Abandoning claims that no caller waits for, until the store answers.
//!
//! A claim whose answer was lost, or whose store was unavailable when its request had failed, would block its key until its
//! lock TTL ends. So it is kept here and abandoned as soon as the store can be reached: by one task, in batches. Once its lock
//! TTL has passed it is free anyway and is forgotten. What does not fit in is forgotten too: its lock TTL frees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::{ClaimId, Guarded, LockTtl, Store};

/// The most claims that wait to be abandoned.
pub const MAX_ABANDONED: usize = 10_000;
/// The most claims that one call abandons.
const MAX_ABANDON_BATCH: usize = 256;
/// The pause after the first call that failed; it doubles.
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
    waiting: Vec<(ClaimId, Instant)>,
    is_running: bool,
}

impl<S: Store> Abandoner<S> {
    /// Abandons claims in `store`, by a task of `tasks`.
    pub fn new(store: Arc<S>, tasks: TaskTracker) -> Self {
        Self { store, tasks, queue: Arc::default() }
    }

    /// Abandons the claims soon, without waiting for it. They were asked for with `lock_ttl`, not long ago.
    ///
    /// For claims that may or may not exist: an abandon changes nothing but the claim of that very token.
    pub fn abandon_later(&self, ids: impl IntoIterator<Item = ClaimId>, lock_ttl: LockTtl) {
        let end = Instant::now() + lock_ttl.as_duration();
        let mut queue = self.queue();
        let room = MAX_ABANDONED.saturating_sub(queue.waiting.len());
        queue.waiting.extend(ids.into_iter().take(room).map(|id| (id, end)));
        if !queue.is_running && !queue.waiting.is_empty() {
            queue.is_running = true;
            drop(queue);
            self.tasks.spawn(self.clone().run());
        }
    }

    /// How many claims wait to be abandoned.
    pub fn waiting(&self) -> usize {
        self.queue().waiting.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No step between two states of the queue can panic, so it is whole whatever happened to another thread.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        while let Some(batch) = self.next_batch() {
            let ids: Vec<ClaimId> = batch.iter().map(|(id, _)| id.clone()).collect();
            let left = match self.store.abandon(&ids).await {
                // Fenced: there is no such claim, or no longer.
                Ok(outcomes) => {
                    let busy =
                        outcomes.into_iter().zip(batch).filter(|(outcome, _)| *outcome == Guarded::Busy);
                    busy.map(|(_, claim)| claim).collect()
                }
                // The failure is that of the operation before, which its caller has reported.
                Err(_) => batch,
            };
            if left.is_empty() {
                pause = FIRST_PAUSE;
                continue;
            }
            self.queue().waiting.extend(left);
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// The next claims whose lock TTL has not passed; without any, the task ends.
    fn next_batch(&self) -> Option<Vec<(ClaimId, Instant)>> {
        let now = Instant::now();
        let mut queue = self.queue();
        queue.waiting.retain(|(_, end)| *end > now);
        let count = queue.waiting.len().min(MAX_ABANDON_BATCH);
        queue.is_running = count > 0;
        queue.is_running.then(|| queue.waiting.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use ambient::RandomTokens;

    use super::*;
    use crate::{Key, MemoryStore, Scope, Token};

    #[tokio::test(start_paused = true)]
    async fn more_claims_than_fit_in_are_left_to_their_lock_ttl() {
        let abandoner = Abandoner::new(Arc::new(MemoryStore::new(1)), TaskTracker::new());
        let (scope, key) = (Scope::new("s").expect("a scope"), Key::new("k").expect("a key"));
        let id = || ClaimId { scope: scope.clone(), key: key.clone(), token: Token::next(&RandomTokens) };
        for _ in 0..2 {
            abandoner.abandon_later((0..MAX_ABANDONED).map(|_| id()), LockTtl::default());
            assert_eq!(abandoner.waiting(), MAX_ABANDONED);
        }
        abandoner.tasks.close();
        abandoner.tasks.wait().await;
        assert_eq!(abandoner.waiting(), 0);
    }
}
