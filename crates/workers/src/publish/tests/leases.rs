//! Leases and the scan lock: those of dead replicas, those of other replicas, and lost ones.

use opentelemetry::KeyValue;

use super::*;
use crate::fixtures::recorded_traces;

/// The leases of a page at the front are held by a dead replica, before a long backlog. The routes are
/// published when their leases end, not when the backlog is gone.
// INV-11
#[tokio::test(start_paused = true)]
async fn the_routes_of_a_dead_replica_do_not_wait_for_the_end_of_a_backlog() {
    let fixture = Fixture::default();
    let held: Vec<_> = (1_001..=1_008).map(|n| route(n, 0).key).collect();
    fixture.put((1_001..=5_000).map(|n| route(n, 0)));
    fixture.hold(&held).await;
    fixture.world.script.on("append", |_| Effect::Delay(Duration::from_millis(50)));
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.publishing.entry_count(Channel::Push) >= 400).await;
    fixture.release(&held).await;
    let ended = Instant::now();
    let is_there = |world: &World| {
        let appended = world.appended();
        held.iter().all(|key| appended.contains(&key.to_string()))
    };
    fixture.until(is_there).await;
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
    assert!(fixture.world.database.live_count() > 1_000, "the backlog is still there");
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn leases_that_ran_out_in_an_outage_are_won_again_at_once() {
    let fixture = Fixture::default();
    // Not due for other replicas before its head start is over.
    let fresh =
        LiveRoute { next_attempt_at: Timestamp::UNIX_EPOCH + Duration::from_secs(3_600), ..route(1, 0) };
    fixture.put([fresh.clone()]);
    fixture.lose_leases_before_appends(2);
    let (publisher, receiver, dispatcher) = fixture.publisher();
    dispatcher.give(Channel::Push, due(vec![fresh]));
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    let started = Instant::now();
    fixture.until(|world| world.database.live_count() == 0).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn a_route_that_another_replica_holds_is_left_to_it_and_published_after_its_lease_ends() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0), route(2, 0)]);
    fixture.hold(&[route(1, 0).key]).await;
    fixture.run_until(|world| world.database.live_count() == 1).await;
    assert_eq!(fixture.world.appended(), [route(2, 0).key.to_string()]);
    fixture.world.clock.advance(OTHERS_TTL);
    fixture.run_until(|world| world.database.live_count() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_span_has_the_routes_that_this_replica_published_and_none_is_made_of_those_that_another_holds() {
    let (traces, exporter) = recorded_traces();
    let fixture = Fixture { traces, ..Fixture::default() };
    fixture.put([route(1, 0)]);
    fixture.hold(&[route(1, 0).key]).await;
    fixture.run_until(|world| world.script.count("acquire_leases") >= 2).await;
    let spans = || exporter.get_finished_spans().expect("they are in memory");
    assert_eq!(spans().len(), 0);

    fixture.put([route(2, 0)]);
    fixture.run_until(|world| world.database.live_count() == 1).await;
    let of_one = KeyValue::new("messaging.batch.message_count", 1);
    assert!(matches!(&spans()[..], [span] if span.attributes.contains(&of_one)), "{:?}", spans());
}

#[tokio::test(start_paused = true)]
async fn due_routes_are_left_to_the_replica_that_holds_the_scan_lock() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0), route(2, 0)]);
    fixture.hold_scan_lock().await;
    let others = fixture.world.script.count("acquire_scan_lock");
    fixture.run_until(|world| world.script.count("acquire_scan_lock") >= others + 2).await;
    for operation in ["list_due_routes", "acquire_leases"] {
        assert_eq!(fixture.world.script.count(operation), 0, "{operation}");
    }

    fixture.world.clock.advance(OTHERS_TTL);
    fixture.run_until(|world| world.database.live_count() == 0).await;
    let free = fixture.world.publishing.acquire_scan_lock(Channel::Push, &another(), OTHERS_TTL).await;
    assert!(free.expect("it is there"), "the scan lock is released with the page");
}

#[tokio::test(start_paused = true)]
async fn what_was_just_accepted_does_not_wait_for_the_scan_lock() {
    let fixture = Fixture::default();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    fixture.hold_scan_lock().await;
    fixture.put([route(1, 0)]);
    dispatcher.give(Channel::Push, due(vec![route(1, 0)]));
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_before_the_append_is_shown_as_lost_to_others_and_won_again() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    fixture.lose_leases_before_appends(1);
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let health = publisher.health.clone();
    dispatcher.give(Channel::Push, due(vec![route(1, 0)]));
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.appended(), [route(1, 0).key.to_string()]);
    assert_eq!(health.status().leases, (2, 1));
}

#[tokio::test(start_paused = true)]
async fn routes_whose_leases_ran_out_are_read_again_in_parts_if_all_at_once_take_too_long() {
    let fixture = Fixture::default();
    let routes: Vec<LiveRoute> = (1..=8).map(|n| route(n, 0)).collect();
    fixture.put(routes.clone());
    fixture.lose_leases_before_appends(1);
    fixture.time_out_reads_above(3);
    // Only dispatched routes are published.
    fixture.hold_scan_lock().await;
    let (publisher, receiver, dispatcher) = fixture.publisher();
    dispatcher.give(Channel::Push, due(routes));
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.database.live_count() == 0).await;
    stop.cancel();
    running.await.expect("it does not panic");
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 8);
    let read = fixture.world.script.calls_of("get_live_routes");
    assert!(read.iter().any(|call| !call.succeeded), "all at once took too long");
}
