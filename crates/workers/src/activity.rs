//! Counts of what the workers of this replica did since the last report. All workers add to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::ports::Activity;

/// The counts of this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActivityCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    duplicates: AtomicU64,
    conflicts: AtomicU64,
    malformed: AtomicU64,
    published: AtomicU64,
    failed: AtomicU64,
    dead_lettered: AtomicU64,
}

impl ActivityCounts {
    pub(crate) fn add(&self, activity: &Activity) {
        for (count, added) in self.0.with(activity) {
            if added > 0 {
                count.fetch_add(added, Ordering::Relaxed);
            }
        }
    }

    /// Returns the counts since the last call, and resets them.
    pub(crate) fn take(&self) -> Activity {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let counts = &*self.0;
        Activity {
            accepted: take(&counts.accepted),
            duplicates: take(&counts.duplicates),
            conflicts: take(&counts.conflicts),
            malformed: take(&counts.malformed),
            published: take(&counts.published),
            failed: take(&counts.failed),
            dead_lettered: take(&counts.dead_lettered),
        }
    }
}

impl Counts {
    fn with(&self, activity: &Activity) -> [(&AtomicU64, u64); 7] {
        [
            (&self.accepted, activity.accepted),
            (&self.duplicates, activity.duplicates),
            (&self.conflicts, activity.conflicts),
            (&self.malformed, activity.malformed),
            (&self.published, activity.published),
            (&self.failed, activity.failed),
            (&self.dead_lettered, activity.dead_lettered),
        ]
    }
}
