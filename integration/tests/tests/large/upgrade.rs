//! A release replaces the previous one, replica by replica and under load, and is rolled back.
//!
//! The previous release is built from the history of this repository, so that no binary has to be kept. That
//! needs the whole history, and the crates of its own `Cargo.lock`: cargo downloads those that this machine
//! does not have yet.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use harness::{Service, TestDatabase, wait_for};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api_client::*;
use crate::commands::{REPOSITORY, run};
use crate::world::*;

/// The previous release: the last commit of 0.1.0 (docs/adr/0044-upgrades.md).
const RELEASE: &str = "ee6ec32843c79b72cb8d091d1845006c9ed1f09e";
/// The number of its migrations.
const RELEASE_MIGRATIONS: i64 = 3;
/// The number of intents that are sent at once, and the interval.
const SENT_AT_ONCE: u32 = 5;
const SEND_INTERVAL: Duration = Duration::from_millis(50);
/// The number of intents that are published between two steps.
const BETWEEN_STEPS: i64 = 200;
/// The log target under which 0.1.0 logs an error for each migration of a newer release, at its start: its
/// library logs it, and it is not an error.
const NEWER_SCHEMA: &str = "refinery_core::traits::missing";
/// The first number of the keys of intents by HTTP.
const FIRST_BY_HTTP: u32 = 1_000_000;

/// The binary of the previous release. It is built once; a debug build carries this load.
fn release_binary() -> PathBuf {
    let folder = Path::new(REPOSITORY).join("target/releases").join(RELEASE);
    let (source, build) = (folder.join("source"), folder.join("target"));
    let commit = format!("{RELEASE}^{{commit}}");
    let known = Command::new("git").args(["-C", REPOSITORY, "cat-file", "-e", &commit]).output();
    let known =
        known.unwrap_or_else(|error| panic!("git: {error}: scripts/ensure-tools.sh --large installs it"));
    assert!(
        known.status.success(),
        "the history lacks {RELEASE}, the previous release; after a shallow clone, run `git fetch --unshallow`\n{}",
        String::from_utf8_lossy(&known.stderr)
    );
    std::fs::create_dir_all(&source).expect("a folder below target");
    let unpack = format!("git -C \"$0\" archive {RELEASE} | tar -x -C \"$1\"");
    run(Command::new("sh").args(["-ec", &unpack, REPOSITORY]).arg(&source));
    println!("building the previous release, {RELEASE}");
    run(Command::new("cargo")
        .current_dir(&source)
        .args(["build", "--locked", "-p", "app", "--bin", "notification", "--target-dir"])
        .arg(&build));
    build.join("debug/notification")
}

/// Intents that are sent to the stream at a steady rate.
struct Load {
    sent: Arc<AtomicU32>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Load {
    async fn start(world: &World) -> Self {
        let (sent, (stop, mut stopped)) = (Arc::new(AtomicU32::new(0)), oneshot::channel());
        let (counter, mut redis) = (Arc::clone(&sent), world.redis().await);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SEND_INTERVAL);
            while stopped.try_recv().is_err() {
                ticks.tick().await;
                let first = counter.load(Ordering::Relaxed);
                send_intents(&mut redis, first..first + SENT_AT_ONCE).await;
                counter.store(first + SENT_AT_ONCE, Ordering::Relaxed);
            }
        });
        Self { sent, stop, task }
    }

    /// Stops the load and returns the number of intents that were sent.
    async fn finish(self) -> u32 {
        self.stop.send(()).expect("it sends until now");
        self.task.await.expect("it does not panic");
        self.sent.load(Ordering::Relaxed)
    }
}

/// The running replicas, from the oldest to the newest.
struct Replicas {
    world: Arc<World>,
    tokens: TokensFile,
    release: PathBuf,
    running: Vec<Service>,
    /// The number of intents that were sent by HTTP.
    by_http: u32,
}

impl Replicas {
    async fn add(&mut self, binary: Option<&Path>) {
        let mut service = with_api(unhurried(self.world.service()), &self.tokens);
        if let Some(binary) = binary {
            service = service.program([binary.to_str().expect("UTF-8")]);
        }
        self.running.push(service.start().await);
    }

    async fn add_previous(&mut self) {
        let release = self.release.clone();
        self.add(Some(&release)).await;
    }

    /// Waits until more intents are published, and sends one by HTTP to every replica: all return the same
    /// response.
    async fn serve_for_a_while(&mut self) {
        let sql = "SELECT count(DISTINCT notification_id) FROM routes WHERE status = 'published'";
        let before = self.world.number(sql).await;
        wait_for("more intents are published", BOUND, async || {
            (self.world.number(sql).await >= before + BETWEEN_STEPS).then_some(())
        })
        .await;
        let number = FIRST_BY_HTTP + self.by_http;
        let mut answers = Vec::new();
        for replica in &self.running {
            let answer = send(replica, &key(number), &body(number)).await;
            answers.push((answer.status, answer.body));
        }
        self.by_http += 1;
        answers.dedup();
        assert!(matches!(&answers[..], [(202, _)]), "{answers:?}");
    }

    /// Stops the replica that has run longest. It has reported no error.
    async fn stop_oldest(&mut self) {
        let mut oldest = self.running.remove(0);
        oldest.signal("TERM");
        let status = oldest.wait_exit(BOUND).await;
        let failures: Vec<String> = oldest
            .output()
            .into_iter()
            .filter(|line| {
                let line: Value = serde_json::from_str(line).unwrap_or_default();
                let is_failure = line["level"] == "ERROR" || line["message"] == "worker failed; retrying";
                is_failure && line["target"] != NEWER_SCHEMA
            })
            .collect();
        assert!(status.success() && failures.is_empty(), "{status}: {failures:#?}");
    }

    async fn migrations(&self) -> i64 {
        self.world.number("SELECT max(version)::bigint FROM refinery_schema_history").await
    }
}

/// Replaces two replicas of the previous release and rolls back, under load. `migrate` runs first, or not at
/// all: then the first new replica migrates.
async fn upgrade_and_roll_back(migrate_first: bool) {
    let world = Arc::new(World::with(TestDatabase::empty().await, None).await);
    let (tokens, release) = (TokensFile::new(&world), release_binary());
    let mut replicas =
        Replicas { world: Arc::clone(&world), tokens, release, running: Vec::new(), by_http: 0 };
    replicas.add_previous().await;
    replicas.add_previous().await;
    assert_eq!(replicas.migrations().await, RELEASE_MIGRATIONS);
    let load = Load::start(&world).await;
    replicas.serve_for_a_while().await;

    if migrate_first {
        let migrated = world.service().arguments(["migrate"]).run().await;
        assert_eq!(migrated.code, Some(0), "{}{}", migrated.stdout, migrated.stderr);
        assert!(replicas.migrations().await > RELEASE_MIGRATIONS);
        replicas.serve_for_a_while().await;
    }
    for _ in 0..2 {
        replicas.add(None).await;
        assert!(replicas.migrations().await > RELEASE_MIGRATIONS);
        replicas.serve_for_a_while().await;
        replicas.stop_oldest().await;
        replicas.serve_for_a_while().await;
    }
    let migrations = replicas.migrations().await;

    for _ in 0..2 {
        replicas.add_previous().await;
        replicas.serve_for_a_while().await;
        replicas.stop_oldest().await;
        replicas.serve_for_a_while().await;
    }
    assert_eq!(replicas.migrations().await, migrations, "a rollback leaves the schema as it is");

    let sent = load.finish().await;
    let by_http = FIRST_BY_HTTP..FIRST_BY_HTTP + replicas.by_http;
    world.settled(i64::from(sent + replicas.by_http)).await;
    while !replicas.running.is_empty() {
        replicas.stop_oldest().await;
    }
    world.check((0..sent).chain(by_http)).await;
    println!(
        "{sent} intents by the stream and {} by HTTP: each is one record, each route one entry",
        replicas.by_http
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_migrates_first_and_its_rollback_lose_nothing_and_repeat_nothing() {
    upgrade_and_roll_back(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_whose_first_replica_migrates_and_its_rollback_lose_nothing_and_repeat_nothing() {
    upgrade_and_roll_back(false).await;
}
