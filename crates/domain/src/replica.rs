//! What a replica reports of itself and its workers.

use std::ops::AddAssign;

use ambient::Timestamp;

use crate::entry::EntryId;

/// A replica as it reports itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaReport {
    /// The name of the replica.
    pub replica: String,
    /// The version of the service that it runs.
    pub version: String,
    /// When it started, by its own clock.
    pub started_at: Timestamp,
    /// The workers that run on one replica at a time and run on this one.
    pub leader_of: Vec<String>,
    /// All its workers.
    pub workers: Vec<WorkerReport>,
}

/// What a worker of a replica is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerReport {
    /// The name of the worker.
    pub worker: String,
    /// The end of its last pass.
    pub last_pass_at: Timestamp,
    /// Why the worker is blocked, if it is.
    pub blocked: Option<BlockedReport>,
    /// The last entry with an outcome, for the intake of the leader.
    pub position: Option<EntryId>,
    /// Deferred completions, for a publisher.
    pub deferred: usize,
}

/// Why a worker is blocked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockedReport {
    /// The stream entry that waits, where it is one.
    pub entry_id: Option<EntryId>,
    /// What it waits for, or what failed.
    pub cause: String,
    /// Since when.
    pub since: Timestamp,
}

/// What a replica did in some time: entries by outcome and attempts by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Accepted intents.
    pub accepted: u64,
    /// Intents that were accepted before.
    pub duplicates: u64,
    /// Other intents under a key that is taken.
    pub conflicts: u64,
    /// Malformed intents.
    pub malformed: u64,
    /// Published routes.
    pub published: u64,
    /// Failed attempts after which another one follows.
    pub failed: u64,
    /// Routes that became dead letters.
    pub dead_lettered: u64,
}

impl AddAssign for Activity {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.malformed += other.malformed;
        self.published += other.published;
        self.failed += other.failed;
        self.dead_lettered += other.dead_lettered;
    }
}
