//! A running service is broken in each way that has an alert, with a real Prometheus and the rules that
//! operators get: the alert fires, and no other alert except those that its rule lists as consequences. Only
//! the time for which a condition must hold is shortened.

mod companions;
mod monitor;

use std::convert::Infallible;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ambient::{Clock, SystemClock};
use domain::record::NotificationId;
use domain::route::RouteKey;
use harness::{DirectoryLoad, Proxy, Service, ServiceBuilder, UserFault, turn_ready, wait_for};
use store_redis::Keyspace;

use self::monitor::{Monitor, SERVICE};
use crate::alert_rules::RULES;
use crate::api_client::*;
use crate::dead_letters::insert_dead_letters;
use crate::world::*;

/// The time for which other alerts are watched if they fire only after a wait of a minute.
const LONG_AFTERWARDS: Duration = Duration::from_secs(100);

/// A gauge that every service has once its gauges were read.
const MEASURED: &str = "notification_dependency_up{dependency=\"redis\"}";

#[test]
fn promtool_accepts_the_rules_their_tests_and_the_configuration() {
    let folder = Path::new(RULES).parent().expect("a folder");
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        let output = Command::new("promtool").args(arguments).current_dir(folder).output();
        let output = output.expect("promtool is installed: scripts/ensure-tools.sh --large");
        assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn promtool_has_nothing_against_the_metrics_of_a_service() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..4).await;
    world.settled(4).await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    let text =
        harness::request(&service.http_addr(), "GET", "/metrics", &[], "").await.expect("it answers").body;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: scripts/ensure-tools.sh --large");
    std::io::Write::write_all(&mut promtool.stdin.take().expect("it is piped"), text.as_bytes())
        .expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
}

/// A service, and a Prometheus that has read its gauges and reports no alert.
async fn watched(service: ServiceBuilder) -> (Service, Monitor) {
    let service = service.start().await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    (service, monitor)
}

/// Waits until the replica leads.
async fn becomes_leader(replica: &Service) {
    wait_for("the replica leads", BOUND, async || leads(replica).await.then_some(())).await;
}

#[tokio::test]
async fn a_replica_that_ends_is_reported_and_so_is_the_end_of_the_last_one() {
    let world = World::new().await;
    // It leads: the other one starts when it is ready.
    let leader = world.service().start().await;
    becomes_leader(&leader).await;
    let other = world.service().start().await;
    let monitor = Monitor::start_for(&[(SERVICE, &[&leader.http_addr(), &other.http_addr()])]).await;
    monitor.is_quiet(MEASURED).await;
    other.kill().await;
    monitor.sees("NotificationReplicaDown").await;
    leader.kill().await;
    monitor.sees("NotificationDown").await;
}

#[tokio::test]
async fn a_lock_that_no_replica_gets_is_a_missing_leader() {
    let world = World::new().await;
    let (service, monitor) = watched(world.service()).await;
    // Simulates a holder that renews it forever and does nothing else. Arriving intents wait.
    let steal = "UPDATE locks SET lock_id = 'another', expires_at_ms = expires_at_ms + 86400000 \
        WHERE user_key = 'intake:notification:intents'";
    assert_eq!(world.execute(steal).await, 1);
    wait_for("the leader has noticed", BOUND, async || service.logged("leadership lost; stopping")).await;
    world.send(0..4).await;
    monitor.sees_for("NotificationNoLeader", LONG_AFTERWARDS).await;
    world.execute("DELETE FROM locks").await;
    monitor.calms_down().await;
}

#[tokio::test]
async fn an_entry_that_must_wait_for_its_recipient_is_reported() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service()).await;
    world.directory.set_fault("u-1", UserFault::Answer(503, "{}".to_owned()));
    world.send(1..2).await;
    monitor.sees_for("NotificationIntakeWaiting", LONG_AFTERWARDS).await;
    world.directory.clear_faults();
    monitor.calms_down().await;
}

#[tokio::test]
async fn more_intents_than_are_accepted_let_the_stream_grow() {
    let world = World::new().await;
    world
        .directory
        .set_load(DirectoryLoad { latency: Duration::from_millis(900), ..DirectoryLoad::default() });
    let service = world
        .service()
        .env("NOTIFICATION_INTENTS_BATCH_SIZE", "1")
        .env("NOTIFICATION_USER_SERVICE_TIMEOUT", "20s")
        .start()
        .await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    let mut redis = world.redis().await;
    for n in 0..600 {
        let fields = harness::turn_ready([format!("u-{n}").as_str()], &format!("k-{n}"), n).into_fields();
        let mut add = redis::cmd("XADD");
        add.arg(INTENTS).arg("*");
        fields.into_iter().for_each(|(name, value)| {
            add.arg(name).arg(value);
        });
        add.query_async::<String>(&mut redis).await.expect("Redis is there");
    }
    monitor.sees("NotificationIntentsStreamGrowing").await;
    let accepted = world.number("SELECT count(*) FROM records").await;
    assert!((10..600).contains(&accepted), "intake works, but too slowly: {accepted}");
}

#[tokio::test]
async fn a_lease_that_is_never_released_blocks_its_channel() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service()).await;
    let id = format!("{}-0", SystemClock.now().as_millis());
    let route =
        RouteKey { notification_id: NotificationId::from(id.clone()), route_id: "push:user:u-1".to_owned() };
    let mut redis = world.redis().await;
    let lease = Keyspace::default().route_lease(&route).key;
    redis::cmd("SET")
        .arg(lease)
        .arg("another-publisher")
        .arg("PX")
        .arg(3_600_000)
        .query_async::<()>(&mut redis)
        .await
        .expect("Redis is there");
    let mut add = redis::cmd("XADD");
    add.arg(INTENTS).arg(&id);
    for (name, value) in harness::turn_ready(["u-1"], "k-1", 1).into_fields() {
        add.arg(name).arg(value);
    }
    add.query_async::<String>(&mut redis).await.expect("Redis is there");
    monitor.sees("NotificationChannelStuck").await;
}

#[tokio::test]
async fn a_postgresql_that_is_gone_is_reported_and_so_is_its_return() {
    let world = World::new().await;
    let proxy = Proxy::start(world.database.port()).await;
    let (_service, monitor) = watched(world.service_via(world.redis.port(), proxy.port())).await;
    world.send(0..4).await;
    proxy.cut();
    monitor.sees_for("NotificationPostgresDown", LONG_AFTERWARDS).await;
    proxy.heal();
    monitor.calms_down().await;
    world.settled(4).await;
}

#[tokio::test]
async fn a_redis_that_is_gone_is_reported_and_so_is_its_return() {
    let world = World::new().await;
    let proxy = Proxy::start(world.redis.port()).await;
    let (_service, monitor) = watched(world.service_via(proxy.port(), world.database.port())).await;
    world.send(0..4).await;
    proxy.cut();
    monitor.sees_for("NotificationRedisDown", LONG_AFTERWARDS).await;
    proxy.heal();
    monitor.calms_down().await;
    world.settled(4).await;
}

#[tokio::test]
async fn a_stream_of_the_wrong_type_lets_dead_letters_rise() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service().env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1")).await;
    // The channel has succeeded within the last minutes, so it is not the whole channel that fails.
    world.send(20..21).await;
    world.settled(1).await;
    monitor.is_quiet("notification_route_attempts_total{channel=\"push\",result=\"published\"} > 0").await;
    redis::cmd("SET")
        .arg(PUSH)
        .arg("x")
        .query_async::<()>(&mut world.redis().await)
        .await
        .expect("Redis is there");
    world.send(0..20).await;
    monitor.sees("NotificationDeadLettersRising").await;
}

#[tokio::test]
async fn a_channel_whose_attempts_fail_without_success_is_reported_before_its_budgets_are_used_up() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service()).await;
    redis::cmd("SET")
        .arg(PUSH)
        .arg("x")
        .query_async::<()>(&mut world.redis().await)
        .await
        .expect("Redis is there");
    world.send(0..20).await;
    monitor.sees("NotificationChannelFailing").await;
}

#[tokio::test]
async fn a_dead_letter_that_is_open_for_a_day_is_reported_until_it_is_discarded() {
    let world = World::new().await;
    insert_dead_letters(&world, 1).await;
    world
        .execute("UPDATE dead_letters SET created_at = now() - interval '25 hours' WHERE channel = 'email'")
        .await;
    let service = world.service().start().await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.sees("NotificationDeadLettersOld").await;
    let discard = ["dead-letters", "discard", "--channel", "email", "--reason", "old", "--yes"];
    assert_eq!(world.service().arguments(discard).run().await.code, Some(0));
    monitor.calms_down().await;
}

#[tokio::test]
async fn what_is_held_for_a_day_is_reported_until_it_is_released() {
    let world = World::new().await;
    world
        .execute("INSERT INTO holds VALUES ('producer', 'game_master', now() - interval '25 hours', 'me', 'a test')")
        .await;
    let service = world.service().start().await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.sees("NotificationHoldOld").await;
    let release = ["release", "--producer", "game_master", "--yes"];
    assert_eq!(world.service().arguments(release).run().await.code, Some(0));
    monitor.calms_down().await;
}

#[tokio::test]
async fn malformed_intents_of_a_producer_are_reported() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service()).await;
    for _ in 0..20 {
        world.add(&[(b"producer", b"game_master"), (b"colour", b"red")]).await;
    }
    monitor.sees("NotificationMalformedRising").await;
    let of_producer = r#"ALERTS{alertname="NotificationMalformedRising",producer="game_master"}"#;
    assert_eq!(monitor.query(of_producer).await.map(|series| series.len()), Some(1));
}

#[tokio::test]
async fn intents_with_a_used_key_and_other_content_are_reported() {
    let world = World::new().await;
    let (_service, monitor) = watched(world.service()).await;
    for n in 0..20 {
        world.add_draft(turn_ready(["u-1"], "k-1", n)).await;
    }
    monitor.sees("NotificationConflictsRising").await;
}

#[tokio::test]
async fn rows_that_retention_cannot_delete_leave_it_behind() {
    let world = World::new().await;
    let insert = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
            request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         VALUES ('1-0', 't', 'old', 'user', '{}', 'k', 'v1:', now(), now() - interval '31 days', now(), now())";
    let (client, holder) = (world.database.client().await, world.database.client().await);
    client.batch_execute(insert).await.expect("the statement is right");
    holder.batch_execute("BEGIN; SELECT 1 FROM records FOR UPDATE").await.expect("the row is free");
    let service = world.service().env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    let monitor = Monitor::start(&service.http_addr()).await;
    monitor.sees("NotificationRetentionBehind").await;
    holder.batch_execute("ROLLBACK").await.expect("it is open");
    monitor.calms_down().await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);
}

#[tokio::test]
async fn requests_whose_recipients_cannot_be_looked_up_are_an_api_that_fails() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let monitor = Monitor::start(&service.http_addr()).await;
    let mut n = 0;
    let requests = async {
        loop {
            n += 1;
            send(&service, &format!("k-{n}"), &body(n)).await;
        }
    };
    let broken = async {
        monitor.is_quiet("http_server_request_duration_seconds_count").await;
        world.directory.set_fault("u-1", UserFault::Answer(503, "{}".to_owned()));
        monitor.sees("NotificationApiFailing").await;
        world.directory.clear_faults();
    };
    while_doing(requests, broken).await;
}

/// Runs `beside`, which never ends, until `work` has ended.
async fn while_doing(beside: impl Future<Output = Infallible>, work: impl Future<Output = ()>) {
    tokio::select! {
        never = beside => match never {},
        () = work => {}
    }
}

#[tokio::test]
async fn a_worker_whose_call_gets_no_answer_is_hung_and_the_one_of_the_gauges_is_no_exception() {
    let world = World::new().await;
    let leader = world.service().start().await;
    becomes_leader(&leader).await;
    let proxy = Proxy::start(world.database.port()).await;
    // Without such a long deadline the worker would be blocked and not hung.
    let follower = world
        .service_via(world.redis.port(), proxy.port())
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "10m")
        .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "1h")
        .start()
        .await;
    let monitor = Monitor::start_for(&[(SERVICE, &[&leader.http_addr(), &follower.http_addr()])]).await;
    monitor.is_quiet(MEASURED).await;
    // The name of the stream as a parameter, with its length: on a replica that does not lead, only the
    // gauges query the checkpoint.
    let parameter = [&20_u32.to_be_bytes()[..], INTENTS.as_bytes()].concat();
    proxy.hold_request(&parameter).reached(BOUND).await;
    monitor.sees("NotificationWorkerHung").await;
    for (worker, hung) in [("gauges", 1), ("push", 0), ("intake", 0)] {
        let expr = format!("notification_worker_last_pass_age_seconds{{worker=\"{worker}\"}} > 60");
        assert_eq!(monitor.query(&expr).await.map(|series| series.len()), Some(hung), "{worker}");
    }
    proxy.drop_connections();
    monitor.calms_down().await;
}

#[tokio::test]
async fn a_redis_that_refuses_writes_is_no_redis_that_is_gone_and_its_channels_are_stuck() {
    let world = World::new().await;
    let (service, monitor) = watched(world.service()).await;
    // Redis rejects between the append of the intent, which needs memory as well, and its publication.
    world.directory.set_fault("u-1", UserFault::Answer(503, "{}".to_owned()));
    world.send(1..2).await;
    intake_waits(&service).await;
    let mut redis = world.redis().await;
    let limit_memory = |bytes: u32| redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).to_owned();
    limit_memory(1).query_async::<()>(&mut redis).await.expect("Redis is there");
    world.directory.clear_faults();
    world.accepted(1).await;
    monitor.sees("NotificationChannelStuck").await;
    let stuck = monitor.query(r#"ALERTS{alertname="NotificationChannelStuck",alertstate="firing"}"#).await;
    assert_eq!(stuck.map(|channels| channels.len()), Some(2), "both channels");
    limit_memory(0).query_async::<()>(&mut redis).await.expect("Redis is there");
    monitor.calms_down().await;
    world.settled(1).await;
}
