//! The programs of the page for consumers read both streams, deduplicate, report and take over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use harness::{Service, wait_for};
use redis::AsyncCommands;
use redis::streams::{StreamInfoGroupsReply, StreamRangeReply, StreamReadOptions, StreamReadReply};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::api::*;
use crate::examples::{code, tsx};
use crate::outbox_page::python;
use crate::receipts::{GATEWAY_TOKEN, MAIL_TOKEN, published, with_consumers};
use crate::world::*;

const PAGE: &str = include_str!("../../../../docs/consumers.md");
const RUST: &str = include_str!("../../examples/consumer.rs");
const GROUP: &str = "readers";
/// The streams, each with the token of its consumer.
const STREAMS: [(&str, &str); 2] =
    [("mail:delivery_commands", MAIL_TOKEN), ("gateway:client-events", GATEWAY_TOKEN)];

/// Leaves the group with an entry that a dead consumer has read, and the stream with one that was appended
/// twice.
async fn with_a_dead_neighbour_and_a_repeated_entry(world: &World, stream: &str) {
    let mut redis = world.redis().await;
    let () = redis.xgroup_create(stream, GROUP, "0").await.expect("the stream is there");
    let options = StreamReadOptions::default().group(GROUP, "dead").count(1);
    let read: StreamReadReply = redis.xread_options(&[stream], &[">"], &options).await.expect("it reads");
    assert_eq!(read.keys.len(), 1);
    let entries: StreamRangeReply = redis.xrange_all(stream).await.expect("the stream is there");
    let last = entries.ids.last().expect("an entry");
    let fields: Vec<(&String, String)> =
        last.map.keys().map(|name| (name, last.get(name).expect("text"))).collect();
    let _: String = redis.xadd(stream, "*", &fields).await.expect("it is appended");
}

/// Waits until the group has read the stream to its end and acknowledged everything.
async fn has_acknowledged_everything(world: &World, stream: &str) {
    wait_for("the group has acknowledged everything", BOUND, async || {
        let groups: StreamInfoGroupsReply = world.redis().await.xinfo_groups(stream).await.ok()?;
        let group = groups.groups.iter().find(|group| group.name == GROUP)?;
        (group.pending == 0 && group.lag == Some(0)).then_some(())
    })
    .await;
}

/// Runs a program on a stream until everything is acknowledged, ends it, and returns the lines that it
/// printed.
async fn consume(world: &World, service: &Service, program: &[PathBuf], at: usize) -> Vec<String> {
    let (stream, token) = STREAMS[at];
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let variables = [
        ("REDIS_URL", format!("redis://{}", world.redis.addr())),
        ("API_URL", format!("http://{}", service.api_addr())),
        ("STREAM", stream.to_owned()),
        ("TOKEN", token.to_owned()),
        ("GROUP", GROUP.to_owned()),
        ("CONSUMER", "living".to_owned()),
        ("TAKE_OVER_AFTER_MS", "1".to_owned()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
    ];
    let running = command.envs(variables).spawn().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    has_acknowledged_everything(world, stream).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(running.id().expect("it runs")).expect("a pid"));
    rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::TERM).expect("it runs");
    let output = timeout(BOUND, running.wait_with_output()).await.expect("it ends").expect("it ran");
    assert!(output.status.success(), "{program:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs a program on both streams. Each entry is delivered once, that of the dead neighbour and that with two
/// entries too, and each has a receipt.
async fn delivers_each_once(program: &[PathBuf]) {
    let world = World::new().await;
    let tokens = with_consumers(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let ids = published(&world, &service).await;
    let mut delivered = Vec::new();
    for (at, (stream, _)) in STREAMS.iter().enumerate() {
        with_a_dead_neighbour_and_a_repeated_entry(&world, stream).await;
        delivered.extend(consume(&world, &service, program, at).await);
    }
    let named: Vec<&str> = delivered.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(
        (named.len(), named.into_iter().collect::<BTreeSet<_>>()),
        (4, ids.iter().map(String::as_str).collect())
    );
    let receipts = "SELECT DISTINCT value ->> 'status' FROM receipts";
    assert_eq!(world.column(receipts).await, ["delivered"]);
    assert_eq!(world.number("SELECT count(*) FROM receipts").await, 4);
}

/// A program of the page in a file of its own, below a folder.
fn program_file(folder: &Path, example: &str, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, code(PAGE, example)).expect("the file is written");
    path
}

#[tokio::test]
async fn the_python_program_delivers_each_entry_once_and_reports_it() {
    let folder = TempDir::new().expect("a temporary folder");
    let python = tokio::task::spawn_blocking(python).await.expect("it is installed");
    delivers_each_once(&[python, program_file(folder.path(), "python consumer", "consume.py")]).await;
}

#[tokio::test]
async fn the_typescript_program_delivers_each_entry_once_and_reports_it() {
    let tsx = tsx();
    // Beside the packages that it imports.
    let packages = tsx.ancestors().nth(3).expect("the folder with the packages").to_owned();
    let folder = TempDir::new_in(packages).expect("a temporary folder");
    delivers_each_once(&[tsx, program_file(folder.path(), "typescript consumer", "consume.mts")]).await;
}

#[tokio::test]
async fn the_rust_program_is_on_the_page_and_delivers_each_entry_once_and_reports_it() {
    let (_head, text) = RUST.split_once("\n\n").expect("a head");
    assert_eq!(code(PAGE, "rust consumer"), text, "copy examples/consumer.rs to the page");
    let tests = std::env::current_exe().expect("the test runs");
    let built = tests.ancestors().nth(2).expect("the folder of the profile").join("examples/consumer");
    assert!(built.is_file(), "`cargo build --workspace --examples` builds {}", built.display());
    delivers_each_once(&[built]).await;
}
