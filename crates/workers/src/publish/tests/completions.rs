//! Completions that are refused, locked or too slow.

use super::*;

// INV-09, INV-10
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_refused_delays_no_other_and_its_marker_is_kept_alive() {
    let fixture = Fixture::default();
    fixture.put((1..=8).map(|n| route(n, 0)));
    fixture.refuse_completions([1, 5]);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (dedupe_ttl, stop) = (publisher.settings.dedupe_ttl, CancellationToken::new());
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.database.live_count() == 2).await;
    // Long after the markers would have expired.
    let step = Duration::from_secs(5);
    for _ in 0..(dedupe_ttl * 3).as_secs() / step.as_secs() {
        tokio::time::sleep(step).await;
        fixture.world.clock.advance(step);
    }
    assert_eq!(
        (fixture.state(1).status, fixture.state(5).status),
        (RouteStatus::Pending, RouteStatus::Pending)
    );
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8, "none is appended again");
    assert!(fixture.world.script.count("extend_markers") >= 8);
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    fixture.allow_completions();
    fixture.run_until(|world| world.database.live_count() == 0).await;
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8);
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_failed_attempt_that_cannot_be_written_down_does_not_stop_its_channel() {
    let fixture = Fixture::default();
    let mut broken = route(1, 0);
    broken.recipient_ref = "nobody".into();
    fixture.put([broken, route(2, 0)]);
    fixture.refuse_completions([1]);
    fixture.run_until(|world| world.database.live_count() == 1).await;
    fixture.put([route(3, 0)]);
    fixture.run_until(|world| world.database.live_count() == 1).await;
    fixture.allow_completions();
    fixture.run_until(|_| fixture.state(1).status == RouteStatus::Failed).await;
}

// INV-10
#[tokio::test(start_paused = true)]
async fn a_locked_row_waits_alone_and_is_completed_when_the_lock_is_gone() {
    let fixture = Fixture::default();
    fixture.put((1..=8).map(|n| route(n, 0)));
    let lock = fixture.world.database.lock_route(&route(4, 0).key);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (health, stop) = (publisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.database.live_count() == 1).await;
    fixture.until(|_| health.status().deferred == 1).await;
    fixture.put((9..=16).map(|n| route(n, 0)));
    fixture.until(|world| world.database.live_count() == 1).await;
    drop(lock);
    fixture.until(|world| world.database.live_count() == 0).await;
    fixture.until(|_| health.status().deferred == 0).await;
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 16);
    stop.cancel();
    running.await.expect("it does not panic");
}

// INV-09
#[tokio::test(start_paused = true)]
async fn rows_whose_completion_takes_too_long_delay_their_channel_by_a_second_each_once() {
    const SLOW: u64 = 12;
    let fixture = Fixture::default();
    let slow: Vec<String> = (1..=SLOW).map(|n| route(n, 0).key.to_string()).collect();
    fixture.world.script.on("complete_routes_published", move |call| {
        match call.elements.iter().any(|key| slow.contains(key)) {
            true => Effect::Hang,
            false => Effect::Pass,
        }
    });
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.put((1..=SLOW).map(|n| route(n, 0)));
    let started = Instant::now();
    for second in 0..60 {
        fixture.put([route(100 + 2 * second, 0), route(101 + 2 * second, 0)]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    fixture.until(|world| world.publishing.entry_count(Channel::Push) == 12 + 120).await;
    let late = started.elapsed().saturating_sub(Duration::from_secs(60));
    assert!(late < Duration::from_secs(3), "the last one is appended {late:?} late");
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

// INV-09
#[tokio::test(start_paused = true)]
async fn rows_whose_completion_waits_for_a_lock_of_their_table_delay_their_channel_by_one_statement() {
    let fixture = Fixture::default();
    fixture.world.script.on("complete_routes_published", |_| Effect::Fail(locked("complete")));
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (health, stop) = (publisher.health.clone(), CancellationToken::new());
    fixture.put((1..=80).map(|n| route(n, 0)));
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|_| health.status().deferred == 80).await;
    let calls = fixture.world.script.calls_of("complete_routes_published");
    assert_eq!(
        calls.iter().map(|call| call.elements.len()).collect::<Vec<_>>(),
        [8; 10],
        "no chunk is divided"
    );
    fixture.allow_completions();
    fixture.until(|world| world.database.live_count() == 0).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_chunk_of_slow_completions_delays_its_channel_by_one_statement_however_small_the_parts_have_become()
{
    let fixture = Fixture::default();
    fixture.world.script.on("complete_routes_published", |_| Effect::Hang);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (health, stop) = (publisher.health.clone(), CancellationToken::new());
    fixture.put((1..=80).map(|n| route(n, 0)));
    let started = Instant::now();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|_| health.status().deferred == 80).await;
    // Ten chunks, the first two of which make the parts single rows.
    assert!(started.elapsed() < Duration::from_secs(16), "{:?}", started.elapsed());
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 80);
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn completions_that_take_too_long_are_made_smaller_and_grow_again() {
    let fixture = Fixture::default();
    fixture.put((1..=32).map(|n| route(n, 0)));
    fixture.world.script.on("complete_routes_published", |call| match call.elements.len() > 3 {
        true => Effect::Fail(timed_out("complete")),
        false => Effect::Pass,
    });
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.database.live_count() == 0).await;
    fixture.world.script.off("complete_routes_published");
    fixture.put((33..=96).map(|n| route(n, 0)));
    fixture.until(|world| world.database.live_count() == 0).await;
    stop.cancel();
    running.await.expect("it does not panic");
    let world = &fixture.world;
    let calls = world.script.calls_of("complete_routes_published");
    let completions: Vec<usize> = calls.iter().map(|call| call.elements.len()).collect();
    assert_eq!(completions[..3], [8, 4, 2], "halved until it fits");
    assert_eq!(completions.last(), Some(&8), "and full batches again when they are quick");
    assert_eq!(world.publishing.entry_count(Channel::Push), 96);
    assert_eq!(world.script.count("complete_routes_failed"), 0);
}
