//! The state of routes: due routes, and changes that apply only to the version they were decided on.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{AcceptanceStore, Completion, DueOrder, FailureCounts, RouteStore, RowLocks};
use domain::route::{Channel, Failed, LiveRoute, Published, RouteKey, Version};

use super::accepted::{HEAD_START, accept, at};
use super::acknowledged;

/// A store under test, and a test's observations of it and actions on it.
pub trait RoutesFixture {
    /// A transaction that has locked a route.
    type Lock;

    /// The store; acceptance creates its routes.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore);

    /// Locks a route as another transaction.
    fn lock(&self, key: &RouteKey) -> impl Future<Output = Self::Lock>;

    /// Ends that transaction without a change.
    fn release(&self, lock: Self::Lock) -> impl Future<Output = ()>;

    /// The keys of all dead letters, `<notification_id>/<route_id>`, sorted.
    fn dead_letters(&self) -> impl Future<Output = Vec<String>>;
}

/// Runs every case of [`crate::contract::routes`], each on a fixture of its own.
#[macro_export]
macro_rules! routes_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            routes, $fixture;
            a_dispatched_route_is_what_the_scan_reads,
            a_route_is_due_from_its_time_on_and_not_a_microsecond_before,
            pages_list_every_due_route_of_a_channel_once_in_either_order,
            a_stale_version_is_a_conflict,
            a_repeated_completion_is_applied_and_a_different_one_is_a_conflict,
            a_retry_is_listed_when_it_is_due_again,
            a_spent_budget_makes_one_dead_letter,
            failures_are_counted_for_each_channel_with_the_oldest_dead_letter,
            the_version_rises_even_if_the_clock_goes_back,
            each_element_of_a_batch_has_its_own_outcome,
            a_locked_route_is_left_and_the_others_are_written,
            only_live_routes_are_read_again_and_at_their_present_version,
        );
    };
}

async fn due(fixture: &impl RoutesFixture, channel: Channel, now: Timestamp) -> Vec<LiveRoute> {
    let page = fixture.store().list_due_routes(channel, DueOrder::OldestFirst, now, None, 100).await;
    let page = page.expect("the store is there");
    assert!(page.corrupt.is_empty() && page.next.is_none());
    page.routes
}

fn published(route: &LiveRoute, entry_id: &str) -> Published {
    Published { key: route.key.clone(), version: route.version, entry: acknowledged(entry_id) }
}

fn failed(route: &LiveRoute, attempt_count: u32, retry_at: Option<Timestamp>) -> Failed {
    Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count,
        retry_at,
        classification: "mail_stream_publish_failed",
        message: "WRONGTYPE".to_owned(),
    }
}

async fn publish(fixture: &impl RoutesFixture, routes: &[Published], locks: RowLocks) -> Vec<Completion> {
    fixture.store().complete_routes_published(routes, at(5), locks).await.expect("the store is there")
}

async fn fail(fixture: &impl RoutesFixture, routes: &[Failed], now: Timestamp) -> Vec<Completion> {
    let completed = fixture.store().complete_routes_failed(routes, now, RowLocks::Wait).await;
    completed.expect("the store is there")
}

pub async fn a_dispatched_route_is_what_the_scan_reads(fixture: impl RoutesFixture) {
    let outcomes = accept(fixture.store(), [1], at(0)).await;
    let mut listed = due(&fixture, Channel::Push, at(5)).await;
    listed.extend(due(&fixture, Channel::Email, at(5)).await);
    let dispatched = outcomes[0].acceptance().expect("accepted").live_routes();
    assert_eq!(dispatched.collect::<Vec<_>>(), listed);
}

pub async fn a_route_is_due_from_its_time_on_and_not_a_microsecond_before(fixture: impl RoutesFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let time = at(0) + HEAD_START;
    assert_eq!(due(&fixture, Channel::Push, time - Duration::from_micros(1)).await, []);
    assert_eq!(due(&fixture, Channel::Push, time).await.len(), 1);
    let next = fixture.store().next_due().await.expect("the store is there");
    assert_eq!(next, HashMap::from([(Channel::Push, time), (Channel::Email, time)]));
    for (cap, count) in [(100, 2), (1, 1)] {
        assert_eq!(fixture.store().count_due_routes(time, cap).await.expect("the store is there"), count);
    }
}

pub async fn pages_list_every_due_route_of_a_channel_once_in_either_order(fixture: impl RoutesFixture) {
    accept(fixture.store(), 11..=15, at(1)).await;
    accept(fixture.store(), 21..=22, at(0)).await;
    accept(fixture.store(), [31], at(60)).await;
    let mut expected = ["21-0", "22-0", "11-0", "12-0", "13-0", "14-0", "15-0"];
    for order in [DueOrder::OldestFirst, DueOrder::NewestFirst] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page =
                fixture.store().list_due_routes(Channel::Email, order, at(60), cursor.as_ref(), 3).await;
            let page = page.expect("the store is there");
            assert!(page.routes.len() <= 3);
            seen.extend(page.routes.iter().map(|route| route.key.notification_id.to_string()));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "{order:?}");
        expected.reverse();
    }
}

pub async fn a_stale_version_is_a_conflict(fixture: impl RoutesFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let route = due(&fixture, Channel::Push, at(5)).await.remove(0);
    assert_eq!(fail(&fixture, &[failed(&route, 1, Some(at(6)))], at(5)).await, [Completion::Applied]);
    assert_eq!(publish(&fixture, &[published(&route, "7-0")], RowLocks::Wait).await, [Completion::Conflict]);
    let retried = due(&fixture, Channel::Push, at(6)).await.remove(0);
    assert_ne!(retried.version, route.version);
    assert_eq!(publish(&fixture, &[published(&retried, "7-0")], RowLocks::Wait).await, [Completion::Applied]);
    assert_eq!(due(&fixture, Channel::Push, at(99)).await, []);
}

pub async fn a_repeated_completion_is_applied_and_a_different_one_is_a_conflict(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=2, at(0)).await;
    let push = due(&fixture, Channel::Push, at(5)).await.remove(0);
    for (entry_id, expected) in
        [("7-0", Completion::Applied), ("7-0", Completion::Applied), ("8-0", Completion::Conflict)]
    {
        assert_eq!(publish(&fixture, &[published(&push, entry_id)], RowLocks::Wait).await, [expected]);
    }
    let email = due(&fixture, Channel::Email, at(5)).await;
    for (route, retry_at) in email.iter().zip([Some(at(9)), None]) {
        let first = failed(route, 2, retry_at);
        for _ in 0..2 {
            assert_eq!(fail(&fixture, std::slice::from_ref(&first), at(5)).await, [Completion::Applied]);
        }
        let encoding = Failed { classification: "payload_encoding_failed", ..first.clone() };
        for other in [failed(route, 1, retry_at), failed(route, 2, Some(at(10))), encoding] {
            assert_eq!(fail(&fixture, &[other], at(5)).await, [Completion::Conflict]);
        }
    }
    assert_eq!(fixture.dead_letters().await, ["2-0/email:user:u-1"]);
}

pub async fn a_retry_is_listed_when_it_is_due_again(fixture: impl RoutesFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let route = due(&fixture, Channel::Email, at(5)).await.remove(0);
    assert_eq!(fail(&fixture, &[failed(&route, 1, Some(at(20)))], at(5)).await, [Completion::Applied]);
    assert_eq!(due(&fixture, Channel::Email, at(20) - Duration::from_micros(1)).await, []);
    let retried = due(&fixture, Channel::Email, at(20)).await.remove(0);
    assert_eq!((retried.attempt_count, retried.next_attempt_at), (1, at(20)));
}

pub async fn a_spent_budget_makes_one_dead_letter(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=2, at(0)).await;
    let routes = due(&fixture, Channel::Email, at(5)).await;
    let stale = Failed { version: Version::read(at(-1)), ..failed(&routes[1], 7, None) };
    let batch = [failed(&routes[0], 7, None), stale];
    assert_eq!(fail(&fixture, &batch, at(5)).await, [Completion::Applied, Completion::Conflict]);
    assert_eq!(fail(&fixture, &batch[..1], at(5)).await, [Completion::Applied]);
    assert_eq!(fixture.dead_letters().await, ["1-0/email:user:u-1"]);
    assert_eq!(due(&fixture, Channel::Email, at(99)).await, routes[1..]);
}

// INV-06
pub async fn failures_are_counted_for_each_channel_with_the_oldest_dead_letter(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=3, at(0)).await;
    let counted = async |cap| fixture.store().count_failures(cap).await.expect("the store is there");
    assert_eq!(counted(100).await, HashMap::new());
    let push = due(&fixture, Channel::Push, at(5)).await;
    let email = due(&fixture, Channel::Email, at(5)).await;
    for (route, now, retry_at) in
        [(&push[0], at(6), Some(at(60))), (&email[1], at(7), None), (&email[0], at(8), None)]
    {
        assert_eq!(fail(&fixture, &[failed(route, 1, retry_at)], now).await, [Completion::Applied]);
    }
    let of_push = FailureCounts { failing: 1, ..FailureCounts::default() };
    let of_email =
        FailureCounts { dead_letters: 2, oldest_dead_letter: Some(at(7)), ..FailureCounts::default() };
    assert_eq!(counted(100).await, HashMap::from([(Channel::Push, of_push), (Channel::Email, of_email)]));
    let cut = FailureCounts { dead_letters: 1, ..of_email };
    assert_eq!(counted(1).await, HashMap::from([(Channel::Push, of_push), (Channel::Email, cut)]));
}

pub async fn the_version_rises_even_if_the_clock_goes_back(fixture: impl RoutesFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let mut versions = Vec::new();
    for attempt in 1..=3 {
        let route = due(&fixture, Channel::Email, at(99)).await.remove(0);
        versions.push(route.version.updated_at());
        let now = at(-10 * i64::from(attempt));
        assert_eq!(fail(&fixture, &[failed(&route, attempt, Some(at(6)))], now).await, [Completion::Applied]);
    }
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
}

pub async fn each_element_of_a_batch_has_its_own_outcome(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=3, at(0)).await;
    let mut routes = due(&fixture, Channel::Push, at(5)).await;
    routes[1].version = Version::read(at(-1));
    let batch: Vec<Published> = routes.iter().map(|route| published(route, "7-0")).collect();
    let expected = [Completion::Applied, Completion::Conflict, Completion::Applied];
    assert_eq!(publish(&fixture, &batch, RowLocks::Wait).await, expected);
    let left = due(&fixture, Channel::Push, at(5)).await;
    assert_eq!(left.iter().map(|route| &route.key).collect::<Vec<_>>(), [&routes[1].key]);
}

pub async fn a_locked_route_is_left_and_the_others_are_written(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=3, at(0)).await;
    let routes = due(&fixture, Channel::Push, at(5)).await;
    let batch: Vec<Published> = routes.iter().map(|route| published(route, "7-0")).collect();
    let lock = fixture.lock(&routes[1].key).await;
    let expected = [Completion::Applied, Completion::Locked, Completion::Applied];
    assert_eq!(publish(&fixture, &batch, RowLocks::Skip).await, expected);
    fixture.release(lock).await;
    assert_eq!(publish(&fixture, &batch, RowLocks::Skip).await, [Completion::Applied; 3]);
}

pub async fn only_live_routes_are_read_again_and_at_their_present_version(fixture: impl RoutesFixture) {
    accept(fixture.store(), 1..=2, at(0)).await;
    let routes = due(&fixture, Channel::Push, at(5)).await;
    let done = publish(&fixture, &[published(&routes[0], "7-0")], RowLocks::Wait).await;
    assert_eq!(done, [Completion::Applied]);
    assert_eq!(fail(&fixture, &[failed(&routes[1], 1, Some(at(9)))], at(5)).await, [Completion::Applied]);
    let keys: Vec<&RouteKey> = routes.iter().map(|route| &route.key).collect();
    let page = fixture.store().get_live_routes(&keys).await.expect("the store is there");
    assert_eq!(page.routes, due(&fixture, Channel::Push, at(9)).await);
    assert_eq!((&page.routes[0].key, page.routes[0].attempt_count), (keys[1], 1));
    assert_ne!(page.routes[0].version, routes[1].version);
}
