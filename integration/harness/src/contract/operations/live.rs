//! Live routes that operators cancel, and published ones that they have sent again.

use domain::hold::{HoldActor, HoldChange, HoldKey, HoldScope, RouteToHold};
use domain::operations::RouteFilter;
use domain::ports::HoldStore;
use domain::query::RouteResend;

use super::*;

fn cancel() -> RouteChange {
    RouteChange::cancel("wrong template".to_owned()).expect("a reason")
}

fn routes(filter: RouteFilter) -> Selection {
    Selection::Routes(filter)
}

async fn selected(store: &impl Operations, filter: RouteFilter) -> Vec<String> {
    let targets = select(store, &cancel(), &routes(filter)).await.targets;
    targets.iter().map(|target| target.key.to_string()).collect()
}

/// Keeps the first due route of a channel by a hold of the channel.
async fn hold(store: &(impl RouteStore + HoldChanges), channel: Channel) {
    let hold = HoldKey::new(HoldScope::Channel, channel.as_str().to_owned()).expect("a key");
    let actor = HoldActor { name: "ops", request_id: "r", idempotency_key: None };
    let made = store.change_hold(&hold, &HoldChange::Hold { reason: "x".to_owned() }, actor).await;
    assert!(made.expect("the store is there"));
    let route = due(store, channel).await.remove(0);
    let kept = [RouteToHold { key: route.key, version: route.version, hold }];
    assert_eq!(HoldStore::hold_routes(store, &kept, at(11)).await.expect("the store is there").len(), 1);
}

pub async fn a_cancelled_route_is_skipped_for_good_with_the_operator_and_the_reason(
    fixture: impl OperationsFixture,
) {
    accept(fixture.store(), [1], at(0)).await;
    hold(fixture.store(), Channel::Push).await;
    let email = due(fixture.store(), Channel::Email).await.remove(0);
    let before = route(fixture.queries(), EMAIL).await;
    assert_eq!(apply(fixture.store(), &cancel(), by_ids([PUSH, EMAIL])).await, (2, NONE, vec![]));
    let after = route(fixture.queries(), EMAIL).await;
    let expected = Route {
        status: RouteStatus::Skipped,
        next_attempt_at: None,
        updated_at: at(20),
        skipped_at: Some(at(20)),
        last_error_classification: "cancelled".to_owned(),
        last_error_message: "cancelled by ops: wrong template".to_owned(),
        ..before
    };
    assert_eq!(after, expected);
    let held = route(fixture.queries(), PUSH).await;
    assert_eq!((held.status, held.hold), (RouteStatus::Skipped, None));
    let holds = fixture.store().list_holds().await.expect("the store is there");
    assert_eq!(holds[0].routes, NONE);
    // A publisher that read it before changes nothing, and another cancellation neither.
    let done = [Published { key: email.key, version: email.version, entry: acknowledged("7-0") }];
    let completed = fixture.store().complete_routes_published(&done, at(21), RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Conflict]);
    assert_eq!(select(fixture.store(), &cancel(), &by_ids([PUSH, EMAIL])).await.unchanged, 2);
    let by_ids = json!({"ids": [PUSH, EMAIL], "idempotency_key": "k-1", "reason": "wrong template"});
    let last = fixture.actions().await.pop().expect("an action");
    assert_eq!((last.action.as_str(), last.affected, last.arguments), ("cancel_routes", 2, by_ids));
}

pub async fn a_filter_selects_live_routes_by_channel_type_producer_recipient_and_acceptance(
    fixture: impl OperationsFixture,
) {
    let store = fixture.store();
    accept(store, [1], at(0)).await;
    accept(store, [2], at(5)).await;
    dead(store, [3]).await;
    let found = route(fixture.queries(), PUSH).await;
    let notification = fixture.queries().get_notification(&"1-0".to_owned().into()).await;
    let notification = notification.expect("the store is there").expect("it was accepted");
    let any = RouteFilter::default;
    let second = ["2-0/push:user:u-1", "2-0/email:user:u-1"].map(str::to_owned).to_vec();
    let all = [PUSH, "2-0/push:user:u-1", EMAIL, "2-0/email:user:u-1"].map(str::to_owned).to_vec();
    assert_eq!(selected(store, any()).await, all);
    let of_email = RouteFilter { channel: Some(Channel::Email), ..any() };
    assert_eq!(selected(store, of_email).await, all[2..]);
    let of_type = RouteFilter { notification_type: Some(notification.notification_type.clone()), ..any() };
    let of_producer = RouteFilter { producer: Some(notification.producer.clone()), ..of_type };
    let to_user = RouteFilter { recipient: Some("u-1".to_owned()), ..of_producer };
    assert_eq!(selected(store, to_user.clone()).await, all);
    for other in [
        RouteFilter { notification_type: Some("another".to_owned()), ..any() },
        RouteFilter { producer: Some("another".to_owned()), ..any() },
        RouteFilter { recipient: Some("u-9".to_owned()), ..any() },
        RouteFilter { until: Some(found.created_at), ..any() },
    ] {
        assert_eq!(selected(store, other.clone()).await, Vec::<String>::new(), "{other:?}");
    }
    assert_eq!(selected(store, RouteFilter { since: Some(at(5)), ..any() }).await, second);
    let until = RouteFilter { until: Some(at(5)), ..to_user };
    assert_eq!(selected(store, until).await, [PUSH, EMAIL]);
    let of_notification = RouteFilter { notification_id: Some("2-0".to_owned().into()), ..any() };
    let mut by_id = second;
    by_id.sort();
    assert_eq!(selected(store, of_notification.clone()).await, by_id);
    let dead = RouteFilter { notification_id: Some("3-0".to_owned().into()), ..any() };
    assert_eq!(selected(store, dead).await, Vec::<String>::new());
    let pushed = RouteFilter { channel: Some(Channel::Push), ..of_notification };
    assert_eq!(selected(store, pushed).await, ["2-0/push:user:u-1"]);
}

pub async fn live_routes_are_listed_page_by_page_those_that_are_held_last(fixture: impl OperationsFixture) {
    let store = fixture.store();
    accept(store, 1..=3, at(0)).await;
    hold(store, Channel::Push).await;
    for selection in [
        routes(RouteFilter::default()),
        routes(RouteFilter { notification_id: Some("1-0".to_owned().into()), ..RouteFilter::default() }),
    ] {
        let whole = select(store, &cancel(), &selection).await.targets;
        let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = store.list_targets(&cancel(), &selection, after.as_ref(), 1).await;
            let page = page.expect("the store is there");
            assert!(page.items.len() <= 1 && pages < 20, "{listed:?}");
            listed.extend(page.items);
            (after, pages) = (page.next, pages + 1);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, whole);
    }
    let all = selected(store, RouteFilter { channel: Some(Channel::Push), ..RouteFilter::default() }).await;
    assert_eq!(all, ["2-0/push:user:u-1", "3-0/push:user:u-1", PUSH]);
}

fn resend() -> RouteChange {
    RouteChange::resend(BUDGETS, "it lost them".to_owned()).expect("a reason")
}

/// Publishes the first due route of a channel.
async fn publish(store: &impl RouteStore, channel: Channel, entry_id: &str, seconds: i64) -> LiveRoute {
    let live = due(store, channel).await.remove(0);
    let done = [Published { key: live.key.clone(), version: live.version, entry: acknowledged(entry_id) }];
    let completed = store.complete_routes_published(&done, at(seconds), RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    live
}

pub async fn a_resent_route_is_due_at_once_and_replaces_its_entry(fixture: impl OperationsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let first = publish(fixture.store(), Channel::Push, "7-0", 10).await;
    assert_eq!(first.replaces, None);
    let before = route(fixture.queries(), PUSH).await;
    assert_eq!(apply(fixture.store(), &resend(), by_ids([PUSH, EMAIL])).await, (1, NONE, vec![]));
    let after = route(fixture.queries(), PUSH).await;
    let by = RouteResend {
        at: at(20),
        actor: "ops".into(),
        reason: "it lost them".into(),
        replaced_entry_id: "7-0".to_owned(),
    };
    let expected = Route {
        status: RouteStatus::Pending,
        attempt_count: 1,
        max_attempts: 1 + BUDGETS.push,
        next_attempt_at: Some(at(20)),
        updated_at: at(20),
        resend: Some(by.clone()),
        ..before
    };
    assert_eq!(after, expected);
    // The first completion, repeated after its reply was lost, does not complete the resend.
    let repeated = [Published { key: first.key, version: first.version, entry: acknowledged("7-0") }];
    let repeated = fixture.store().complete_routes_published(&repeated, at(21), RowLocks::Wait).await;
    assert_eq!(repeated.expect("the store is there"), [Completion::Conflict]);
    // A resend is not selected again before it is published, and may be cancelled.
    assert_eq!(select(fixture.store(), &resend(), &by_ids([PUSH])).await.unchanged, 1);
    let targets = select(fixture.store(), &cancel(), &by_ids([PUSH])).await.targets;
    assert_eq!(targets[0].replaces.as_deref(), Some("7-0"));
    let live = publish(fixture.store(), Channel::Push, "9-0", 30).await;
    assert_eq!((live.replaces.as_deref(), live.attempt()), (Some("7-0"), 2));
    let found = route(fixture.queries(), PUSH).await;
    assert_eq!((found.status, found.published_entry_id.as_str()), (RouteStatus::Published, "9-0"));
    assert_eq!((found.published_at, found.resend), (Some(at(30)), Some(by)));
    let arguments = json!({"ids": [PUSH], "idempotency_key": "k-1", "max_attempts": {"push": 4, "email": 9}, "reason": "it lost them"});
    let last = fixture.actions().await.pop().expect("an action");
    assert_eq!((last.action.as_str(), last.affected, last.arguments), ("resend_routes", 1, arguments));
}

pub async fn a_resent_route_that_becomes_a_dead_letter_is_replayed_in_place_of_the_same_entry(
    fixture: impl OperationsFixture,
) {
    let store = fixture.store();
    accept(store, [1], at(0)).await;
    publish(store, Channel::Push, "7-0", 10).await;
    assert_eq!(apply(store, &resend(), by_ids([PUSH])).await.0, 1);
    fail(store, &due(store, Channel::Push).await.remove(0)).await;
    assert_eq!(listed(fixture.queries(), false).await, [PUSH]);
    assert_eq!(select(store, &resend(), &by_ids([PUSH])).await.unchanged, 1);
    assert_eq!(apply(store, &REPLAY, by_ids([PUSH])).await.0, 1);
    let live = publish(store, Channel::Push, "9-0", 30).await;
    assert_eq!((live.replaces.as_deref(), live.attempt()), (Some("7-0"), 1));
    let found = route(fixture.queries(), PUSH).await;
    assert_eq!((found.status, found.published_entry_id.as_str()), (RouteStatus::Published, "9-0"));
}

pub async fn published_routes_are_selected_by_their_publication_page_by_page(
    fixture: impl OperationsFixture,
) {
    let store = fixture.store();
    accept(store, 1..=3, at(0)).await;
    for seconds in [10, 12, 14] {
        publish(store, Channel::Push, "7-0", seconds).await;
    }
    publish(store, Channel::Email, "7-0", 12).await;
    let any = RouteFilter::default;
    let selected = async |filter: RouteFilter| {
        let selection = routes(filter);
        let targets = select(store, &resend(), &selection).await.targets;
        let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = store.list_targets(&resend(), &selection, after.as_ref(), 1).await;
            let page = page.expect("the store is there");
            assert!(page.items.len() <= 1 && pages < 20, "{listed:?}");
            listed.extend(page.items);
            (after, pages) = (page.next, pages + 1);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, targets);
        targets.iter().map(|target| target.key.to_string()).collect::<Vec<_>>()
    };
    let ids = |numbers: &[u32]| numbers.iter().map(|n| format!("{n}-0/push:user:u-1")).collect::<Vec<_>>();
    let pushed = RouteFilter { channel: Some(Channel::Push), ..any() };
    assert_eq!(selected(pushed.clone()).await, ids(&[3, 2, 1]));
    assert_eq!(selected(any()).await.len(), 4);
    let later = RouteFilter { since: Some(at(12)), ..pushed.clone() };
    assert_eq!(selected(later.clone()).await, ids(&[3, 2]));
    assert_eq!(selected(RouteFilter { until: Some(at(14)), ..later }).await, ids(&[2]));
    let of_notification = RouteFilter { notification_id: Some("2-0".to_owned().into()), ..pushed.clone() };
    assert_eq!(selected(of_notification.clone()).await, ids(&[2]));
    assert_eq!(selected(RouteFilter { until: Some(at(12)), ..of_notification }).await, ids(&[]));
    for other in [
        RouteFilter { notification_type: Some("another".to_owned()), ..any() },
        RouteFilter { producer: Some("another".to_owned()), ..any() },
        RouteFilter { recipient: Some("u-9".to_owned()), ..any() },
    ] {
        assert_eq!(selected(other.clone()).await, ids(&[]), "{other:?}");
    }
    // What was sent again later is not selected again by the same times.
    assert_eq!(
        apply(store, &resend(), routes(RouteFilter { until: Some(at(12)), ..pushed.clone() })).await.0,
        1
    );
    publish(store, Channel::Push, "9-0", 11).await;
    assert_eq!(selected(RouteFilter { until: Some(at(20)), ..pushed }).await, ids(&[3, 2]));
}
