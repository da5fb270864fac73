//! The state of the service as a whole, assembled from the database, the lock and the stream.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::Counted;
use crate::checkpoint::{Checkpoint, Fence};
use crate::entry::EntryId;
use crate::replica::{BlockedReport, ReplicaReport, WorkerReport};
use crate::route::Channel;

/// The time after its last report for which a replica counts as running: it reports every 10 s.
pub const REPLICA_FRESH_FOR: Duration = Duration::from_secs(30);
/// The name of the worker that reads the intents stream, in reports and leaderships.
pub const INTAKE: &str = "intake";

/// The due routes of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelStatus {
    /// The channel.
    pub channel: Channel,
    /// Number of due routes.
    pub due: Counted,
    /// Time since which the oldest due route has been due; `None` if no route is due.
    pub oldest_due: Option<Timestamp>,
    /// Number of routes that failed and will be tried again.
    pub failing: Counted,
}

/// The frequency of each cause. The newest rows are counted, until the sum reaches [`super::COUNT_CAP`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CauseCounts {
    /// Cause and count, the most frequent first.
    pub counts: Vec<(String, u64)>,
    /// True if there may be more.
    pub capped: bool,
}

/// A replica as it last reported itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Replica")]
pub struct ReplicaStatus {
    /// Name of the replica.
    pub replica: String,
    /// Version of the service that it runs.
    pub version: String,
    /// Start time, by its own clock.
    pub started_at: Timestamp,
    /// Time of the report, by the database's clock.
    pub seen_at: Timestamp,
    /// The workers that run on one replica at a time and run on this one.
    pub leader_of: Vec<String>,
    /// All its workers, by name.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, WorkerReport>")]
    pub workers: Vec<WorkerReport>,
}

impl ReplicaStatus {
    /// The replica that sent `report` at `seen_at`.
    pub fn new(report: ReplicaReport, seen_at: Timestamp) -> Self {
        let ReplicaReport { replica, version, started_at, leader_of, workers } = report;
        Self { replica, version, started_at, seen_at, leader_of, workers }
    }

    /// True if it has reported itself lately enough to count as running.
    pub fn is_running(&self, now: Timestamp) -> bool {
        now.saturating_since(self.seen_at) <= REPLICA_FRESH_FOR
    }

    /// The names of its workers that are blocked.
    pub fn blocked(&self) -> Vec<&str> {
        let blocked = self.workers.iter().filter(|worker| worker.blocked.is_some());
        blocked.map(|worker| worker.worker.as_str()).collect()
    }
}

fn by_name<S: Serializer>(workers: &[WorkerReport], serializer: S) -> Result<S::Ok, S::Error> {
    let by_name: BTreeMap<&str, &WorkerReport> =
        workers.iter().map(|worker| (&*worker.worker, worker)).collect();
    by_name.serialize(serializer)
}

/// The part of the status that comes from the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// Time of reading, by the database's clock.
    pub at: Timestamp,
    /// The durable checkpoint of the stream.
    pub checkpoint: Option<Checkpoint>,
    /// The channels.
    pub channels: Vec<ChannelStatus>,
    /// Dead letters of the last 24 hours that no operator has discarded or replayed, by classification.
    pub dead_letters: CauseCounts,
    /// Malformed intents of the last 24 hours, by failure code.
    pub malformed_intents: CauseCounts,
    /// The replicas of the last hour, by name.
    pub replicas: Vec<ReplicaStatus>,
}

impl StoreStatus {
    /// The entry up to which every entry has its outcome; before the first batch zero, so the stream counts
    /// from its beginning.
    pub fn processed_up_to(&self) -> EntryId {
        self.checkpoint.map_or(EntryId::ZERO, |checkpoint| checkpoint.last_entry_id)
    }
}

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

/// The reason why a worker cannot continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Stream entry that waits, if there is one.
    pub entry_id: Option<EntryId>,
    /// Awaited event, or failure.
    pub cause: String,
    /// Beginning of the wait.
    pub since: Timestamp,
}

/// The progress of intake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntakeStatus {
    /// The entry up to which every entry has its outcome; `None` before the first batch.
    pub checkpoint: Option<EntryId>,
    /// Entries of the stream after the checkpoint; `None` if Redis is unavailable.
    pub backlog: Option<StreamBacklog>,
    /// Time at which the first entry without an outcome was added, from its id.
    pub oldest: Option<Timestamp>,
    /// Reason for which intake waits, if it does.
    pub waiting: Option<Waiting>,
}

/// The state of the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The leader of intake; `None` if no replica leads.
    pub leader: Option<Leader>,
    /// Progress of intake.
    pub intake: IntakeStatus,
    /// The wait of each channel's publishers, from the replica that has waited longest.
    pub publishers: Vec<(Channel, Option<Waiting>)>,
    /// The part that comes from the database.
    pub store: StoreStatus,
}

impl Status {
    /// Assembles the parts. Reports of replicas that have not been seen for [`REPLICA_FRESH_FOR`] are ignored
    /// when determining who leads and waits now.
    pub fn new(store: StoreStatus, term: Option<LeaderTerm>, backlog: Option<StreamBacklog>) -> Self {
        let checkpoint = store.checkpoint.map(|checkpoint| checkpoint.last_entry_id);
        let first = backlog.and_then(|backlog| backlog.first);
        let leader = term.map(|term| Leader { replica: leading_replica(&store), term });
        let oldest = first.map(EntryId::time);
        let intake = IntakeStatus { checkpoint, backlog, oldest, waiting: waiting(&store, INTAKE) };
        let publishers = Channel::ALL.map(|channel| (channel, waiting(&store, channel.as_str())));
        Self { leader, intake, publishers: publishers.into(), store }
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

/// Each worker that is blocked on a running replica, by name, with the replica on which it has been blocked
/// for longest.
pub(super) fn blocked_workers(store: &StoreStatus) -> Vec<(&str, &str, &BlockedReport)> {
    let mut longest: BTreeMap<&str, (&str, &BlockedReport)> = BTreeMap::new();
    for replica in fresh(store) {
        for WorkerReport { worker, blocked, .. } in &replica.workers {
            let Some(blocked) = blocked else { continue };
            let known = longest.entry(worker).or_insert((&replica.replica, blocked));
            if blocked.since < known.1.since {
                *known = (&replica.replica, blocked);
            }
        }
    }
    longest.into_iter().map(|(worker, (replica, blocked))| (worker, replica, blocked)).collect()
}

fn waiting(store: &StoreStatus, worker: &str) -> Option<Waiting> {
    let (_, _, longest) = blocked_workers(store).into_iter().find(|(name, _, _)| *name == worker)?;
    Some(Waiting { entry_id: longest.entry_id, cause: longest.cause.clone(), since: longest.since })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    fn replica(name: &str, seen_at: Timestamp, leads: bool, worker: &str, since: Timestamp) -> ReplicaStatus {
        let blocked = BlockedReport { entry_id: None, cause: format!("{name} waits"), since };
        let worker = WorkerReport {
            worker: worker.to_owned(),
            last_pass_at: seen_at,
            blocked: Some(blocked),
            position: None,
            deferred: 0,
        };
        let report = ReplicaReport {
            replica: name.to_owned(),
            version: "0.1.0".to_owned(),
            started_at: at(0),
            leader_of: leads.then(|| INTAKE.to_owned()).into_iter().collect(),
            workers: vec![worker],
        };
        ReplicaStatus::new(report, seen_at)
    }

    fn status(replicas: Vec<ReplicaStatus>) -> Status {
        let store = StoreStatus {
            at: at(100),
            checkpoint: None,
            channels: Vec::new(),
            dead_letters: CauseCounts::default(),
            malformed_intents: CauseCounts::default(),
            replicas,
        };
        let first = Some(EntryId::new(1_775_121_700_000, 3));
        let entries = Counted { count: 1, capped: false };
        let backlog = StreamBacklog { last_entry_id: first, first, entries };
        Status::new(store, Some(LeaderTerm { since: at(50), fence: 7 }), Some(backlog))
    }

    #[test]
    fn the_leader_is_the_replica_that_said_so_last_and_a_stale_report_counts_for_nothing() {
        let status = status(vec![
            replica("former", at(98), true, "push", at(90)),
            replica("gone", at(69), true, INTAKE, at(1)),
            replica("leader", at(99), true, INTAKE, at(80)),
            replica("other", at(99), false, "push", at(70)),
        ]);
        assert_eq!(status.leader.and_then(|leader| leader.replica).as_deref(), Some("leader"));
        assert_eq!(status.intake.waiting.map(|waiting| waiting.since), Some(at(80)));
        assert_eq!(status.intake.oldest, Some(at(0)));
        let causes =
            status.publishers.into_iter().map(|(channel, waiting)| (channel, waiting.map(|w| w.cause)));
        let expected = [(Channel::Push, Some("other waits".to_owned())), (Channel::Email, None)];
        assert_eq!(causes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_leader_that_has_not_reported_itself_has_a_term_and_no_name() {
        let leader = status(Vec::new()).leader.expect("the lock says so");
        assert_eq!((leader.replica, leader.term.fence), (None, 7));
    }
}
