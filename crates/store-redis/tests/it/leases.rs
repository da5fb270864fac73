//! Leases and the markers that they become, where the contract suite of the port does not cover it.

use std::time::Duration;

use domain::ports::{LeaseOutcome, LeaseStore, ServerId};
use store_redis::RedisLeases;

use crate::*;

#[tokio::test]
async fn a_lease_is_released_by_its_own_token_only() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    drop(leases.acquire_leases(&keys(0..2), &token("a"), LEASE_TTL).await.expect("Redis is there"));
    leases.release_leases(&keys(0..2), &token("b")).await.expect("Redis is there");
    assert_eq!(world.value(key(0)).await.as_deref(), Some("a"));
    // Key 2 does not exist; neither it nor a marker prevents the release of the others.
    world.put(key(3), "published:5-1").await;
    leases.release_leases(&[key(2), key(3), key(0)], &token("a")).await.expect("Redis is there");
    assert_eq!(world.value(key(0)).await, None);
    assert_eq!(world.value(key(1)).await.as_deref(), Some("a"));
    assert_eq!(world.value(key(3)).await.as_deref(), Some("published:5-1"));
}

#[tokio::test]
async fn every_key_of_a_call_has_its_own_answer_in_the_order_asked() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    world.put(key(1), "someone else").await;
    world.put(key(2), "published:7-3").await;
    world.put(key(3), "mine").await;
    let answers =
        leases.acquire_leases(&keys(0..5), &token("mine"), LEASE_TTL).await.expect("Redis is there");
    let published = LeaseOutcome::Published(world.acknowledged("7-3").await);
    assert_eq!(
        answers,
        [LeaseOutcome::Won, LeaseOutcome::Held, published, LeaseOutcome::Won, LeaseOutcome::Won]
    );
    let many = leases.acquire_leases(&keys(5..517), &token("mine"), LEASE_TTL).await.expect("Redis is there");
    assert_eq!(many, vec![LeaseOutcome::Won; 512]);
}

#[tokio::test]
async fn no_keys_need_no_call() {
    // No server listens there.
    let leases = RedisLeases::new(&client_of("127.0.0.1:1", OPERATION_TIMEOUT), &Keyspace::default());
    assert_eq!(
        leases.acquire_leases::<RouteKey>(&[], &token("a"), LEASE_TTL).await.expect("nothing to ask"),
        []
    );
    leases.release_leases(&[], &token("a")).await.expect("nothing to ask");
    let server = ServerId { run_id: "a".into(), replication_id: "b".into() };
    assert!(leases.extend_markers(&server, &[], DEDUPE_TTL).await.expect("nothing to ask"));
}

// INV-04
#[tokio::test]
async fn a_garbled_lease_counts_as_held_and_is_given_an_end() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    for garbage in [
        "",
        "published:",
        "PUBLISHED:5-1",
        "x published:5-1",
        "published:foo",
        "published:5-1 ",
        "published:5-1\0",
        "published:5-",
    ] {
        world.put(key(1), garbage).await;
        let answer = leases.acquire_leases(&[key(1)], &token("a"), LEASE_TTL).await.expect("Redis is there");
        assert_eq!(answer, [LeaseOutcome::Held], "{garbage:?}");
        assert_eq!(world.value(key(1)).await.as_deref(), Some(garbage));
        assert_life(world.pttl(key(1)).await, LEASE_TTL);
    }
}

#[tokio::test]
async fn a_garbled_lease_that_has_an_end_keeps_it() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    world.ask::<()>(&["SET", &route_lease(key(1)), "garbage", "PX", "100000"]).await;
    drop(leases.acquire_leases(&[key(1)], &token("a"), LEASE_TTL).await.expect("Redis is there"));
    assert_life(world.pttl(key(1)).await, Duration::from_secs(100));
}

#[tokio::test]
async fn a_lease_of_the_wrong_type_harms_no_neighbour_and_is_given_an_end() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    world.ask::<()>(&["RPUSH", &route_lease(key(1)), "x"]).await;
    let answers = leases.acquire_leases(&keys(0..3), &token("a"), LEASE_TTL).await.expect("Redis is there");
    assert_eq!(answers, [LeaseOutcome::Won, LeaseOutcome::Held, LeaseOutcome::Won]);
    assert_life(world.pttl(key(1)).await, LEASE_TTL);
    leases.release_leases(&keys(0..3), &token("a")).await.expect("Redis is there");
    assert_eq!(world.value(key(0)).await, None);
    assert_eq!(world.value(key(2)).await, None);
    assert_eq!(world.ask::<i64>(&["LLEN", &route_lease(key(1))]).await, 1);
}

#[tokio::test]
async fn markers_are_extended_and_written_again_where_they_are_gone() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    world.ask::<()>(&["SET", &route_lease(key(0)), "published:5-1", "PX", "1000000"]).await;
    world.put(key(2), "another token").await;
    world.ask::<()>(&["RPUSH", &route_lease(key(3)), "x"]).await;
    let markers: Vec<_> = keys(0..4).into_iter().zip(["5-1", "5-2", "5-3", "5-4"]).collect();
    let server = world.server().await;
    assert!(leases.extend_markers(&server, &markers, DEDUPE_TTL).await.expect("Redis is there"));
    for (key, id) in &markers {
        assert_eq!(world.value(key).await, Some(format!("published:{id}")));
        assert_life(world.pttl(key).await, DEDUPE_TTL);
    }
    let found = leases.acquire_leases(&keys(0..2), &token("a"), LEASE_TTL).await.expect("Redis is there");
    let published = async |id| LeaseOutcome::Published(world.acknowledged(id).await);
    assert_eq!(found, [published("5-1").await, published("5-2").await]);
    // Finding a marker does not shorten its TTL.
    assert_life(world.pttl(key(0)).await, DEDUPE_TTL);
}
