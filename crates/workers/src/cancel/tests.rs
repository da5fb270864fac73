//! Cancellations beside publishers: no route is both cancelled and published.

use ambient::Clock;
use domain::ports::{Append, Completion, DueOrder, Failed, Outbound, RouteStore, RowLocks};
use domain::route::{Channel, LiveRoute, RouteStatus};
use memory_stores::{Effect, MemoryDatabase, MemoryPublishing, Scripted};

use super::*;
use crate::fixtures::{World, down, now, route};

const TIMES: LeaseTimes =
    LeaseTimes { lease_ttl: Duration::from_secs(5), dedupe_ttl: Duration::from_secs(120) };

type Changes = LeasedChanges<Scripted<MemoryDatabase>, Scripted<MemoryPublishing>>;

/// A world with a live route, and the changes of its routes.
fn world() -> (World, LiveRoute, Changes) {
    let world = World::new(now());
    let route = route(1, 0);
    world.database.put_route(route.clone());
    let (store, leases) = (world.database.clone(), world.publishing.clone());
    (world, route, LeasedChanges { store, leases, times: TIMES })
}

fn cancel() -> RouteChange {
    RouteChange::cancel("wrong template".to_owned()).expect("a reason")
}

async fn run(changes: &Changes, route: &LiveRoute) -> Result<ChangeOutcome, StoreError> {
    let selection = Selection::Ids(vec![route.key.to_string()]);
    let targets = changes.select_routes(&cancel(), &selection).await?.targets;
    let action = OperatorAction {
        actor: "me@here".to_owned(),
        request_id: "r-1".to_owned(),
        idempotency_key: None,
        selection,
    };
    let outcomes = changes.change_routes(&cancel(), &targets, &action, now()).await?;
    Ok(outcomes[0])
}

fn token(name: &str) -> LeaseToken {
    LeaseToken(name.to_owned())
}

async fn lease(world: &World, route: &LiveRoute, name: &str) -> LeaseOutcome {
    let leases = world.publishing.acquire_leases(&[&route.key], &token(name), TIMES.lease_ttl).await;
    leases.expect("Redis is there").remove(0)
}

/// Appends the route as a publisher with this token.
async fn append(world: &World, route: &LiveRoute, name: &str) -> Append {
    let entry = domain::outbound::encode(route).expect("it can be encoded");
    let entries = [(&route.key, &entry)];
    let appended =
        world.publishing.append(Channel::Push, &entries, &token(name), TIMES.dedupe_ttl, None).await;
    appended.expect("Redis is there").entries.remove(0)
}

fn status(world: &World) -> RouteStatus {
    world.database.routes()[0].1
}

#[tokio::test]
async fn a_publisher_with_an_older_copy_of_a_cancelled_route_gets_no_lease_before_it_reads_again() {
    let (world, route, changes) = world();
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Changed);
    assert_eq!(status(&world), RouteStatus::Skipped);
    assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Held);
    assert_eq!(world.publishing.remaining(&route.key), Some(TIMES.dedupe_ttl));
}

#[tokio::test]
async fn a_route_whose_entry_is_in_the_stream_counts_as_published_and_stays() {
    let (world, route, changes) = world();
    assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Won);
    assert!(matches!(append(&world, &route, "publisher").await, Append::Done(_)));
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Published);
    assert_eq!(status(&world), RouteStatus::Pending);
    assert!(world.database.actions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_leased_route_is_waited_for_and_then_published_or_cancelled() {
    for is_appended in [true, false] {
        let (world, route, changes) = world();
        assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Won);
        let publisher = async {
            sleep(Duration::from_secs(2)).await;
            match is_appended {
                true => drop(append(&world, &route, "publisher").await),
                false => {
                    let (keys, token) = ([&route.key], token("publisher"));
                    world.publishing.release_leases(&keys, &token).await.expect("Redis is there");
                }
            }
        };
        let (outcome, ()) = tokio::join!(run(&changes, &route), publisher);
        let expected = if is_appended { ChangeOutcome::Published } else { ChangeOutcome::Changed };
        assert_eq!(outcome.expect("both are there"), expected);
        let cancelled = usize::from(status(&world) == RouteStatus::Skipped);
        assert_eq!(cancelled + world.publishing.entry_count(Channel::Push), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_does_not_end_is_waited_for_a_bounded_time() {
    let (world, route, changes) = world();
    assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Won);
    let begun = Instant::now();
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Locked);
    assert!(begun.elapsed() <= MAX_LEASE_WAIT, "{:?}", begun.elapsed());
    assert_eq!(status(&world), RouteStatus::Pending);
    assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Won, "it is still its lease");
}

#[tokio::test]
async fn a_route_that_a_publisher_changed_before_its_lease_ended_is_cancelled_at_its_new_version() {
    let (world, route, changes) = world();
    let seen = changes.select_routes(&cancel(), &Selection::Ids(vec![route.key.to_string()])).await;
    let seen = seen.expect("the store is there").targets;
    let failed = Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count: 1,
        retry_at: Some(now() + Duration::from_secs(9)),
        classification: route.channel.publish_failed(),
        message: "WRONGTYPE".to_owned(),
    };
    let completed = world.database.complete_routes_failed(&[failed], now(), RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    let action = OperatorAction {
        actor: "me@here".to_owned(),
        request_id: "r-1".to_owned(),
        idempotency_key: None,
        selection: Selection::Ids(vec![route.key.to_string()]),
    };
    let outcomes = changes.change_routes(&cancel(), &seen, &action, now()).await;
    assert_eq!(outcomes.expect("both are there"), [ChangeOutcome::Changed]);
    assert_eq!(status(&world), RouteStatus::Skipped);
}

#[tokio::test(start_paused = true)]
async fn a_locked_row_is_left_and_its_lease_is_released() {
    let (world, route, changes) = world();
    let row = world.database.lock_route(&route.key);
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Locked);
    assert_eq!(world.publishing.remaining(&route.key), None);
    drop(row);
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Changed);
}

#[tokio::test]
async fn without_redis_nothing_is_changed() {
    let (world, route, changes) = world();
    world.script.on("acquire_leases", |_| Effect::Fail(down("in a test")));
    assert!(matches!(run(&changes, &route).await, Err(StoreError::Unavailable { .. })));
    assert_eq!(status(&world), RouteStatus::Pending);
    assert!(world.database.actions().is_empty());
}

#[tokio::test]
async fn a_repeated_request_takes_over_the_leases_of_one_that_died_before_its_commit() {
    let (world, route, changes) = world();
    world.script.on("change_routes", |_| Effect::Fail(down("in a test")));
    assert!(run(&changes, &route).await.is_err());
    assert_eq!(lease(&world, &route, "publisher").await, LeaseOutcome::Held);
    world.script.off("change_routes");
    assert_eq!(run(&changes, &route).await.expect("both are there"), ChangeOutcome::Changed);
    let due =
        world.database.list_due_routes(Channel::Push, DueOrder::OldestFirst, world.clock.now(), None, 9);
    assert!(due.await.expect("the store is there").routes.is_empty());
}
