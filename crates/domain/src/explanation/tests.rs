use std::time::Duration;

use super::*;
use crate::dead_letter::recovery_hint;
use crate::document::Age;
use crate::query::{Discarded, RouteResend, Waiting};
use crate::route::Channel;

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

pub(super) fn second(seconds: i64) -> String {
    at(seconds).to_string()
}

/// A route as acceptance writes it at second 0.
pub(crate) fn pending() -> Route {
    Route {
        route_id: "email:user:u-1".into(),
        route_number: 1,
        channel: Channel::Email,
        recipient_ref: "user:u-1".into(),
        status: RouteStatus::Pending,
        attempt_count: 0,
        max_attempts: 7,
        next_attempt_at: Some(at(5)),
        resolved_email: "u-1@example.com".into(),
        resolved_locale: "en".into(),
        last_error_classification: String::new(),
        last_error_message: String::new(),
        last_error_at: None,
        failed_attempts: Vec::new(),
        created_at: at(0),
        updated_at: at(0),
        published_at: None,
        dead_lettered_at: None,
        skipped_at: None,
        published_entry_id: String::new(),
        recovery_hint: String::new(),
        discarded: None,
        resend: None,
        hold: None,
        receipt: None,
        explanation: String::new(),
    }
}

fn failed(attempt_count: u32) -> Route {
    Route {
        status: RouteStatus::Failed,
        attempt_count,
        last_error_classification: "mail_stream_publish_failed".into(),
        last_error_message: "WRONGTYPE Operation against a key holding the wrong kind of value.".into(),
        last_error_at: Some(at(10)),
        next_attempt_at: Some(at(20)),
        updated_at: at(10),
        ..pending()
    }
}

fn replayed() -> Route {
    Route { updated_at: at(30), next_attempt_at: Some(at(30)), ..pending() }
}

fn published() -> Route {
    Route {
        status: RouteStatus::Published,
        next_attempt_at: None,
        published_at: Some(at(1)),
        published_entry_id: "7-0".into(),
        ..pending()
    }
}

fn reported(status: ReceiptStatus) -> Route {
    let report = Report { status, at: at(8), detail: "550 u-1@example.com is unknown.".to_owned() };
    Route { receipt: Some(Receipt::after(None, report).0), ..published() }
}

fn dead() -> Route {
    let recovery_hint = recovery_hint(Channel::Email, "mail_stream_publish_failed").to_owned();
    Route {
        status: RouteStatus::DeadLetter,
        next_attempt_at: None,
        dead_lettered_at: Some(at(40)),
        recovery_hint,
        ..failed(7)
    }
}

fn skipped(reason: &str) -> Route {
    Route {
        status: RouteStatus::Skipped,
        next_attempt_at: None,
        skipped_at: Some(at(0)),
        last_error_classification: reason.to_owned(),
        ..pending()
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn every_state_and_cause_is_explained() {
    let parked = |route| Route { next_attempt_at: Some(Timestamp::MAX), ..route };
    let discarded = Discarded { at: at(50), by: "ops".into(), reason: "game over".into() };
    let no_message = Route { last_error_message: String::new(), ..failed(3) };
    let no_cause = Route { last_error_classification: String::new(), ..no_message.clone() };
    let by_hand = Route { recovery_hint: String::new(), ..dead() };
    let cases = [
        (
            pending(),
            3,
            format!(
                "Accepted at {}; the replica that accepted it makes the first attempt (1 of 7) now, and any other one may from {}",
                second(0),
                second(5)
            ),
        ),
        (
            pending(),
            5,
            format!(
                "Accepted at {}; next attempt (1 of 7) as soon as a publisher takes it; due since {}",
                second(0),
                second(5)
            ),
        ),
        (
            parked(pending()),
            9,
            format!(
                "Accepted at {}; parked: it has no attempt before an operator sets next_attempt_at to a time",
                second(0)
            ),
        ),
        (
            replayed(),
            31,
            format!(
                "Scheduled again by an operator at {0}; next attempt (1 of 7) as soon as a publisher takes it; due since {0}",
                second(30)
            ),
        ),
        (
            Route { next_attempt_at: Some(at(60)), ..replayed() },
            31,
            format!(
                "Scheduled again by an operator at {}; next attempt (1 of 7) at {}",
                second(30),
                second(60)
            ),
        ),
        (failed(1), 11, format!("Failed once: {WRONG_TYPE}; next attempt (2 of 7) at {}", second(20))),
        (failed(2), 11, format!("Failed twice: {WRONG_TYPE}; next attempt (3 of 7) at {}", second(20))),
        (
            failed(3),
            20,
            format!(
                "Failed 3 times: {WRONG_TYPE}; next attempt (4 of 7) as soon as a publisher takes it; due since {}",
                second(20)
            ),
        ),
        (
            parked(failed(3)),
            20,
            format!(
                "Failed 3 times: {WRONG_TYPE}; parked: it has no attempt before an operator sets next_attempt_at to a time"
            ),
        ),
        (
            no_message,
            11,
            format!("Failed 3 times: mail_stream_publish_failed; next attempt (4 of 7) at {}", second(20)),
        ),
        (
            no_cause,
            11,
            format!("Failed 3 times: the cause was not recorded; next attempt (4 of 7) at {}", second(20)),
        ),
        (
            Route { next_attempt_at: None, ..failed(1) },
            11,
            format!(
                "Failed once: {WRONG_TYPE}; it has no time for its next attempt, so it waits for an operator"
            ),
        ),
        (
            published(),
            9,
            format!(
                "Published at {} as entry 7-0 of the outbound stream; final, consumers deliver it from there",
                second(1)
            ),
        ),
        (
            dead(),
            99,
            format!(
                "The service gave up at {} after 7 failed attempts: {WRONG_TYPE}; an operator can act: {}",
                second(40),
                dead().recovery_hint
            ),
        ),
        (
            by_hand,
            99,
            format!(
                "The service gave up at {} after 7 failed attempts: {WRONG_TYPE}; only a replay by an operator makes another attempt",
                second(40)
            ),
        ),
        (
            Route { discarded: Some(discarded), attempt_count: 1, ..dead() },
            99,
            format!(
                "Discarded by ops at {} (game over), after the service gave up at {} after 1 failed attempt: {WRONG_TYPE}; \
                 only a replay by its id makes another attempt",
                second(50),
                second(40)
            ),
        ),
        (
            skipped("no_email_address"),
            9,
            format!(
                "Skipped at {} at acceptance because the user directory had no usable e-mail address of the user; \
                 final, only a new intent is sent",
                second(0)
            ),
        ),
        (
            skipped("no_admin_recipients"),
            9,
            format!(
                "Skipped at {} at acceptance because no administrator was configured for its type \
                 (NOTIFICATION_ADMIN_EMAILS_…); final, only a new intent is sent",
                second(0)
            ),
        ),
        (
            skipped("later_reason"),
            9,
            format!(
                "Skipped at {} at acceptance because later_reason; final, only a new intent is sent",
                second(0)
            ),
        ),
        (
            skipped(""),
            9,
            format!(
                "Skipped at {} at acceptance because there was no one to reach; final, only a new intent is sent",
                second(0)
            ),
        ),
    ];
    for (route, now, expected) in cases {
        assert_eq!(explain(&route, at(now), None), expected);
    }
}

#[test]
fn what_the_consumer_reported_follows_the_state_without_its_detail() {
    for (status, expected) in [
        (ReceiptStatus::Failed, "delivery failed"),
        (ReceiptStatus::Delivered, "delivered"),
        (ReceiptStatus::Opened, "opened by the recipient"),
        (ReceiptStatus::Complained, "the recipient complained"),
        (ReceiptStatus::Bounced, "bounced"),
    ] {
        let expected = format!(
            "{}; its consumer reported: {expected} at {}",
            explain(&published(), at(9), None),
            second(8)
        );
        assert_eq!(explain(&reported(status), at(9), None), expected);
    }
}

#[test]
fn no_explanation_names_an_address_or_ends_with_a_full_stop() {
    let reported = reported(ReceiptStatus::Bounced);
    for route in [pending(), failed(2), published(), dead(), skipped("no_email_address"), reported] {
        let sentence = explain(&route, at(7), None);
        assert!(!sentence.contains('@') && !sentence.ends_with('.'), "{sentence}");
    }
}

#[test]
fn a_route_that_is_next_names_the_obstacle_of_its_channel() {
    let cause = "could not append: OOM command not allowed".to_owned();
    let obstacle =
        Waiting { replica: String::new(), entry_id: None, cause, age: Age(Duration::from_secs(9)) };
    let waits = "waits: Redis is full: could not append: OOM command not allowed; next attempt";
    for (route, now, expected) in [
        (pending(), 3, true),
        (pending(), 5, true),
        (failed(3), 4_000, true),
        (failed(3), 0, false),
        (Route { next_attempt_at: Some(Timestamp::MAX), ..pending() }, 9, false),
        (published(), 9, false),
    ] {
        let sentence = explain(&route, at(now), Some(Obstacle::Waits(&obstacle)));
        assert_eq!(sentence.contains(waits), expected, "{sentence}");
    }
}

#[test]
fn a_resend_and_a_cancellation_are_explained_with_who_and_why_unless_the_reader_may_not_learn_it() {
    let by = RouteResend {
        at: at(50),
        actor: "ops".into(),
        reason: "it lost them".into(),
        replaced_entry_id: "7-0".to_owned(),
    };
    let resent = Route {
        published_at: Some(at(10)),
        published_entry_id: "7-0".into(),
        attempt_count: 1,
        max_attempts: 8,
        next_attempt_at: Some(at(50)),
        updated_at: at(50),
        resend: Some(by.clone()),
        ..pending()
    };
    let published = format!("Published at {} as entry 7-0 of the outbound stream", second(10));
    let again = format!("sent again by ops at {} because: it lost them", second(50));
    let next = format!("next attempt (2 of 8) as soon as a publisher takes it; due since {}", second(50));
    assert_eq!(explain(&resent, at(51), None), format!("{published}, {again}; {next}"));
    let mut withheld = by;
    withheld.actor.withhold();
    withheld.reason.withhold();
    let to_producer = Route { resend: Some(withheld), ..resent.clone() };
    let unknown = format!("sent again by an operator at {}", second(50));
    assert_eq!(explain(&to_producer, at(51), None), format!("{published}, {unknown}; {next}"));
    let replayed = Route { attempt_count: 0, updated_at: at(55), ..resent.clone() };
    let again_later = format!("Scheduled again by an operator at {}", second(55));
    assert!(
        explain(&replayed, at(56), None).starts_with(&again_later),
        "{}",
        explain(&replayed, at(56), None)
    );
    let cancelled = Route {
        status: RouteStatus::Skipped,
        next_attempt_at: None,
        skipped_at: Some(at(60)),
        last_error_classification: CANCELLED.into(),
        last_error_message: "cancelled by ops: enough".into(),
        ..pending()
    };
    let skipped = format!(
        "Skipped at {} because it was cancelled by ops: enough; final, only a new intent is sent",
        second(60)
    );
    assert_eq!(explain(&cancelled, at(61), None), skipped);
    let of_resend = Route {
        resend: resent.resend,
        published_at: resent.published_at,
        published_entry_id: "7-0".into(),
        ..cancelled
    };
    assert_eq!(explain(&of_resend, at(61), None), format!("{published}, {again}; {skipped}"));
}
