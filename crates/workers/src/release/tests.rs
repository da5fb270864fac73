//! The release of held routes: in chunks, beside the traffic.

use domain::hold::{HoldScope, RouteToHold};
use domain::ports::{DueOrder, Published, RowLocks};
use domain::route::{Channel, LiveRoute};
use memory_stores::Effect;
use tokio::time::sleep;

use super::*;
use crate::fixtures::{World, acknowledged, down, now, route};

fn hold() -> HoldKey {
    HoldKey::new(HoldScope::Channel, "push".to_owned()).expect("a key")
}

/// A world whose released hold keeps this many routes.
async fn world(routes: u64) -> World {
    let world = World::new(now());
    world.database.set_hold(&hold(), false);
    let routes: Vec<LiveRoute> = (1..=routes).map(|number| route(number, 0)).collect();
    routes.iter().for_each(|route| world.database.put_route(route.clone()));
    let kept: Vec<RouteToHold> = routes
        .into_iter()
        .map(|route| RouteToHold { key: route.key, version: route.version, hold: hold() })
        .collect();
    HoldStore::hold_routes(&*world.database, &kept, now()).await.expect("the store is there");
    world.database.set_hold(&hold(), true);
    world
}

async fn due(world: &World) -> Vec<LiveRoute> {
    let store = &*world.database;
    let due = RouteStore::list_due_routes(store, Channel::Push, DueOrder::OldestFirst, now(), None, 100_000);
    due.await.expect("the store is there").routes
}

/// Runs the worker beside `work`.
async fn beside<T>(world: &World, work: impl Future<Output = T>) -> T {
    let (store, clock) = (world.database.clone(), std::sync::Arc::clone(&world.clock));
    let release = HoldRelease { store, clock, health: Health::new("holds") };
    let stop = CancellationToken::new();
    let running = tokio::spawn(release.run(stop.clone()));
    let done = work.await;
    stop.cancel();
    running.await.expect("it does not panic");
    done
}

#[tokio::test(start_paused = true)]
async fn a_released_hold_ends_when_all_its_routes_are_due() {
    let world = world(600).await;
    beside(&world, sleep(Duration::from_secs(10))).await;
    assert_eq!(due(&world).await.len(), 600);
    assert_eq!(HoldStore::released_holds(&*world.database).await.expect("the store is there"), []);
}

#[tokio::test(start_paused = true)]
async fn no_chunk_is_released_while_many_routes_are_due() {
    let world = world(5_000).await;
    let most = beside(&world, async {
        let (mut most, mut published) = (0, 0);
        while published < 5_000 {
            sleep(Duration::from_secs(1)).await;
            let routes = due(&world).await;
            most = most.max(routes.len());
            published += routes.len();
            let done: Vec<Published> = routes
                .into_iter()
                .map(|route| Published { key: route.key, version: route.version, entry: acknowledged("7-0") })
                .collect();
            let done = RouteStore::complete_routes_published(&*world.database, &done, now(), RowLocks::Wait);
            done.await.expect("the store is there");
        }
        most
    })
    .await;
    assert_eq!(most, MAX_DUE_ROUTES);
}

#[tokio::test(start_paused = true)]
async fn an_outage_delays_a_release_and_ends_nothing() {
    let world = world(10).await;
    world.script.on("release_routes", |_| Effect::Fail(down("release held routes")));
    beside(&world, async {
        sleep(Duration::from_secs(10)).await;
        assert_eq!(due(&world).await, []);
        world.script.off("release_routes");
        sleep(Duration::from_secs(30)).await;
    })
    .await;
    assert_eq!(due(&world).await.len(), 10);
}
