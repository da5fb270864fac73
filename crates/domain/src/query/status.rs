//! The state of the service as a whole, put together from what the database, the lock and the stream know.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;

use super::Counted;
use crate::checkpoint::{Checkpoint, Fence};
use crate::entry::EntryId;
use crate::replica::{BlockedReport, ReplicaReport, WorkerReport};
use crate::route::Channel;

/// How long after its last report a replica counts as running: it reports every 10 s.
pub const REPLICA_FRESH_FOR: Duration = Duration::from_secs(30);
/// The name of the worker that reads the intents stream, in reports and leaderships.
pub const INTAKE: &str = "intake";

/// The due routes of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelStatus {
    /// The channel.
    pub channel: Channel,
    /// Routes that are due.
    pub due: Counted,
    /// Since when the one is due that has been due for longest; `None` if none is.
    pub oldest_due: Option<Timestamp>,
    /// Routes that have failed and will be tried again.
    pub failing: Counted,
}

/// How often each cause occurred. Only the newest rows are counted, so many that a sum of
/// [`super::COUNT_CAP`] is reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CauseCounts {
    /// Cause and count, the most frequent first.
    pub counts: Vec<(String, u64)>,
    /// Whether there may be more.
    pub capped: bool,
}

/// A replica as it last reported itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// What it reported.
    pub report: ReplicaReport,
    /// When, by the database's clock.
    pub seen_at: Timestamp,
}

/// What the database knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// When this was read, by the database's clock.
    pub at: Timestamp,
    /// The durable checkpoint of the stream.
    pub checkpoint: Option<Checkpoint>,
    /// Each channel.
    pub channels: Vec<ChannelStatus>,
    /// Dead letters of the last 24 hours that no operator has discarded or replayed, by classification.
    pub dead_letters: CauseCounts,
    /// Malformed intents of the last 24 hours, by failure code.
    pub malformed_intents: CauseCounts,
    /// The replicas of the last hour, by name.
    pub replicas: Vec<ReplicaStatus>,
}

impl StoreStatus {
    /// The entry up to which everything has its outcome; before the first batch that is none, so the stream
    /// counts from its beginning.
    pub fn processed_up_to(&self) -> EntryId {
        self.checkpoint.map_or(EntryId::ZERO, |checkpoint| checkpoint.last_entry_id)
    }
}

/// What the lock knows of the present leader of intake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaderTerm {
    /// Since when it leads, by the database's clock.
    pub since: Timestamp,
    /// The fence of its term.
    pub fence: Fence,
}

/// What the intents stream has after an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamBacklog {
    /// The last entry id that the stream generated; `None` if the stream is absent.
    pub last_entry_id: Option<EntryId>,
    /// The first entry of the backlog.
    pub first: Option<EntryId>,
    /// Entries in the backlog.
    pub entries: Counted,
}

/// The leader of intake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// Its name; `None` for a second or two after it has won, while it has not reported itself.
    pub replica: Option<String>,
    /// Since when it leads and under which fence.
    pub term: LeaderTerm,
}

/// What keeps a worker from continuing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The stream entry that waits, where it is one.
    pub entry_id: Option<EntryId>,
    /// What it waits for, or what failed.
    pub cause: String,
    /// Since when.
    pub since: Timestamp,
}

/// The progress of intake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntakeStatus {
    /// Everything up to and including this entry has its outcome; `None` before the first batch.
    pub checkpoint: Option<EntryId>,
    /// The stream after the checkpoint; `None` if Redis could not be asked.
    pub backlog: Option<StreamBacklog>,
    /// When the first entry without an outcome was added, by its id.
    pub oldest: Option<Timestamp>,
    /// What it waits for.
    pub waiting: Option<Waiting>,
}

/// The state of the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The leader of intake; `None` if no replica leads.
    pub leader: Option<Leader>,
    /// Its progress.
    pub intake: IntakeStatus,
    /// What the publishers wait for: that of the one which has waited for longest, of each channel.
    pub publishers: Vec<(Channel, Option<Waiting>)>,
    /// What the database knows.
    pub store: StoreStatus,
}

impl Status {
    /// Puts the parts together. Reports of replicas that have not been seen for [`REPLICA_FRESH_FOR`] say
    /// nothing of what waits now.
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
    store.replicas.iter().filter(|replica| store.at.saturating_since(replica.seen_at) <= REPLICA_FRESH_FOR)
}

/// After a change of leader both may say for a second that they lead; the one that was seen last is right.
fn leading_replica(store: &StoreStatus) -> Option<String> {
    let leads = |replica: &&ReplicaStatus| replica.report.leader_of.iter().any(|worker| worker == INTAKE);
    let leader = fresh(store).filter(leads).max_by_key(|replica| replica.seen_at);
    leader.map(|replica| replica.report.replica.clone())
}

/// Each worker that is blocked on a replica that is running, by name, with the replica on which it has been
/// blocked for longest.
pub(super) fn blocked_workers(store: &StoreStatus) -> Vec<(&str, &str, &BlockedReport)> {
    let mut longest: BTreeMap<&str, (&str, &BlockedReport)> = BTreeMap::new();
    for replica in fresh(store) {
        for WorkerReport { worker, blocked, .. } in &replica.report.workers {
            let Some(blocked) = blocked else { continue };
            let known = longest.entry(worker).or_insert((&replica.report.replica, blocked));
            if blocked.since < known.1.since {
                *known = (&replica.report.replica, blocked);
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
        ReplicaStatus { report, seen_at }
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
