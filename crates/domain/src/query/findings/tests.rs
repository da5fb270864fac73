//! The rules of the three states, as tables of cases.

use std::time::Duration;

use super::*;
use crate::document::Counted;
use crate::query::status::tests::{TERM, at, replica, status, store};
use crate::query::{RecentFailure, ReplicaStatus, Status, StoreStatus};
use crate::replica::{AttemptsReport, DeferredReport, LockHolder};
use crate::route::RouteKey;

fn sentences(status: &Status) -> Vec<String> {
    status.findings.iter().map(Finding::text).collect()
}

/// A running replica with these workers, each of which is blocked for this reason since then.
fn blocked(name: &str, workers: &[(&str, &str, i64)]) -> ReplicaStatus {
    let one = |(worker, cause, since): &(&str, &str, i64)| {
        let mut report = replica(name, at(99), false, worker, at(*since)).workers.remove(0);
        report.blocked = report.blocked.map(|of| crate::replica::BlockedReport {
            cause: (*cause).to_owned(),
            entry_id: None,
            ..of
        });
        report
    };
    ReplicaStatus {
        workers: workers.iter().map(one).collect(),
        ..replica(name, at(99), false, "push", at(99))
    }
}

/// A running replica whose publisher of e-mail reports this.
fn publisher(deferred: Option<DeferredReport>, attempts: Option<AttemptsReport>) -> ReplicaStatus {
    let mut found = replica("web-1", at(99), false, "email", at(99));
    for worker in &mut found.workers {
        (worker.blocked, worker.deferred, worker.attempts) = (None, deferred.clone(), attempts.clone());
    }
    found
}

fn attempts(succeeded: u64, failed: u64) -> Option<AttemptsReport> {
    let failing_since = crate::replica::is_failing(succeeded, failed).then(|| at(50));
    Some(AttemptsReport { succeeded, failed, failing_since, cause: "WRONGTYPE wrong kind. ".to_owned() })
}

fn deferred(since: i64, held_by: Option<LockHolder>) -> Option<DeferredReport> {
    Some(DeferredReport {
        completions: 2,
        since: at(since),
        first: RouteKey { notification_id: "7-0".to_owned().into(), route_id: "email:user:u".to_owned() },
        is_published: true,
        cause: "another transaction has locked the row".to_owned(),
        held_by,
    })
}

fn psql() -> Option<LockHolder> {
    Some(LockHolder { pid: 26_125, application: "psql".to_owned(), since: Some(at(2)) })
}

fn well(replicas: Vec<ReplicaStatus>) -> Status {
    Status::new(store(None, replicas), TERM, None, None)
}

#[test]
fn nothing_is_found_while_everything_is_within_its_limit() {
    for status in [
        status(TERM, None, Some(at(40)), vec![replica("web-1", at(99), false, INTAKE, at(71))]),
        status(None, Some(at(86)), None, Vec::new()),
        // It is not known for how long.
        status(None, None, None, Vec::new()),
        well(vec![publisher(deferred(90, None), attempts(1, 9))]),
        well(vec![publisher(None, attempts(10, 0))]),
    ] {
        assert_eq!((status.state, sentences(&status)), (ServiceState::Well, Vec::new()));
    }
}

#[test]
fn no_leader_for_15_seconds_is_stuck_unless_one_leads_again() {
    let found = status(None, Some(at(85)), None, Vec::new());
    assert_eq!(sentences(&found), ["No replica has led for 15 s, so no intent is read"]);
    assert_eq!((found.state, found.findings[0].since), (ServiceState::Stuck, Some(at(85))));
    assert_eq!(status(TERM, Some(at(85)), None, Vec::new()).state, ServiceState::Well);
}

#[test]
fn a_worker_that_is_blocked_for_30_seconds_is_stuck_on_the_replica_where_it_is_longest() {
    for worker in [INTAKE, "push", "email", "retention", "outbox_relay"] {
        let found = status(TERM, None, None, vec![replica("web-1", at(99), false, worker, at(70))]);
        assert_eq!((found.state, found.findings.len()), (ServiceState::Stuck, 1), "{worker}");
        assert_eq!(found.findings[0].parts, [worker]);
    }
    let longest = vec![
        replica("web-1", at(99), false, INTAKE, at(70)),
        replica("web-2", at(99), false, INTAKE, at(60)),
    ];
    let expected = ["The worker intake of web-2 has been blocked for 40 s at the entry 5-0: web-2 waits"];
    assert_eq!(sentences(&status(TERM, None, None, longest)), expected);
    let gone = replica("web-1", at(69), false, INTAKE, at(0));
    assert_eq!(status(TERM, None, None, vec![gone]).state, ServiceState::Well, "it blocks nothing");
}

#[test]
fn one_cause_is_one_message_however_many_parts_it_blocks() {
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    let of = |operation: &str, cause: &str| format!("could not {operation}: {cause}");
    let (lease, append) = (of("acquire leases", full), of("append", full));
    let (one, other) = (of("accept", "no response within 5s"), of("list", "no response within 5s"));
    for (workers, due, expected) in [
        (
            // The last one is not stuck by itself.
            vec![
                ("email", lease.as_str(), 60),
                ("push", append.as_str(), 50),
                ("intake", lease.as_str(), 80),
            ],
            None,
            "Redis is full: intake, push and email have been blocked for up to 50 s: \
             could not append: OOM command not allowed when used memory > 'maxmemory'",
        ),
        (
            vec![("push", append.as_str(), 95)],
            Some(at(20)),
            "Redis is full: push has been blocked for 5 s, and a route has been due for 1 min 20 s: \
             could not append: OOM command not allowed when used memory > 'maxmemory'",
        ),
        (
            vec![("push", other.as_str(), 60), ("email", one.as_str(), 10)],
            None,
            "push and email have been blocked for up to 1 min 30 s: could not accept: no response within 5s",
        ),
    ] {
        let found = status(TERM, None, due, vec![blocked("web-1", &workers)]);
        assert_eq!(sentences(&found), [expected]);
    }
    let apart = [("push", one.as_str(), 1), ("email", "the user directory does not respond", 1)];
    assert_eq!(status(TERM, None, None, vec![blocked("web-1", &apart)]).findings.len(), 2);
}

#[test]
fn a_channel_is_stuck_if_a_route_is_due_for_more_than_60_seconds() {
    let found = status(TERM, None, Some(at(39)), Vec::new());
    let expected = ["The channel push has a route that has been due for 1 min 1 s and is not published"];
    assert_eq!((found.state, sentences(&found)), (ServiceState::Stuck, expected.map(str::to_owned).into()));
    assert_eq!(status(TERM, None, Some(at(40)), Vec::new()).state, ServiceState::Well);
}

#[test]
fn a_channel_fails_if_fewer_than_one_attempt_in_ten_succeeds_on_all_replicas_together() {
    for (replicas, expected) in [
        (vec![attempts(0, 2_100)], Some("2,100 attempts failed in the last minute, and none succeeded")),
        (vec![attempts(0, 1)], Some("1 attempt failed in the last minute, and none succeeded")),
        (
            vec![attempts(1, 5), attempts(0, 6)],
            Some("11 attempts failed in the last minute, and 1 succeeded"),
        ),
        (vec![attempts(0, 9), attempts(10, 0)], None),
    ] {
        let found = well(replicas.into_iter().map(|attempts| publisher(None, attempts)).collect());
        let expected = expected.map(|text| format!("The channel email fails: {text}: WRONGTYPE wrong kind"));
        assert_eq!(sentences(&found), Vec::from_iter(expected));
        let since = found.findings.first().map(|finding| (finding.state, finding.since));
        assert!(since.is_none_or(|since| since == (ServiceState::Failing, Some(at(50)))), "{since:?}");
    }
}

#[test]
fn new_dead_letters_and_producers_of_malformed_intents_are_failing() {
    let mut found = StoreStatus { ..store(None, Vec::new()) };
    found.recent.dead_letters = vec![recent("email", 1, 20, "another."), recent("push", 208, 20, "why.")];
    found.recent.producers = vec![recent("lobby", 3, 20, "why.")];
    let found = Status::new(found, TERM, None, None);
    let expected = [
        "208 routes of the channel push became dead letters in the last 5 min: why",
        "1 route of the channel email became a dead letter in the last 5 min: another",
        "The producer lobby sent only malformed intents in the last 5 min, 3 of them: why",
    ];
    assert_eq!((found.state, sentences(&found)), (ServiceState::Failing, expected.map(str::to_owned).into()));
}

fn recent(name: &str, count: u64, since: i64, cause: &str) -> RecentFailure {
    let count = Counted { count, capped: false };
    RecentFailure { name: name.to_owned(), count, since: at(since), cause: cause.to_owned() }
}

#[test]
fn dead_letters_of_two_channels_with_one_cause_are_one_message() {
    let mut found = StoreStatus { ..store(None, Vec::new()) };
    found.recent.dead_letters = vec![recent("email", 1, 30, "why."), recent("push", 208, 20, "why.")];
    let found = Status::new(found, TERM, None, None);
    let expected = "209 routes of the channels push and email became dead letters in the last 5 min: why";
    assert_eq!(sentences(&found), [expected]);
    let finding = &found.findings[0];
    assert_eq!((finding.since, finding.count), (Some(at(20)), Some(209)));
    assert_eq!(finding.parts, ["push", "email"]);
}

#[test]
fn dead_letters_of_a_channel_that_fails_are_one_message_with_its_attempts() {
    let mut found = store(None, vec![publisher(None, attempts(0, 7))]);
    let count = Counted { count: 2, capped: false };
    let dead = RecentFailure { name: "email".to_owned(), count, since: at(20), cause: String::new() };
    found.recent.dead_letters = vec![dead];
    let expected = "The channel email fails: 7 attempts failed in the last minute, and none succeeded; \
                    2 became dead letters in the last 5 min: WRONGTYPE wrong kind";
    assert_eq!(sentences(&Status::new(found, TERM, None, None)), [expected]);
}

#[test]
fn a_deferred_completion_is_named_with_its_holder_and_explains_why_a_channel_is_stuck() {
    let held = format!(
        "2 routes of the channel email are published, but another transaction holds their rows \
         (pid 26125, psql, since {})",
        at(2)
    );
    let unseen = "2 routes of the channel email are published, but PostgreSQL cannot record it in their rows \
                  yet: another transaction has locked the row";
    for (since, holder, due, state, expected) in [
        (90, psql(), None, ServiceState::Well, None),
        (89, psql(), None, ServiceState::Failing, Some(held.as_str())),
        (80, None, None, ServiceState::Failing, Some(unseen)),
        (50, psql(), Some(at(30)), ServiceState::Stuck, Some(held.as_str())),
    ] {
        let mut found = store(None, vec![publisher(deferred(since, holder), None)]);
        found.channels[1].oldest_due = due.map(|since| crate::document::Age::between(since, at(100)));
        let found = Status::new(found, TERM, None, None);
        assert_eq!(
            (found.state, sentences(&found)),
            (state, expected.map(str::to_owned).into_iter().collect())
        );
    }
}

#[test]
fn a_completion_that_two_replicas_defer_counts_once() {
    let replica = || publisher(deferred(89, psql()), None);
    let of = |replicas| sentences(&Status::new(store(None, replicas), TERM, None, None));
    assert_eq!(of(vec![replica(), replica()]), of(vec![replica()]));
}

#[test]
fn what_is_stuck_comes_first_and_gives_the_state_its_name() {
    let mut found = store(Some(at(10)), vec![publisher(None, attempts(0, 5))]);
    found.channels[0].oldest_due = Some(crate::document::Age(Duration::from_secs(90)));
    let found = Status::new(found, TERM, None, None);
    let states: Vec<&str> = found.findings.iter().map(|finding| finding.state.as_str()).collect();
    assert_eq!((found.state.as_str(), states), ("stuck", vec!["stuck", "failing"]));
}

#[test]
fn a_finding_names_the_list_that_has_its_culprits() {
    let mut found = store(Some(at(10)), vec![publisher(deferred(80, psql()), attempts(0, 5))]);
    found.channels[0].oldest_due = Some(crate::document::Age(Duration::from_secs(90)));
    let recent = |name: &str| RecentFailure {
        name: name.to_owned(),
        count: Counted { count: 3, capped: false },
        since: at(20),
        cause: String::new(),
    };
    found.recent.dead_letters = vec![recent("push")];
    found.recent.producers = vec![recent("lobby")];
    let found = Status::new(found, None, Some(at(10)), None);
    let culprits: Vec<String> = found
        .findings
        .iter()
        .map(|finding| serde_json::to_string(&finding.culprits).expect("JSON"))
        .collect();
    let time = at(20);
    let expected = [
        "null".to_owned(),
        r#"{"list":"notifications","conditions":{"route.channel":"push","route.status":"pending"}}"#
            .to_owned(),
        format!(r#"{{"list":"dead_letters","conditions":{{"channel":"push","created_after":"{time}"}}}}"#),
        r#"{"list":"notifications","conditions":{"route.channel":"email","route.status":"failed"}}"#
            .to_owned(),
        r#"{"list":"notifications","conditions":{"notification_id":"7-0"}}"#.to_owned(),
        format!(
            r#"{{"list":"malformed_intents","conditions":{{"producer":"lobby","recorded_after":"{time}"}}}}"#
        ),
    ];
    assert_eq!(culprits, expected);
}
