//! Tests of the rendered overview.

use domain::hold::{Hold, HoldKey, HoldScope};
use domain::query::{Counted, RecentFailures};
use domain::replica::{BlockedReport, ReplicaReport, WorkerReport};
use domain::route::Channel;

use super::*;

/// A text that a producer or an error message may contain.
const SCRIPT: &str = "\"><script>alert('x')</script>\u{202e}";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

fn counted(count: u64) -> Counted {
    Counted { count, capped: false }
}

fn channel(channel: Channel, due: u64, oldest_due: Option<Timestamp>) -> ChannelStatus {
    let oldest_due = oldest_due.map(|since| Age::between(since, at(100)));
    ChannelStatus { channel, due: counted(due), oldest_due, failing: counted(3), waiting: None }
}

fn replica(name: &str, seen_at: Timestamp, blocked_since: Option<Timestamp>) -> ReplicaStatus {
    let blocked = |since| BlockedReport { entry_id: None, cause: format!("cause {SCRIPT}"), since };
    let report = ReplicaReport {
        replica: name.to_owned(),
        version: format!("version {SCRIPT}"),
        started_at: at(0),
        leader_of: vec![domain::query::INTAKE.to_owned()],
        workers: vec![WorkerReport {
            worker: domain::query::INTAKE.to_owned(),
            last_pass_at: seen_at,
            blocked: blocked_since.map(blocked),
            position: None,
            deferred: None,
            attempts: None,
        }],
        stopped: false,
    };
    ReplicaStatus::new(report, seen_at)
}

fn hold() -> Hold {
    Hold {
        key: HoldKey { scope: HoldScope::Producer, name: format!("producer {SCRIPT}") },
        since: at(40),
        actor: format!("actor {SCRIPT}"),
        reason: format!("reason {SCRIPT}"),
        released_at: None,
        routes: counted(1_234),
    }
}

fn overview(replicas: Vec<ReplicaStatus>, channels: Vec<ChannelStatus>) -> Overview {
    let causes = |cause: &str| CauseCounts { counts: vec![(cause.to_owned(), 4)], capped: false };
    let store = StoreStatus {
        at: at(100),
        stream: format!("stream {SCRIPT}"),
        checkpoint: None,
        channels,
        dead_letters: causes(&format!("cause {SCRIPT}&")),
        malformed_intents: causes("unknown_type"),
        recent: RecentFailures::default(),
        receipts: causes("bounced"),
        holds: vec![hold()],
        replicas,
    };
    let backlog =
        StreamBacklog { last_entry_id: None, first: None, entries: Counted { count: 1_000, capped: true } };
    let status = Status::new(store, Some(LeaderTerm { since: at(40), fence: 7 }), None, Some(backlog));
    Overview { status, activity: None, selected: Selected::default() }
}

#[test]
fn what_is_stuck_is_said_first_with_its_cause() {
    let channels = vec![channel(Channel::Push, 12, Some(at(20)))];
    let html = render(&overview(vec![replica("one", at(99), Some(at(50)))], channels)).into_string();
    let (stuck, rest) = html.split_once("</section>").expect("a section");
    assert!(stuck.contains("The worker intake of one has been blocked for 50 s: cause"), "{stuck}");
    assert!(stuck.contains("The channel push has a route that has been due for 1 min 20 s"), "{stuck}");
    assert!(!stuck.contains("nothing is stuck"), "{stuck}");
    assert!(rest.contains("1,000 or more") && rest.contains("1 min 20 s old"), "{rest}");
}

#[test]
fn the_state_is_one_word_and_each_finding_leads_to_its_culprits_and_its_section_of_the_runbook() {
    let channels = vec![channel(Channel::Push, 12, Some(at(20)))];
    let html = render(&overview(vec![replica("one", at(99), Some(at(50)))], channels)).into_string();
    for expected in [
        "The service is <span class=\"badge bad\"><span class=\"mark\" aria-hidden=\"true\">✕</span> stuck</span>",
        "href=\"#replicas\"",
        "href=\"/console/runbook#intake\"",
        "href=\"/console/notifications?filter=%7B%22route.channel%22%3A%22push%22%2C%22route.status%22%3A%22pending%22%7D\"",
        "href=\"/console/runbook#publishing\"",
    ] {
        assert!(html.contains(expected), "{expected}: {html}");
    }
}

#[test]
fn what_is_held_is_said_with_its_age_and_reason() {
    let html = render(&overview(vec![replica("one", at(99), None)], Vec::new())).into_string();
    assert!(html.contains("1,234 routes wait, since 1 min, by actor"), "{html}");
    assert!(html.contains("href=\"/console/holds\""), "{html}");
}

#[test]
fn after_15_s_without_a_leader_intake_is_stuck_even_if_the_last_leader_stopped_in_order() {
    let leaderless = Leaderless::new();
    let said = |seconds| {
        let store = StoreStatus { at: at(seconds), ..overview(Vec::new(), Vec::new()).status.store };
        let status = status(store, None, None, None, &leaderless);
        render(&Overview { status, activity: None, selected: Selected::default() }).into_string()
    };
    let (first, early, late) = (said(100), said(114), said(115));
    for html in [first, early] {
        assert!(!html.contains("No replica has led"), "{html}");
    }
    assert!(late.contains("No replica has led for 15 s, so no intent is read"), "{late}");
}

#[test]
fn an_overview_claims_that_nothing_is_stuck_unless_redis_cannot_be_asked_or_a_worker_waits() {
    let said = |overview: &Overview| {
        let html = render(overview).into_string();
        html.split_once("</section>").expect("a section").0.to_owned()
    };
    let well = overview(vec![replica("one", at(99), None)], Vec::new());
    assert!(said(&well).contains("Well: nothing is stuck and nothing fails."), "{}", said(&well));
    let mut unknown = overview(vec![replica("one", at(99), None)], Vec::new());
    unknown.status.intake.backlog = None;
    assert!(said(&unknown).contains("The stream cannot be read."), "{}", said(&unknown));
    let waiting = overview(vec![replica("one", at(99), Some(at(90)))], Vec::new());
    assert!(said(&waiting).contains("A worker waits."), "{}", said(&waiting));
    for overview in [unknown, waiting] {
        assert!(!said(&overview).contains("nothing is stuck"), "{}", said(&overview));
    }
}

#[test]
fn a_replica_that_was_not_seen_for_a_while_is_not_called_running() {
    let replicas = vec![replica("gone", at(10), None), replica("there", at(99), None)];
    let html = render(&overview(replicas, Vec::new())).into_string();
    assert!(html.contains("not seen for 1 min 30 s"), "{html}");
    assert_eq!(html.matches("</span> running").count(), 1, "{html}");
}

#[test]
fn texts_from_outside_are_text_and_what_they_hide_is_shown() {
    let name = format!("name {SCRIPT}");
    let html = render(&overview(vec![replica(&name, at(99), Some(at(50)))], Vec::new())).into_string();
    // The text to copy is the original text.
    let shown: String =
        html.split("data-copy=\"").map(|part| part.split_once('"').map_or(part, |(_, rest)| rest)).collect();
    assert!(!html.contains("<script") && !shown.contains('\u{202e}'), "{html}");
    for text in ["name", "version", "cause", "stream"] {
        assert!(
            html.contains(&format!("{text} &quot;&gt;&lt;script&gt;alert('x')&lt;/script&gt;")),
            "{text}: {html}"
        );
    }
    assert!(html.contains("U+202E"), "{html}");
    let link = "/console/dead-letters?classification=cause+%22%3E%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%E2%80%AE%26";
    assert!(html.contains(link), "{html}");
}
