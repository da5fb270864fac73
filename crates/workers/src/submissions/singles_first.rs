//! Single intents before elements of batches: both share the database, and a batch has no caller that waits
//! for one element.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::queue::FairQueue;

/// How long a group of elements waits for single intents.
pub(super) const MAX_YIELD: Duration = Duration::from_millis(25);
/// The most elements in a group while single intents come: one that comes during its transaction waits for
/// few.
const MAX_SMALL_ELEMENT_GROUP: usize = 32;
/// Single intents come while the last one is less than this ago.
const MAX_SINGLE_INTERVAL: Duration = Duration::from_secs(1);

/// The precedence of single intents.
#[derive(Debug)]
pub(super) struct SinglesFirst {
    queue: FairQueue,
    /// Whether the last wait ended although single intents were left.
    was_in_vain: AtomicBool,
}

impl SinglesFirst {
    pub(super) fn new(queue: &FairQueue) -> Self {
        Self { queue: queue.clone(), was_in_vain: AtomicBool::new(false) }
    }

    /// Waits until no single intent waits or is in progress, for [`MAX_YIELD`] at most.
    pub(super) async fn let_pass(&self) {
        let have_passed = tokio::time::timeout(MAX_YIELD, self.queue.until_no_single()).await.is_ok();
        self.was_in_vain.store(!have_passed, Ordering::Relaxed);
    }

    /// The most elements in the next group. While some single intent is always in progress, for example one
    /// whose look-up takes seconds, small groups would not help it, and elements would starve: so a group
    /// after a wait in vain is a `full` one.
    pub(super) fn group_size(&self, full: usize) -> usize {
        let singles_come = self.queue.had_single_within(MAX_SINGLE_INTERVAL);
        if singles_come && !self.was_in_vain.load(Ordering::Relaxed) { MAX_SMALL_ELEMENT_GROUP } else { full }
    }
}
