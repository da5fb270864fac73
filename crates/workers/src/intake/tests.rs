//! What the intake does when its stores, the stream or the directory say no.

use std::collections::HashMap;

use ambient::ManualClock;
use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::checkpoint::Checkpoint;
use domain::entry::{EntryId, RawFields};
use domain::ports::Lookup;
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::dispatch::dispatch;
use crate::fakes::{Recorded, World, down, intent};

/// By the clock of the runtime, which stands while anything is at work.
const BOUND: Duration = Duration::from_secs(600);
const BLOCK: Duration = Duration::from_millis(10);
const FIRST_COUNT: usize = 16;

fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(60),
        head_start: Duration::from_secs(5),
    }
}

fn intake(world: &World, batch_size: usize) -> WorldIntake {
    let (dispatcher, _) = dispatch([]);
    let settings =
        IntakeSettings { stream: "intents".into(), batch_size, block: BLOCK, stream_retention: None };
    Intake {
        election: world.clone(),
        intents: world.clone(),
        store: world.clone(),
        cache: world.clone(),
        directory: world.clone(),
        clock: ManualClock::new(now()),
        policy: Arc::new(policy()),
        dispatcher,
        settings,
        metrics: Metrics::new(&meter("test")),
        health: Health::new("intake"),
    }
}

type WorldIntake = Intake<World, World, World, World, World, ManualClock>;

fn now() -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000).expect("in range")
}

/// Runs the intake until `done`, with a bound.
async fn run_until(world: &World, batch_size: usize, done: impl Fn(&World, &Health) -> bool) {
    run_intake_until(intake(world, batch_size), world, done).await;
}

async fn run_intake_until(intake: WorldIntake, world: &World, done: impl Fn(&World, &Health) -> bool) {
    let (health, stop) = (intake.health.clone(), CancellationToken::new());
    let running = tokio::spawn(intake.run(stop.clone()));
    world.until(BOUND, || done(world, &health)).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

/// The parts of a leader that has found out where to resume.
async fn begin(intake: &WorldIntake) -> Work<'_, World, World, World, World, ManualClock> {
    let mut work = Work::new(intake, 1);
    let resumed = work.keeper.resume(&work.reader).await;
    assert!(matches!(resumed, Ok(Resumed::After(_))), "{resumed:?}");
    work
}

fn stream(world: &World, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        add(world, intent(number, &format!("key-{number}"), "u-1"));
    }
}

fn add(world: &World, entry: domain::entry::RawEntry) {
    let state = &mut world.lock().intake;
    state.last_generated = entry.id;
    state.stream.push(entry);
}

/// An intent for several users.
fn intent_for(number: u64, users: &[String]) -> domain::entry::RawEntry {
    let mut entry = intent(number, &format!("key-{number}"), "");
    entry.fields.0[3].1 = format!("{users:?}").into_bytes();
    entry
}

fn outcomes(world: &World) -> Vec<(u64, String)> {
    world.lock().intake.outcomes.iter().map(|(id, outcome)| (id.millis, outcome.clone())).collect()
}

fn numbers(world: &World) -> Vec<u64> {
    outcomes(world).into_iter().map(|(number, _)| number).collect()
}

fn names(world: &World) -> Vec<String> {
    outcomes(world).into_iter().map(|(_, outcome)| outcome).collect()
}

fn durable(world: &World) -> Option<EntryId> {
    world.lock().intake.durable.map(|durable| durable.last_entry_id)
}

fn cached(world: &World) -> Option<EntryId> {
    world.lock().intake.cached.map(|cached| cached.last_entry_id)
}

fn id(number: u64) -> EntryId {
    EntryId::new(number, 0)
}

/// A checkpoint of a term before the first one here.
fn at(number: u64) -> Option<Checkpoint> {
    Some(Checkpoint { fence: 0, last_entry_id: id(number) })
}

fn waits_for(health: &Health, text: &str) -> bool {
    health.status().blocked.is_some_and(|blocked| blocked.cause.contains(text))
}

fn waits_with(health: &Health) -> Option<u64> {
    health.status().blocked.and_then(|blocked| blocked.entry_id).map(|id| id.millis)
}

fn calls(world: &World, name: &str) -> usize {
    world.lock().calls.iter().filter(|call| **call == name).count()
}

// INV-01
#[tokio::test(start_paused = true)]
async fn a_poison_element_is_quarantined_alone_and_its_neighbours_are_accepted_in_order() {
    let world = World::default();
    stream(&world, 1..=9);
    world.lock().intake.poison.push(EntryId::new(4, 0));
    run_until(&world, 9, |world, _| cached(world) == Some(id(9))).await;
    let expected: Vec<(u64, String)> =
        (1..=9).map(|n| (n, if n == 4 { "not_storable" } else { "accepted" }.to_owned())).collect();
    assert_eq!(outcomes(&world), expected);
    assert!(calls(&world, "probe") > 0, "a valid row is tried before anything is declared not storable");
}

// INV-01
#[tokio::test(start_paused = true)]
async fn what_comes_back_after_an_outage_is_processed_once_and_nothing_is_skipped() {
    for call in
        ["campaign", "claim_checkpoint", "load", "reset", "inspect", "read", "find_known", "accept", "save"]
    {
        let world = World::default();
        stream(&world, 1..=3);
        world.fail(call, down(call));
        run_until(&world, 2, |world, _| durable(world) == Some(id(3))).await;
        assert_eq!(numbers(&world), [1, 2, 3], "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_poison_element_is_the_next_entrys() {
    let world = World::default();
    for entry in [intent(1, "key", "u-1"), intent(2, "key", "u-1"), intent(3, "key", "u-2")] {
        add(&world, entry);
    }
    world.lock().intake.poison.push(id(1));
    run_until(&world, 9, |world, _| cached(world) == Some(id(3))).await;
    assert_eq!(names(&world), ["not_storable", "accepted", "idempotency_conflict"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_not_kept_waiting_by_a_directory_that_says_nothing() {
    let world = World::default();
    stream(&world, [1]);
    world.lock().hanging.push("look_up");
    run_until(&world, 9, |world, _| world.lock().calls.contains(&"look_up")).await;
    assert_eq!(outcomes(&world), []);
    assert_eq!(durable(&world), None);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_tried_again_with_fewer_entries() {
    let world = World::default();
    stream(&world, 1..=3);
    for _ in 0..3 {
        world.fail("read", down("read"));
    }
    run_until(&world, 9, |world, _| durable(world) == Some(id(3))).await;
    let asked: Vec<usize> = world.lock().intake.reads.iter().map(|limit| limit.entries).collect();
    assert_eq!(asked[..4], [16, 8, 4, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_to_read_ahead_keeps_what_was_committed_meanwhile() {
    let world = World::default();
    stream(&world, 1..=20);
    let intake = intake(&world, 16);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    // The first read succeeds, the one beside the commit does not.
    let ReadResult::Entries(first) = work.reader.read(EntryId::ZERO, BLOCK).await.expect("is there") else {
        panic!("small entries")
    };
    work.queue.extend(first);
    world.fail("read", down("read"));
    assert!(matches!(work.run_once(&stop).await, Err(StoreError::Unavailable { .. })));
    assert_eq!((outcomes(&world).len(), work.keeper.processed()), (16, Some(id(16))));
}

// INV-12
#[tokio::test(start_paused = true)]
async fn an_entry_that_must_wait_holds_the_stream_and_says_so() {
    let world = World::default();
    stream(&world, [1]);
    add(&world, intent(2, "key-2", "slow"));
    add(&world, intent(3, "key-3", "u-1"));
    world.lock().intake.users.insert("slow".into(), Lookup::Unavailable("no answer".into()));
    run_until(&world, 9, |_, health| health.status().blocked.is_some()).await;
    assert_eq!(outcomes(&world), [(1, "accepted".to_owned())]);
    assert_eq!(durable(&world), Some(id(1)));

    world.lock().intake.users.clear();
    run_until(&world, 9, |world, health| durable(world) == Some(id(3)) && health.status().blocked.is_none())
        .await;
}

// INV-07
#[tokio::test(start_paused = true)]
async fn postgresql_has_the_last_word_on_where_to_resume() {
    let world = World::default();
    stream(&world, 1..=5);
    world.lock().intake.durable = at(3);
    world.lock().intake.cached = at(5);
    run_until(&world, 9, |world, _| durable(world) == Some(id(5))).await;
    assert_eq!(numbers(&world), [4, 5]);
    assert_eq!(cached(&world), Some(id(5)));
}

#[tokio::test(start_paused = true)]
async fn the_cached_checkpoint_counts_where_postgresql_has_none() {
    let world = World::default();
    stream(&world, 1..=5);
    world.lock().intake.cached = at(4);
    run_until(&world, 9, |world, _| durable(world) == Some(id(5))).await;
    assert_eq!(numbers(&world), [5]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_recreated_while_the_intake_runs_is_read_from_its_beginning() {
    let world = World::default();
    stream(&world, 100..=101);
    run_until(&world, 9, |world, _| {
        let processed = world.lock().intake.outcomes.len();
        if processed == 2 {
            let state = &mut world.lock().intake;
            // The old checkpoint stays until the first batch of the new stream moves it.
            state.stream = vec![intent(1, "new-1", "u-1"), intent(2, "new-2", "u-1")];
            state.last_generated = id(2);
        }
        processed == 4 && cached(world) == Some(id(2))
    })
    .await;
    assert_eq!(numbers(&world), [100, 101, 1, 2]);
    assert_eq!((durable(&world), cached(&world)), (Some(id(2)), Some(id(2))), "both went back");
}

#[tokio::test(start_paused = true)]
async fn a_recreated_stream_without_entries_leaves_the_checkpoint_where_it_is() {
    let world = World::default();
    world.lock().intake.durable = at(100);
    world.lock().intake.last_generated = id(5);
    run_until(&world, 9, |world, _| calls(world, "read") > 3).await;
    assert_eq!((durable(&world), cached(&world)), (Some(id(100)), Some(id(100))));
    stream(&world, [6]);
    run_until(&world, 9, |world, _| cached(world) == Some(id(6))).await;
    assert_eq!(numbers(&world), [6]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn a_stream_that_lost_its_newest_entries_is_resumed_after_the_last_one_that_is_known() {
    let world = World::default();
    stream(&world, 1..=5);
    // Entries 6 to 9 were processed and are gone; 5 was appended since.
    world.lock().intake.durable = at(9);
    world.lock().intake.cached = at(9);
    world.lock().intake.processed.extend((1..=4).map(id));
    run_until(&world, 9, |world, _| durable(world) == Some(id(5))).await;
    assert_eq!(numbers(&world), [5]);
    stream(&world, [20]);
    run_until(&world, 9, |world, _| cached(world) == Some(id(20))).await;
    assert_eq!(numbers(&world), [5, 20]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn an_absent_stream_leaves_the_checkpoint_alone_and_is_waited_for() {
    let world = World::default();
    stream(&world, 1..=3);
    world.lock().intake.durable = at(2);
    world.lock().intake.absent = true;
    let absent = |health: &Health| waits_for(health, "the intents stream is absent");
    // At the begin of a term, and again while it reads.
    run_until(&world, 9, |world, health| {
        let waits = absent(health);
        world.lock().intake.absent = !waits;
        waits
    })
    .await;
    assert_eq!((durable(&world), calls(&world, "accept")), (Some(id(2)), 0));
    run_until(&world, 9, |world, _| durable(world) == Some(id(3))).await;
    world.lock().intake.absent = true;
    run_until(&world, 9, |_, health| absent(health)).await;
    world.lock().intake.absent = false;
    stream(&world, [4]);
    run_until(&world, 9, |world, health| durable(world) == Some(id(4)) && !absent(health)).await;
    assert_eq!(numbers(&world), [3, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_absent_stream_is_normal_where_nothing_was_ever_read() {
    let world = World::default();
    world.lock().intake.absent = true;
    run_until(&world, 9, |world, health| {
        assert!(health.status().blocked.is_none(), "{:?}", health.status());
        calls(world, "read") > 5
    })
    .await;
    world.lock().intake.absent = false;
    stream(&world, [1]);
    run_until(&world, 9, |world, _| durable(world) == Some(id(1))).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_nothing_twice_where_there_is_something_is_connected_again() {
    let world = World::default();
    world.lock().intake.stale = true;
    stream(&world, [1]);
    run_until(&world, 9, |world, health| {
        if world.lock().intake.reconnects > 0 && waits_for(health, "reads return nothing") {
            world.lock().intake.stale = false;
        }
        durable(world) == Some(id(1)) && health.status().blocked.is_none()
    })
    .await;
    assert!(world.lock().intake.reads.len() >= 3, "one empty read is no reason");
}

#[tokio::test(start_paused = true)]
async fn an_idle_reader_keeps_its_connection_and_learns_nothing() {
    let world = World::default();
    stream(&world, [1]);
    run_until(&world, 9, |world, _| calls(world, "read") > 50).await;
    assert_eq!(world.lock().intake.reconnects, 0);
    let asked: Vec<usize> = world.lock().intake.reads.iter().map(|limit| limit.entries).collect();
    assert_eq!((asked[0], asked.iter().max()), (FIRST_COUNT, Some(&(4 * FIRST_COUNT))), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_overtaken_resumes_after_the_one_that_overtook_it() {
    let world = World::default();
    stream(&world, 1..=4);
    let overtaken = intake(&world, 9);
    let mut work = begin(&overtaken).await;
    world.lock().intake.durable = at(4);
    let pass = work.run_once(&CancellationToken::new()).await.expect("the fakes are there");
    assert!(matches!(pass, Step::CheckpointMoved));
    assert_eq!(outcomes(&world), []);
}

// CRASH-13
#[tokio::test(start_paused = true)]
async fn a_term_whose_fence_is_known_already_steps_down_and_the_next_is_above_it() {
    // PostgreSQL was restored by one term, or by more, and Redis or it still has the fence.
    for fence in [1, 5, checkpoint_fence_limit()] {
        for in_redis in [true, false] {
            let world = World::default();
            stream(&world, [1]);
            {
                let state = &mut world.lock().intake;
                let seen = Some(Checkpoint { fence, last_entry_id: EntryId::ZERO });
                if in_redis { state.cached = seen } else { state.durable = seen }
            }
            run_until(&world, 9, |world, _| cached(world) == Some(id(1))).await;
            let written = world.lock().intake.cached.map(|cached| cached.fence);
            assert_eq!(written, Some(fence + 1), "{fence} in Redis: {in_redis}");
            assert_eq!(calls(&world, "campaign"), 2);
        }
    }
}

/// The highest fence that the first term takes for another term's.
fn checkpoint_fence_limit() -> Fence {
    1 + domain::checkpoint::MAX_FENCE_LEAD
}

// INV-08
#[tokio::test(start_paused = true)]
async fn a_garbled_fence_in_redis_costs_no_term() {
    let world = World::default();
    stream(&world, [1]);
    let garbled = Checkpoint { fence: checkpoint_fence_limit() + 1, last_entry_id: id(7) };
    world.lock().intake.cached = Some(garbled);
    run_until(&world, 9, |world, _| cached(world) == Some(id(1))).await;
    assert_eq!(calls(&world, "raise_fence"), 0);
    assert_eq!(world.lock().intake.cached.map(|cached| cached.fence), Some(1));
}

#[tokio::test(start_paused = true)]
async fn within_a_term_its_own_fence_is_its_own() {
    let world = World::default();
    stream(&world, 1..=3);
    // Each makes the leader find out again where to resume, where it finds its own fence.
    for call in ["accept", "read", "inspect"] {
        world.fail(call, down(call));
    }
    run_until(&world, 1, |world, _| cached(world) == Some(id(3))).await;
    assert_eq!((calls(&world, "raise_fence"), calls(&world, "campaign")), (0, 1));
    assert!(calls(&world, "claim_checkpoint") > 1);
}

// INV-12
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_moves_again_and_again_is_reported_and_waited_for() {
    let world = World::default();
    stream(&world, 1..=3);
    world.lock().intake.moves = true;
    run_until(&world, 9, |world, health| {
        if waits_for(health, MOVED_AGAIN) {
            world.lock().intake.moves = false;
        }
        durable(world) == Some(id(3)) && health.status().blocked.is_none()
    })
    .await;
    let tried = calls(&world, "accept");
    assert!((3..10).contains(&tried), "{tried} tries");
}

// INV-07, CRASH-14
#[tokio::test(start_paused = true)]
async fn entries_whose_outcomes_postgresql_has_lost_are_read_again() {
    let world = World::default();
    stream(&world, 1..=4);
    let restored = intake(&world, 9);
    let mut work = begin(&restored).await;
    let stop = CancellationToken::new();
    assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
    // Restored from a backup that was taken after entry 2.
    {
        let state = &mut world.lock().intake;
        state.durable = at(2);
        state.outcomes.truncate(2);
        state.keys.retain(|scope, _| ["key-1", "key-2"].contains(&scope.key.as_str()));
    }
    stream(&world, [5]);
    run_until(&world, 9, |world, _| durable(world) == Some(id(5))).await;
    assert_eq!(numbers(&world), [1, 2, 3, 4, 5]);
    stream(&world, [6]);
    assert!(
        matches!(work.run_once(&stop).await, Ok(Step::CheckpointMoved)),
        "the old position is worth nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn known_keys_are_asked_for_at_first_and_then_only_when_there_was_one() {
    let world = World::default();
    stream(&world, 1..=3);
    let intake = intake(&world, 1);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    // Reads and processes one, and processes the two that were read with it.
    for _ in 0..3 {
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
    }
    assert_eq!((outcomes(&world).len(), calls(&world, "find_known")), (3, 1));

    for entry in [intent(4, "key-1", "u-1"), intent(5, "key-1", "u-1"), intent(6, "key-6", "u-1")] {
        add(&world, entry);
    }
    for expected in [2, 3, 4] {
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
        assert_eq!(calls(&world, "find_known"), expected);
    }
    assert_eq!(names(&world)[3..], ["duplicate", "duplicate", "accepted"]);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_a_duplicate_whatever_the_directory_says_by_then() {
    for answer in [Lookup::Missing, Lookup::Unavailable("no answer".into())] {
        let world = World::default();
        stream(&world, [1]);
        let intake = intake(&world, 9);
        let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));

        world.lock().intake.users.insert("u-1".into(), answer);
        add(&world, intent(2, "key-1", "u-1"));
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
        assert_eq!(outcomes(&world), [(1, "accepted".to_owned()), (2, "duplicate".to_owned())]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_entries_are_read_while_the_first_are_written() {
    let world = World::default();
    stream(&world, 1..=40);
    run_until(&world, FIRST_COUNT, |world, _| cached(world) == Some(id(40))).await;
    let calls = world.lock().calls.clone();
    let of = |name: &str| -> Vec<usize> {
        calls.iter().enumerate().filter(|(_, call)| **call == name).map(|(place, _)| place).collect()
    };
    assert!(of("read")[1] < of("accept")[0], "{calls:?}");
    assert_eq!(numbers(&world), Vec::from_iter(1..=40));
}

/// A malformed entry of one field.
fn large(number: u64, bytes: usize) -> domain::entry::RawEntry {
    domain::entry::RawEntry { id: id(number), fields: RawFields::from_iter([("f", vec![b'x'; bytes])]) }
}

#[tokio::test(start_paused = true)]
async fn large_entries_are_read_and_written_one_by_one_and_nothing_is_read_ahead_of_one() {
    let world = World::default();
    stream(&world, 1..=20);
    for number in 21..=23 {
        add(&world, large(number, 5 * 1024 * 1024));
    }
    stream(&world, 24..=40);
    let intake = intake(&world, 512);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    while outcomes(&world).len() < 40 {
        let before = outcomes(&world).len();
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
        let large = |number: &u64| (21..=23).contains(number);
        let processed = numbers(&world)[before..].to_vec();
        assert!(processed.len() == 1 || !processed.iter().any(large), "{processed:?}");
        assert!(!processed.iter().any(large) || work.queue.is_empty());
        assert!(work.queue.iter().filter(|entry| large(&entry.decoded.id.millis)).count() <= 1);
    }
    assert_eq!(numbers(&world), Vec::from_iter(1..=40));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_too_large_to_be_read_is_named_and_waited_for() {
    let world = World::default();
    stream(&world, [1]);
    add(&world, large(2, 65 * 1024 * 1024));
    stream(&world, [3]);
    run_until(&world, 9, |_, health| waits_for(health, "XDEL intents 2-0")).await;
    assert_eq!(numbers(&world), [1]);
    world.lock().intake.stream.remove(1);
    run_until(&world, 9, |world, _| durable(world) == Some(id(3))).await;
    assert_eq!(numbers(&world), [1, 3]);
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_refusal_of_every_row_is_waited_for_and_makes_nothing_not_storable() {
    let world = World::default();
    stream(&world, 1..=50);
    world.lock().intake.refuses_all = true;
    run_until(&world, 9, |_, health| waits_with(health) == Some(1) && waits_for(health, "a valid row")).await;
    assert_eq!(outcomes(&world), []);
    world.lock().intake.refuses_all = false;
    run_until(&world, 9, |world, _| durable(world) == Some(id(50))).await;
    assert!(names(&world).iter().all(|outcome| outcome == "accepted"));
}

// INV-09
#[tokio::test(start_paused = true)]
async fn entries_before_a_locked_one_are_accepted_and_it_is_named() {
    let world = World::default();
    stream(&world, 1..=16);
    world.lock().intake.locked = Some(id(11));
    run_until(&world, 16, |_, health| waits_with(health) == Some(11) && waits_for(health, "a lock")).await;
    assert_eq!(numbers(&world), Vec::from_iter(1..=10));
    world.lock().intake.locked = None;
    run_until(&world, 16, |world, health| {
        durable(world) == Some(id(16)) && health.status().blocked.is_none()
    })
    .await;
    assert_eq!(calls(&world, "probe"), 0, "nothing was refused");
}

#[tokio::test(start_paused = true)]
async fn batches_that_take_too_long_are_made_smaller_and_grow_again() {
    let world = World::default();
    stream(&world, 1..=16);
    world.lock().intake.slow_beyond = Some(3);
    let intake = intake(&world, 16);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
    assert_eq!(numbers(&world), Vec::from_iter(1..=16));
    assert!(world.lock().intake.transactions.iter().all(|size| *size <= 3));

    // The next batch is not tried whole again, but later ones are once that is quick.
    world.lock().intake.slow_beyond = None;
    stream(&world, 17..=64);
    while outcomes(&world).len() < 64 {
        assert!(matches!(work.run_once(&stop).await, Ok(Step::Continue)));
    }
    let transactions = world.lock().intake.transactions.clone();
    assert_eq!(transactions.last(), Some(&16), "{transactions:?}");
}

#[tokio::test(start_paused = true)]
async fn the_answers_of_a_waiting_entry_are_kept_and_only_the_missing_ones_are_asked_for_again() {
    let world = World::default();
    let users: Vec<String> = (0..1_000).map(|n| format!("u-{n:04}")).collect();
    add(&world, intent_for(1, &users));
    for user in users.iter().step_by(50) {
        world.lock().intake.users.insert(user.clone(), Lookup::Unavailable("status 503".into()));
    }
    let intake = intake(&world, 9);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    for failing in [20, 20, 0] {
        if failing == 0 {
            world.lock().intake.users.clear();
        }
        let pass = work.run_once(&stop).await.expect("the fakes are there");
        assert_eq!(matches!(pass, Step::Waiting(_)), failing > 0);
    }
    let asked: Vec<usize> = world.lock().intake.asked.iter().map(Vec::len).collect();
    assert_eq!(asked.iter().sum::<usize>(), 1_000 + 20 + 20, "{asked:?}");
    assert_eq!(names(&world), ["accepted"]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_accepted_before_the_slow_users_of_later_ones_are_known() {
    let world = World::default();
    let users = |from: u64| (from..from + 200).map(|n| format!("u-{n}")).collect::<Vec<_>>();
    for number in 1..=3 {
        add(&world, intent_for(number, &users(number * 1_000)));
    }
    world.lock().intake.slow_user = Some(("u-2000".into(), Duration::from_secs(3)));
    world.lock().intake.users.insert("u-3000".into(), Lookup::Unavailable("no answer".into()));
    // The first call has all users of the first entry and one slow one.
    run_until(&world, 9, |world, health| {
        let asked = world.lock().intake.asked.len();
        assert!(asked < 2 || !outcomes(world).is_empty(), "the first entry waits for users of the second");
        waits_with(health) == Some(3)
    })
    .await;
    assert_eq!(numbers(&world), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_down_is_asked_once_and_the_first_entry_that_needs_it_is_named() {
    let world = World::default();
    stream(&world, [1]);
    let users: Vec<String> = (0..1_000).map(|n| format!("down-{n}")).collect();
    add(&world, intent_for(2, &users));
    stream(&world, [3]);
    for user in users {
        world.lock().intake.users.insert(user, Lookup::Unavailable("refused".into()));
    }
    let intake = intake(&world, 9);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    let pass = work.run_once(&stop).await.expect("the fakes are there");
    assert!(matches!(pass, Step::Waiting(wait) if wait.entry_id == id(2)));
    assert_eq!(numbers(&world), [1]);
    // With the first call there was an answer; after the second, without one, it stopped.
    assert_eq!(world.lock().intake.asked.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_processed_is_trimmed_when_it_is_old_and_nothing_else() {
    const HOUR: u64 = 3_600_000;
    let oldest = u64::try_from(now().as_millis()).expect("positive") - 24 * HOUR;
    let world = World::default();
    stream(&world, [5, oldest - HOUR, oldest + HOUR, oldest + 2 * HOUR]);
    // The last entry is not processed for now.
    world.lock().intake.locked = Some(id(oldest + 2 * HOUR));
    let mut intake = intake(&world, 1);
    intake.settings.stream_retention = Some(Duration::from_millis(24 * HOUR));
    run_intake_until(intake, &world, |world, _| world.lock().intake.trims.len() > 3).await;
    let left: Vec<u64> = world.lock().intake.stream.iter().map(|entry| entry.id.millis).collect();
    assert_eq!(left, [oldest + HOUR, oldest + 2 * HOUR]);
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_old_but_not_processed_and_the_last_processed_one_are_not_trimmed() {
    let world = World::default();
    stream(&world, 1..=4);
    world.lock().intake.locked = Some(id(3));
    let mut intake = intake(&world, 1);
    intake.settings.stream_retention = Some(Duration::from_secs(1));
    run_intake_until(intake, &world, |world, _| world.lock().intake.trims.len() > 2).await;
    let left: Vec<u64> = world.lock().intake.stream.iter().map(|entry| entry.id.millis).collect();
    assert_eq!(left, [2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_never_leads_says_so() {
    let (world, recorded) = (World::default(), Recorded::default());
    let follower = Intake { metrics: Metrics::new(&recorded.meter()), ..intake(&world, 9) };
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, follower.run(stop)).await.expect("it stops");
    assert_eq!(recorded.values("notification.intake.leader"), [0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_comes_again_in_the_next_batch_is_known() {
    let world = World::default();
    stream(&world, 1..=4);
    for entry in [intent(5, "key-4", "u-1"), intent(6, "key-6", "u-1"), intent(7, "key-4", "u-2")] {
        add(&world, entry);
    }
    run_until(&world, 2, |world, _| cached(world) == Some(id(7))).await;
    let names = names(&world);
    assert_eq!(names[..4], ["accepted"; 4]);
    assert_eq!(names[4..], ["duplicate", "accepted", "idempotency_conflict"]);
}
