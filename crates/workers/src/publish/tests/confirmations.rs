//! Completions that outlive the server that acknowledged their entries.

use super::*;

const COMPLETE: &str = "complete_routes_published";

impl Fixture {
    /// Runs the publisher until it has appended these routes, while PostgreSQL fails their completions. Then
    /// applies `change` to Redis, and PostgreSQL recovers.
    async fn change_while_completions_wait(
        &self,
        routes: std::ops::RangeInclusive<u64>,
        change: impl FnOnce(&World),
    ) {
        let count = routes.clone().count();
        self.put(routes.map(|n| route(n, 0)));
        self.world.script.on(COMPLETE, |_| Effect::Fail(down(COMPLETE)));
        let (publisher, receiver, _dispatcher) = self.publisher();
        let stop = CancellationToken::new();
        let running = tokio::spawn(publisher.run(receiver, stop.clone()));
        self.until(|world| world.publishing.entry_count(Channel::Push) == count).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        change(&self.world);
        self.world.script.off(COMPLETE);
        self.until(|world| world.database.live_count() == 0).await;
        stop.cancel();
        timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    }

    fn is_consistent(&self, numbers: std::ops::RangeInclusive<u64>) -> bool {
        let entries = self.world.publishing.entries(Channel::Push);
        numbers.into_iter().all(|number| {
            let (key, id) = (route(number, 0).key.to_string(), self.state(number).published_entry_id);
            entries.iter().any(|(entry, fields)| entry.to_string() == id && fields[0].1 == key)
        })
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn entries_that_a_failover_lost_while_postgresql_was_down_are_published_again() {
    let fixture = Fixture::default();
    fixture.change_while_completions_wait(1..=8, |world| world.publishing.fail_over(5)).await;
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8);
    assert!(fixture.is_consistent(1..=8), "each published route is in the stream under its id");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn entries_that_a_restart_kept_while_postgresql_was_down_are_not_appended_again() {
    let fixture = Fixture::default();
    fixture.change_while_completions_wait(1..=8, |world| world.publishing.restart()).await;
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8);
    assert!(fixture.is_consistent(1..=8));
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_route_whose_row_was_locked_while_redis_lost_its_entry_is_published_again() {
    let fixture = Fixture::default();
    fixture.put((1..=8).map(|n| route(n, 0)));
    let lock = fixture.world.database.lock_route(&route(8, 0).key);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (health, stop) = (publisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|_| health.status().deferred == 1).await;
    fixture.world.publishing.fail_over(7);
    drop(lock);
    fixture.until(|world| world.database.live_count() == 0).await;
    fixture.until(|_| health.status().deferred == 0).await;
    assert!(fixture.is_consistent(8..=8));
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8);
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_completion_that_waits_is_not_committed_while_redis_cannot_be_asked() {
    const FIND: &str = "find_entries";
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    fixture.world.script.on(COMPLETE, |_| Effect::Fail(down(COMPLETE)));
    fixture.world.script.on(FIND, |_| Effect::Fail(down(FIND)));
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.script.count(FIND) > 0).await;
    fixture.world.script.off(COMPLETE);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.state(1).status, RouteStatus::Pending);
    fixture.world.script.off(FIND);
    fixture.until(|world| world.database.live_count() == 0).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}
