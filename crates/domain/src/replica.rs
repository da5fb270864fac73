//! What a replica reports of itself and its workers.

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
