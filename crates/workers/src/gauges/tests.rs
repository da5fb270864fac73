//! The values of the gauges, also while one of the stores is unavailable.

use std::sync::Arc;

use ambient::ManualClock;
use memory_stores::{Effect, MemoryCheckpoints, MemoryDatabase, MemoryIntents, Scripted};

use super::*;
use crate::fixtures::{RecordedGauges, STREAM, World, down, intent, refused, route};

const AGE: &str = "notification.intent_stream.oldest_unprocessed_age";
const UP: &str = "notification.dependency.up";
const DUE: &str = "notification.channel.oldest_due_age";
const EXPIRED: &str = "notification.retention.oldest_expired_age";

/// A world at 100 ms, with entries 10 and 20 in the stream.
fn world() -> World {
    let world = World::new(Timestamp::from_millis(100).expect("in range"));
    for (number, key) in [(10, "key-1"), (20, "key-2")] {
        world.intents.put(intent(number, key, "u-1"));
    }
    world
}

/// Runs `times` passes in `world`, while the gauges are read.
async fn measure(world: &World, times: u32) -> RecordedGauges {
    measure_if(true, world, times).await
}

fn gauges(
    world: &World,
    recorded: &RecordedGauges,
) -> Gauges<Scripted<MemoryDatabase>, Scripted<MemoryIntents>, Scripted<MemoryCheckpoints>, Arc<ManualClock>>
{
    Gauges {
        store: world.database.clone(),
        intents: world.intents.clone(),
        cache: world.cache.clone(),
        clock: Arc::clone(&world.clock),
        stream: STREAM.into(),
        record_retention: Duration::from_millis(40),
        malformed_retention: Duration::from_millis(40),
        metrics: Metrics::new(&recorded.meter()),
        health: Health::new("gauges"),
    }
}

/// Same as [`measure`], but the gauges are read only if `is_read`.
async fn measure_if(is_read: bool, world: &World, times: u32) -> RecordedGauges {
    let recorded = RecordedGauges::default();
    let gauges = gauges(world, &recorded);
    let mut passes = GaugesLoop { gauges: &gauges, is_read: || is_read, seen: GaugesState::default() };
    for _ in 0..times {
        drop(passes.run_once(&CancellationToken::new()).await);
    }
    recorded
}

/// The reported age in seconds at 100 ms, when entries 10 and 20 are in the stream and the last generated one
/// is 20.
async fn age(durable: Option<u64>, cached: Option<u64>) -> Vec<f64> {
    let world = world();
    durable.into_iter().for_each(|number| world.set_durable(EntryId::new(number, 0)));
    cached.into_iter().for_each(|number| world.set_cached(EntryId::new(number, 0)));
    measure(&world, 1).await.values(AGE)
}

#[tokio::test(start_paused = true)]
async fn every_replica_shows_the_age_of_what_no_leader_has_processed() {
    assert_eq!(age(None, None).await, [0.09], "no replica ever led");
    assert_eq!(age(Some(10), None).await, [0.08]);
    assert_eq!(age(Some(20), None).await, [0.0], "nothing waits");
}

#[tokio::test(start_paused = true)]
async fn the_age_is_based_on_the_cached_checkpoint_if_postgresql_has_none() {
    assert_eq!(age(None, Some(10)).await, [0.08]);
    assert_eq!(age(Some(10), Some(20)).await, [0.08]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_recreated_counts_from_its_first_entry() {
    assert_eq!(age(Some(1_000), None).await, [0.09]);
}

#[tokio::test(start_paused = true)]
async fn while_postgresql_is_unavailable_redis_is_measured_from_the_last_checkpoint() {
    let world = world();
    world.set_durable(EntryId::new(10, 0));
    let mut loaded = 0;
    world.script.on("load_checkpoint", move |_| {
        loaded += 1;
        if loaded == 1 { Effect::Pass } else { Effect::Fail(down("load the checkpoint")) }
    });
    let recorded = measure(&world, 2).await;
    assert_eq!(recorded.values(AGE), [0.08, 0.08]);
    assert_eq!(recorded.values(UP), [1.0, 1.0, 0.0, 1.0], "PostgreSQL and Redis, twice");
}

#[tokio::test(start_paused = true)]
async fn while_postgresql_is_unavailable_the_later_one_of_the_last_checkpoint_and_the_cached_one_counts() {
    for (durable, cached, ages) in [(10, 20, [0.08, 0.0]), (20, 10, [0.0, 0.0])] {
        let world = world();
        world.set_durable(EntryId::new(durable, 0));
        world.set_cached(EntryId::new(cached, 0));
        let mut loaded = 0;
        world.script.on("load_checkpoint", move |_| {
            loaded += 1;
            if loaded == 1 { Effect::Pass } else { Effect::Fail(down("load the checkpoint")) }
        });
        let recorded = measure(&world, 2).await;
        assert_eq!(recorded.values(AGE), ages, "{durable} durable, {cached} cached");
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_was_just_loaded_counts_whatever_fails_after_it() {
    let world = world();
    world.set_durable(EntryId::new(10, 0));
    world.set_cached(EntryId::new(20, 0));
    world.script.on("next_due", |_| Effect::Fail(down("list due routes")));
    assert_eq!(measure(&world, 1).await.values(AGE), [0.08]);
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_refuses_is_there_and_one_that_is_unavailable_is_not() {
    let world = world();
    world.script.on("next_due", |_| Effect::Fail(refused("list due routes")));
    world.script.on("inspect", |_| Effect::Fail(down("inspect the stream")));
    assert_eq!(measure(&world, 1).await.values(UP), [1.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_is_shown_for_each_channel_and_what_is_expired_for_each_table() {
    let world = world();
    world.database.put_route(route(1, 0));
    let recorded = measure(&world, 1).await;
    assert_eq!(recorded.values(DUE), [0.1, 0.0], "push, e-mail");
    assert_eq!(recorded.values(EXPIRED), [0.0, 0.0], "records, malformed intents");
}

#[test]
fn the_age_of_what_is_expired_counts_from_the_end_of_its_retention() {
    let at = |millis| Timestamp::from_millis(millis).expect("in range");
    let cutoff = Cutoff::new(at(100_000), Duration::from_secs(40));
    let row = Expired { key: (), at: at(10_000), rows: 1, bytes: 0, live: false };
    assert_eq!(expired_for(cutoff, &[row]), Duration::from_secs(50));
}

#[tokio::test(start_paused = true)]
async fn while_the_gauges_are_not_read_no_store_is_asked() {
    let world = world();
    let recorded = measure_if(false, &world, 3).await;
    for call in ["load_checkpoint", "next_due", "inspect"] {
        assert_eq!(world.script.count(call), 0, "{call}");
    }
    assert!(recorded.values(UP).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_shown_with_its_age_and_its_routes_and_as_zero_once_it_is_gone() {
    let world = world();
    let hold = HoldKey::new(domain::hold::HoldScope::Type, "t".to_owned()).expect("a key");
    world.database.set_hold(&hold, false);
    let recorded = RecordedGauges::default();
    let gauges = gauges(&world, &recorded);
    let mut passes = GaugesLoop { gauges: &gauges, is_read: || true, seen: GaugesState::default() };
    for released in [false, true] {
        if released {
            world.database.set_hold(&hold, true);
            assert!(HoldStore::end_hold(&*world.database, &hold).await.expect("the store is there"));
        }
        passes.run_once(&CancellationToken::new()).await.expect("the stores are there");
    }
    assert_eq!(recorded.values("notification.hold.age"), [0.1, 0.0]);
    assert_eq!(recorded.values("notification.hold.routes"), [0.0, 0.0]);
}
