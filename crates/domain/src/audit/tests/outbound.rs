//! Tests of the rules for entries of outbound streams.

use super::*;

#[test]
fn an_outbound_entry_belongs_to_a_route_that_names_it_or_will() {
    let name = |fields: &RawFields| OutboundName::of(Channel::Push, Some(fields));
    let own = name(&RawFields::from_iter([("event_id", format!("{TODAY}-0/push:user:u-1"))]));
    let judge = |name: &OutboundName, status, entry: &str| {
        let route = RouteState { status, published_entry_id: entry.into(), replaced_entry_id: String::new() };
        match judge_outbound("s", id(TODAY), name, Some(&route), cutoffs()) {
            OutboundVerdict::Wrong(found) => Err(found.kind),
            verdict => Ok(verdict),
        }
    };
    let named = format!("{TODAY}-0");
    for (status, entry, expected) in [
        (Some(RouteStatus::Published), &*named, Ok(OutboundVerdict::Published)),
        (Some(RouteStatus::Published), "5-0", Err(Kind::DuplicateOutboundEntry)),
        (Some(RouteStatus::Published), "x", Ok(OutboundVerdict::Published)),
        (Some(RouteStatus::Pending), "", Ok(OutboundVerdict::Uncommitted)),
        (Some(RouteStatus::Failed), "", Ok(OutboundVerdict::Uncommitted)),
        (Some(RouteStatus::Skipped), "", Err(Kind::OutboundEntryNotPublished)),
        // A resend was cancelled, and a comparison has appended the entry again since.
        (Some(RouteStatus::Skipped), &*named, Ok(OutboundVerdict::Published)),
        (Some(RouteStatus::DeadLetter), "", Err(Kind::OutboundEntryNotPublished)),
        (None, "", Ok(OutboundVerdict::Published)),
    ] {
        assert_eq!(judge(&own, status, entry), expected, "{status:?} {entry}");
    }
    for strange in [
        RawFields::default(),
        RawFields::from_iter([("delivery_id", format!("{TODAY}-0/email:user:u-1"))]),
        RawFields::from_iter([("event_id", "no-route")]),
        RawFields::from_iter([("event_id", "no-time/push:user:u-1")]),
    ] {
        let verdict = judge_outbound("s", id(TODAY), &name(&strange), None, cutoffs());
        assert_eq!(verdict, OutboundVerdict::Other, "{strange:?}");
    }
}

#[test]
fn an_entry_of_an_attempt_before_a_resend_is_no_duplicate_whatever_became_of_the_resend() {
    let fields = RawFields::from_iter([("event_id", format!("{TODAY}-0/push:user:u-1"))]);
    let name = OutboundName::of(Channel::Push, Some(&fields));
    let judge = |status, published: &str, replaced: u64| {
        let route = RouteState {
            status: Some(status),
            published_entry_id: published.to_owned(),
            replaced_entry_id: format!("{replaced}-0"),
        };
        judge_outbound("s", id(TODAY), &name, Some(&route), cutoffs())
    };
    for status in [RouteStatus::Published, RouteStatus::Skipped, RouteStatus::DeadLetter] {
        assert_eq!(judge(status, "9-0", TODAY), OutboundVerdict::Published, "{status:?}");
        assert_eq!(judge(status, "9-0", TODAY + 1), OutboundVerdict::Published, "{status:?}");
        assert!(matches!(judge(status, "9-0", TODAY - 1), OutboundVerdict::Wrong(_)), "{status:?}");
    }
}

#[test]
fn an_outbound_entry_without_a_route_is_wrong_unless_its_record_may_have_expired() {
    for (notification, entry, is_wrong) in [
        (format!("{TODAY}-0"), TODAY, true),
        (format!("{}-0~1", TODAY - 30 * DAY), TODAY, false),
        (format!("{}-0", TODAY - 30 * DAY + 1), TODAY, true),
        ("019d4d7f-94a0-7000-8000-000000000000".to_owned(), TODAY, true),
        ("018f0000-0000-7000-8000-000000000000".to_owned(), TODAY, false),
    ] {
        let fields = RawFields::from_iter([("event_id", format!("{notification}/push:user:u-1"))]);
        let name = OutboundName::of(Channel::Push, Some(&fields));
        let verdict = judge_outbound("s", id(entry), &name, None, cutoffs());
        let found = matches!(&verdict, OutboundVerdict::Wrong(found) if found.kind == Kind::OutboundEntryWithoutRoute);
        assert_eq!((found, verdict == OutboundVerdict::Expired), (is_wrong, !is_wrong), "{notification}");
    }
}
