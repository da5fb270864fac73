//! The outcome of calls when Redis or the network fails.

use std::time::Instant;

use domain::checkpoint::Checkpoint;
use domain::ports::{
    CheckpointCache, IntentStream, LeaseOutcome, LeaseStore, ReadLimit, StoreError, StreamRead, Swap,
};
use harness::{Proxy, RedisOptions};
use store_redis::{Password, RedisCheckpoints, RedisIntentStream, RedisLeases};

use crate::*;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
/// Far shorter than a call that ignores its timeout, far longer than one that respects it on a busy machine.
const ONE: ReadLimit = ReadLimit { entries: 1, bytes: 1024 * 1024 };
const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
}

/// Every kind of call returns `Unavailable` soon.
async fn assert_all_unavailable(client: &RedisClient) {
    let began = Instant::now();
    let leases = RedisLeases::new(client, &Keyspace::default());
    let stream = RedisIntentStream::new(client, "notification:intents".to_owned());
    let (keys, token) = (keys(0..1), token("a"));
    let (ping, acquired, read) = tokio::join!(
        client.ping(),
        leases.acquire_leases(&keys, &token, LEASE_TTL),
        stream.read(EntryId::ZERO, ONE, Duration::from_millis(1)),
    );
    assert_unavailable(ping);
    assert_unavailable(acquired);
    assert_unavailable(read);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

async fn assert_heals(client: &RedisClient) {
    harness::wait_for("the same client works again", BOUND, async || client.ping().await.ok()).await;
    let stream = RedisIntentStream::new(client, "notification:intents".to_owned());
    let read = harness::wait_for("the same stream can be read again", BOUND, async || {
        stream.read(EntryId::ZERO, ONE, Duration::from_millis(1)).await.ok()
    });
    assert_eq!(read.await, StreamRead::Entries(Vec::new()));
}

#[tokio::test]
async fn an_address_without_a_listener_is_unavailable() {
    assert_all_unavailable(&client_of("127.0.0.1:1", SHORT_TIMEOUT)).await;
}

#[tokio::test]
async fn calls_that_wait_for_another_to_connect_fail_with_it_and_connect_only_later() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let client = client_of(&listener.local_addr().expect("bound").to_string(), SHORT_TIMEOUT);
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.ping().await }
    });
    let (_silent, _) = listener.accept().await.expect("the first call connects");
    // These have time left when the first one fails.
    let (second, third) = tokio::join!(client.ping(), client.ping());
    assert_unavailable(first.await.expect("it ends"));
    assert_unavailable(second);
    assert_unavailable(third);
    let more = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(more.is_err(), "they opened a connection of their own");
    let fourth = tokio::spawn(async move { client.ping().await });
    let _silent = listener.accept().await.expect("a later call connects");
    assert_unavailable(fourth.await.expect("it ends"));
}

#[tokio::test]
async fn a_redis_that_was_killed_and_started_again_serves_the_same_client() {
    let mut world = World::new().await;
    let stream = RedisIntentStream::new(&world.client, "notification:intents".to_owned());
    world.ask::<String>(&["XADD", "notification:intents", "5-1", "n", "1"]).await;
    let before = stream.read(EntryId::ZERO, ONE, OPERATION_TIMEOUT).await.expect("it is there");
    world.redis.kill().await;
    assert_all_unavailable(&world.client).await;
    world.redis.start_again().await.expect("it starts");
    harness::wait_for("the same client works again", BOUND, async || world.client.ping().await.ok()).await;
    let reread = async || stream.read(EntryId::ZERO, ONE, OPERATION_TIMEOUT).await.ok();
    let after = harness::wait_for("the same stream is read again", BOUND, reread).await;
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_redis_that_was_restarted_between_two_calls_costs_one_call_at_most() {
    let mut world = World::new().await;
    world.client.ping().await.expect("it is there");
    world.redis.kill().await;
    world.redis.start_again().await.expect("it starts");
    // The first call may or may not find the old connection closed.
    drop(world.client.ping().await);
    world.client.ping().await.expect("a connection of the new server");
}

#[tokio::test]
async fn a_hung_redis_is_unavailable_within_the_timeout_and_heals() {
    let world = World::new().await;
    let client = client_of(&world.redis.addr(), SHORT_TIMEOUT);
    client.ping().await.expect("it is there");
    world.redis.pause();
    // With the existing connection, and then without one.
    assert_all_unavailable(&client).await;
    assert_all_unavailable(&client).await;
    world.redis.resume();
    assert_heals(&client).await;
}

#[tokio::test]
async fn a_black_holed_connection_is_unavailable_within_the_timeout_and_heals() {
    let redis = private_redis().await;
    let proxy = Proxy::start(redis.port()).await;
    let client = client_of(&proxy.addr(), SHORT_TIMEOUT);
    client.ping().await.expect("it is there");
    proxy.black_hole();
    assert_all_unavailable(&client).await;
    assert_all_unavailable(&client).await;
    proxy.heal();
    assert_heals(&client).await;
}

#[tokio::test]
async fn a_large_entry_on_a_slow_network_is_read_although_it_takes_longer_than_the_timeout() {
    let world = World::new().await;
    let value = "x".repeat(2 * 1024 * 1024);
    world.ask::<String>(&["XADD", "slow", "5-1", "n", &value]).await;
    let proxy = Proxy::start(world.redis.port()).await;
    let stream = RedisIntentStream::new(&client_of(&proxy.addr(), SHORT_TIMEOUT), "slow".to_owned());
    // Pieces of at most 64 KiB.
    proxy.delay(SHORT_TIMEOUT / 8);
    let (begun, limit) = (Instant::now(), ReadLimit { entries: 1, bytes: 64 * 1024 * 1024 });
    let read = stream.read(EntryId::ZERO, limit, Duration::from_millis(1)).await.expect("it arrives");
    assert!(matches!(read, StreamRead::Entries(entries) if entries.len() == 1));
    assert!(begun.elapsed() > 2 * SHORT_TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn answers_that_are_lost_make_a_call_unavailable_though_it_was_carried_out() {
    let world = World::new().await;
    let proxy = Proxy::start(world.redis.port()).await;
    let client = client_of(&proxy.addr(), SHORT_TIMEOUT);
    let leases = RedisLeases::new(&client, &Keyspace::default());
    drop(leases.acquire_leases(&[key(0)], &token("a"), LEASE_TTL).await.expect("it is there"));
    proxy.lose_replies();
    assert_unavailable(leases.acquire_leases(&[key(1)], &token("a"), LEASE_TTL).await);
    assert_eq!(world.value(key(1)).await.as_deref(), Some("a"));
    proxy.heal();
    // The same token finds its lease.
    let again = harness::wait_for("the same client works again", BOUND, async || {
        leases.acquire_leases(&[key(1)], &token("a"), LEASE_TTL).await.ok()
    });
    assert_eq!(again.await, [LeaseOutcome::Won]);
}

#[tokio::test]
async fn an_answer_that_came_too_late_is_not_taken_for_the_next_ones() {
    let world = World::new().await;
    let client = client_of(&world.redis.addr(), SHORT_TIMEOUT);
    world.ask::<()>(&["SET", "one", "1"]).await;
    world.ask::<()>(&["SET", "two", "2"]).await;
    let get = |key: &str| cmd("GET").arg(key).to_owned();
    client.command("get", &get("one")).await.expect("it is there");
    world.redis.pause();
    assert_unavailable(client.command("get", &get("one")).await);
    world.redis.resume();
    let two = harness::wait_for("the same client works again", BOUND, async || {
        client.command("get", &get("two")).await.ok()
    });
    assert_eq!(from_redis_value::<String>(two.await).expect("a string"), "2");
}

#[tokio::test]
async fn a_call_that_was_dropped_leaves_the_connection_to_the_others() {
    let world = World::new().await;
    world.client.ping().await.expect("it is there");
    world.redis.pause();
    // Dropped while it waits for the reply.
    let ping = tokio::time::timeout(Duration::from_millis(50), world.client.ping()).await;
    assert!(ping.is_err(), "{ping:?}");
    world.redis.resume();
    world.client.ping().await.expect("the client works again");
}

#[tokio::test]
async fn a_redis_that_became_a_replica_is_an_outage_until_it_is_a_master_again() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    let checkpoints = RedisCheckpoints::new(&world.client);
    let checkpoint = Checkpoint { fence: 0, last_entry_id: EntryId::new(5, 1) };
    let server = world.server().await;
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_unavailable(leases.acquire_leases(&[key(0)], &token("a"), LEASE_TTL).await);
    assert_unavailable(leases.extend_markers(&server, &[(key(0), "5-1")], DEDUPE_TTL).await);
    assert_unavailable(checkpoints.save("notification:intents", checkpoint).await);
    world.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let won = leases.acquire_leases(&[key(0)], &token("a"), LEASE_TTL).await.expect("it is a master");
    assert_eq!(won, [LeaseOutcome::Won]);
    assert_eq!(
        checkpoints.save("notification:intents", checkpoint).await.expect("it is a master"),
        Swap::Applied
    );
}

#[tokio::test]
async fn a_server_that_became_read_only_loses_its_connection_and_one_that_refuses_keeps_it() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    let first: i64 = world.ask(&["CLIENT", "ID"]).await;
    world.ask::<()>(&["SET", "a", "b"]).await;
    let refused = world.client.command("push", cmd("RPUSH").arg("a").arg("c")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(world.ask::<i64>(&["CLIENT", "ID"]).await, first);
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_unavailable(leases.acquire_leases(&keys(0..1), &token("a"), LEASE_TTL).await);
    // The primary is elsewhere now: another connection may find it.
    assert_ne!(world.ask::<i64>(&["CLIENT", "ID"]).await, first);
}

async fn protected_redis(password: &str) -> Redis {
    let options = RedisOptions { password: Some(password.to_owned()), ..RedisOptions::default() };
    Redis::start(options).await.expect("a private Redis starts")
}

fn with_password(redis: &Redis, password: Option<&str>) -> RedisSettings {
    let password = password.map(|password| Password(password.to_owned()));
    let topology = Topology::Single(redis.addr());
    RedisSettings { topology, password, db: 0, operation_timeout: OPERATION_TIMEOUT }
}

#[tokio::test]
async fn the_right_password_opens_and_its_database_is_the_one_that_was_asked_for() {
    let redis = protected_redis("right/p@ss word").await;
    let settings = RedisSettings { db: 3, ..with_password(&redis, Some("right/p@ss word")) };
    let client = RedisClient::new(settings).expect("an address");
    client.command("set", cmd("SET").arg("a").arg("b")).await.expect("it opens");
    let keyspace = client.command("ask", cmd("INFO").arg("keyspace")).await.expect("it is there");
    let keyspace: String = from_redis_value(keyspace).expect("a text");
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");
}

#[tokio::test]
async fn a_wrong_password_is_unavailable_and_nothing_that_is_printed_contains_it() {
    const WRONG: &str = "wr0ng-passw0rd";
    let redis = protected_redis("right").await;
    let settings = with_password(&redis, Some(WRONG));
    let client = RedisClient::new(settings.clone()).expect("an address");
    let error = client.ping().await.expect_err("the password is wrong");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let stream = RedisIntentStream::new(&client, "notification:intents".to_owned());
    let read = stream.read(EntryId::ZERO, ONE, OPERATION_TIMEOUT).await.expect_err("the password is wrong");
    let mut printed = vec![format!(
        "{settings:?} {client:?} {stream:?} {:?}",
        RedisLeases::new(&client, &Keyspace::default())
    )];
    for error in [&error, &read] {
        printed.push(format!("{error:?} {error:#?}"));
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(error) = cause {
            printed.push(error.to_string());
            cause = error.source();
        }
    }
    assert!(printed.len() >= 5, "no causes: {printed:?}");
    for text in printed {
        assert!(!text.contains(WRONG), "{text}");
    }
}

#[tokio::test]
async fn no_password_where_one_is_needed_is_unavailable() {
    let redis = protected_redis("right").await;
    assert_all_unavailable(&RedisClient::new(with_password(&redis, None)).expect("an address")).await;
}

#[test]
fn what_is_no_address_is_refused_before_any_call() {
    for addr in ["", "rediss://", "host:port", "host:99999999"] {
        let settings = RedisSettings {
            topology: Topology::Single(addr.to_owned()),
            password: None,
            db: 0,
            operation_timeout: OPERATION_TIMEOUT,
        };
        let error = RedisClient::new(settings).expect_err(addr);
        assert_eq!(error.to_string(), format!("{addr} is not an address of a Redis server"));
    }
}
