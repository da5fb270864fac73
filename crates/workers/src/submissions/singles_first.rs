//! Precedence of single intents over elements of batches: both share the database, and a batch has no caller
//! that waits for one element.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::queue::FairQueue;

/// The longest time that a group of elements rests and waits for single intents.
pub(super) const MAX_YIELD: Duration = Duration::from_millis(25);
/// The most elements in a group while single intents arrive: an intent that arrives during the transaction of
/// the group then waits only briefly.
const MAX_SMALL_ELEMENT_GROUP: usize = 32;
/// The longest time since the last single intent during which single intents count as arriving.
const MAX_SINGLE_INTERVAL: Duration = Duration::from_secs(1);

/// The precedence of single intents.
#[derive(Debug)]
pub(super) struct SinglesFirst {
    queue: FairQueue,
    /// True if the last wait ended while single intents were left.
    was_in_vain: AtomicBool,
    /// The time until which the next group rests.
    rests_until: Mutex<Instant>,
}

impl SinglesFirst {
    pub(super) fn new(queue: &FairQueue) -> Self {
        let rests_until = Mutex::new(Instant::now());
        Self { queue: queue.clone(), was_in_vain: AtomicBool::new(false), rests_until }
    }

    /// Records that a group was accepted. While single intents arrive, the next one rests for as long:
    /// elements take half of the time of the disks, which PostgreSQL and Redis may share.
    pub(super) fn accepted(&self, took: Duration) {
        *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Instant::now() + took.min(MAX_YIELD);
    }

    /// Rests, and waits until no single intent waits or is in progress, for [`MAX_YIELD`] at most in all.
    pub(super) async fn let_pass(&self) {
        let deadline = Instant::now() + MAX_YIELD;
        if self.queue.had_single_within(MAX_SINGLE_INTERVAL) {
            let rests_until = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
            sleep_until(rests_until.min(deadline)).await;
        }
        let have_passed = timeout_at(deadline, self.queue.until_no_single()).await.is_ok();
        self.was_in_vain.store(!have_passed, Ordering::Relaxed);
    }

    /// Returns the most elements of the next group. If a single intent is always in progress, for example one
    /// whose lookup takes seconds, small groups do not help it, and elements would starve. So after a wait in
    /// vain the group is a `full` one.
    pub(super) fn group_size(&self, full: usize) -> usize {
        let singles_come = self.queue.had_single_within(MAX_SINGLE_INTERVAL);
        if singles_come && !self.was_in_vain.load(Ordering::Relaxed) { MAX_SMALL_ELEMENT_GROUP } else { full }
    }
}
