//! Tests of the assembled status.

use std::time::Duration;

use super::*;
use crate::query::{CauseCounts, ChannelStatus};
use crate::replica::ReplicaReport;
use crate::route::Channel;

pub(in crate::query) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

/// A replica whose `worker` is blocked.
pub(in crate::query) fn replica(
    name: &str,
    seen_at: Timestamp,
    leads: bool,
    worker: &str,
    since: Timestamp,
) -> ReplicaStatus {
    let entry_id = (worker == INTAKE).then(|| EntryId::new(5, 0));
    let blocked = BlockedReport { entry_id, cause: format!("{name} waits"), since };
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

/// The status at 100 s of a stream with one unread entry.
pub(in crate::query) fn status(
    term: Option<LeaderTerm>,
    leaderless_since: Option<Timestamp>,
    oldest_due: Option<Timestamp>,
    replicas: Vec<ReplicaStatus>,
) -> Status {
    let none = Counted::default();
    let oldest_due = oldest_due.map(|since| Age::between(since, at(100)));
    let channel =
        |channel, oldest_due| ChannelStatus { channel, due: none, oldest_due, failing: none, waiting: None };
    let store = StoreStatus {
        at: at(100),
        stream: "intents".to_owned(),
        checkpoint: None,
        channels: vec![channel(Channel::Push, oldest_due), channel(Channel::Email, None)],
        dead_letters: CauseCounts::default(),
        malformed_intents: CauseCounts::default(),
        holds: Vec::new(),
        replicas,
    };
    let first = Some(EntryId::new(1_775_121_700_000, 3));
    let entries = Counted { count: 1, capped: false };
    let backlog = StreamBacklog { last_entry_id: first, first, entries };
    Status::new(store, term, leaderless_since, Some(backlog))
}

pub(in crate::query) const TERM: Option<LeaderTerm> =
    Some(LeaderTerm { since: Timestamp::UNIX_EPOCH, fence: 7 });

#[test]
fn the_leader_is_the_replica_that_said_so_last_and_a_stale_report_counts_for_nothing() {
    let replicas = vec![
        replica("former", at(98), true, "push", at(90)),
        replica("gone", at(69), true, INTAKE, at(1)),
        replica("leader", at(99), true, INTAKE, at(80)),
        replica("other", at(99), false, "push", at(70)),
    ];
    let status = status(TERM, None, None, replicas);
    assert_eq!(status.leader.and_then(|leader| leader.replica).as_deref(), Some("leader"));
    assert_eq!(status.intake.waiting.map(|waiting| waiting.age), Some(Age(Duration::from_secs(20))));
    assert_eq!(status.intake.oldest, Some(Age(Duration::from_secs(100))));
    let channels = status.store.channels.into_iter();
    let causes = channels.map(|status| (status.channel, status.waiting.map(|waiting| waiting.cause)));
    let expected = [(Channel::Push, Some("other waits".to_owned())), (Channel::Email, None)];
    assert_eq!(causes.collect::<Vec<_>>(), expected);
}

#[test]
fn a_leader_that_has_not_reported_itself_has_a_term_and_no_name() {
    let leader = status(TERM, None, None, Vec::new()).leader.expect("the lock says so");
    assert_eq!((leader.replica, leader.term.fence), (None, 7));
}
