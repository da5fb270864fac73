use super::*;
use crate::hold::HoldChange;
use crate::query::DeadLetterFilter;

const BUDGETS: Budgets = Budgets { push: 3, email: 7 };

fn target(n: usize, channel: Channel, classification: &str) -> Target {
    let key = RouteKey { notification_id: format!("{n}-0").into(), route_id: format!("{channel}:user:u") };
    let version = Version::read(Timestamp::UNIX_EPOCH);
    Target {
        key,
        version,
        channel,
        attempt_count: 3,
        replaces: None,
        group: Group::Cause(classification.to_owned()),
    }
}

#[test]
fn a_reason_has_1_to_1024_bytes_without_nul() {
    for (reason, expected) in [
        (String::new(), false),
        ("x".to_owned(), true),
        ("a\0b".to_owned(), false),
        ("x".repeat(MAX_REASON_BYTES), true),
        ("x".repeat(MAX_REASON_BYTES + 1), false),
    ] {
        assert_eq!(RouteChange::discard(reason.clone()).is_some(), expected, "{}", reason.len());
    }
}

#[test]
fn a_discarded_dead_letter_may_be_replayed_by_its_id_and_nothing_else() {
    let (replay, discard) =
        (RouteChange::Replay(BUDGETS), RouteChange::Discard { reason: "obsolete".into() });
    for (change, discarded, is_named, expected) in [
        (&replay, false, false, true),
        (&replay, false, true, true),
        (&replay, true, false, false),
        (&replay, true, true, true),
        (&discard, false, false, true),
        (&discard, false, true, true),
        (&discard, true, false, false),
        (&discard, true, true, false),
    ] {
        assert_eq!(change.applies_to(discarded, is_named), expected, "{change:?} {discarded} {is_named}");
    }
}

#[test]
fn a_replayed_route_is_pending_and_due_at_once_with_the_budget_of_its_channel() {
    let now = Timestamp::UNIX_EPOCH;
    for (channel, max_attempts) in [(Channel::Push, 3), (Channel::Email, 7)] {
        let expected = RequeuedRoute {
            status: RouteStatus::Pending,
            attempt_count: 0,
            max_attempts,
            next_attempt_at: now,
        };
        assert_eq!(replay(channel, BUDGETS, now), expected);
    }
}

#[test]
fn a_resent_route_has_the_next_number_of_attempt_and_a_fresh_budget() {
    let now = Timestamp::UNIX_EPOCH;
    for (attempt_count, channel, expected) in [(0, Channel::Push, (1, 4)), (2, Channel::Email, (3, 10))] {
        let target = Target { attempt_count, ..target(1, channel, "c") };
        let resent = resend(&target, BUDGETS, now);
        assert_eq!((resent.attempt_count, resent.max_attempts), expected);
        assert_eq!((resent.status, resent.next_attempt_at), (RouteStatus::Pending, now));
    }
}

#[test]
fn of_the_planned_ones_only_those_of_the_same_version_are_kept() {
    let versions = [1, 2, 3].map(|at| Version::read(Timestamp::from_millis(at).expect("in range")));
    let at = |n: usize, version| Target { version, ..target(n, Channel::Push, "c") };
    let mut targets = Targets {
        targets: vec![at(1, versions[0]), at(2, versions[2]), at(3, versions[0])],
        unchanged: 1,
        ..Targets::default()
    };
    let key = |n| target(n, Channel::Push, "c").key.to_string();
    targets.keep_planned(&BTreeMap::from([(key(1), versions[0]), (key(2), versions[1])]));
    assert_eq!((targets.targets, targets.unchanged), (vec![at(1, versions[0])], 3));
}

#[test]
fn a_plan_counts_by_cause_and_shows_the_first_ids() {
    let mut targets: Vec<Target> = (0..25).map(|n| target(n, Channel::Email, "mail")).collect();
    targets.extend((25..27).map(|n| target(n, Channel::Push, "gateway")));
    let remaining = Counted { count: 4, capped: false };
    let targets = Targets { targets, remaining, unknown: vec!["x".into()], unchanged: 1 };
    let plan = targets.plan();
    let by: Vec<_> = plan.by.iter().map(|group| (group.channel, group.group.name(), group.count)).collect();
    assert_eq!(by, [(Channel::Email, "mail", 25), (Channel::Push, "gateway", 2)]);
    assert_eq!(plan.count, Counted { count: 31, capped: false });
    assert_eq!((plan.first.len(), plan.first[0].to_string()), (20, "0-0/email:user:u".to_owned()));
    assert_eq!(plan.unknown, ["x"]);
}

#[test]
fn a_plan_that_is_counted_page_by_page_is_that_of_all_pages() {
    let all: Vec<Target> = (0..70).map(|n| target(n, Channel::Push, ["a", "b"][n % 2])).collect();
    let mut counter = PlanCounter::default();
    all.chunks(15).for_each(|page| counter.add(page));
    let whole = Targets { targets: all, ..Targets::default() }.plan();
    assert_eq!(counter.plan(Vec::new(), Counted::default()), whole);
}

#[test]
fn the_arguments_name_the_filter_or_the_ids_of_the_chunk_and_the_idempotency_key() {
    let action = |selection| OperatorAction {
        actor: "ops".into(),
        request_id: "r".into(),
        idempotency_key: Some("k".into()),
        selection,
    };
    let filter = DeadLetterFilter { channel: Some(Channel::Email), ..DeadLetterFilter::default() };
    let discard = RouteChange::Discard { reason: "old".into() };
    let by_filter = action(Selection::DeadLetters(filter)).arguments(&discard, &[]);
    let expected = json!({"filter": {"channel": "email"}, "idempotency_key": "k", "reason": "old"});
    assert_eq!(by_filter, expected);
    let by_ids = action(Selection::Ids(vec!["1-0/push:user:u".into(), "2-0/x".into()]));
    let arguments = by_ids.arguments(&RouteChange::Replay(BUDGETS), &[target(1, Channel::Push, "c")]);
    let max_attempts = json!({"push": 3, "email": 7});
    let expected = json!({"ids": ["1-0/push:user:u"], "idempotency_key": "k", "max_attempts": max_attempts});
    assert_eq!(arguments, expected);
}

#[test]
fn every_action_is_listed_once() {
    let reason = || "r".to_owned();
    let of_routes = [
        RouteChange::Replay(BUDGETS),
        RouteChange::Discard { reason: reason() },
        RouteChange::cancel(reason()).expect("a reason"),
        RouteChange::Resend { budgets: BUDGETS, reason: reason() },
    ];
    let of_holds = [HoldChange::Hold { reason: reason() }, HoldChange::Release];
    let others = [RESUBMIT_ACTION, erase::ACTION, StepDown::ACTION];
    let actions = of_routes.iter().map(RouteChange::action).chain(of_holds.iter().map(HoldChange::action));
    assert_eq!(actions.chain(others).collect::<Vec<_>>(), ACTIONS);
}
