//! Reads of the stream, and trims of it.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_tried_again_with_fewer_entries() {
    let world = world();
    stream(&world, 1..=3);
    for _ in 0..3 {
        world.script.fail("read", down("read"));
    }
    run_until(&world, 9, |world, _| world.durable() == Some(id(3))).await;
    let asked = asked_for(&world);
    assert_eq!(asked[..4], [16, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_to_read_ahead_keeps_what_was_committed_meanwhile() {
    let world = world();
    stream(&world, 1..=20);
    let intake = intake(&world, 16);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    // The first read succeeds; the read during the commit fails.
    let first = work.reader.read(EntryId::ZERO, BLOCK).await.expect("is there");
    work.queue.extend(first);
    world.script.fail("read", down("read"));
    assert!(matches!(work.step(&stop).await, Err(StoreError::Unavailable { .. })));
    assert_eq!((outcomes(&world).len(), work.keeper.processed()), (16, Some(id(16))));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_nothing_twice_where_there_is_something_is_connected_again() {
    let world = world();
    world.intents.set_stale(true);
    stream(&world, [1]);
    run_until(&world, 9, |world, health| {
        if world.script.count("reconnect") > 0 && waits_for(health, "reads return nothing") {
            world.intents.set_stale(false);
        }
        world.durable() == Some(id(1)) && health.status().blocked.is_none()
    })
    .await;
    assert!(world.script.count("read") >= 3, "one empty read is no reason");
}

#[tokio::test(start_paused = true)]
async fn an_idle_reader_keeps_its_connection_and_learns_nothing() {
    let world = world();
    stream(&world, [1]);
    run_until(&world, 9, |world, _| world.script.count("read") > 50).await;
    assert_eq!(world.script.count("reconnect"), 0);
    let asked = asked_for(&world);
    assert_eq!((asked[0], asked.iter().max()), (FIRST_COUNT, Some(&(4 * FIRST_COUNT))), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_entries_are_read_while_the_first_are_written() {
    let world = world();
    stream(&world, 1..=40);
    run_until(&world, FIRST_COUNT, |world, _| world.cached() == Some(id(40))).await;
    let calls = world.script.calls();
    let of = |name: &str| -> Vec<usize> {
        calls.iter().enumerate().filter(|(_, call)| call.operation == name).map(|(place, _)| place).collect()
    };
    assert!(of("read")[1] < of("accept")[0], "{calls:?}");
    assert_eq!(numbers(&world), Vec::from_iter(1..=40));
}

/// The number of entries that each read requested.
fn asked_for(world: &World) -> Vec<usize> {
    let calls = world.script.calls_of("read");
    calls.iter().map(|call| call.elements[0].parse().expect("a number")).collect()
}

#[tokio::test(start_paused = true)]
async fn large_entries_are_read_and_written_one_by_one_and_nothing_is_read_ahead_of_one() {
    let world = world();
    stream(&world, 1..=20);
    for number in 21..=23 {
        world.intents.put(large(number, 5 * 1024 * 1024));
    }
    stream(&world, 24..=40);
    let intake = intake(&world, 512);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    while outcomes(&world).len() < 40 {
        let before = outcomes(&world).len();
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
        let large = |number: &u64| (21..=23).contains(number);
        let processed = numbers(&world)[before..].to_vec();
        assert!(processed.len() == 1 || !processed.iter().any(large), "{processed:?}");
        assert!(!processed.iter().any(large) || work.queue.is_empty());
        assert!(work.queue.iter().filter(|entry| large(&entry.decoded.id.millis)).count() <= 1);
    }
    assert_eq!(numbers(&world), Vec::from_iter(1..=40));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_too_large_to_be_read_is_malformed_by_its_size_alone() {
    let world = world();
    stream(&world, [1]);
    world.intents.put(large(2, 65 * 1024 * 1024));
    stream(&world, [3]);
    run_until(&world, 9, |world, _| world.durable() == Some(id(3))).await;
    assert_eq!(numbers(&world), [1, 2, 3]);
    let rows = world.database.malformed();
    let codes: Vec<&str> = rows.iter().map(|row| row.rejection.code.as_str()).collect();
    assert_eq!((codes, world.script.count("look_at_large")), (vec!["entry_too_large"], 1));
    assert!(rows[0].raw_fields.json_length() < 100 * 1024, "no more than the head is kept");
}

// INV-12
#[tokio::test(start_paused = true)]
async fn reading_ahead_ends_before_an_entry_that_is_too_large_to_be_read() {
    let world = world();
    stream(&world, [1]);
    world.intents.put(large(2, 65 * 1024 * 1024));
    let intake = intake(&world, 9);
    let mut work = begin(&intake).await;
    assert!(matches!(work.step(&CancellationToken::new()).await, Ok(Pass::Continue)));
    assert_eq!((world.durable(), world.script.count("look_at_large")), (Some(id(1)), 0));
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_large_entry_that_failed_is_repeated_after_half_a_minute() {
    let world = world();
    world.intents.put(large(1, 65 * 1024 * 1024));
    for _ in 0..2 {
        world.script.fail("look_at_large", down("look_at_large"));
    }
    let started = Instant::now();
    let intake = intake(&world, 9);
    let stop = CancellationToken::new();
    let running = tokio::spawn(intake.run(stop.clone()));
    world.script.until(Duration::from_secs(120), || world.durable() == Some(id(1))).await;
    assert!(started.elapsed() >= Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(world.script.count("look_at_large"), 3);
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn what_was_processed_is_trimmed_when_it_is_old_and_nothing_else() {
    const HOUR: u64 = 3_600_000;
    let oldest = u64::try_from(now().as_millis()).expect("positive") - 24 * HOUR;
    let world = world();
    stream(&world, [5, oldest - HOUR, oldest + HOUR, oldest + 2 * HOUR]);
    // The last entry is not processed for now.
    lock_row(&world, oldest + 2 * HOUR);
    let mut intake = intake(&world, 1);
    intake.settings.stream_retention = Some(Duration::from_millis(24 * HOUR));
    run_intake_until(intake, &world, |world, _| world.script.count("trim") > 3).await;
    let left: Vec<u64> = world.intents.ids().iter().map(|id| id.millis).collect();
    assert_eq!(left, [oldest + HOUR, oldest + 2 * HOUR]);
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_old_but_not_processed_and_the_last_processed_one_are_not_trimmed() {
    let world = world();
    stream(&world, 1..=4);
    lock_row(&world, 3);
    let mut intake = intake(&world, 1);
    intake.settings.stream_retention = Some(Duration::from_secs(1));
    run_intake_until(intake, &world, |world, _| world.script.count("trim") > 2).await;
    let left: Vec<u64> = world.intents.ids().iter().map(|id| id.millis).collect();
    assert_eq!(left, [2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn entries_that_redis_cannot_copy_in_time_are_malformed_by_their_size_alone() {
    let world = world();
    for number in 1..=2 {
        world.intents.put(large(number, 65 * 1024 * 1024));
    }
    world.script.on("read", |_| Effect::Fail(down("read")));
    let started = Instant::now();
    run_until(&world, 9, |world, _| world.durable() == Some(id(2))).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let rows = world.database.malformed();
    let codes: Vec<&str> = rows.iter().map(|row| row.rejection.code.as_str()).collect();
    assert_eq!(codes, ["entry_too_large"; 2]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_can_be_read_waits_for_its_read_and_is_looked_at_twice_a_minute() {
    let world = world();
    stream(&world, [1]);
    world.script.on("read", |_| Effect::Fail(down("read")));
    let intake = intake(&world, 9);
    let stop = CancellationToken::new();
    let running = tokio::spawn(intake.run(stop.clone()));
    let started = Instant::now();
    world.script.until(Duration::from_secs(120), || started.elapsed() > Duration::from_secs(50)).await;
    assert_eq!((world.durable(), world.script.count("look_at_large")), (None, 2));
    world.script.off("read");
    world.script.until(Duration::from_secs(120), || world.durable() == Some(id(1))).await;
    assert_eq!((numbers(&world), world.database.malformed().len()), (vec![1], 0));
    stop.cancel();
    running.await.expect("it does not panic");
}
