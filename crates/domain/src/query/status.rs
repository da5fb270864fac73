//! The state of the service as a whole, assembled from the database, the lock and the stream.
//!
//! One document for `GET /v1/status`, the command `status` and the overview of the console.

use std::collections::BTreeMap;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::store_status::{INTAKE, ReplicaStatus, StoreStatus, Waiting};
use super::stuck::{Stuck, stuck};
use crate::checkpoint::Fence;
use crate::document::{Age, Counted};
use crate::entry::EntryId;
use crate::replica::{BlockedReport, WorkerReport};

/// The term of the present leader of intake, read from the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct LeaderTerm {
    /// Beginning of the term, by the database's clock.
    pub since: Timestamp,
    /// The number of the term.
    pub fence: Fence,
}

/// The entries of the intents stream after a given entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamBacklog {
    /// The last entry id that the stream generated; `None` if the stream is absent.
    pub last_entry_id: Option<EntryId>,
    /// The first entry of the backlog.
    pub first: Option<EntryId>,
    /// Number of entries in the backlog.
    pub entries: Counted,
}

/// The leader of intake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Leader {
    /// Name of the replica; `null` for a second or two after it was elected, until its first report as
    /// leader.
    pub replica: Option<String>,
    /// Beginning and fence of its term.
    #[serde(flatten)]
    pub term: LeaderTerm,
}

/// The progress of intake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Intake")]
pub struct IntakeStatus {
    /// Name of the intents stream.
    pub stream: String,
    /// The last entry that has an outcome, like every entry before it; `null` before the first batch.
    pub checkpoint: Option<EntryId>,
    /// Entries of the stream after the checkpoint; `None` if Redis is unavailable.
    #[serde(flatten, serialize_with = "BacklogMembers::serialize")]
    #[schemars(with = "BacklogMembers")]
    pub backlog: Option<StreamBacklog>,
    /// The age of the first entry after the checkpoint; `null` if there is none.
    #[serde(rename = "oldest_age_ms")]
    pub oldest: Option<Age>,
    /// The obstacle of intake; `null` if it does not wait.
    pub waiting: Option<Waiting>,
}

#[derive(Serialize, JsonSchema)]
struct BacklogMembers {
    /// The last entry of the stream; `null` if the stream is absent or Redis is unavailable.
    last_entry_id: Option<EntryId>,
    /// Entries after the checkpoint; `null` if Redis is unavailable.
    entries_behind: Option<u64>,
    /// There may be more than `entries_behind`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    entries_behind_capped: bool,
}

impl BacklogMembers {
    fn serialize<S: Serializer>(backlog: &Option<StreamBacklog>, serializer: S) -> Result<S::Ok, S::Error> {
        let members = Self {
            last_entry_id: backlog.and_then(|backlog| backlog.last_entry_id),
            entries_behind: backlog.map(|backlog| backlog.entries.count),
            entries_behind_capped: backlog.is_some_and(|backlog| backlog.entries.capped),
        };
        Serialize::serialize(&members, serializer)
    }
}

/// The state of the service. Counts stop at 10,000; a member `…_capped` says that there may be more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceStatus")]
pub struct Status {
    /// The replica that reads the intents stream; `null` if none does.
    pub leader: Option<Leader>,
    /// Progress of intake.
    pub intake: IntakeStatus,
    /// The part that comes from the database.
    #[serde(flatten)]
    pub store: StoreStatus,
    /// The version of the replica that responds.
    pub version: &'static str,
    /// The stuck parts.
    #[serde(skip)]
    pub stuck: Vec<Stuck>,
}

impl Status {
    /// Assembles the parts. Reports of replicas that have not been seen for [`super::REPLICA_FRESH_FOR`] are
    /// ignored when determining who leads and waits now. `leaderless_since` is the end of the last term, if
    /// no replica leads and that time is known.
    pub fn new(
        mut store: StoreStatus,
        term: Option<LeaderTerm>,
        leaderless_since: Option<Timestamp>,
        backlog: Option<StreamBacklog>,
    ) -> Self {
        let mut blocked = blocked_workers(&store);
        let leader = term.map(|term| Leader { replica: leading_replica(&store), term });
        let stuck = stuck(&store, &blocked, leaderless_since.filter(|_| leader.is_none()));
        for channel in &mut store.channels {
            channel.waiting = blocked.remove(channel.channel.as_str());
        }
        let first = backlog.and_then(|backlog| backlog.first);
        let intake = IntakeStatus {
            stream: store.stream.clone(),
            checkpoint: store.checkpoint.map(|checkpoint| checkpoint.last_entry_id),
            backlog,
            oldest: first.map(EntryId::time).map(|at| Age::between(at, store.at)),
            waiting: blocked.remove(INTAKE),
        };
        Self { leader, intake, store, version: env!("CARGO_PKG_VERSION"), stuck }
    }

    /// The age of `since` at the time of the reading.
    pub fn age(&self, since: Timestamp) -> Age {
        Age::between(since, self.store.at)
    }
}

fn fresh(store: &StoreStatus) -> impl Iterator<Item = &ReplicaStatus> {
    store.replicas.iter().filter(|replica| replica.is_running(store.at))
}

/// After a change of leader two replicas may report for a second that they lead; the one seen last does.
fn leading_replica(store: &StoreStatus) -> Option<String> {
    let leads = |replica: &&ReplicaStatus| replica.leader_of.iter().any(|worker| worker == INTAKE);
    let leader = fresh(store).filter(leads).max_by_key(|replica| replica.seen_at);
    leader.map(|replica| replica.replica.clone())
}

/// Each worker that is blocked on a running replica, by name, as it is on the replica on which it has been
/// blocked for longest.
fn blocked_workers(store: &StoreStatus) -> BTreeMap<String, Waiting> {
    let mut longest: BTreeMap<String, Waiting> = BTreeMap::new();
    for replica in fresh(store) {
        for WorkerReport { worker, blocked, .. } in &replica.workers {
            let Some(BlockedReport { entry_id, cause, since }) = blocked else { continue };
            let age = Age::between(*since, store.at);
            if longest.get(worker).is_none_or(|known| age > known.age) {
                let (replica, cause) = (replica.replica.clone(), cause.clone());
                longest.insert(worker.clone(), Waiting { replica, entry_id: *entry_id, cause, age });
            }
        }
    }
    longest
}

#[cfg(test)]
pub(super) mod tests;
