//! Reports of replicas about themselves and their workers.

use std::ops::AddAssign;

use ambient::Timestamp;

use schemars::JsonSchema;
use serde::Serialize;

use crate::entry::EntryId;

/// The report of a replica about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaReport {
    /// Name of the replica.
    pub replica: String,
    /// Version of the service that it runs.
    pub version: String,
    /// Start time, by its own clock.
    pub started_at: Timestamp,
    /// Workers that run on one replica at a time, currently on this one.
    pub leader_of: Vec<String>,
    /// All workers of the replica.
    pub workers: Vec<WorkerReport>,
}

/// The state of a worker of a replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Worker")]
pub struct WorkerReport {
    /// Name of the worker.
    #[serde(skip)]
    pub worker: String,
    /// End of its last pass.
    pub last_pass_at: Timestamp,
    /// The reason why the worker is blocked, if it is.
    pub blocked: Option<BlockedReport>,
    /// Last entry with an outcome, for the intake of the leader.
    #[serde(skip)]
    pub position: Option<EntryId>,
    /// Number of deferred completions, for a publisher.
    #[serde(skip)]
    pub deferred: usize,
}

/// The reason why a worker is blocked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Blocked")]
pub struct BlockedReport {
    /// Stream entry that waits, if there is one.
    pub entry_id: Option<EntryId>,
    /// Awaited event, or failure.
    pub cause: String,
    /// Beginning of the block.
    pub since: Timestamp,
}

/// The activity of a replica in a period: entries by outcome and attempts by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Accepted intents.
    pub accepted: u64,
    /// Intents that had been accepted before.
    pub duplicates: u64,
    /// Intents whose key belongs to another intent.
    pub conflicts: u64,
    /// Malformed intents.
    pub malformed: u64,
    /// Published routes.
    pub published: u64,
    /// Failed attempts that are followed by another attempt.
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
