//! A running service is broken in each way that an alert is for, in front of a real Prometheus with the rules that operators get: the
//! alert fires, and no other but those that its rule lists as consequences. Only how long a condition must hold is shortened.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ambient::{Clock, SystemClock};
use domain::record::NotificationId;
use domain::route::RouteKey;
use harness::{Fault, Load, Proxy, wait_for};
use store_redis::Keyspace;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::alert_rules::{RULES, rules};
use crate::outbox::Outbox;
use crate::world::*;

/// The job of the service, as the rules expect it.
const SERVICE: &str = "notification";
/// For how long other alerts are looked for once the expected one fires: gauges are read every 10 s.
const AFTERWARDS: Duration = Duration::from_secs(25);
/// The same where what waits must have waited for a minute before others would fire.
const LONG_AFTERWARDS: Duration = Duration::from_secs(100);
/// Longer than any condition needs to hold: the age of a minute that some have, and the reading of the gauges.
const FIRE_BOUND: Duration = Duration::from_secs(300);

/// A Prometheus that scrapes and evaluates every second.
struct Monitor {
    process: Child,
    addr: String,
    _folder: TempDir,
}

impl Monitor {
    async fn start(job: &str, target: &str) -> Self {
        Self::start_for(job, &[target]).await
    }

    async fn start_for(job: &str, targets: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rules = std::fs::read_to_string(RULES).expect("the rules");
        let shortened = rules.lines().map(|line| match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 2s\n"),
            _ => format!("{line}\n"),
        });
        write(folder.path(), "alerts.yml", &shortened.collect::<String>());
        let listed: Vec<String> = targets.iter().map(|target| format!("'{target}'")).collect();
        let listed = listed.join(", ");
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: [alerts.yml]\n\
             scrape_configs: [{{job_name: {job}, static_configs: [{{targets: [{listed}]}}]}}]\n"
        );
        write(folder.path(), "prometheus.yml", &config);
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let process = Command::new("prometheus")
            .current_dir(folder.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"])
            .arg(format!("--web.listen-address={addr}"))
            .stdin(Stdio::null())
            .spawn()
            .expect("Prometheus is installed: scripts/ensure-tools.sh --large");
        let monitor = Self { process, addr, _folder: folder };
        wait_for("the targets are scraped", BOUND, async || {
            (monitor.query("up == 1").await?.len() == targets.len()).then_some(())
        })
        .await;
        monitor
    }

    /// The label `alertname` of every series that `expr` gives; a series without it is an empty text.
    async fn query(&self, expr: &str) -> Option<Vec<String>> {
        let encode = |byte: u8| format!("%{byte:02X}");
        let query: String = expr.bytes().map(encode).collect();
        let mut stream = TcpStream::connect(&self.addr).await.ok()?;
        // By HTTP/1.0, whose answers are not chunked.
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let body: serde_json::Value = serde_json::from_str(body).ok()?;
        let name = |series: &serde_json::Value| {
            series["metric"]["alertname"].as_str().unwrap_or_default().to_owned()
        };
        Some(body["data"]["result"].as_array()?.iter().map(name).collect())
    }

    async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.query(r#"ALERTS{alertstate="firing"}"#).await;
        alerts.expect("Prometheus answers").into_iter().collect()
    }

    /// Waits until the gauges were read, and sees that nothing fires.
    async fn is_quiet(&self, gauge: &str) {
        wait_for("the gauges are scraped", BOUND, async || {
            (!self.query(gauge).await?.is_empty()).then_some(())
        })
        .await;
        assert_eq!(self.firing().await, BTreeSet::new(), "before anything is broken");
    }

    /// Waits until `alert` fires, and sees that nothing else does by then or soon after, but for its consequences.
    async fn sees(&self, alert: &str) {
        self.sees_for(alert, AFTERWARDS).await;
    }

    async fn sees_for(&self, alert: &str, afterwards: Duration) {
        let rule = rules().into_iter().find(|rule| rule.alert == alert).expect("there is such a rule");
        let allowed: BTreeSet<String> = rule.consequences.into_iter().chain([alert.to_owned()]).collect();
        let begun = Instant::now();
        let look = async || {
            let firing = self.firing().await;
            let others: Vec<&String> = firing.difference(&allowed).collect();
            assert!(others.is_empty(), "{others:?} fire, which are no consequences of {alert}");
            firing
        };
        wait_for(&format!("{alert} fires"), FIRE_BOUND, async || look().await.contains(alert).then_some(()))
            .await;
        println!("{alert}: fires after {:.0?}", begun.elapsed());
        let fired = Instant::now();
        let mut all = BTreeSet::new();
        wait_for("the consequences had time to follow", BOUND, async || {
            all.extend(look().await);
            (fired.elapsed() > afterwards).then_some(())
        })
        .await;
        println!("{alert}: {all:?}");
    }

    /// Waits until nothing fires any more.
    async fn calms_down(&self) {
        wait_for("nothing fires any more", FIRE_BOUND, async || self.firing().await.is_empty().then_some(()))
            .await;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("the folder is there");
}

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
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
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

#[tokio::test]
async fn a_replica_that_ends_is_reported_and_so_is_the_end_of_the_last_one() {
    let world = World::new().await;
    // It leads: the other one starts when it is ready.
    let leader = world.service().start().await;
    wait_for("the first replica leads", BOUND, async || {
        (leader.get("/readyz").await.1["leader"] == true).then_some(())
    })
    .await;
    let other = world.service().start().await;
    let monitor = Monitor::start_for(SERVICE, &[&leader.http_addr(), &other.http_addr()]).await;
    monitor.is_quiet(MEASURED).await;
    other.kill().await;
    monitor.sees("NotificationReplicaDown").await;
    leader.kill().await;
    monitor.sees("NotificationDown").await;
}

#[tokio::test]
async fn a_lock_that_no_replica_gets_is_a_missing_leader() {
    let world = World::new().await;
    let service = world.service().start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    // As if its holder renewed it for ever and did nothing else. What arrives meanwhile waits.
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
    let service = world.service().start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    world.directory.set_fault("u-1", Fault::Answer(503, "{}".to_owned()));
    world.send(1..2).await;
    monitor.sees_for("NotificationIntakeWaiting", LONG_AFTERWARDS).await;
    world.directory.clear_faults();
    monitor.calms_down().await;
}

#[tokio::test]
async fn more_intents_than_are_accepted_let_the_stream_grow() {
    let world = World::new().await;
    world.directory.set_load(Load { latency: Duration::from_millis(900), ..Load::default() });
    let service = world
        .service()
        .env("NOTIFICATION_INTENTS_BATCH_SIZE", "1")
        .env("NOTIFICATION_USER_SERVICE_TIMEOUT", "20s")
        .start()
        .await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
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
    let service = world.service().start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
    let id = format!("{}-0", SystemClock.now().as_millis());
    let route =
        RouteKey { notification_id: NotificationId::from(id.clone()), route_id: "push:user:u-1".to_owned() };
    let mut redis = world.redis().await;
    let lease = Keyspace::of(INTENTS).route_lease(&route);
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
    let service = world.service_via(world.redis.port(), proxy.port()).start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
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
    let service = world.service_via(proxy.port(), world.database.port()).start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
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
    let service = world.service().env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.is_quiet(MEASURED).await;
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
async fn rows_that_retention_cannot_delete_leave_it_behind() {
    let world = World::new().await;
    let insert = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
            request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         VALUES ('1-0', 't', 'old', 'user', '{}', 'k', 'v1:', now(), now() - interval '31 days', now(), now())";
    let (client, holder) = (world.database.client().await, world.database.client().await);
    client.batch_execute(insert).await.expect("the statement is right");
    holder.batch_execute("BEGIN; SELECT 1 FROM records FOR UPDATE").await.expect("the row is free");
    let service = world.service().env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    let monitor = Monitor::start(SERVICE, &service.http_addr()).await;
    monitor.sees("NotificationRetentionBehind").await;
    holder.batch_execute("ROLLBACK").await.expect("it is open");
    monitor.calms_down().await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);
}

#[tokio::test]
async fn a_relay_without_redis_is_paused() {
    let outbox = Outbox::new().await;
    let proxy = Proxy::start(outbox.world.redis.port()).await;
    let addr = format!("127.0.0.1:{}", proxy.port());
    let relay = outbox.relay().env("NOTIFICATION_REDIS_MASTER_ADDR", addr).start().await;
    let monitor = Monitor::start("notification-relay", &relay.http_addr()).await;
    monitor.is_quiet("notification_outbox_state").await;
    proxy.cut();
    outbox.insert(0..3).await;
    monitor.sees("NotificationRelayPaused").await;
    proxy.heal();
    monitor.calms_down().await;
}
