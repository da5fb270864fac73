//! The adapters against a real Redis: one private server for each test.

mod audit;
mod checkpoint;
mod cluster;
mod connect;
mod contract;
mod inspection;
mod installation;
mod intents;
mod leader_notice;
mod leases;
mod old_names;
mod outbound;
mod outbox;
mod permissions;

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{Acknowledged, LeaseToken, ServerId};
use domain::record::NotificationId;
use domain::route::RouteKey;
use harness::{Redis, RedisOptions, private_redis};
use redis::{FromRedisValue, Value, cmd, from_redis_value};
use store_redis::{Keyspace, RedisClient, RedisSettings, StreamTarget, Topology};

/// Long enough for a machine that is busy with other things; a test that waits for it fails.
const BOUND: Duration = Duration::from_secs(20);
const LEASE_TTL: Duration = Duration::from_secs(60);
const DEDUPE_TTL: Duration = Duration::from_secs(600);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// A server and a client of it.
struct World {
    redis: Redis,
    client: RedisClient,
}

impl World {
    async fn new() -> Self {
        let redis = private_redis().await;
        let client = client_of(&redis.addr(), OPERATION_TIMEOUT);
        Self { redis, client }
    }

    /// A server that restarts with its last snapshot.
    async fn with_snapshots() -> Self {
        let redis = Redis::start(RedisOptions::default()).await.expect("a private Redis starts");
        let client = client_of(&redis.addr(), OPERATION_TIMEOUT);
        Self { redis, client }
    }

    /// Sends a command to Redis directly, and panics if Redis rejects it.
    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        from_redis_value(self.ask_bytes(words).await).expect("Redis answers as the test expects")
    }

    async fn ask_bytes(&self, words: &[impl AsRef<[u8]>]) -> Value {
        let mut command = cmd(std::str::from_utf8(words[0].as_ref()).expect("the name of a command"));
        for word in &words[1..] {
            command.arg(word.as_ref());
        }
        self.client.command("ask", &command).await.expect("Redis carries it out")
    }

    /// The remaining TTL of the lease of `key` in milliseconds, as Redis reports it.
    async fn pttl(&self, key: &RouteKey) -> i64 {
        self.ask(&["PTTL", &route_lease(key)]).await
    }

    async fn value(&self, key: &RouteKey) -> Option<String> {
        self.ask(&["GET", &route_lease(key)]).await
    }

    /// The server's identity.
    async fn server(&self) -> ServerId {
        let property = async |section, name: &str| {
            let info: String = self.ask(&["INFO", section]).await;
            let value = info.lines().find_map(|line| line.strip_prefix(name));
            value.expect("INFO has it").into()
        };
        ServerId {
            run_id: property("server", "run_id:").await,
            replication_id: property("replication", "master_replid:").await,
        }
    }

    async fn acknowledged(&self, entry_id: &str) -> Acknowledged {
        Acknowledged { entry_id: entry_id.to_owned(), server: self.server().await }
    }

    /// Kills the server and starts it with its last snapshot.
    async fn restart_from_snapshot(&mut self) {
        self.redis.kill().await;
        self.redis.start_again().await.expect("it starts");
        harness::wait_for("the client is connected again", BOUND, async || self.client.ping().await.ok())
            .await;
    }

    async fn put(&self, key: &RouteKey, value: &str) {
        self.ask::<()>(&["SET", &route_lease(key), value]).await;
    }
}

/// The key of the hash with the marker of a route that was appended under a permit.
fn marker_hash(key: &RouteKey) -> String {
    Keyspace::default().marker_hash(key)
}

/// The key of a lease of an installation on the default stream.
fn route_lease(key: &RouteKey) -> String {
    Keyspace::default().route_lease(key).key
}

fn client_of(addr: &str, operation_timeout: Duration) -> RedisClient {
    let topology = Topology::Single(addr.to_owned());
    let settings = RedisSettings { topology, password: None, db: 0, operation_timeout };
    RedisClient::new(settings).expect("an address")
}

/// A route key with a static lifetime, so that no test has to keep what its calls borrow.
fn key(n: usize) -> &'static RouteKey {
    let notification_id = NotificationId::of(EntryId::new(1_775_121_700_000, n as u64), 0);
    Box::leak(Box::new(RouteKey { notification_id, route_id: "push:user:u1".to_owned() }))
}

fn keys(numbers: std::ops::Range<usize>) -> Vec<&'static RouteKey> {
    numbers.map(key).collect()
}

fn token(text: &str) -> LeaseToken {
    LeaseToken(text.to_owned())
}

/// Asserts that a remaining TTL in milliseconds was set to `ttl` within the bound of this test.
#[track_caller]
fn assert_life(pttl: i64, ttl: Duration) {
    let (life, ttl) = (Duration::from_millis(u64::try_from(pttl).expect("it has an end")), ttl);
    assert!(life <= ttl && life > ttl.saturating_sub(BOUND), "{life:?} is not about {ttl:?}");
}
