//! Redis Cluster: failovers and moved slots under load by the stream, by HTTP and by a relay. In the end each
//! intent is one record, and each of its routes one entry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Redis, RedisCluster, RedisClusterOptions, RedisOptions, Service, wait_for};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;

use crate::api_client::*;
use crate::outbox::*;
use crate::sentinel::{TESTDATA, audited, restrict, tls, works};
use crate::world::*;

/// The pause of a producer after each intent.
const PACE: Duration = Duration::from_millis(25);
/// The time for a response of a node that may be paused.
const PATIENCE: Duration = Duration::from_secs(1);
/// The limit of a start that fails.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The first number of the intents that are sent by HTTP.
const FIRST_BY_HTTP: u32 = 1_000_000;
/// The number of records that are accepted before and after each fault, from all producers.
const PROGRESS: i64 = 60;

/// Services, a relay and producers on a Cluster of three primaries and three replicas.
struct Loaded {
    outbox: Outbox,
    services: [Service; 2],
    _relay: Service,
    _tokens: TokensFile,
    stop: Arc<AtomicBool>,
    by_stream: JoinHandle<u32>,
    by_http: JoinHandle<u32>,
    by_relay: JoinHandle<u32>,
}

impl Loaded {
    async fn start() -> Self {
        let outbox = Outbox::with(World::with_cluster(RedisClusterOptions::default()).await).await;
        let world = &outbox.world;
        let tokens = TokensFile::new(world);
        let service = || with_api(world.service(), &tokens).env("NOTIFICATION_REPUBLISH_WINDOW", "10m");
        let services = [service().start().await, service().start().await];
        let relay = outbox.relay().start().await;
        let stop = Arc::new(AtomicBool::new(false));
        let ports = cluster(world).nodes.iter().map(Redis::port).collect();
        let loaded = Self {
            by_stream: tokio::spawn(produce_by_stream(ports, Arc::clone(&stop))),
            by_http: tokio::spawn(produce_by_http(services[0].api_addr(), Arc::clone(&stop))),
            by_relay: tokio::spawn(produce_by_relay(outbox.database.client().await, Arc::clone(&stop))),
            stop,
            outbox,
            services,
            _relay: relay,
            _tokens: tokens,
        };
        loaded.progress().await;
        loaded
    }

    fn world(&self) -> &World {
        &self.outbox.world
    }

    fn nodes(&mut self) -> &mut [Redis] {
        &mut self.outbox.world.cluster.as_mut().expect("it has a Cluster").nodes
    }

    async fn primary_of(&self, key: &str) -> usize {
        let primary = async || cluster(self.world()).primary_of(key).await.ok()?;
        wait_for("the slot has a node", BOUND, primary).await
    }

    /// Waits until the slot of `key` is on another node.
    async fn moved(&self, key: &str, former: usize) -> usize {
        let primary = async || cluster(self.world()).primary_of(key).await.ok()?.filter(|now| *now != former);
        wait_for("the slot is on another node", BOUND, primary).await
    }

    /// Waits until more intents are accepted and more routes of both channels are published.
    async fn progress(&self) {
        let counts = async || {
            let sql = "SELECT (SELECT count(*) FROM records), \
                (SELECT count(*) FROM routes WHERE status = 'published' AND channel = 'push'), \
                (SELECT count(*) FROM routes WHERE status = 'published' AND channel = 'email')";
            let row = self.world().database.client().await.query_one(sql, &[]).await.expect("it is right");
            [0, 1, 2].map(|column| row.get::<_, i64>(column))
        };
        let before = counts().await;
        wait_for("the work goes on", BOUND, async || {
            let now = counts().await;
            now.iter().zip(before).all(|(now, before)| *now >= before + PROGRESS).then_some(())
        })
        .await;
    }

    /// Stops the producers, and checks that nothing is lost and nothing exists twice. A producer of the
    /// stream sends again what a node may have lost after its reply.
    async fn check(self) {
        self.stop.store(true, Ordering::SeqCst);
        let sent = self.by_stream.await.expect("no panic");
        let accepted = self.by_http.await.expect("no panic");
        let inserted = self.by_relay.await.expect("no panic");
        let world = &self.outbox.world;
        world.send(0..sent).await;
        self.outbox.drained().await;
        let by_key = (0..sent).chain(FIRST_BY_HTTP..FIRST_BY_HTTP + accepted).map(key);
        let keys: BTreeSet<String> = by_key.chain((0..inserted).map(event_id)).collect();
        assert!(sent > 0 && accepted > 0 && inserted > 0, "the producers were at work");
        world.settled(i64::try_from(keys.len()).expect("few")).await;
        wait_for("each published route is in its stream", BOUND, async || {
            let published = "SELECT count(*) FROM routes WHERE status = 'published'";
            let entries = world.outbound().await.len();
            (world.number(published).await == i64::try_from(entries).expect("few")).then_some(())
        })
        .await;
        world.check_keys(keys).await;
        let failed = "SELECT count(*) FROM routes WHERE attempt_count > 0";
        assert_eq!(world.number(failed).await, 0, "an outage costs no attempt");
        assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
        world.caught_up().await;
        world.check_audit().await;
        for service in &self.services {
            assert_eq!(service.get("/readyz").await.0, 200);
        }
    }
}

fn cluster(world: &World) -> &RedisCluster {
    world.cluster.as_ref().expect("it has a Cluster")
}

/// Appends each intent until the node of the stream acknowledges it. Returns the number of intents.
async fn produce_by_stream(ports: Vec<u16>, stop: Arc<AtomicBool>) -> u32 {
    let (mut n, mut pace) = (0, tokio::time::interval(PACE));
    let (mut connection, mut tried): (Option<MultiplexedConnection>, usize) = (None, 0);
    while !stop.load(Ordering::SeqCst) {
        pace.tick().await;
        if connection.is_none() {
            tried += 1;
            let url = format!("redis://127.0.0.1:{}", ports[tried % ports.len()]);
            let client = redis::Client::open(url).expect("an address");
            let opened = tokio::time::timeout(PATIENCE, client.get_multiplexed_async_connection()).await;
            connection = opened.ok().and_then(Result::ok);
        }
        let Some(node) = &mut connection else { continue };
        match tokio::time::timeout(PATIENCE, intent(n).query_async::<String>(node)).await {
            Ok(Ok(_)) => n += 1,
            _ => connection = None,
        }
    }
    n
}

/// Sends each intent until it is accepted. Returns the number of intents.
async fn produce_by_http(api: String, stop: Arc<AtomicBool>) -> u32 {
    let (mut accepted, mut pace) = (0, tokio::time::interval(PACE));
    while !stop.load(Ordering::SeqCst) {
        pace.tick().await;
        let n = FIRST_BY_HTTP + accepted;
        let sent = try_ask(&api, PRODUCER, "POST", "/v1/intents", Some(&key(n)), &body(n).to_string()).await;
        if sent.is_ok_and(|response| response.status == 202) {
            accepted += 1;
        }
    }
    accepted
}

/// Inserts events into the outbox. Returns their number.
async fn produce_by_relay(client: tokio_postgres::Client, stop: Arc<AtomicBool>) -> u32 {
    let (mut n, mut pace) = (0, tokio::time::interval(PACE));
    while !stop.load(Ordering::SeqCst) {
        pace.tick().await;
        client.batch_execute(&format!("{INSERT} {}", event_row(n))).await.expect("PostgreSQL is there");
        n += 1;
    }
    n
}

/// Moves the slot of `key` to another primary, key by key, as `redis-cli --cluster reshard` does.
async fn reshard(world: &World, key: &str) {
    let cluster = cluster(world);
    let nodes = cluster.topology().await.expect("a node responds");
    let slot = cluster.slot(key).await.expect("a node responds");
    let source = nodes.iter().find(|node| node.is_primary && node.has_slot(slot)).expect("it has a node");
    let target = nodes.iter().find(|node| node.is_primary && node.id != source.id).expect("there are three");
    let slot = slot.to_string();
    let ask = async |index: usize, words: &[&str]| {
        let node = &cluster.nodes[index];
        node.ask::<Value>(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    };
    ask(target.index, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source.id]).await;
    ask(source.index, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target.id]).await;
    let port = cluster.nodes[target.index].port().to_string();
    loop {
        let keys = ask(source.index, &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
        if keys.is_empty() {
            break;
        }
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        ask(source.index, &words).await;
    }
    for node in [target, source] {
        ask(node.index, &["CLUSTER", "SETSLOT", &slot, "NODE", &target.id]).await;
    }
}

// INV-04
#[tokio::test]
async fn a_primary_that_is_killed_is_followed_by_its_replica() {
    for stream in [PUSH, INTENTS] {
        let mut loaded = Loaded::start().await;
        let killed = loaded.primary_of(stream).await;
        loaded.nodes()[killed].kill().await;
        loaded.moved(stream, killed).await;
        loaded.progress().await;
        loaded.nodes()[killed].start_again().await.expect("it starts");
        loaded.progress().await;
        loaded.check().await;
    }
}

// INV-04
#[tokio::test]
async fn a_primary_that_was_paused_returns_as_a_replica() {
    let mut loaded = Loaded::start().await;
    let paused = loaded.primary_of(PUSH).await;
    loaded.nodes()[paused].pause();
    loaded.moved(PUSH, paused).await;
    loaded.progress().await;
    loaded.nodes()[paused].resume();
    loaded.progress().await;
    loaded.check().await;
}

#[tokio::test]
async fn a_failover_by_an_operator_loses_nothing() {
    let loaded = Loaded::start().await;
    for stream in [PUSH, INTENTS] {
        let nodes = cluster(loaded.world()).topology().await.expect("a node responds");
        let former = loaded.primary_of(stream).await;
        let primary = nodes.iter().find(|node| node.index == former).expect("it is known");
        let replica =
            nodes.iter().find(|node| node.primary.as_ref() == Some(&primary.id)).expect("it has one");
        let node = &cluster(loaded.world()).nodes[replica.index];
        node.ask::<()>(&["CLUSTER", "FAILOVER"]).await.expect("it is a replica");
        loaded.moved(stream, former).await;
        loaded.progress().await;
    }
    loaded.check().await;
}

// INV-13
#[tokio::test]
async fn a_slot_that_is_moved_loses_nothing_and_is_not_counted_as_a_loss() {
    let loaded = Loaded::start().await;
    for stream in [PUSH, INTENTS] {
        reshard(loaded.world(), stream).await;
        loaded.progress().await;
    }
    for service in &loaded.services {
        assert!(
            service.logged("entries that Redis had lost were appended again").is_none(),
            "nothing was lost"
        );
    }
    loaded.check().await;
}

#[tokio::test]
async fn nodes_have_a_password_documented_rights_and_tls() {
    let node = RedisOptions {
        password: Some("nodes".to_owned()),
        tls: Some(tls()),
        appendonly: true,
        ..RedisOptions::default()
    };
    let options = RedisClusterOptions { node, ..RedisClusterOptions::default() };
    let mut world = World::with_cluster(options).await;
    assert!(cluster(&world).addrs().starts_with("rediss://localhost:"));
    for node in &cluster(&world).nodes {
        // The test asks for the nodes of slots.
        restrict(node, "nodes", &["+cluster"]).await;
    }
    let service = |world: &World, password: &str| {
        let root = format!("{TESTDATA}/root.pem");
        world.service().env("SSL_CERT_FILE", root).env("NOTIFICATION_REDIS_PASSWORD", password)
    };
    let mut refused = service(&world, "guessed").spawn();
    assert_eq!(refused.wait_exit(START_LIMIT).await.code(), Some(1));
    let output = refused.output().join("\n");
    assert!(output.contains("Password authentication failed") && !output.contains("guessed"), "{output}");

    let _service = service(&world, "nodes").start().await;
    works(&world, 0).await;
    for (n, stream) in [PUSH, INTENTS].into_iter().enumerate() {
        let primary_of = async |world: &World| {
            wait_for("the slot has a node", BOUND, async || cluster(world).primary_of(stream).await.ok()?)
                .await
        };
        let killed = primary_of(&world).await;
        let nodes = &mut world.cluster.as_mut().expect("it has a Cluster").nodes;
        nodes[killed].kill().await;
        wait_for("the slot is on another node", BOUND, async || {
            (primary_of(&world).await != killed).then_some(())
        })
        .await;
        works(&world, 1 + u32::try_from(n).expect("few")).await;
        let nodes = &mut world.cluster.as_mut().expect("it has a Cluster").nodes;
        nodes[killed].start_again().await.expect("it starts");
    }
    let audit = service(&world, "nodes").env("NOTIFICATION_RECORD_RETENTION", "17520h");
    audited(audit.arguments(["audit"])).await;
}

#[tokio::test]
async fn a_stream_name_without_a_possible_slot_ends_the_start() {
    let world =
        World::with_cluster(RedisClusterOptions { replicas: 0, ..RedisClusterOptions::default() }).await;
    let refused = world.service().env("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", "a}b").run().await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stdout.contains("the name of the stream a}b has a closing brace and no hash tag"),
        "{refused:?}"
    );
}
