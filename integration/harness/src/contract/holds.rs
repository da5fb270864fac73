//! Routes that operators hold: they are live and not due, and go out after the release, the oldest first.

use std::collections::HashSet;

use domain::hold::{HoldKey, HoldScope, HoldsInForce, RouteToHold};
use domain::ports::{AcceptanceStore, DueOrder, HoldStore, RouteStore};
use domain::route::{Channel, LiveRoute, RouteKey};

use super::accepted::{HEAD_START, accept, at};

/// A store under test, and a test's actions on it.
pub trait HoldsFixture {
    /// A transaction that has locked a route.
    type Lock;

    /// The store; acceptance creates its routes.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + HoldStore);

    /// Makes a hold, or releases it.
    fn set_hold(&self, key: &HoldKey, is_released: bool) -> impl Future<Output = ()>;

    /// Locks a route as another transaction.
    fn lock(&self, key: &RouteKey) -> impl Future<Output = Self::Lock>;

    /// Ends that transaction without a change.
    fn unlock(&self, lock: Self::Lock) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::holds`], each on a fixture of its own.
#[macro_export]
macro_rules! holds_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            holds, $fixture;
            held_routes_are_not_due_and_go_out_after_the_release_the_oldest_first,
            a_route_is_held_only_at_its_version_and_under_a_hold_in_force,
            locked_routes_are_neither_held_nor_released_and_delay_no_other,
            a_hold_ends_once_it_is_released_and_keeps_nothing,
        );
    };
}

fn hold() -> HoldKey {
    HoldKey::new(HoldScope::Type, "game.turn.ready".to_owned()).expect("a key")
}

/// The push routes that are due, in their order.
async fn due(fixture: &impl HoldsFixture) -> Vec<LiveRoute> {
    let listed = fixture.store().list_due_routes(Channel::Push, DueOrder::OldestFirst, at(1_000), None, 100);
    let page = listed.await.expect("the store is there");
    assert!(page.corrupt.is_empty());
    page.routes
}

fn held(route: &LiveRoute) -> RouteToHold {
    RouteToHold { key: route.key.clone(), version: route.version, hold: hold() }
}

async fn keep(fixture: &impl HoldsFixture, routes: &[LiveRoute]) -> HashSet<RouteKey> {
    let routes: Vec<RouteToHold> = routes.iter().map(held).collect();
    fixture.store().hold_routes(&routes, at(500)).await.expect("the store is there")
}

async fn release(fixture: &impl HoldsFixture, limit: usize) -> u64 {
    fixture.store().release_routes(&hold(), limit, at(600)).await.expect("the store is there")
}

fn keys(routes: &[LiveRoute]) -> Vec<RouteKey> {
    routes.iter().map(|route| route.key.clone()).collect()
}

pub async fn held_routes_are_not_due_and_go_out_after_the_release_the_oldest_first(
    fixture: impl HoldsFixture,
) {
    // Accepted in an order that differs from that of the ids.
    for (number, second) in [(1, 3), (2, 1), (3, 2)] {
        accept(fixture.store(), [number], at(second)).await;
    }
    let routes = due(&fixture).await;
    fixture.set_hold(&hold(), false).await;
    assert_eq!(
        fixture.store().holds_in_force().await.expect("the store is there"),
        HoldsInForce::new(vec![hold()])
    );
    assert_eq!(keep(&fixture, &routes).await, keys(&routes).into_iter().collect());
    assert_eq!(due(&fixture).await, []);
    fixture.set_hold(&hold(), true).await;
    assert!(fixture.store().holds_in_force().await.expect("the store is there").is_empty());
    assert_eq!(fixture.store().released_holds().await.expect("the store is there"), [hold()]);
    assert_eq!(release(&fixture, 2).await, 2);
    let first: HashSet<RouteKey> = keys(&due(&fixture).await).into_iter().collect();
    assert_eq!(first, keys(&routes[..2]).into_iter().collect());
    assert_eq!(release(&fixture, 2).await, 1);
    let again = due(&fixture).await;
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|route| route.next_attempt_at == at(600)));
    assert!(again.iter().all(|route| route.version.updated_at() > at(1) + HEAD_START));
}

pub async fn a_route_is_held_only_at_its_version_and_under_a_hold_in_force(fixture: impl HoldsFixture) {
    accept(fixture.store(), [1, 2], at(0)).await;
    let routes = due(&fixture).await;
    assert_eq!(keep(&fixture, &routes).await, HashSet::new(), "nothing is held");
    fixture.set_hold(&hold(), true).await;
    assert_eq!(keep(&fixture, &routes).await, HashSet::new(), "the hold is released");
    fixture.set_hold(&hold(), false).await;
    assert_eq!(keep(&fixture, &routes[..1]).await.len(), 1);
    assert_eq!(
        keep(&fixture, &routes).await,
        HashSet::from([routes[1].key.clone()]),
        "the first has changed"
    );
}

pub async fn locked_routes_are_neither_held_nor_released_and_delay_no_other(fixture: impl HoldsFixture) {
    accept(fixture.store(), [1, 2, 3], at(0)).await;
    let routes = due(&fixture).await;
    fixture.set_hold(&hold(), false).await;
    let lock = fixture.lock(&routes[0].key).await;
    assert_eq!(keep(&fixture, &routes).await.len(), 2);
    fixture.unlock(lock).await;
    fixture.set_hold(&hold(), true).await;
    let lock = fixture.lock(&routes[1].key).await;
    assert_eq!(release(&fixture, 10).await, 1);
    assert_eq!(release(&fixture, 10).await, 0);
    assert!(!fixture.store().end_hold(&hold()).await.expect("the store is there"));
    fixture.unlock(lock).await;
    assert_eq!(release(&fixture, 10).await, 1);
}

pub async fn a_hold_ends_once_it_is_released_and_keeps_nothing(fixture: impl HoldsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let routes = due(&fixture).await;
    let ends = async || fixture.store().end_hold(&hold()).await.expect("the store is there");
    fixture.set_hold(&hold(), false).await;
    assert!(!ends().await, "it is in force");
    assert_eq!(keep(&fixture, &routes).await.len(), 1);
    fixture.set_hold(&hold(), true).await;
    assert!(!ends().await, "it keeps a route");
    assert_eq!(release(&fixture, 10).await, 1);
    assert!(ends().await);
    assert_eq!(fixture.store().released_holds().await.expect("the store is there"), []);
    assert!(!ends().await, "it is gone");
}
