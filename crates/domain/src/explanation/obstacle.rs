//! Obstacles of live routes: what the replicas report of the workers that have to take the next step.

use std::collections::{BTreeMap, BTreeSet};

use ambient::Timestamp;

use crate::query::{ReplicaStatus, Route, Waiting, blocked_workers};
use crate::record::NotificationId;
use crate::replica::DeferredReport;

/// The obstacles of all workers at present.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Obstacles {
    /// Blocked workers, by name.
    blocked: BTreeMap<String, Waiting>,
    /// The deferred completions of each publisher that has some, by channel.
    deferred: Vec<(String, DeferredReport)>,
    /// The workers of running replicas.
    running: BTreeSet<String>,
}

/// The obstacle of a live route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle<'a> {
    /// The completion of the route is deferred.
    Deferred(&'a DeferredReport),
    /// The publisher of its channel waits.
    Waits(&'a Waiting),
    /// Completions of its channel are deferred, this many, and it may be among them.
    PerhapsDeferred(u64),
    /// No running replica publishes its channel.
    NoPublisher,
}

impl Obstacles {
    /// The obstacles at `at`, by the reports of these replicas.
    pub fn new(replicas: &[ReplicaStatus], at: Timestamp) -> Self {
        let running = replicas.iter().filter(|replica| replica.is_running(at));
        let workers = || running.clone().flat_map(|replica| &replica.workers);
        let deferred = workers().filter_map(|of| Some((of.worker.clone(), of.deferred.clone()?)));
        Self {
            blocked: blocked_workers(replicas, at),
            deferred: deferred.collect(),
            running: workers().map(|of| of.worker.clone()).collect(),
        }
    }

    /// The obstacle of a live route of this notification.
    pub fn of(&self, notification_id: &NotificationId, route: &Route) -> Option<Obstacle<'_>> {
        let channel = route.channel.as_str();
        let deferred = || self.deferred.iter().filter(|(of, _)| of == channel).map(|(_, report)| report);
        let is_first = |report: &&DeferredReport| {
            report.first.notification_id == *notification_id && report.first.route_id == *route.route_id
        };
        if let Some(report) = deferred().find(is_first) {
            return Some(Obstacle::Deferred(report));
        }
        if let Some(waiting) = self.blocked.get(channel) {
            return Some(Obstacle::Waits(waiting));
        }
        match deferred().map(|report| report.completions).sum() {
            0 if self.running.contains(channel) => None,
            0 => Some(Obstacle::NoPublisher),
            completions => Some(Obstacle::PerhapsDeferred(completions)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::explain;
    use super::super::tests::{at, pending, second};
    use super::*;
    use crate::replica::{BlockedReport, LockHolder, ReplicaReport, WorkerReport};
    use crate::route::{Channel, RouteKey};

    fn deferral(is_published: bool, held_by: Option<LockHolder>) -> DeferredReport {
        DeferredReport {
            completions: 3,
            since: at(6),
            first: RouteKey {
                notification_id: "7-0".to_owned().into(),
                route_id: pending().route_id.to_string(),
            },
            is_published,
            cause: "PostgreSQL refuses the completion: it is read-only.".to_owned(),
            held_by,
        }
    }

    #[test]
    fn a_route_whose_completion_is_deferred_names_what_keeps_it_from_being_recorded() {
        let psql = LockHolder { pid: 7, application: "psql".to_owned(), since: Some(at(2)) };
        for (report, expected) in [
            (
                deferral(true, Some(psql)),
                format!(
                    "its entry is in the outbound stream, but another transaction holds its row (pid 7, psql, since {}); \
                     the service records that as soon as it can, without a second entry",
                    second(2)
                ),
            ),
            (
                deferral(false, None),
                "the attempt (1 of 7) failed, but PostgreSQL cannot record it in its row yet: PostgreSQL refuses the completion: it is read-only; \
                 the service records that as soon as it can, and schedules the next one"
                    .to_owned(),
            ),
        ] {
            let sentence = explain(&pending(), at(30), Some(Obstacle::Deferred(&report)));
            assert_eq!(sentence, format!("Accepted at {}; {expected}", second(0)));
        }
    }

    #[test]
    fn a_route_that_is_overdue_names_the_likely_reason() {
        for (now, obstacle, expected) in [
            (15, None, None),
            (
                16,
                None,
                Some(
                    "others may be due before it, or a replica that crashed or hangs holds its lease, for NOTIFICATION_ROUTE_LEASE_TTL at most",
                ),
            ),
            (15, Some(Obstacle::PerhapsDeferred(3)), None),
            (
                16,
                Some(Obstacle::PerhapsDeferred(3)),
                Some("completions of its channel are deferred (3), perhaps its own, see notification status"),
            ),
            (5, Some(Obstacle::NoPublisher), Some("no running replica publishes its channel")),
        ] {
            let sentence = explain(&pending(), at(now), obstacle);
            let end = format!(
                "due since {}{}",
                second(5),
                expected.map_or_else(String::new, |text| format!("; {text}"))
            );
            assert!(sentence.ends_with(&end), "{sentence}");
        }
    }

    #[test]
    fn the_obstacle_of_a_route_is_its_own_deferral_before_that_of_its_channel() {
        let replica = |is_blocked: bool, deferred| {
            let blocked = BlockedReport { entry_id: None, cause: String::new(), since: at(60) };
            let worker = WorkerReport {
                worker: "email".to_owned(),
                last_pass_at: at(99),
                blocked: is_blocked.then_some(blocked),
                position: None,
                deferred,
                attempts: None,
            };
            let report = ReplicaReport {
                replica: "web-1".to_owned(),
                version: String::new(),
                started_at: at(0),
                leader_of: Vec::new(),
                workers: vec![worker],
                stopped: false,
            };
            ReplicaStatus::new(report, at(99))
        };
        let own = NotificationId::from("7-0".to_owned());
        let other = NotificationId::from("8-0".to_owned());
        let push = Route { channel: Channel::Push, ..pending() };
        let of = |replicas: &[_], id: &NotificationId, route: &Route, expected: &str| {
            let found = Obstacles::new(replicas, at(100));
            let kind = match found.of(id, route) {
                Some(Obstacle::Deferred(_)) => "deferred",
                Some(Obstacle::Waits(_)) => "waits",
                Some(Obstacle::PerhapsDeferred(_)) => "perhaps deferred",
                Some(Obstacle::NoPublisher) => "no publisher",
                None => "none",
            };
            assert_eq!(kind, expected);
        };
        let both = [replica(true, Some(deferral(true, None)))];
        of(&both, &own, &pending(), "deferred");
        of(&both, &other, &pending(), "waits");
        of(&both, &other, &push, "no publisher");
        of(&[replica(false, Some(deferral(true, None)))], &other, &pending(), "perhaps deferred");
        of(&[replica(false, None)], &own, &pending(), "none");
        of(&[], &own, &pending(), "no publisher");
    }
}
