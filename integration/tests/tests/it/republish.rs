//! Published, then lost: entries that Redis acknowledged and no longer has are appended again.

use std::collections::BTreeSet;

use harness::{Proxy, Redis, RedisOptions, Service, wait_for};
use redis::aio::MultiplexedConnection;

use crate::world::*;

const LOST: &str = "entries that Redis had lost were appended again";
const COMPARED: &str = "the stream was compared with the published routes";

/// A world whose Redis has a replica, behind a proxy that can be connected to either.
struct Failover {
    world: World,
    replica: Redis,
    /// The proxy between Redis and its replica.
    link: Proxy,
    /// The proxy between the service and Redis.
    entrance: Proxy,
}

impl Failover {
    async fn new() -> Self {
        let world = World::new().await;
        ask(&world.redis, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
        let (link, entrance) =
            (Proxy::start(world.redis.port()).await, Proxy::start(world.redis.port()).await);
        let port = link.port().to_string();
        let arguments = ["--replicaof", "127.0.0.1", &port].map(str::to_owned).to_vec();
        let options = RedisOptions { appendonly: true, arguments, ..RedisOptions::default() };
        let replica = Redis::start(options).await.expect("a private Redis starts");
        Self { world, replica, link, entrance }
    }

    fn service(&self) -> harness::ServiceBuilder {
        self.world.service_via(self.entrance.port(), self.world.database.port())
    }

    /// Waits until the replica has all data, and then cuts its connection.
    async fn cut_link(&self) {
        wait_for("the replica has everything", BOUND, async || {
            let primary = ask(&self.world.redis, &["INFO", "replication"]).await;
            let replica = ask(&self.replica, &["INFO", "replication"]).await;
            let has = |info: &str, line: &str| info.contains(line).then_some(());
            has(&replica, "master_link_status:up")?;
            let offset = |info: &str, name: &str| {
                let value = info.lines().find_map(|line| line.strip_prefix(name));
                value.map(str::to_owned)
            };
            (offset(&primary, "master_repl_offset:")? == offset(&replica, "slave_repl_offset:")?)
                .then_some(())
        })
        .await;
        self.link.cut();
    }

    /// Kills the primary and promotes its replica.
    async fn fail_over(&mut self) {
        self.world.redis.kill().await;
        ask(&self.replica, &["REPLICAOF", "NO", "ONE"]).await;
        std::mem::swap(&mut self.world.redis, &mut self.replica);
        self.entrance.lead_to(self.world.redis.port());
    }
}

/// A reader that kept its connection to the former primary would never read an entry again.
#[tokio::test]
async fn a_reader_whose_connection_leads_to_a_demoted_redis_gets_another() {
    let mut failover = Failover::new().await;
    let service = failover.service().start().await;
    failover.world.send(0..3).await;
    failover.world.settled(3).await;
    failover.cut_link().await;
    ask(&failover.replica, &["REPLICAOF", "NO", "ONE"]).await;
    std::mem::swap(&mut failover.world.redis, &mut failover.replica);
    failover.entrance.lead_new_connections_to(failover.world.redis.port());
    // Every connection to the former primary ends except that of the reader.
    let clients = ask(&failover.replica, &["CLIENT", "LIST"]).await;
    for client in clients.lines().filter(|client| !client.contains("cmd=xread")) {
        let id = client.split(' ').find_map(|field| field.strip_prefix("id=")).expect("every client has one");
        // The connection of this command is among them, and has ended by itself.
        drop(kill(&failover.replica, id).await);
    }
    failover.world.send(3..6).await;
    failover.world.settled(6).await;
    failover.world.check(0..6).await;
    // If the machine pauses for longer than a read may take, the connection is replaced for that reason
    // first.
    let causes = [
        "reads return nothing although the stream has entry",
        "could not read the intents stream: no answer",
    ];
    let is_named = |line: &String| causes.iter().any(|cause| line.contains(cause));
    assert!(service.output().iter().any(is_named), "the log names the cause");
}

async fn kill(redis: &Redis, id: &str) -> redis::RedisResult<i64> {
    let mut connection = connection(redis).await?;
    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query_async(&mut connection).await
}

/// A connection that waits longer for a reply than the half second of the library.
async fn connection(redis: &Redis) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://{}", redis.addr())).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(BOUND));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn ask_number(redis: &Redis, words: &[&str]) -> u64 {
    let mut connection = connection(redis).await.expect("Redis is there");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query_async(&mut connection).await.expect("Redis carries it out")
}

async fn ask(redis: &Redis, words: &[&str]) -> String {
    let mut connection = connection(redis).await.expect("Redis is there");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let answer: redis::Value = command.query_async(&mut connection).await.expect("Redis carries it out");
    redis::from_redis_value(answer).unwrap_or_default()
}

/// The published routes with their entry ids, and the entries of the streams with theirs.
async fn routes_and_entries(world: &World) -> (BTreeSet<String>, BTreeSet<String>) {
    let routes = world
        .column("SELECT notification_id || '/' || route_id || '@' || published_entry_id FROM routes WHERE status = 'published'")
        .await;
    let entries = world.outbound().await;
    let entries = entries.iter().map(|(name, ids)| format!("{name}@{}", ids.join(" and ")));
    (routes.into_iter().collect(), entries.collect())
}

/// Waits until no route is live and every published route is in its stream, once and under its id.
async fn nothing_is_missing(world: &World) {
    let mut last = (BTreeSet::new(), BTreeSet::new());
    let found = tokio::time::timeout(BOUND, async {
        wait_for("no published route is missing", BOUND * 2, async || {
            let live = world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await;
            last = routes_and_entries(world).await;
            (live == 0 && !last.0.is_empty() && last.0 == last.1).then_some(())
        })
        .await;
    });
    if found.await.is_err() {
        let missing: Vec<_> = last.0.difference(&last.1).take(5).collect();
        let strange: Vec<_> = last.1.difference(&last.0).take(5).collect();
        panic!("of {} routes {missing:?} are missing, and {strange:?} are strange", last.0.len());
    }
}

/// The data that republishing must not change.
async fn rest_of_the_tables(world: &World) -> Vec<String> {
    let mut rest = world.column("SELECT to_jsonb(records)::text FROM records ORDER BY 1").await;
    let routes =
        "SELECT (to_jsonb(routes) - 'published_entry_id' - 'updated_at')::text FROM routes ORDER BY 1";
    rest.extend(world.column(routes).await);
    rest
}

/// The number of entries that these services report to have appended again.
fn republished(services: &[&Service]) -> u64 {
    let lines = services.iter().flat_map(|service| service.output());
    let lines = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(&line).ok());
    lines.filter(|line| line["message"] == LOST).filter_map(|line| line["entries"].as_u64()).sum()
}

// CRASH-08
#[tokio::test]
async fn what_a_failover_lost_is_appended_again_once_by_one_of_two_replicas() {
    let mut failover = Failover::new().await;
    let (one, two) = (failover.service().start().await, failover.service().start().await);
    failover.world.send(0..10).await;
    failover.world.settled(10).await;
    failover.cut_link().await;
    failover.world.send(10..30).await;
    failover.world.settled(30).await;
    let before = rest_of_the_tables(&failover.world).await;
    failover.fail_over().await;
    nothing_is_missing(&failover.world).await;
    failover.world.check_after_loss(0..30).await;
    assert_eq!(rest_of_the_tables(&failover.world).await, before, "nothing else is changed");
    assert_eq!(republished(&[&one, &two]), 80, "each lost entry is republished once");
    let by_both = one.logged(LOST).is_some() && two.logged(LOST).is_some();
    assert!(!by_both, "one of them does it");
    failover.world.send(30..35).await;
    failover.world.settled(35).await;
    failover.world.check(0..35).await;
}

// CRASH-08
#[tokio::test]
async fn a_loss_while_no_replica_runs_is_noticed_at_the_next_start() {
    let mut failover = Failover::new().await;
    let service = failover.service().start().await;
    failover.world.send(0..5).await;
    failover.world.settled(5).await;
    failover.cut_link().await;
    failover.world.send(5..10).await;
    failover.world.settled(10).await;
    service.kill().await;
    failover.fail_over().await;
    let _next = failover.service().start().await;
    nothing_is_missing(&failover.world).await;
    failover.world.check_after_loss(0..10).await;
}

// CRASH-08
#[tokio::test]
async fn killed_after_the_append_the_next_comparison_completes_it_and_appends_nothing_twice() {
    let mut failover = Failover::new().await;
    let service = failover.service().start().await;
    failover.world.send(0..5).await;
    failover.world.settled(5).await;
    failover.cut_link().await;
    failover.world.send(5..10).await;
    failover.world.settled(10).await;
    // The entries can be appended, but their ids cannot be recorded.
    let operator = failover.world.database.client().await;
    operator.batch_execute("BEGIN; SELECT FROM routes FOR UPDATE").await.expect("it is right");
    failover.fail_over().await;
    wait_for("the lost entries are appended", BOUND, async || {
        (failover.world.outbound().await.len() == 40).then_some(())
    })
    .await;
    service.kill().await;
    operator.batch_execute("ROLLBACK").await.expect("it is open");
    let (routes, entries) = routes_and_entries(&failover.world).await;
    assert_ne!(routes, entries, "the new ids are not written down");
    let _next = failover.service().start().await;
    nothing_is_missing(&failover.world).await;
    failover.world.check_after_loss(0..10).await;
}

#[tokio::test]
async fn a_failover_in_the_middle_of_publishing_leaves_every_published_route_in_its_stream_once() {
    let mut failover = Failover::new().await;
    let _service = failover.service().start().await;
    failover.world.send(0..5).await;
    failover.world.settled(5).await;
    failover.cut_link().await;
    failover.world.send(5..505).await;
    wait_for("some are published", BOUND, async || {
        (failover.world.number("SELECT count(*) FROM routes WHERE status = 'published'").await > 200)
            .then_some(())
    })
    .await;
    failover.fail_over().await;
    nothing_is_missing(&failover.world).await;
    failover.world.check_tables().await;
    assert_eq!(failover.world.number("SELECT count(*) FROM routes WHERE attempt_count > 0").await, 0);
}

#[tokio::test]
async fn what_consumers_deleted_and_what_was_trimmed_is_not_appended_again() {
    let mut failover = Failover::new().await;
    let service = failover.service().start().await;
    failover.world.send(0..10).await;
    failover.world.settled(10).await;
    let in_order = "SELECT published_entry_id FROM routes WHERE channel = 'push'
        ORDER BY split_part(published_entry_id, '-', 1)::bigint, split_part(published_entry_id, '-', 2)::bigint";
    let pushed = failover.world.column(in_order).await;
    // An entry of the other stream may have the same id.
    let names = failover
        .world
        .column(&in_order.replacen("published_entry_id", "notification_id || '/' || route_id", 1))
        .await;
    ask(&failover.world.redis, &["XTRIM", PUSH, "MINID", &pushed[5]]).await;
    ask(&failover.world.redis, &["XDEL", PUSH, &pushed[10]]).await;
    failover.cut_link().await;
    failover.world.send(10..15).await;
    failover.world.settled(15).await;
    failover.fail_over().await;
    let compared = wait_for("the comparison is over", BOUND, async || service.logged(COMPARED)).await;
    assert_eq!(
        (&compared["channel"], &compared["trimmed"], &compared["deleted"], &compared["republished"]),
        (&"push".into(), &5.into(), &1.into(), &10.into()),
        "{compared}"
    );
    let outbound = failover.world.outbound().await;
    assert!(names[..5].iter().chain([&names[10]]).all(|name| !outbound.contains_key(name)));
}

#[tokio::test]
async fn without_a_window_nothing_is_watched_and_nothing_appended_again() {
    let mut failover = Failover::new().await;
    let service = failover.service().env("NOTIFICATION_REPUBLISH_WINDOW", "0").start().await;
    failover.world.send(0..5).await;
    failover.world.settled(5).await;
    failover.cut_link().await;
    failover.world.send(5..10).await;
    failover.world.settled(10).await;
    failover.fail_over().await;
    failover.world.send(10..15).await;
    failover.world.settled(15).await;
    assert_eq!(failover.world.outbound().await.len(), 40, "what was lost is lost");
    assert_eq!(failover.world.number("SELECT count(*) FROM outbound_streams").await, 0);
    assert!(service.get("/readyz").await.1["republish"].is_null());
}

// INV-09
#[tokio::test]
async fn a_key_of_another_type_in_place_of_a_stream_keeps_the_other_from_no_comparison() {
    let mut failover = Failover::new().await;
    let _service = failover.service().start().await;
    failover.world.send(0..5).await;
    failover.world.settled(5).await;
    failover.cut_link().await;
    failover.world.send(5..10).await;
    failover.world.settled(10).await;
    ask(&failover.replica, &["REPLICAOF", "NO", "ONE"]).await;
    ask(&failover.replica, &["SET", PUSH, "no stream"]).await;
    failover.fail_over().await;
    let delivery_commands = async || ask_number(&failover.world.redis, &["XLEN", MAIL]).await;
    wait_for("what the mail stream lost is appended again", BOUND, async || {
        (delivery_commands().await == 20).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_restart_that_lost_nothing_is_compared_and_nothing_is_appended() {
    let mut world = World::new().await;
    let service = world.service().start().await;
    world.send(0..10).await;
    world.settled(10).await;
    let saved = async || world.column("SELECT DISTINCT server_run_id FROM outbound_streams").await;
    let before =
        wait_for("the server is known", BOUND, async || Some(saved().await).filter(|ids| ids.len() == 1))
            .await;
    world.redis.kill().await;
    world.redis.start_again().await.expect("it starts");
    let compared = wait_for("the streams are compared", BOUND, async || service.logged(COMPARED)).await;
    assert_eq!((&compared["present"], &compared["republished"]), (&20.into(), &0.into()), "{compared}");
    let saved = async || world.column("SELECT DISTINCT server_run_id FROM outbound_streams").await;
    wait_for("the new server is known", BOUND, async || (saved().await != before).then_some(())).await;
    world.check(0..10).await;
}

#[tokio::test]
async fn a_stream_that_is_gone_is_reported_and_not_filled() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..5).await;
    world.settled(5).await;
    wait_for("the streams are saved", BOUND, async || {
        (world.number("SELECT count(*) FROM outbound_streams WHERE last_generated_id <> '0-0'").await == 2)
            .then_some(())
    })
    .await;
    ask(&world.redis, &["DEL", PUSH]).await;
    let gone = "the outbound stream is absent: its entries are lost, and nothing is appended again";
    let line = wait_for("it is reported", BOUND, async || service.logged(gone)).await;
    assert_eq!((&line["channel"], &line["entries"]), (&"push".into(), &10.into()), "{line}");
    wait_for("the comparison is over", BOUND, async || service.logged(COMPARED)).await;
    let entries = world.outbound().await;
    assert_eq!(entries.len(), 10, "only those of the mail stream");
}
