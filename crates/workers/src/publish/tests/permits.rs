//! Routes that were just accepted are appended under a permit, without leases.

use domain::hold::{HoldKey, HoldScope};

use super::*;

/// A running publisher with its dispatcher.
struct Running {
    fixture: Fixture,
    dispatcher: Dispatcher,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Only dispatched routes are published: another replica holds the scan lock.
    async fn new() -> Self {
        let fixture = Fixture::default();
        fixture.hold_scan_lock().await;
        let (publisher, receiver, dispatcher) = fixture.publisher();
        let stop = CancellationToken::new();
        let task = tokio::spawn(publisher.run(receiver, stop.clone()));
        Self { fixture, dispatcher, stop, task }
    }

    fn accept(&self, numbers: std::ops::Range<u64>) {
        let routes: Vec<LiveRoute> = numbers.map(|number| route(number, 0)).collect();
        self.fixture.put(routes.clone());
        self.dispatcher.give(Channel::Push, fresh(routes));
    }

    async fn published(&self, count: usize) {
        self.fixture.until(|world| world.database.live_count() == 0).await;
        assert_eq!(self.fixture.world.appended().len(), count);
    }

    /// The numbers of requested permits and of calls for leases.
    fn calls(&self) -> (usize, usize) {
        let script = &self.fixture.world.script;
        (script.count("grant_permit"), script.count("acquire_leases"))
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.expect("it stops").expect("it does not panic");
    }
}

#[tokio::test(start_paused = true)]
async fn routes_that_were_just_accepted_need_no_lease_and_share_a_permit_for_half_its_life() {
    let running = Running::new().await;
    for first in [1, 5, 9] {
        running.accept(first..first + 4);
        running.published(first as usize + 3).await;
    }
    assert_eq!(running.calls(), (1, 0));
    tokio::time::sleep(LEASE_TTL / 10).await;
    running.accept(13..14);
    running.published(13).await;
    assert_eq!(running.calls(), (2, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn routes_that_are_due_before_a_permit_would_expire_are_leased() {
    let running = Running::new().await;
    let routes = vec![route(1, 0)];
    running.fixture.put(routes.clone());
    let soon = RouteBatch { due_at: Instant::now() + LEASE_TTL / 6, ..fresh(routes) };
    running.dispatcher.give(Channel::Push, soon);
    running.published(1).await;
    assert_eq!(running.calls(), (0, 1));
    running.stop().await;
}

/// The permit may have been granted just before the response: it expires after the routes are due.
#[tokio::test(start_paused = true)]
async fn a_permit_whose_response_was_late_is_not_used() {
    let running = Running::new().await;
    running.fixture.world.script.on("grant_permit", |_| Effect::Delay(LEASE_TTL * 9 / 10));
    running.accept(1..2);
    running.published(1).await;
    assert_eq!(running.calls(), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_get_a_permit_is_repeated_with_another_token() {
    let running = Running::new().await;
    running.fixture.world.script.fail("grant_permit", down("grant"));
    running.accept(1..2);
    running.published(1).await;
    assert_eq!(running.calls(), (2, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn routes_whose_permit_expired_before_the_append_are_read_again_and_leased_at_once() {
    let running = Running::new().await;
    running.fixture.lose_leases_before_appends(1);
    let started = Instant::now();
    running.accept(1..9);
    running.published(8).await;
    assert_eq!(running.calls(), (1, 1));
    assert_eq!(running.fixture.world.script.count("get_live_routes"), 1);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_whose_lease_another_token_holds_is_not_appended_and_the_others_are() {
    let running = Running::new().await;
    running.fixture.hold(&[route(2, 0).key]).await;
    running.accept(1..4);
    running.fixture.until(|world| world.database.live_count() == 1).await;
    assert_eq!(running.fixture.world.appended(), [1, 3].map(|number| route(number, 0).key.to_string()));
    running.stop().await;
}

/// The new server may lack the lease of an operator who has cancelled the routes.
#[tokio::test(start_paused = true)]
async fn routes_that_were_read_when_redis_was_another_server_are_read_again_before_they_are_appended() {
    let running = Running::new().await;
    running.accept(1..2);
    running.published(1).await;
    let (publishing, mut is_first) = (running.fixture.world.publishing.clone(), true);
    running.fixture.world.script.on("append", move |_| {
        if std::mem::replace(&mut is_first, false) {
            publishing.restart();
        }
        Effect::Pass
    });
    running.accept(2..4);
    running.published(3).await;
    assert_eq!(running.fixture.world.script.count("get_live_routes"), 1);
    assert_eq!(running.fixture.world.script.count("append"), 3);
    running.stop().await;
}

/// The clock of another replica is ahead: it has published the route and not completed it.
#[tokio::test(start_paused = true)]
async fn a_route_that_another_replica_has_published_is_completed_with_its_entry() {
    let running = Running::new().await;
    running.fixture.world.publishing.write_marker(&route(1, 0).key, "5-1", OTHERS_TTL);
    running.accept(1..2);
    running.published(0).await;
    assert_eq!(running.fixture.state(1).published_entry_id, "5-1");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_chunk_with_a_route_that_an_operator_holds_is_leased() {
    let running = Running::new().await;
    let push = HoldKey::new(HoldScope::Channel, "push".to_owned()).expect("a key");
    running.fixture.world.database.set_hold(&push, false);
    running.accept(1..4);
    running.fixture.until(|world| world.database.held().len() == 3).await;
    assert_eq!(running.fixture.world.appended(), Vec::<String>::new());
    assert_eq!(running.calls(), (0, 1));
    running.stop().await;
}
