//! Backups and restores, as docs/operations.md describes them: the states to which each store may be
//! restored, and the consequences.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Redis, RedisOptions, wait_for};
use tempfile::TempDir;

use crate::world::*;

/// The heading of the page above the promises.
const SECTION: &str = "## Backup and restore";
/// The key with the installation that serves the stream.
const INSTALLATION: &str = "notification:installations:{notification:intents}:bm90aWZpY2F0aW9uOmludGVudHM";

fn run(program: &'static str, arguments: &[&str]) {
    let path = harness::postgres_program(program).expect("it comes with PostgreSQL");
    let output = Command::new(path).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A dump of the schema.
struct Dump {
    folder: TempDir,
    dsn: String,
}

impl Dump {
    fn of(world: &World) -> Self {
        let dsn = world.database.dsn().split('?').next().unwrap_or_default().to_owned();
        let dump = Self { folder: tempfile::tempdir().expect("a temporary folder"), dsn };
        let file = dump.file();
        run("pg_dump", &["--format=custom", "--schema=notification", "--file", text(&file), &dump.dsn]);
        dump
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("notification.dump")
    }

    /// Restores the schema as the page describes: in one transaction, so that replicas may run.
    fn restore(&self) {
        let file = self.file();
        let options = ["--clean", "--if-exists", "--single-transaction", "--schema=notification"];
        run("pg_restore", &[&options[..], &["--dbname", &self.dsn, text(&file)]].concat());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

pub(crate) async fn ask(world: &World, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut world.redis().await).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// A Redis that starts from its last snapshot.
pub(crate) async fn world_with_snapshots() -> World {
    let redis = Redis::start(RedisOptions::default()).await.expect("a private Redis starts");
    World { redis, ..World::new().await }
}

/// A snapshot of Redis.
pub(crate) struct Snapshot(Vec<u8>);

impl Snapshot {
    pub(crate) async fn of(world: &World) -> Self {
        ask(world, &["SAVE"]).await;
        Self(std::fs::read(snapshot_file(world).await).expect("it was saved"))
    }

    /// Stops the server, and starts it from the snapshot.
    pub(crate) async fn restore(&self, world: &mut World) {
        let file = snapshot_file(world).await;
        world.redis.kill().await;
        std::fs::write(file, &self.0).expect("its folder is there");
        Redis::start_again(&mut world.redis).await.expect("it starts");
    }
}

async fn snapshot_file(world: &World) -> PathBuf {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("dir");
    let pair: (String, String) = config.query_async(&mut world.redis().await).await.expect("Redis is there");
    Path::new(&pair.1).join("dump.rdb")
}

/// The command of the section that sends again what was published between two times, with these.
fn documented_resend(from: &str, to: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/operations.md");
    let section = page.split(SECTION).nth(1).expect("the section is there");
    let (_, rest) = section.split_once("`notification resend ").expect("it has the command");
    let mut words: Vec<&str> = rest.split('`').next().unwrap_or_default().split_whitespace().collect();
    for (flag, time) in [("--since", from), ("--until", to)] {
        let at = words.iter().position(|word| *word == flag).expect("the command has the time");
        words[at + 1] = time;
    }
    ["resend"].into_iter().chain(words).chain(["--yes"]).map(str::to_owned).collect()
}

/// Three intents were accepted and published, then the schema was restored to its state before them.
async fn with_an_empty_schema() -> World {
    let world = World::new().await;
    let empty = Dump::of(&world);
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    service.kill().await;
    empty.restore();
    world
}

// INV-07
#[tokio::test]
async fn a_dump_that_is_restored_beside_a_running_replica_loses_nothing_and_publishes_nothing_twice() {
    let world = World::new().await;
    let _service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let dump = Dump::of(&world);
    world.send(3..6).await;
    world.settled(6).await;
    dump.restore();
    world.send(6..7).await;
    world.settled(7).await;
    world.check(0..7).await;
}

#[tokio::test]
async fn an_empty_schema_beside_a_full_redis_ends_the_start_with_1_and_goes_on_from_the_beginning_once_both_keys_are_deleted()
 {
    let world = with_an_empty_schema().await;
    let refused = world.service().run().await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains(INSTALLATION), "the key to delete is named: {said}");
    for key in [INSTALLATION, CACHED_CHECKPOINT] {
        assert_eq!(ask(&world, &["DEL", key]).await, redis::Value::Int(1), "{key}");
    }
    let _service = world.service().start().await;
    world.settled(3).await;
    // Their markers still exist: the same entries.
    world.check(0..3).await;
}

#[tokio::test]
async fn an_empty_schema_beside_a_full_redis_resumes_after_the_cached_checkpoint_once_the_named_key_is_deleted()
 {
    let world = with_an_empty_schema().await;
    ask(&world, &["DEL", INSTALLATION]).await;
    let _service = world.service().start().await;
    world.send(3..5).await;
    world.settled(2).await;
    let keys = world.column("SELECT idempotency_key FROM records ORDER BY 1").await;
    assert_eq!(keys, [key(3), key(4)], "what was accepted before the loss is not accepted again");
}

// INV-07
#[tokio::test]
async fn a_redis_that_is_restored_to_an_older_snapshot_gets_the_entries_again_that_it_lost() {
    let mut world = world_with_snapshots().await;
    let _service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let snapshot = Snapshot::of(&world).await;
    world.send(3..6).await;
    world.settled(6).await;
    snapshot.restore(&mut world).await;
    wait_for("every published route is in its stream again", BOUND, async || {
        (world.outbound().await.len() == 6 * 4).then_some(())
    })
    .await;
    world.check_after_loss(0..6).await;
    // Producers send the intents that Redis lost again, and continue.
    world.send(3..7).await;
    world.settled(7).await;
    world.check(0..7).await;
}

#[tokio::test]
async fn the_documented_command_sends_again_what_an_older_snapshot_lost_before_the_window() {
    let mut world = world_with_snapshots().await;
    let service = world.service().env("NOTIFICATION_REPUBLISH_WINDOW", "0s").start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let snapshot = Snapshot::of(&world).await;
    const NOW: &str =
        r#"SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#;
    let taken = world.column(NOW).await.remove(0);
    world.send(3..6).await;
    world.settled(6).await;
    let lost = world.column(NOW).await.remove(0);
    snapshot.restore(&mut world).await;
    // It is connected again, and has appended nothing by itself.
    world.send(6..7).await;
    world.settled(7).await;
    assert_eq!(world.outbound().await.len(), 4 * 4);
    let words = documented_resend(&taken, &lost);
    let done = world.service().arguments(words.iter().map(String::as_str)).run().await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(world.number("SELECT count(*) FROM routes WHERE resent_at IS NOT NULL").await, 3 * 4);
    world.settled(7).await;
    world.check_sent(0..7).await;
    assert_eq!(world.number("SELECT count(*) FROM routes WHERE attempt_count > 0").await, 3 * 4);
    world.check_audit().await;
    drop(service);
}

// INV-07
#[tokio::test]
async fn a_redis_that_is_empty_is_filled_by_producers_again_and_known_intents_are_duplicates() {
    let mut world = world_with_snapshots().await;
    let empty = Snapshot::of(&world).await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    empty.restore(&mut world).await;
    wait_for("intake waits for the stream", BOUND, async || {
        let waiting = service.get("/readyz").await.1["intake"]["waiting"].clone();
        waiting["cause"].as_str().is_some_and(|cause| cause.contains("absent")).then_some(())
    })
    .await;
    world.send(0..5).await;
    world.settled(5).await;
    let keys = world.column("SELECT idempotency_key FROM records ORDER BY 1").await;
    assert_eq!(keys, (0..5).map(key).collect::<Vec<_>>());
}
