//! Operators' changes: dead letters that are replayed or discarded, and live routes that are cancelled and
//! published ones that are sent again (`live.rs`).

mod live;

use domain::operations::{Budgets, OperatorAction, RouteChange, Selection, Targets};
use domain::ports::{
    AcceptanceStore, ChangeOutcome, Completion, DueOrder, HoldChanges, Operations, Queries, RouteStore,
    RowLocks, apply_change,
};
use domain::query::{Counted, DeadLetterFilter, Discarded, PageLimit, Route};
use domain::route::{Channel, Failed, LiveRoute, Published, RouteKey, RouteStatus};
use serde_json::json;

use super::accepted::{accept, at};
use super::acknowledged;
use memory_stores::RecordedAction;

pub use live::*;

/// A store under test, and a test's observations of it and actions on it.
pub trait OperationsFixture {
    /// A transaction that has locked a route.
    type Lock;

    /// The store; acceptance and completions create its rows.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + HoldChanges + Operations);

    /// The queries on the rows.
    fn queries(&self) -> &impl Queries;

    /// Locks a route as another transaction.
    fn lock(&self, key: &RouteKey) -> impl Future<Output = Self::Lock>;

    /// Ends that transaction without a change.
    fn release(&self, lock: Self::Lock) -> impl Future<Output = ()>;

    /// The rows of `operator_actions`, in order.
    fn actions(&self) -> impl Future<Output = Vec<RecordedAction>>;
}

/// Runs every case of [`crate::contract::operations`], each on a fixture of its own.
#[macro_export]
macro_rules! operations_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            operations, $fixture;
            a_replayed_route_is_due_at_once_with_the_budget_of_now_and_its_ids,
            a_replayed_route_can_be_published_or_become_a_dead_letter_again,
            a_discarded_dead_letter_is_listed_apart_and_replayed_by_its_id_only,
            ids_that_name_no_route_are_unknown_and_routes_that_are_not_dead_stay,
            a_filter_selects_what_the_list_shows,
            targets_are_listed_page_by_page_as_the_filter_selects_them,
            a_route_that_was_changed_since_it_was_selected_stays_as_it_is,
            of_two_operators_with_the_same_selection_one_changes_each_route,
            a_locked_route_is_left_and_the_others_are_changed,
            a_request_that_ended_early_continues_with_what_is_left,
            each_transaction_that_changes_something_leaves_a_row_with_what_was_asked,
            a_cancelled_route_is_skipped_for_good_with_the_operator_and_the_reason,
            a_filter_selects_live_routes_by_channel_type_producer_recipient_and_acceptance,
            live_routes_are_listed_page_by_page_those_that_are_held_last,
            a_resent_route_is_due_at_once_and_replaces_its_entry,
            a_resent_route_that_becomes_a_dead_letter_is_replayed_in_place_of_the_same_entry,
            published_routes_are_selected_by_their_publication_page_by_page,
        );
    };
}

const BUDGETS: Budgets = Budgets { push: 4, email: 9 };
const REPLAY: RouteChange = RouteChange::Replay(BUDGETS);

fn discard() -> RouteChange {
    RouteChange::Discard { reason: "the game is over".to_owned() }
}

fn everything() -> Selection {
    Selection::DeadLetters(DeadLetterFilter::default())
}

fn by_ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Selection {
    Selection::Ids(ids.into_iter().map(str::to_owned).collect())
}

fn action(selection: Selection) -> OperatorAction {
    OperatorAction {
        actor: "ops".to_owned(),
        request_id: "r-1".to_owned(),
        idempotency_key: Some("k-1".to_owned()),
        selection,
    }
}

async fn fail(store: &impl RouteStore, route: &LiveRoute) {
    let failed = Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count: route.max_attempts,
        retry_at: None,
        classification: route.channel.publish_failed(),
        message: "WRONGTYPE".to_owned(),
    };
    let completed = store.complete_routes_failed(&[failed], at(10), RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
}

/// Dead letters of these numbers, two of each notification.
async fn dead(store: &(impl AcceptanceStore + RouteStore), numbers: impl IntoIterator<Item = u64>) {
    for outcome in accept(store, numbers, at(0)).await {
        for route in outcome.acceptance().expect("accepted").live_routes() {
            fail(store, &route).await;
        }
    }
}

async fn select(store: &impl Operations, change: &RouteChange, selection: &Selection) -> Targets {
    store.select_routes(change, selection).await.expect("the store is there")
}

/// Selects dead letters and changes them. Returns the outcomes.
async fn apply(
    store: &impl Operations,
    change: &RouteChange,
    selection: Selection,
) -> (u64, Counted, Vec<String>) {
    let targets = select(store, change, &selection).await;
    let report = apply_change(store, change, &targets, &action(selection), at(20)).await;
    let report = report.expect("the store is there");
    (report.changed, report.remaining, report.unknown)
}

async fn route(queries: &impl Queries, id: &str) -> Route {
    let key: RouteKey = id.parse().expect("the id of a route");
    let found = queries.get_notification(&key.notification_id).await.expect("the store is there");
    found.expect("it was accepted").route(&key).cloned().expect("it is one of its routes")
}

async fn listed(queries: &impl Queries, discarded: bool) -> Vec<String> {
    let filter = DeadLetterFilter { discarded, ..DeadLetterFilter::default() };
    let limit = PageLimit::new(200).expect("within the bounds");
    let page = queries.list_dead_letters(&filter, None, limit).await.expect("the store is there");
    page.items.iter().map(|letter| letter.key.to_string()).collect()
}

async fn due(store: &impl RouteStore, channel: Channel) -> Vec<LiveRoute> {
    let page = store.list_due_routes(channel, DueOrder::OldestFirst, at(20), None, 100).await;
    page.expect("the store is there").routes
}

const NONE: Counted = Counted { count: 0, capped: false };
const PUSH: &str = "1-0/push:user:u-1";
const EMAIL: &str = "1-0/email:user:u-1";

pub async fn a_replayed_route_is_due_at_once_with_the_budget_of_now_and_its_ids(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), [1]).await;
    let before = [route(fixture.queries(), PUSH).await, route(fixture.queries(), EMAIL).await];
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await, (2, NONE, vec![]));
    for ((before, id), max_attempts) in
        before.into_iter().zip([PUSH, EMAIL]).zip([BUDGETS.push, BUDGETS.email])
    {
        let after = route(fixture.queries(), id).await;
        let expected = Route {
            status: RouteStatus::Pending,
            attempt_count: 0,
            max_attempts,
            next_attempt_at: Some(at(20)),
            updated_at: at(20),
            dead_lettered_at: None,
            recovery_hint: String::new(),
            ..before
        };
        assert_eq!(after, expected);
    }
    assert_eq!(listed(fixture.queries(), false).await, Vec::<String>::new());
    assert_eq!(due(fixture.store(), Channel::Push).await.len(), 1);
}

pub async fn a_replayed_route_can_be_published_or_become_a_dead_letter_again(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), [1]).await;
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await.0, 2);
    let push = due(fixture.store(), Channel::Push).await.remove(0);
    let done = [Published { key: push.key, version: push.version, entry: acknowledged("7-0") }];
    let completed = fixture.store().complete_routes_published(&done, at(21), RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    fail(fixture.store(), &due(fixture.store(), Channel::Email).await.remove(0)).await;
    assert_eq!(listed(fixture.queries(), false).await, [EMAIL]);
    assert_eq!(route(fixture.queries(), PUSH).await.status, RouteStatus::Published);
}

pub async fn a_discarded_dead_letter_is_listed_apart_and_replayed_by_its_id_only(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), [1]).await;
    assert_eq!(apply(fixture.store(), &discard(), by_ids([PUSH])).await, (1, NONE, vec![]));
    assert_eq!(listed(fixture.queries(), false).await, [EMAIL]);
    assert_eq!(listed(fixture.queries(), true).await, [PUSH]);
    let mark = Discarded { at: at(20), by: "ops".to_owned(), reason: "the game is over".to_owned() };
    let found = route(fixture.queries(), PUSH).await;
    assert_eq!((found.status, found.discarded), (RouteStatus::DeadLetter, Some(mark)));
    // A second discard changes nothing.
    assert_eq!(select(fixture.store(), &discard(), &by_ids([PUSH])).await.unchanged, 1);
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await, (1, NONE, vec![]));
    assert_eq!(listed(fixture.queries(), true).await, [PUSH]);
    assert_eq!(apply(fixture.store(), &REPLAY, by_ids([PUSH])).await, (1, NONE, vec![]));
    let found = route(fixture.queries(), PUSH).await;
    assert_eq!((found.status, found.discarded), (RouteStatus::Pending, None));
    // A new dead letter needs attention again.
    fail(fixture.store(), &due(fixture.store(), Channel::Push).await.remove(0)).await;
    assert_eq!(listed(fixture.queries(), false).await, [PUSH]);
}

pub async fn ids_that_name_no_route_are_unknown_and_routes_that_are_not_dead_stay(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), [1]).await;
    accept(fixture.store(), [2], at(0)).await;
    let ids = [PUSH, "2-0/push:user:u-1", "9-0/push:user:u-1", "no id", PUSH, ""];
    let targets = select(fixture.store(), &REPLAY, &by_ids(ids)).await;
    let keys: Vec<String> = targets.targets.iter().map(|target| target.key.to_string()).collect();
    assert_eq!((keys, targets.unchanged), (vec![PUSH.to_owned()], 1));
    assert_eq!(targets.unknown, ["9-0/push:user:u-1", "no id", ""]);
    assert_eq!(targets.plan().count, Counted { count: 1, capped: false });
}

pub async fn a_filter_selects_what_the_list_shows(fixture: impl OperationsFixture) {
    dead(fixture.store(), 1..=3).await;
    let filter = DeadLetterFilter { channel: Some(Channel::Email), ..DeadLetterFilter::default() };
    // The filter's `discarded` does not restrict a change.
    let filter = DeadLetterFilter { discarded: true, ..filter };
    let targets = select(fixture.store(), &REPLAY, &Selection::DeadLetters(filter)).await;
    let keys: Vec<String> = targets.targets.iter().map(|target| target.key.to_string()).collect();
    assert_eq!(keys, ["3-0/email:user:u-1", "2-0/email:user:u-1", "1-0/email:user:u-1"]);
    let plan = targets.plan();
    assert_eq!((plan.by.len(), plan.by[0].count), (1, 3));
    assert_eq!(plan.by[0].group.name(), "mail_stream_publish_failed");
}

pub async fn targets_are_listed_page_by_page_as_the_filter_selects_them(fixture: impl OperationsFixture) {
    dead(fixture.store(), 1..=4).await;
    assert_eq!(apply(fixture.store(), &discard(), by_ids(["2-0/email:user:u-1"])).await.0, 1);
    let filter = DeadLetterFilter { channel: Some(Channel::Email), ..DeadLetterFilter::default() };
    let selection = Selection::DeadLetters(filter);
    let selected = select(fixture.store(), &REPLAY, &selection).await;
    let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = fixture.store().list_targets(&REPLAY, &selection, after.as_ref(), 2).await;
        let page = page.expect("the store is there");
        assert!(page.items.len() <= 2);
        // The listed dead letters are changed before the next page is read, as a command does; the next page
        // still starts at its place.
        let changed =
            fixture.store().change_routes(&REPLAY, &page.items, &action(everything()), at(20)).await;
        assert!(
            changed.expect("the store is there").iter().all(|outcome| *outcome == ChangeOutcome::Changed)
        );
        listed.extend(page.items);
        (after, pages) = (page.next, pages + 1);
        if after.is_none() {
            break;
        }
        assert!(pages < 10, "there are three");
    }
    assert_eq!((listed.len(), &listed), (3, &selected.targets));
}

pub async fn a_route_that_was_changed_since_it_was_selected_stays_as_it_is(fixture: impl OperationsFixture) {
    dead(fixture.store(), [1]).await;
    let seen = select(fixture.store(), &REPLAY, &everything()).await;
    assert_eq!(apply(fixture.store(), &discard(), by_ids([PUSH])).await.0, 1);
    let changed = fixture.store().change_routes(&REPLAY, &seen.targets, &action(everything()), at(30)).await;
    let outcome = |target: &domain::operations::Target| match target.key.to_string() == PUSH {
        true => ChangeOutcome::Conflict,
        false => ChangeOutcome::Changed,
    };
    let expected: Vec<ChangeOutcome> = seen.targets.iter().map(outcome).collect();
    assert_eq!(changed.expect("the store is there"), expected);
    assert_eq!(listed(fixture.queries(), true).await, [PUSH]);
    assert_eq!(route(fixture.queries(), EMAIL).await.status, RouteStatus::Pending);
}

pub async fn of_two_operators_with_the_same_selection_one_changes_each_route(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), 1..=10).await;
    let store = fixture.store();
    let targets = select(store, &REPLAY, &everything()).await;
    let action = action(everything());
    let (one, other) = tokio::join!(
        store.change_routes(&REPLAY, &targets.targets, &action, at(20)),
        store.change_routes(&REPLAY, &targets.targets, &action, at(20)),
    );
    let (one, other) = (one.expect("the store is there"), other.expect("the store is there"));
    for outcomes in one.iter().zip(&other) {
        let applied =
            [outcomes.0, outcomes.1].into_iter().filter(|outcome| **outcome == ChangeOutcome::Changed);
        assert_eq!(applied.count(), 1, "{outcomes:?}");
    }
    let affected: u64 = fixture.actions().await.iter().map(|action| action.affected).sum();
    assert_eq!(affected, 20);
}

pub async fn a_locked_route_is_left_and_the_others_are_changed(fixture: impl OperationsFixture) {
    dead(fixture.store(), [1]).await;
    let lock = fixture.lock(&PUSH.parse().expect("the id of a route")).await;
    for change in [discard(), REPLAY] {
        let targets = select(fixture.store(), &change, &by_ids([PUSH, EMAIL])).await;
        let action = action(everything());
        let changed = fixture.store().change_routes(&change, &targets.targets, &action, at(20)).await;
        let expected = [ChangeOutcome::Locked, ChangeOutcome::Changed];
        assert_eq!(changed.expect("the store is there"), expected, "{change:?}");
    }
    let one_left = Counted { count: 1, capped: false };
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await, (0, one_left, vec![]));
    fixture.release(lock).await;
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await, (1, NONE, vec![]));
}

pub async fn a_request_that_ended_early_continues_with_what_is_left(fixture: impl OperationsFixture) {
    dead(fixture.store(), 1..=3).await;
    let targets = select(fixture.store(), &REPLAY, &everything()).await;
    let first = &targets.targets[..4];
    let changed = fixture.store().change_routes(&REPLAY, first, &action(everything()), at(20)).await;
    assert_eq!(changed.expect("the store is there"), [ChangeOutcome::Changed; 4]);
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await, (2, NONE, vec![]));
    // Selection by ids: a replayed dead letter is neither unknown nor replayed again.
    let ids: Vec<String> = targets.targets.iter().map(|target| target.key.to_string()).collect();
    assert_eq!(apply(fixture.store(), &REPLAY, Selection::Ids(ids)).await, (0, NONE, vec![]));
}

pub async fn each_transaction_that_changes_something_leaves_a_row_with_what_was_asked(
    fixture: impl OperationsFixture,
) {
    dead(fixture.store(), [1]).await;
    assert_eq!(apply(fixture.store(), &discard(), by_ids([PUSH])).await.0, 1);
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await.0, 1);
    assert_eq!(apply(fixture.store(), &REPLAY, everything()).await.0, 0);
    let row = |action: &str, arguments| RecordedAction {
        actor: "ops".to_owned(),
        action: action.to_owned(),
        arguments,
        affected: 1,
        request_id: "r-1".to_owned(),
    };
    let by_ids = json!({"ids": [PUSH], "idempotency_key": "k-1", "reason": "the game is over"});
    let by_filter = json!({"filter": {}, "idempotency_key": "k-1", "max_attempts": {"push": 4, "email": 9}});
    let expected = [row("discard_dead_letters", by_ids), row("replay_dead_letters", by_filter)];
    assert_eq!(fixture.actions().await, expected);
}
