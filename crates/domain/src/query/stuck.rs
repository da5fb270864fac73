//! Stuck parts of the service: an operator has to look at them because they do not recover by themselves.

use std::time::Duration;

use ambient::Timestamp;

use super::status::{INTAKE, Status, blocked_workers};
use crate::entry::EntryId;
use crate::route::Channel;

/// A worker that has been blocked for this long is stuck.
pub const BLOCKED_LIMIT: Duration = Duration::from_secs(30);
/// Intake is stuck if no replica has led for this long: after a crash another replica leads within 12 s.
pub const NO_LEADER_LIMIT: Duration = Duration::from_secs(15);
/// A channel is stuck if its oldest due route has been due for longer than this.
pub const OLDEST_DUE_LIMIT: Duration = Duration::from_secs(60);

/// A stuck part of the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// No replica reads the intents stream.
    NoLeader {
        /// Latest possible beginning.
        since: Timestamp,
    },
    /// A worker cannot continue.
    Worker {
        /// Name of the worker: [`INTAKE`], a channel, or another worker.
        worker: String,
        /// Replica on which the worker has been blocked for longest.
        replica: String,
        /// Stream entry that waits, if there is one.
        entry_id: Option<EntryId>,
        /// Awaited event, or failure.
        cause: String,
        /// Beginning of the block.
        since: Timestamp,
    },
    /// Routes of a channel are due and not published.
    Channel {
        /// The channel.
        channel: Channel,
        /// Time since which the oldest route has been due.
        oldest_due: Timestamp,
    },
}

/// The stuck parts. `leaderless_since` is the end of the last term, if no replica leads and that time is
/// known.
pub fn stuck(status: &Status, leaderless_since: Option<Timestamp>) -> Vec<Stuck> {
    let now = status.store.at;
    let lasts = |since: Timestamp, limit: Duration| now.saturating_since(since) >= limit;
    let leaderless = leaderless_since.filter(|_| status.leader.is_none());
    let leaderless = leaderless.filter(|since| lasts(*since, NO_LEADER_LIMIT));
    let mut found: Vec<Stuck> = leaderless.map(|since| Stuck::NoLeader { since }).into_iter().collect();
    let blocked = blocked_workers(&status.store).into_iter();
    found.extend(blocked.filter(|(_, _, blocked)| lasts(blocked.since, BLOCKED_LIMIT)).map(
        |(worker, replica, blocked)| Stuck::Worker {
            worker: worker.to_owned(),
            replica: replica.to_owned(),
            entry_id: blocked.entry_id,
            cause: blocked.cause.clone(),
            since: blocked.since,
        },
    ));
    found.extend(status.store.channels.iter().filter_map(|channel| {
        let oldest_due = channel.oldest_due.filter(|at| now.saturating_since(*at) > OLDEST_DUE_LIMIT)?;
        Some(Stuck::Channel { channel: channel.channel, oldest_due })
    }));
    found
}

impl Stuck {
    /// True if intents or routes wait for this part; other workers do not delay them.
    pub fn stops_traffic(&self) -> bool {
        match self {
            Self::NoLeader { .. } | Self::Channel { .. } => true,
            Self::Worker { worker, .. } => {
                worker == INTAKE || Channel::ALL.iter().any(|channel| channel.as_str() == worker)
            }
        }
    }

    /// The stuck part in one word: `intake`, a channel, or the name of a worker.
    pub fn what(&self) -> &str {
        match self {
            Self::NoLeader { .. } => INTAKE,
            Self::Worker { worker, .. } => worker,
            Self::Channel { channel, .. } => channel.as_str(),
        }
    }

    /// A sentence for a person, at `now`, without a full stop.
    pub fn sentence(&self, now: Timestamp) -> String {
        let seconds = |since: &Timestamp| now.saturating_since(*since).as_secs();
        match self {
            Self::NoLeader { since } => {
                format!("No replica has led for {} s, so no intent is read", seconds(since))
            }
            Self::Worker { worker, replica, entry_id, cause, since } => {
                let at = entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
                format!(
                    "The worker {worker} of {replica} has been blocked for {} s{at}: {cause}",
                    seconds(since)
                )
            }
            Self::Channel { channel, oldest_due } => {
                let age = seconds(oldest_due);
                format!(
                    "The channel {channel} has a route that has been due for {age} s and is not published"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{
        CauseCounts, ChannelStatus, Counted, LeaderTerm, ReplicaStatus, StoreStatus, StreamBacklog,
    };
    use crate::replica::{BlockedReport, ReplicaReport, WorkerReport};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    fn replica(name: &str, seen_at: Timestamp, worker: &str, since: Timestamp) -> ReplicaStatus {
        let entry_id = (worker == INTAKE).then(|| EntryId::new(5, 0));
        let blocked = Some(BlockedReport { entry_id, cause: format!("{name} waits"), since });
        let worker = WorkerReport {
            worker: worker.to_owned(),
            last_pass_at: seen_at,
            blocked,
            position: None,
            deferred: 0,
        };
        let report = ReplicaReport {
            replica: name.to_owned(),
            version: "0.1.0".to_owned(),
            started_at: at(0),
            leader_of: Vec::new(),
            workers: vec![worker],
        };
        ReplicaStatus::new(report, seen_at)
    }

    fn status(leads: bool, oldest_due: Option<Timestamp>, replicas: Vec<ReplicaStatus>) -> Status {
        let none = Counted::default();
        let push = ChannelStatus { channel: Channel::Push, due: none, oldest_due, failing: none };
        let store = StoreStatus {
            at: at(100),
            checkpoint: None,
            channels: vec![push],
            dead_letters: CauseCounts::default(),
            malformed_intents: CauseCounts::default(),
            replicas,
        };
        let backlog = StreamBacklog { last_entry_id: None, first: None, entries: none };
        Status::new(store, leads.then_some(LeaderTerm { since: at(50), fence: 7 }), Some(backlog))
    }

    fn sentences(status: &Status, leaderless_since: Option<Timestamp>) -> Vec<String> {
        stuck(status, leaderless_since).iter().map(|found| found.sentence(status.store.at)).collect()
    }

    #[test]
    fn nothing_is_stuck_while_everything_is_within_its_limit() {
        let blocked = replica("web-1", at(99), INTAKE, at(71));
        assert_eq!(stuck(&status(true, Some(at(40)), vec![blocked]), None), []);
        assert_eq!(stuck(&status(false, None, Vec::new()), Some(at(86))), []);
        assert_eq!(stuck(&status(false, None, Vec::new()), None), [], "it is not known for how long");
    }

    #[test]
    fn no_leader_for_15_seconds_is_stuck_unless_one_leads_again() {
        let expected = ["No replica has led for 15 s, so no intent is read"];
        assert_eq!(sentences(&status(false, None, Vec::new()), Some(at(85))), expected);
        assert_eq!(stuck(&status(true, None, Vec::new()), Some(at(85))), []);
    }

    #[test]
    fn a_worker_that_is_blocked_for_30_seconds_is_stuck_and_only_intake_and_channels_stop_traffic() {
        for (worker, stops) in [(INTAKE, true), ("push", true), ("email", true), ("retention", false)] {
            let found = stuck(&status(true, None, vec![replica("web-1", at(99), worker, at(70))]), None);
            assert_eq!(found.len(), 1, "{worker}");
            assert_eq!((found[0].stops_traffic(), found[0].what()), (stops, worker));
        }
        let longest =
            vec![replica("web-1", at(99), INTAKE, at(70)), replica("web-2", at(99), INTAKE, at(60))];
        let expected = ["The worker intake of web-2 has been blocked for 40 s at the entry 5-0: web-2 waits"];
        assert_eq!(sentences(&status(true, None, longest), None), expected);
    }

    #[test]
    fn a_replica_that_reports_no_more_blocks_nothing() {
        let gone = replica("web-1", at(69), INTAKE, at(0));
        assert_eq!(stuck(&status(true, None, vec![gone]), None), []);
    }

    #[test]
    fn a_channel_is_stuck_if_a_route_is_due_for_more_than_60_seconds() {
        let expected = ["The channel push has a route that has been due for 61 s and is not published"];
        assert_eq!(sentences(&status(true, Some(at(39)), Vec::new()), None), expected);
        assert_eq!(stuck(&status(true, Some(at(40)), Vec::new()), None), []);
    }
}
