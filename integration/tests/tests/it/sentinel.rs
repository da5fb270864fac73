//! Redis with Sentinels: failovers under load, and starts that cannot find the primary.

mod load;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::{
    Redis, RedisCluster, RedisClusterOptions, RedisOptions, RedisTls, SentinelGroup, SentinelOptions,
    Service, private_redis, wait_for,
};
use redis::aio::MultiplexedConnection;

use crate::api::*;
use crate::outbox::*;
use crate::world::*;
use load::Load;

pub(crate) const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
/// The first number of the intents that are sent by HTTP.
const FIRST_BY_HTTP: u32 = 1_000_000;
/// The time after which a Sentinel that was asked for a failover has made it or given it up.
const SWITCH_TIME: Duration = Duration::from_secs(10);
/// The limit of a start that fails.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Sentinels that do not replace a primary because a busy machine lets it wait.
fn patient() -> SentinelOptions {
    SentinelOptions { down_after: Duration::from_secs(2), ..SentinelOptions::default() }
}

fn group(world: &mut World) -> &mut SentinelGroup {
    world.sentinels.as_mut().expect("it has Sentinels")
}

/// Waits until the Sentinels name another primary than this one.
async fn promoted(world: &World, former: usize) -> usize {
    let group = world.sentinels.as_ref().expect("it has Sentinels");
    wait_for("another server is the primary", BOUND, async || {
        group.primary().await.ok().filter(|primary| *primary != former)
    })
    .await
}

/// Waits until intents that were sent after this call are accepted from the stream and published.
pub(crate) async fn works(world: &World, n: u32) {
    wait_for("an intent of the stream is published", BOUND, async || {
        // Until Sentinels have made a former primary a replica, an entry may be appended to it and be lost.
        let mut redis = world.redis().await;
        intent(n).query_async::<()>(&mut redis).await.ok()?;
        let sql = format!(
            "SELECT count(*) FROM routes JOIN records USING (notification_id)
             WHERE idempotency_key = '{}' AND status = 'published'",
            key(n)
        );
        (world.number(&sql).await == 4).then_some(())
    })
    .await;
}

/// Waits until every published route is in its stream, also those that were appended again, and checks the
/// ledger. What a producer appended to the stream and Redis lost with a primary is sent again, as a producer
/// would that looks whether its intents were accepted.
async fn check_exact(world: &World, by_http: BTreeSet<u32>, by_stream: BTreeSet<u32>) {
    let (mut lost, mut shown) = (0, (0, Vec::new(), String::new()));
    wait_for("every intent is accepted", BOUND, async || {
        let accepted: BTreeSet<String> =
            world.column("SELECT idempotency_key FROM records").await.into_iter().collect();
        let missing: Vec<u32> = by_stream.iter().copied().filter(|n| !accepted.contains(&key(*n))).collect();
        let has_http = by_http.iter().all(|n| accepted.contains(&key(*n)));
        assert!(has_http, "what was accepted by HTTP is not lost with Redis");
        if missing.is_empty() {
            return Some(());
        }
        // The cached checkpoint of a promoted server may be older until the next entry.
        let durable = world.column("SELECT last_entry_id FROM intake").await;
        let state = (missing.len(), durable.clone(), world.last_entry().await);
        if state != shown {
            println!("missing, checkpoint and last entry: {state:?}");
            shown = state;
        }
        if durable == [shown.2.clone()] {
            lost += missing.len();
            world.send(missing).await;
        }
        None
    })
    .await;
    let sent: BTreeSet<u32> = by_http.union(&by_stream).copied().collect();
    wait_for("every entry is in its stream", BOUND, async || {
        (world.outbound().await.len() == sent.len() * 4).then_some(())
    })
    .await;
    println!("{} by HTTP, {} by the stream, {lost} of them sent again", by_http.len(), by_stream.len());
    world.settled(i64::try_from(sent.len()).expect("few intents")).await;
    world.check(sent).await;
}

#[tokio::test]
async fn nothing_is_lost_or_sent_twice_over_a_kill_a_pause_and_a_switch_of_the_primary() {
    // The interval of production: a former primary takes writes for 8 s after a switch.
    let options = SentinelOptions { publish_period: Duration::from_secs(2), ..patient() };
    let mut world = World::with_sentinels(options).await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let load = Load::start(&world, &service);
    works(&world, 0).await;

    // Two of three Sentinels are paused: the outage lasts until they agree on a failover.
    let killed = group(&mut world).primary().await.expect("a Sentinel responds");
    group(&mut world).sentinels[1..].iter().for_each(Redis::pause);
    group(&mut world).servers[killed].kill().await;
    wait_for("readyz names the outage", BOUND, async || {
        let waiting = intake_waits(&service).await["cause"].to_string();
        waiting.contains("no Sentinel led to the primary galaxy: server 127.0.0.1:").then_some(())
    })
    .await;
    let status = world.service().arguments(["status"]).run().await;
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.stderr.contains("no Sentinel led to the primary galaxy"), "{status:?}");
    group(&mut world).sentinels[1..].iter().for_each(Redis::resume);
    promoted(&world, killed).await;
    works(&world, FIRST_BY_HTTP - 1).await;
    group(&mut world).servers[killed].start_again().await.expect("it starts again");
    group(&mut world).replicated().await.expect("it is a replica");

    let switched = group(&mut world).primary().await.expect("a Sentinel responds");
    let sentinels = world.sentinels.as_ref().expect("it has Sentinels");
    let mut asked: Option<Instant> = None;
    wait_for("an operator's switch to another primary", BOUND, async || {
        // A Sentinel refuses it while it finds no replica to promote, and gives up one that takes too long.
        if asked.is_none_or(|asked| asked.elapsed() > SWITCH_TIME) {
            asked = sentinels.fail_over().await.is_ok().then(Instant::now);
        }
        sentinels.primary().await.ok().filter(|primary| *primary != switched)
    })
    .await;
    works(&world, FIRST_BY_HTTP - 2).await;
    group(&mut world).replicated().await.expect("it is a replica");

    let paused = group(&mut world).primary().await.expect("a Sentinel responds");
    group(&mut world).servers[paused].pause();
    promoted(&world, paused).await;
    works(&world, FIRST_BY_HTTP - 3).await;
    group(&mut world).servers[paused].resume();
    group(&mut world).replicated().await.expect("it is a replica");

    let (by_http, mut by_stream) = load.stop().await;
    by_stream.extend([0, FIRST_BY_HTTP - 1, FIRST_BY_HTTP - 2, FIRST_BY_HTTP - 3]);
    check_exact(&world, by_http, by_stream).await;
    let changes =
        service.output().iter().filter(|line| line.contains("the primary of Redis has changed")).count();
    assert_eq!(changes, 3, "each change is logged once");
}

#[tokio::test]
async fn a_relay_and_send_find_the_primary_before_and_after_a_failover() {
    let mut outbox = Outbox::with(World::with_sentinels(patient()).await).await;
    let _relay = outbox.relay().start().await;
    let _service = outbox.world.service().start().await;
    outbox.insert(0..20).await;
    outbox.drained().await;
    let killed = group(&mut outbox.world).primary().await.expect("a Sentinel responds");
    group(&mut outbox.world).servers[killed].kill().await;
    outbox.insert(20..40).await;
    promoted(&outbox.world, killed).await;
    outbox.insert(40..60).await;
    outbox.drained().await;
    let sent = outbox
        .world
        .on_redis(harness::ServiceBuilder::default())
        .arguments([
            "send",
            "--type",
            "game.turn.ready",
            "--producer",
            "game_master",
            "--user",
            "u-1",
            "--user",
            "u-101",
            "--key",
            &key(60),
            "--payload",
            r#"{"game_id":"game-1","game_name":"Nova","turn_number":60}"#,
        ])
        .run()
        .await;
    assert_eq!(sent.code, Some(0), "{sent:?}");
    outbox.world.settled(61).await;
    let accepted: BTreeSet<String> =
        outbox.world.column("SELECT idempotency_key FROM records").await.into_iter().collect();
    assert_eq!(accepted, (0..60).map(event_id).chain([key(60)]).collect());
    wait_for("every entry is in its stream", BOUND, async || {
        (outbox.world.outbound().await.len() == 61 * 4).then_some(())
    })
    .await;
    assert!(outbox.world.outbound().await.values().all(|entries| entries.len() == 1), "none is there twice");
    audited(outbox.world.audit()).await;
}

/// Waits until the audit finds nothing: what Redis lost with a primary has been appended again.
pub(crate) async fn audited(audit: harness::ServiceBuilder) {
    wait_for("the audit finds nothing", BOUND, async || {
        (audit.clone().run().await.code == Some(0)).then_some(())
    })
    .await;
}

pub(crate) fn tls() -> RedisTls {
    let file = |name: &str| Path::new(TESTDATA).join(name);
    RedisTls { certificate: file("localhost.pem"), key: file("localhost.key"), authority: file("root.pem") }
}

/// The words of a documented line that begins with `ACL SETUSER <user>`, with this password.
pub(crate) fn documented_acl(user: &str, password: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/operations.md");
    let begin = format!("ACL SETUSER {user} ");
    let line = page.lines().find_map(|line| Some(line.trim()).filter(|line| line.starts_with(&begin)));
    line.expect("a line").replace('…', password).split(' ').map(str::to_owned).collect()
}

/// Gives a server the documented users, and `more` rights for the test to its default user.
pub(crate) async fn restrict(server: &Redis, password: &str, more: &[&str]) {
    let ask =
        async |words: &[&str]| server.ask::<()>(words).await.unwrap_or_else(|e| panic!("{words:?}: {e}"));
    for user in ["replication", "sentinel", "default"] {
        let acl = documented_acl(user, password);
        let more = more.iter().copied().filter(|_| user == "default");
        if user == "default" {
            ask(&["CONFIG", "SET", "masteruser", "replication", "masterauth", password]).await;
        }
        ask(&acl.iter().map(String::as_str).chain(more).collect::<Vec<_>>()).await;
    }
}

#[tokio::test]
async fn sentinels_and_servers_have_passwords_of_their_own_documented_rights_and_tls() {
    let server = RedisOptions {
        password: Some("servers".to_owned()),
        tls: Some(tls()),
        appendonly: true,
        ..RedisOptions::default()
    };
    let sentinel_password = Some("sentinels".to_owned());
    let options = SentinelOptions { server, sentinel_password, ..patient() };
    let mut world = World::with_sentinels(options).await;
    assert!(group(&mut world).addrs().starts_with("rediss://localhost:"));
    for sentinel in &group(&mut world).sentinels {
        let of = ["SENTINEL", "SET", "galaxy", "auth-user", "sentinel"];
        sentinel.ask::<()>(&of).await.expect("it is a Sentinel");
    }
    for server in &group(&mut world).servers {
        restrict(server, "servers", &[]).await;
    }
    let service = |world: &World, password: &str| {
        world
            .service()
            .env("SSL_CERT_FILE", format!("{TESTDATA}/root.pem"))
            .env("NOTIFICATION_REDIS_PASSWORD", "servers")
            .env("NOTIFICATION_REDIS_SENTINEL_PASSWORD", password)
    };
    let mut refused = service(&world, "servers").spawn();
    assert_eq!(refused.wait_exit(START_LIMIT).await.code(), Some(1));
    let output = refused.output().join("\n");
    assert!(output.contains("no Sentinel led to the primary galaxy: Sentinel localhost:"), "{output}");
    assert!(output.contains("Password authentication failed"), "{output}");

    let _service = service(&world, "sentinels").start().await;
    works(&world, 0).await;
    let killed = group(&mut world).primary().await.expect("a Sentinel responds");
    group(&mut world).servers[killed].kill().await;
    let primary = promoted(&world, killed).await;
    wait_for("the third server follows the new primary", BOUND, async || {
        let servers = &world.sentinels.as_ref().expect("it has Sentinels").servers;
        let info: String = servers[primary].ask(&["INFO", "replication"]).await.ok()?;
        info.contains("state=online").then_some(())
    })
    .await;
    works(&world, 1).await;
    let audit = service(&world, "sentinels").env("NOTIFICATION_RECORD_RETENTION", "17520h");
    audited(audit.arguments(["audit"])).await;
}

#[tokio::test]
async fn a_start_names_the_sentinels_that_do_not_lead_to_a_primary() {
    let mut world = World::with_sentinels(patient()).await;
    let addrs: Vec<String> = group(&mut world).sentinels.iter().map(Redis::addr).collect();
    let server = group(&mut world).servers[0].addr();
    let refused = async |service: harness::ServiceBuilder, parts: &[String]| {
        let (mut service, begun) = (service.spawn(), Instant::now());
        assert_eq!(service.wait_exit(START_LIMIT).await.code(), Some(1));
        assert!(begun.elapsed() < START_LIMIT);
        let output = service.output().join("\n");
        for part in parts {
            assert!(output.contains(part), "{part}: {output}");
        }
    };
    let unknown: Vec<String> =
        addrs.iter().map(|addr| format!("{addr}: it does not know a primary galaxi")).collect();
    refused(world.service().env("NOTIFICATION_REDIS_SENTINEL_MASTER", "galaxi"), &unknown).await;
    let no_sentinel = [format!("{server}: it is not a Sentinel")];
    refused(world.service().env("NOTIFICATION_REDIS_SENTINEL_ADDRS", &server), &no_sentinel).await;

    // One that does not respond delays nothing.
    group(&mut world).sentinels[0].pause();
    let begun = Instant::now();
    let mut service = world.service().start().await;
    println!("ready after {:?}", begun.elapsed());
    service.signal("TERM");
    assert_eq!(service.wait_exit(BOUND).await.code(), Some(0));

    for sentinel in &mut group(&mut world).sentinels[1..] {
        sentinel.kill().await;
    }
    let silent = [
        format!("{}: no response within", addrs[0]),
        format!("{}: Connection refused", addrs[1]),
        format!("{}: Connection refused", addrs[2]),
    ];
    refused(world.service(), &silent).await;
    group(&mut world).sentinels[0].resume();
}

#[tokio::test]
async fn a_start_on_servers_of_another_kind_is_refused() {
    let world = World::with_sentinels(patient()).await;
    let group = world.sentinels.as_ref().expect("it has Sentinels");
    let options = RedisClusterOptions { primaries: 1, replicas: 0, ..RedisClusterOptions::default() };
    let cluster = RedisCluster::start(options).await.expect("a private Cluster starts");
    let single = private_redis().await;
    let master = ("NOTIFICATION_REDIS_MASTER_ADDR", group.sentinels[0].addr());
    let node = ("NOTIFICATION_REDIS_MASTER_ADDR", cluster.nodes[0].addr());
    let nodes = ("NOTIFICATION_REDIS_CLUSTER_ADDRS", single.addr());
    for ((name, addr), complaint) in [
        (master, "it is a Sentinel: set NOTIFICATION_REDIS_SENTINEL_ADDRS"),
        (node, "it is a node of a Redis Cluster: set NOTIFICATION_REDIS_CLUSTER_ADDRS"),
        (nodes, "cluster support disabled"),
    ] {
        let service = world.service_via(0, world.database.port()).env("NOTIFICATION_REDIS_MASTER_ADDR", "");
        let mut service = service.env(name, &addr).spawn();
        assert_eq!(service.wait_exit(START_LIMIT).await.code(), Some(1));
        let output = service.output().join("\n");
        assert!(output.contains(&addr) && output.contains(complaint), "{complaint}: {output}");
    }
}

#[tokio::test]
async fn other_replicas_than_the_configured_ones_are_warned_of() {
    const WARNING: &str =
        "the replicas of Redis are not those in NOTIFICATION_REDIS_REPLICA_ADDRS; continuing";
    let world = World::with_sentinels(patient()).await;
    let group = world.sentinels.as_ref().expect("it has Sentinels");
    let addrs: Vec<String> = group.servers.iter().map(Redis::addr).collect();
    let by_name = addrs[1].replace("127.0.0.1", "localhost");
    for (listed, expected) in [
        (String::new(), None),
        (format!("{by_name},{}", addrs[2]), None),
        (addrs.join(","), None),
        (format!("{},127.0.0.1:1", addrs[1]), Some((addrs[2].as_str(), "127.0.0.1:1"))),
    ] {
        let service = world.service().env("NOTIFICATION_REDIS_REPLICA_ADDRS", &listed).start().await;
        let warning = service.logged(WARNING);
        let found = warning.as_ref().map(|line| (line["unlisted"].as_str(), line["missing"].as_str()));
        let expected = expected.map(|(unlisted, missing)| (Some(unlisted), Some(missing)));
        assert_eq!(found, expected, "{listed}");
    }
}
