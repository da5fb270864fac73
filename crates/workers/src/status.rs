//! What each loop is doing, for `/readyz` and for gauges: whoever is alive but not moving shows it here at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::accept::Wait;
use domain::entry::EntryId;

/// What keeps a loop from going on.
#[derive(Clone, Debug)]
pub struct Holdup {
    /// The stream entry that waits, where it is one.
    pub entry_id: Option<EntryId>,
    /// What it waits for, or what failed.
    pub cause: String,
    /// Since when.
    pub since: Instant,
}

/// How a loop stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The last time that it came round, whether or not there was something to do.
    pub last_pass: Instant,
    /// Set while it cannot go on.
    pub holdup: Option<Holdup>,
    /// The last entry with an outcome, for the intake.
    pub position: Option<EntryId>,
    /// Whether this replica reads the stream, for the intake.
    pub leader: bool,
    /// Leases that were asked for, and those of them that another publisher held or that ran out before the append, for a
    /// publisher.
    pub leases: (u64, u64),
}

/// The standing of one loop, shared between it and whoever looks.
#[derive(Clone, Debug)]
pub struct Status(Arc<Mutex<Standing>>);

impl Default for Status {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Standing {
            last_pass: Instant::now(),
            holdup: None,
            position: None,
            leader: false,
            leases: (0, 0),
        })))
    }
}

impl Status {
    /// How the loop stands now.
    pub fn get(&self) -> Standing {
        self.lock().clone()
    }

    /// How long since the loop last came round.
    pub fn age(&self) -> Duration {
        self.lock().last_pass.elapsed()
    }

    pub(crate) fn passed(&self) {
        let mut standing = self.lock();
        standing.last_pass = Instant::now();
        standing.holdup = None;
    }

    pub(crate) fn moved_to(&self, position: EntryId) {
        self.lock().position = Some(position);
    }

    pub(crate) fn leads(&self, leader: bool) {
        let mut standing = self.lock();
        standing.leader = leader;
        // Whoever leads next moves on, and this replica would not know.
        standing.position = standing.position.filter(|_| leader);
    }

    pub(crate) fn asked_for_leases(&self, asked: usize, held: usize) {
        let mut standing = self.lock();
        standing.leases.0 += asked as u64;
        standing.leases.1 += held as u64;
    }

    pub(crate) fn waits(&self, wait: &Wait) {
        self.hold(Some(wait.entry_id), &wait.cause);
    }

    pub(crate) fn fails(&self, cause: &str) {
        self.hold(None, cause);
    }

    fn hold(&self, entry_id: Option<EntryId>, cause: &str) {
        let mut standing = self.lock();
        standing.last_pass = Instant::now();
        let before = standing.holdup.take().filter(|holdup| holdup.entry_id == entry_id);
        let since = before.map_or_else(Instant::now, |holdup| holdup.since);
        standing.holdup = Some(Holdup { entry_id, cause: cause.to_owned(), since });
    }

    /// Nothing panics while the lock is held, and a half-written standing would still be one.
    fn lock(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
