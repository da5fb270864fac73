//! The intake while its stores, the stream or the directory fail.

mod batches;
mod directory;
mod loss;
mod reading;
mod resume;

use domain::checkpoint::Checkpoint;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::Lookup;
use memory_stores::Effect;
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::dispatch::dispatch;
use crate::fixtures::{
    RecordedGauges, STREAM, World, WorldPorts, down, intent, locked, now, policy, refused, timed_out,
};

/// The bound of a run, by the paused clock of the runtime, which advances only while no task is running.
const BOUND: Duration = Duration::from_secs(600);
const BLOCK: Duration = Duration::from_millis(10);
/// Longer than the age of any record.
const RETENTION: Duration = Duration::MAX;
const FIRST_COUNT: usize = 16;

type WorldIntake = Intake<WorldPorts>;

fn world() -> World {
    World::new(now())
}

fn intake(world: &World, batch_size: usize) -> WorldIntake {
    let (dispatcher, _) = dispatch([]);
    let settings = IntakeSettings {
        stream: STREAM.into(),
        batch_size,
        block: BLOCK,
        record_retention: RETENTION,
        stream_retention: None,
    };
    Intake {
        election: world.election.clone(),
        intents: world.intents.clone(),
        store: world.database.clone(),
        cache: world.cache.clone(),
        directory: world.directory.clone(),
        clock: Arc::clone(&world.clock),
        policy: Arc::new(policy()),
        dispatcher,
        settings,
        metrics: Metrics::new(&meter("test")),
        traces: Traces::default(),
        health: Health::new("intake"),
    }
}

/// Runs the intake until `done`, with a bound.
async fn run_until(world: &World, batch_size: usize, done: impl Fn(&World, &Health) -> bool) {
    run_intake_until(intake(world, batch_size), world, done).await;
}

async fn run_intake_until(intake: WorldIntake, world: &World, done: impl Fn(&World, &Health) -> bool) {
    let (health, stop) = (intake.health.clone(), CancellationToken::new());
    let running = tokio::spawn(intake.run(stop.clone()));
    world.script.until(BOUND, || done(world, &health)).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

/// The parts of a leader that has determined where to resume.
async fn begin(intake: &WorldIntake) -> Work<'_, WorldPorts> {
    let mut work = Work::new(intake, 1);
    let resumed = work.keeper.resume(&work.reader).await;
    assert!(matches!(resumed, Ok(Resumed::After(_))), "{resumed:?}");
    work
}

fn stream(world: &World, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        world.intents.put(intent(number, &format!("key-{number}"), "u-1"));
    }
}

/// A malformed entry of one field.
fn large(number: u64, bytes: usize) -> RawEntry {
    RawEntry { id: id(number), fields: RawFields::from_iter([("f", vec![b'x'; bytes])]) }
}

/// An intent for several users.
fn intent_for(number: u64, users: &[String]) -> RawEntry {
    let mut entry = intent(number, &format!("key-{number}"), "");
    entry.fields.0[3].1 = format!("{users:?}").into_bytes();
    entry
}

/// The outcomes of all committed transactions in order, with the entry id where a row has it.
fn outcomes(world: &World) -> Vec<String> {
    let committed = world.script.calls_of("accept").into_iter().filter(|call| call.succeeded);
    committed.flat_map(|call| call.elements).collect()
}

/// The numbers of the entries that have a row, in the order of the commits.
fn numbers(world: &World) -> Vec<u64> {
    outcomes(world).iter().filter_map(|outcome| outcome.split_once('-')?.0.parse().ok()).collect()
}

fn names(world: &World) -> Vec<String> {
    let name = |outcome: &String| outcome.rsplit(' ').next().unwrap_or_default().to_owned();
    outcomes(world).iter().map(name).collect()
}

/// The number of outcomes in each committed transaction.
fn transactions(world: &World) -> Vec<usize> {
    let calls = world.script.calls_of("accept");
    calls.iter().filter(|call| call.succeeded).map(|call| call.elements.len()).collect()
}

fn records(world: &World) -> Vec<String> {
    world.database.records().iter().map(ToString::to_string).collect()
}

/// Makes the store refuse every transaction that accepts this entry.
fn poison(world: &World, number: u64) {
    let poisoned = format!("{number}-0 accepted");
    world.script.on("accept", move |call| match call.elements.contains(&poisoned) {
        true => Effect::Fail(refused("accept")),
        false => Effect::Pass,
    });
}

/// Makes every transaction with this entry time out on a lock.
fn lock_row(world: &World, number: u64) {
    let entry = format!("{number}-0 ");
    world.script.on("accept", move |call| match call.elements.iter().any(|row| row.starts_with(&entry)) {
        true => Effect::Fail(locked("accept")),
        false => Effect::Pass,
    });
}

fn id(number: u64) -> EntryId {
    EntryId::new(number, 0)
}

fn waits_for(health: &Health, text: &str) -> bool {
    health.status().blocked.is_some_and(|blocked| blocked.cause.contains(text))
}

fn waits_with(health: &Health) -> Option<u64> {
    health.status().blocked.and_then(|blocked| blocked.entry_id).map(|id| id.millis)
}

// INV-01
#[tokio::test(start_paused = true)]
async fn what_comes_back_after_an_outage_is_processed_once_and_nothing_is_skipped() {
    for call in
        ["campaign", "write_fence", "load", "reset", "inspect", "read", "find_known", "accept", "save"]
    {
        let world = world();
        stream(&world, 1..=3);
        world.script.fail(call, down(call));
        run_until(&world, 2, |world, _| world.durable() == Some(id(3))).await;
        assert_eq!(numbers(&world), [1, 2, 3], "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_never_leads_says_so() {
    let (world, recorded) = (world(), RecordedGauges::default());
    let follower = Intake { metrics: Metrics::new(&recorded.meter()), ..intake(&world, 9) };
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, follower.run(stop)).await.expect("it stops");
    assert_eq!(recorded.values("notification.intake.leader"), [0.0]);
}
