//! Tests of the assembled status.

use std::time::Duration;

use super::*;
use crate::query::{CauseCounts, ChannelStatus, RecentFailures};
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
        deferred: None,
        attempts: None,
    };
    let report = ReplicaReport {
        replica: name.to_owned(),
        version: "0.1.0".to_owned(),
        started_at: at(0),
        leader_of: leads.then(|| INTAKE.to_owned()).into_iter().collect(),
        workers: vec![worker],
        stopped: false,
    };
    ReplicaStatus::new(report, seen_at)
}

/// What the database says at 100 s.
pub(in crate::query) fn store(oldest_due: Option<Timestamp>, replicas: Vec<ReplicaStatus>) -> StoreStatus {
    let none = Counted::default();
    let oldest_due = oldest_due.map(|since| Age::between(since, at(100)));
    let due = Counted { count: u64::from(oldest_due.is_some()), capped: false };
    let channel =
        |channel, due, oldest_due| ChannelStatus { channel, due, oldest_due, failing: none, waiting: None };
    StoreStatus {
        at: at(100),
        stream: "intents".to_owned(),
        checkpoint: None,
        channels: vec![channel(Channel::Push, due, oldest_due), channel(Channel::Email, none, None)],
        dead_letters: CauseCounts::default(),
        malformed_intents: CauseCounts::default(),
        recent: RecentFailures::default(),
        receipts: CauseCounts::default(),
        holds: Vec::new(),
        replicas,
    }
}

/// The status at 100 s of a stream with one unread entry.
pub(in crate::query) fn status(
    term: Option<LeaderTerm>,
    leaderless_since: Option<Timestamp>,
    oldest_due: Option<Timestamp>,
    replicas: Vec<ReplicaStatus>,
) -> Status {
    let first = Some(EntryId::new(1_775_121_700_000, 3));
    let entries = Counted { count: 1, capped: false };
    let backlog = StreamBacklog { last_entry_id: first, first, entries };
    Status::new(store(oldest_due, replicas), term, leaderless_since, Some(backlog))
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

#[test]
fn leadership_is_that_of_the_lock_and_a_replica_that_is_gone_or_stopped_leads_nothing_and_is_not_blocked() {
    let term = |since| Some(LeaderTerm { since, fence: 8 });
    let stopped =
        |name| ReplicaStatus { stopped_at: Some(at(99)), ..replica(name, at(99), true, INTAKE, at(1)) };
    for (term, replicas, leader, leading) in [
        // The leader was killed, and its successor has not reported itself.
        (term(at(98)), vec![replica("dead", at(95), true, INTAKE, at(1))], None, vec![]),
        (
            term(at(98)),
            vec![replica("dead", at(95), true, INTAKE, at(1)), replica("next", at(99), true, INTAKE, at(1))],
            Some("next"),
            vec!["next"],
        ),
        (term(at(1)), vec![replica("gone", at(60), true, INTAKE, at(1))], None, vec![]),
        (term(at(1)), vec![stopped("stopped")], None, vec![]),
        (None, vec![replica("hung", at(99), true, INTAKE, at(1))], None, vec![]),
    ] {
        let status = status(term, None, None, replicas);
        assert_eq!(status.leader.as_ref().and_then(|leader| leader.replica.as_deref()), leader);
        let leads = status.store.replicas.iter().filter(|replica| !replica.leader_of.is_empty());
        assert_eq!(leads.map(|replica| replica.replica.as_str()).collect::<Vec<_>>(), leading);
        let idle = status.store.replicas.iter().filter(|replica| !replica.is_running(at(100)));
        assert!(idle.into_iter().all(|replica| replica.blocked().is_empty()), "{status:?}");
    }
}
