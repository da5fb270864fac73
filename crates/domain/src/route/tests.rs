use std::time::Duration;

use proptest::prelude::*;

use super::*;

pub(crate) fn live_route() -> LiveRoute {
    route(0, 7)
}

fn route(attempt_count: u32, max_attempts: u32) -> LiveRoute {
    let at = Timestamp::UNIX_EPOCH;
    LiveRoute {
        replaces: None,
        key: RouteKey {
            notification_id: NotificationId::from("1-0".to_owned()),
            route_id: "push:user:u".into(),
        },
        version: Version::read(at),
        channel: Channel::Push,
        recipient_ref: "user:u".into(),
        resolved_email: String::new(),
        resolved_locale: "en".into(),
        attempt_count,
        max_attempts,
        next_attempt_at: at,
        content: Arc::new(RecordContent {
            producer: "p".into(),
            notification_type: "t".into(),
            payload_json: "{}".into(),
            occurred_at: at,
            accepted_at: at,
            request_id: String::new(),
            trace_id: String::new(),
        }),
    }
}

#[test]
fn a_version_is_read_back_from_its_text_and_nothing_else_is_one() {
    let version = Version::read("2026-04-02T09:21:40.123456Z".parse().expect("a time"));
    assert_eq!(version.to_string().parse(), Ok(version));
    for text in ["", "now", "1.5", "-", "99999999999999999999", "9223372036854775807"] {
        assert_eq!(text.parse::<Version>(), Err(InvalidVersion), "{text}");
    }
}

#[test]
fn names_are_read_back_as_what_they_were() {
    assert!(RouteStatus::ALL.iter().all(|status| status.as_str().parse() == Ok(*status)));
    assert!(Channel::ALL.iter().all(|channel| channel.as_str().parse() == Ok(*channel)));
    assert_eq!("Pending".parse::<RouteStatus>(), Err(UnknownName));
}

#[test]
fn a_key_is_read_back_from_its_text() {
    let key = RouteKey { notification_id: "1-0~2".to_owned().into(), route_id: "push:user:a/b".into() };
    assert_eq!(key.to_string().parse(), Ok(key));
    for text in ["", "1-0", "/x", "1-0/"] {
        assert_eq!(text.parse::<RouteKey>(), Err(NotARouteKey), "{text}");
    }
}

proptest! {
    /// For every budget, a route that always fails becomes a dead letter at exactly `max_attempts` failures,
    /// and every retry before that lies in the future.
    // INV-05
    #[test]
    fn a_route_that_always_fails_spends_exactly_its_budget(max_attempts in 1_u32..50, jitter in 0.0..=1.0_f64) {
        let backoff = BackoffBounds { min: Duration::from_millis(10), max: Duration::from_secs(9) };
        let mut now = Timestamp::UNIX_EPOCH;
        let mut failures = 0;
        loop {
            match route(failures, max_attempts).after_failure(now, &backoff, jitter) {
                AfterFailure::Retry { attempt_count, at } => {
                    prop_assert_eq!(attempt_count, failures + 1);
                    prop_assert!(attempt_count < max_attempts && at > now);
                    (failures, now) = (attempt_count, at);
                }
                AfterFailure::DeadLetter { attempt_count } => {
                    prop_assert_eq!((attempt_count, failures), (max_attempts, max_attempts - 1));
                    break;
                }
            }
        }
    }
}

#[test]
fn a_count_that_was_edited_beyond_the_budget_does_not_grow_further() {
    let after = route(9, 3).after_failure(
        Timestamp::UNIX_EPOCH,
        &BackoffBounds { min: Duration::ZERO, max: Duration::ZERO },
        0.0,
    );
    assert_eq!(after, AfterFailure::DeadLetter { attempt_count: 3 });
}
