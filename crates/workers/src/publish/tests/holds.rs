//! Routes that an operator holds.

use domain::hold::{HoldKey, HoldScope};

use super::*;

fn push() -> HoldKey {
    HoldKey::new(HoldScope::Channel, "push".to_owned()).expect("a key")
}

fn another_type() -> HoldKey {
    HoldKey::new(HoldScope::Type, "another".to_owned()).expect("a key")
}

#[tokio::test(start_paused = true)]
async fn held_routes_are_kept_without_an_attempt_and_their_leases_are_free() {
    let fixture = Fixture::default();
    fixture.put((1..=20).map(|number| route(number, 0)));
    fixture.world.database.set_hold(&another_type(), false);
    fixture.world.database.set_hold(&push(), false);
    fixture.run_until(|world| world.database.held().len() == 20).await;
    assert_eq!(fixture.world.appended(), Vec::<String>::new());
    for number in 1..=20 {
        let state = fixture.state(number);
        assert_eq!((state.status, state.attempt_count), (RouteStatus::Pending, 0));
    }
    let keys: Vec<RouteKey> = (1..=20).map(|number| route(number, 0).key).collect();
    fixture.hold(&keys).await;
}

#[tokio::test(start_paused = true)]
async fn routes_that_no_hold_selects_are_published_beside_one() {
    let fixture = Fixture::default();
    fixture.put((1..=20).map(|number| route(number, 0)));
    fixture.world.database.set_hold(&another_type(), false);
    fixture.run_until(|world| world.appended().len() == 20).await;
    assert_eq!(fixture.world.database.held(), []);
}

/// A publisher crashed between the append and the completion; then the channel was held.
#[tokio::test(start_paused = true)]
async fn an_appended_route_is_completed_and_not_held() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    fixture.world.script.on("complete_routes_published", |_| Effect::Fail(down("complete")));
    fixture.run_until(|world| world.appended().len() == 1).await;
    fixture.world.database.set_hold(&push(), false);
    fixture.allow_completions();
    fixture
        .run_until(|world| {
            world.database.route(&route(1, 0).key).is_some_and(|state| !state.status.is_live())
        })
        .await;
    assert_eq!(fixture.state(1).status, RouteStatus::Published);
    assert_eq!((fixture.world.appended().len(), fixture.world.database.held()), (1, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_appended_while_the_holds_cannot_be_read() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    fixture.world.script.on("holds_in_force", |_| Effect::Fail(down("read the holds")));
    fixture.run_for(Duration::from_secs(10)).await;
    assert_eq!(fixture.world.appended(), Vec::<String>::new());
    fixture.world.script.off("holds_in_force");
    fixture.run_until(|world| world.appended().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_hold_is_in_force_a_second_later() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.appended().len() == 1).await;
    fixture.world.database.set_hold(&push(), false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.put([route(2, 0)]);
    fixture.until(|world| world.database.held().len() == 1).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    assert_eq!(fixture.world.appended().len(), 1);
}
