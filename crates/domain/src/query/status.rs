//! The state of the service as a whole, assembled from the database, the lock and the stream.
//!
//! One document for `GET /v1/status`, the command `status` and the overview of the console.

use std::collections::BTreeMap;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::findings::{Finding, ServiceState, failing, stuck, tidy};
use super::store_status::{INTAKE, ReplicaStatus, StoreStatus, Waiting};
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
    /// `well`; `failing` if work goes on without success; `stuck` if a part does not go on.
    pub state: ServiceState,
    /// The causes for an operator to look at, stuck parts first. Empty exactly if the state is `well`.
    pub findings: Vec<Finding>,
    /// The replica that reads the intents stream; `null` if none does.
    pub leader: Option<Leader>,
    /// Progress of intake.
    pub intake: IntakeStatus,
    /// The part that comes from the database.
    #[serde(flatten)]
    pub store: StoreStatus,
    /// The version of the replica that responds.
    pub version: &'static str,
}

impl Status {
    /// Assembles the parts. Replicas that have stopped, or have not been seen for
    /// [`super::REPLICA_FRESH_FOR`], lead nothing and wait for nothing; intake is led by the replica that
    /// leads in the term of the lock. `leaderless_since` is the end of the last term, if no replica leads and
    /// that time is known.
    pub fn new(
        mut store: StoreStatus,
        term: Option<LeaderTerm>,
        leaderless_since: Option<Timestamp>,
        backlog: Option<StreamBacklog>,
    ) -> Self {
        let leader = term.map(|term| Leader { replica: leading_replica(&store, term), term });
        forget_former(&mut store, leader.as_ref().and_then(|leader| leader.replica.as_deref()));
        let mut blocked = blocked_workers(&store.replicas, store.at);
        let mut findings = stuck(&store, &blocked, leaderless_since.filter(|_| leader.is_none()));
        findings.extend(failing(&store, &findings));
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
        let state = findings.iter().map(|finding| finding.state).max().unwrap_or_default();
        Self { state, findings, leader, intake, store, version: env!("CARGO_PKG_VERSION") }
    }

    /// The findings about a part of the service.
    pub fn findings_of(&self, part: &str) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.parts.iter().any(|name| name == part))
    }

    /// The age of `since` at the time of the reading.
    pub fn age(&self, since: Timestamp) -> Age {
        Age::between(since, self.store.at)
    }
}

/// The replica that reported since the beginning of the term that it leads. After a change of leader two may
/// have done so for a second; the one seen last leads.
fn leading_replica(store: &StoreStatus, term: LeaderTerm) -> Option<String> {
    let running = store.replicas.iter().filter(|replica| replica.is_running(store.at));
    let leads = |replica: &&ReplicaStatus| replica.claims_intake && replica.seen_at >= term.since;
    running.filter(leads).max_by_key(|replica| replica.seen_at).map(|replica| replica.replica.clone())
}

/// Removes what replicas no longer do: all of it for those that do not run, and leading intake for all except
/// `leader`.
fn forget_former(store: &mut StoreStatus, leader: Option<&str>) {
    for replica in &mut store.replicas {
        let is_running = replica.is_running(store.at);
        let is_leader = leader == Some(replica.replica.as_str());
        replica.leader_of.retain(|worker| is_running && (is_leader || worker != INTAKE));
        for worker in replica.workers.iter_mut().filter(|_| !is_running) {
            (worker.blocked, worker.deferred, worker.attempts) = (None, None, None);
        }
    }
}

/// Each worker that is blocked on a running replica, by name, as it is on the replica on which it has been
/// blocked for longest.
pub fn blocked_workers(replicas: &[ReplicaStatus], at: Timestamp) -> BTreeMap<String, Waiting> {
    let mut longest: BTreeMap<String, Waiting> = BTreeMap::new();
    for replica in replicas.iter().filter(|replica| replica.is_running(at)) {
        for WorkerReport { worker, blocked, .. } in &replica.workers {
            let Some(BlockedReport { entry_id, cause, since }) = blocked else { continue };
            let age = Age::between(*since, at);
            if longest.get(worker).is_none_or(|known| age > known.age) {
                let cause = tidy(cause).unwrap_or_default();
                let waiting = Waiting { replica: replica.replica.clone(), entry_id: *entry_id, cause, age };
                longest.insert(worker.clone(), waiting);
            }
        }
    }
    longest
}

#[cfg(test)]
pub(super) mod tests;
