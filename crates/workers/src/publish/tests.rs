//! What a publisher does when leases, streams and completions do not go its way.

use std::sync::Arc;

use ambient::{FixedJitter, ManualClock, SeededTokens};
use opentelemetry::global::meter;
use tokio::time::timeout;

use domain::route::LiveRoute;

use super::*;
use crate::dispatch::{Dispatcher, Receiver, dispatch};
use crate::fakes::{World, down, route};

const BOUND: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct SharedClock(Arc<ManualClock>);

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

struct Fixture {
    world: World,
    clock: SharedClock,
}

impl Fixture {
    fn new() -> Self {
        Self {
            world: World::default(),
            clock: SharedClock(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH))),
        }
    }

    fn publisher(
        &self,
    ) -> (RoutePublisher<World, World, World, SharedClock, FixedJitter, SeededTokens>, Receiver, Dispatcher)
    {
        let (dispatcher, [receiver]) = dispatch([Channel::Push]);
        let publisher = RoutePublisher {
            channel: Channel::Push,
            routes: self.world.clone(),
            leases: self.world.clone(),
            outbound: self.world.clone(),
            clock: self.clock.clone(),
            jitter: FixedJitter(0.0),
            tokens: SeededTokens::new(1),
            settings: PublishSettings {
                batch_size: 8,
                poll_interval: Duration::from_millis(100),
                lease_ttl: Duration::from_secs(5),
                dedupe_ttl: Duration::from_secs(120),
                backoff: Backoff { min: Duration::from_secs(1), max: Duration::from_secs(9) },
            },
            metrics: Metrics::new(&meter("test")),
            health: Health::new("push"),
        };
        (publisher, receiver, dispatcher)
    }

    /// Waits until `done`, with a bound.
    async fn until(&self, done: impl Fn(&World) -> bool) {
        self.world.until(BOUND, || done(&self.world)).await;
    }

    /// Runs the publisher for `time`.
    async fn run_for(&self, time: Duration) {
        let (publisher, receiver, _dispatcher) = self.publisher();
        let stop = CancellationToken::new();
        let running = tokio::spawn(publisher.run(receiver, stop.clone()));
        tokio::time::sleep(time).await;
        stop.cancel();
        timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    }

    /// Runs the publisher until `done`, with a bound.
    async fn run_until(&self, done: impl Fn(&World) -> bool) {
        let (publisher, receiver, _dispatcher) = self.publisher();
        let stop = CancellationToken::new();
        let running = tokio::spawn(publisher.run(receiver, stop.clone()));
        self.until(done).await;
        stop.cancel();
        timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    }
}

// INV-04
#[tokio::test(start_paused = true)]
async fn due_routes_are_appended_once_and_completed() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend((1..=20).map(|n| route(n, 0)));
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!((inner.appended.len(), inner.published.len(), inner.failed.len()), (20, 20, 0));
}

#[tokio::test(start_paused = true)]
async fn due_routes_that_take_too_long_to_list_together_are_listed_in_smaller_pages() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend((1..=20).map(|n| route(n, 0)));
    fixture.world.lock().reads_at_most = Some(3);
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    assert_eq!(fixture.world.lock().appended.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn routes_whose_leases_ran_out_are_read_again_in_parts_if_all_at_once_take_too_long() {
    let fixture = Fixture::new();
    let routes: Vec<LiveRoute> = (1..=8).map(|n| route(n, 0)).collect();
    {
        let mut inner = fixture.world.lock();
        inner.live.clone_from(&routes);
        (inner.late_appends, inner.reads_at_most) = (8, Some(3));
        // Only what was dispatched is published.
        inner.scan_lock = Some("another replica".into());
    }
    let (publisher, receiver, dispatcher) = fixture.publisher();
    dispatcher.give(Channel::Push, Batch { routes, read_at: Instant::now() });
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().live.is_empty()).await;
    stop.cancel();
    running.await.expect("it does not panic");
    assert_eq!(fixture.world.lock().appended.len(), 8);
}

// INV-04
#[tokio::test(start_paused = true)]
async fn an_outage_of_any_store_costs_no_attempt_and_appends_nothing_twice() {
    for call in [
        "next_due",
        "acquire_scan_lock",
        "list_due_routes",
        "acquire_leases",
        "append",
        "complete_routes_published",
        "release_scan_lock",
    ] {
        let fixture = Fixture::new();
        fixture.world.lock().live.push(route(1, 0));
        fixture.world.fail(call, down(call));
        fixture.world.fail(call, down(call));
        fixture.run_until(|world| world.lock().live.is_empty()).await;
        let inner = fixture.world.lock();
        assert_eq!((inner.appended.len(), inner.failed.len()), (1, 0), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_is_out_of_memory_is_waited_for_and_costs_no_attempt() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().out_of_memory = 3;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!((inner.appended.len(), inner.failed.len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_refuses_costs_an_attempt_and_the_lease_is_given_back() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 0));
    fixture.world.lock().refuses_appends = true;
    fixture.run_until(|world| world.lock().calls.contains(&"release_leases")).await;
    let inner = fixture.world.lock();
    assert_eq!(inner.failed.len(), 1);
    assert_eq!(inner.failed[0].attempt_count, 1);
    assert_eq!(inner.failed[0].retry_at, Some(Timestamp::UNIX_EPOCH + Duration::from_secs(1)));
    assert_eq!(inner.failed[0].classification, "gateway_stream_publish_failed");
    assert!(inner.leases.is_empty());
}

// INV-05
#[tokio::test(start_paused = true)]
async fn the_last_attempt_of_the_budget_makes_a_dead_letter() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 2));
    fixture.world.lock().refuses_appends = true;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let failed = fixture.world.lock().failed.clone();
    assert_eq!((failed[0].attempt_count, failed[0].retry_at), (3, None));
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_route_that_cannot_be_encoded_fails_alone() {
    let fixture = Fixture::new();
    let mut broken = route(1, 0);
    broken.recipient_ref = "nobody".into();
    fixture.world.lock().live.extend([broken, route(2, 0)]);
    fixture.run_until(|world| !world.lock().failed.is_empty() && !world.lock().published.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!(inner.failed[0].classification, "payload_encoding_failed");
    assert_eq!(inner.published[0].0, route(2, 0).key);
}

// INV-04
#[tokio::test(start_paused = true)]
async fn a_receipt_where_a_lease_was_wanted_completes_without_appending() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 0));
    fixture.world.lock().leases.insert(route(1, 0).key, "published:77-0".into());
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!(inner.appended.len(), 0);
    assert_eq!(inner.published[0].1, "77-0");
}

// INV-09, INV-10
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_refused_delays_no_other_and_its_receipt_is_kept_alive() {
    let fixture = Fixture::new();
    let routes: Vec<_> = (1..=8).map(|n| route(n, 0)).collect();
    fixture.world.lock().live = routes.clone();
    fixture.world.lock().refuses_completion = vec![routes[0].key.clone(), routes[4].key.clone()];
    fixture.run_until(|world| world.lock().live.len() == 2).await;
    // Long after the receipts would have ended.
    fixture.run_for(fixture.publisher().0.settings.dedupe_ttl * 3).await;
    {
        let inner = fixture.world.lock();
        assert_eq!(inner.live, [routes[0].clone(), routes[4].clone()]);
        assert_eq!(inner.appended.len(), 8, "none is appended again");
        assert!(inner.calls.iter().filter(|call| **call == "extend_receipts").count() >= 8);
    }
    fixture.world.lock().refuses_completion.clear();
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    assert_eq!(fixture.world.lock().appended.len(), 8);
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_failed_attempt_that_cannot_be_written_down_does_not_stop_its_channel() {
    let fixture = Fixture::new();
    let mut broken = route(1, 0);
    broken.recipient_ref = "nobody".into();
    fixture.world.lock().live.extend([broken.clone(), route(2, 0)]);
    fixture.world.lock().refuses_completion = vec![broken.key.clone()];
    fixture.run_until(|world| world.lock().live.len() == 1).await;
    fixture.world.lock().live.push(route(3, 0));
    fixture.run_until(|world| world.lock().live.len() == 1).await;
    fixture.world.lock().refuses_completion.clear();
    fixture.run_until(|world| world.lock().failed.len() == 1).await;
}

// INV-10
#[tokio::test(start_paused = true)]
async fn a_locked_row_waits_alone_and_is_completed_when_the_lock_is_gone() {
    let fixture = Fixture::new();
    let routes: Vec<_> = (1..=8).map(|n| route(n, 0)).collect();
    fixture.world.lock().live = routes.clone();
    fixture.world.lock().locked = vec![routes[3].key.clone()];
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let (health, stop) = (publisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().live.len() == 1).await;
    fixture.until(|_| health.status().deferred == 1).await;
    fixture.world.lock().live.extend((9..=16).map(|n| route(n, 0)));
    fixture.until(|world| world.lock().live.len() == 1).await;
    fixture.world.lock().locked.clear();
    fixture.until(|world| world.lock().live.is_empty()).await;
    fixture.until(|_| health.status().deferred == 0).await;
    assert_eq!(fixture.world.lock().appended.len(), 16);
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn completions_that_take_too_long_are_made_smaller_and_grow_again() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend((1..=32).map(|n| route(n, 0)));
    fixture.world.lock().completes_at_most = Some(3);
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().live.is_empty()).await;
    fixture.world.lock().completes_at_most = None;
    fixture.world.lock().live.extend((33..=96).map(|n| route(n, 0)));
    fixture.until(|world| world.lock().live.is_empty()).await;
    stop.cancel();
    running.await.expect("it does not panic");
    let inner = fixture.world.lock();
    assert_eq!(inner.completions[..3], [8, 4, 2], "halved until it fits");
    assert_eq!(inner.completions.last(), Some(&8), "and full batches again when they are quick");
    assert_eq!((inner.appended.len(), inner.failed.len()), (96, 0));
}

/// A page at the front whose leases a dead replica holds, before a backlog that takes long: the routes are taken up when
/// their leases end and not when the backlog is gone.
// INV-11
#[tokio::test(start_paused = true)]
async fn the_routes_of_a_dead_replica_do_not_wait_for_the_end_of_a_backlog() {
    let fixture = Fixture::new();
    let held: Vec<_> = (1_001..=1_008).map(|n| route(n, 0).key).collect();
    {
        let mut inner = fixture.world.lock();
        inner.live.extend((1_001..=5_000).map(|n| route(n, 0)));
        inner.leases.extend(held.iter().map(|key| (key.clone(), "a dead replica".to_owned())));
        inner.append_takes = Duration::from_millis(50);
    }
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().appended.len() >= 400).await;
    fixture.world.lock().leases.retain(|_, value| value != "a dead replica");
    let ended = Instant::now();
    fixture.until(|world| held.iter().all(|key| world.lock().appended.contains(key))).await;
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
    assert!(fixture.world.lock().live.len() > 1_000, "the backlog is still there");
    stop.cancel();
    running.await.expect("it does not panic");
}

/// What a dead replica had accepted and not published yet becomes due behind a backlog of older routes.
// INV-11
#[tokio::test(start_paused = true)]
async fn what_has_just_become_due_does_not_wait_for_the_end_of_a_backlog() {
    let fixture = Fixture::new();
    {
        let mut inner = fixture.world.lock();
        inner.live.extend((1..=4_000).map(|n| route(n, 0)));
        inner.append_takes = Duration::from_millis(50);
    }
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().appended.len() >= 400).await;
    fixture.clock.0.advance(Duration::from_secs(5));
    let late = LiveRoute { next_attempt_at: fixture.clock.now(), ..route(9_999, 0) };
    fixture.world.lock().live.push(late.clone());
    let due = Instant::now();
    fixture.until(|world| world.lock().appended.contains(&late.key)).await;
    assert!(due.elapsed() < Duration::from_secs(1), "{:?}", due.elapsed());
    assert!(fixture.world.lock().live.len() > 1_000, "the backlog is still there");
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn leases_that_ran_out_in_an_outage_are_won_again_at_once() {
    let fixture = Fixture::new();
    // Not due for others before its head start is over.
    let fresh =
        LiveRoute { next_attempt_at: Timestamp::UNIX_EPOCH + Duration::from_secs(3_600), ..route(1, 0) };
    fixture.world.lock().live.push(fresh.clone());
    fixture.world.lock().late_appends = 2;
    let (publisher, receiver, dispatcher) = fixture.publisher();
    dispatcher.give(Channel::Push, Batch { routes: vec![fresh], read_at: Instant::now() });
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    let started = Instant::now();
    fixture.until(|world| world.lock().live.is_empty()).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn each_row_that_cannot_be_read_is_listed_no_more_often_than_an_idle_scan_looks() {
    let fixture = Fixture::new();
    fixture.world.lock().unreadable = (1..=3).map(|n| route(n, 0).key).collect();
    fixture.world.lock().live.push(LiveRoute { channel: Channel::Email, ..route(9, 0) });
    fixture.world.lock().first_due = Some(Timestamp::MIN);
    fixture.run_for(Duration::from_secs(60)).await;
    let listed = fixture.world.lock().calls.iter().filter(|call| **call == "list_due_routes").count();
    assert!((12..=14).contains(&listed), "{listed} listings in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_route_that_another_replica_holds_is_left_to_it_and_published_after_its_lease_ends() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().leases.insert(route(1, 0).key, "another replica".into());
    fixture.run_until(|world| world.lock().live.len() == 1).await;
    assert_eq!(fixture.world.lock().appended, [route(2, 0).key]);
    fixture.world.lock().leases.clear();
    fixture.run_until(|world| world.lock().live.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn due_routes_are_left_to_the_replica_that_holds_the_scan_lock() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().scan_lock = Some("another replica".into());
    let asked = |world: &World, call: &str| world.lock().calls.iter().filter(|made| **made == call).count();
    fixture.run_until(|world| asked(world, "acquire_scan_lock") >= 2).await;
    assert_eq!((asked(&fixture.world, "list_due_routes"), asked(&fixture.world, "acquire_leases")), (0, 0));

    fixture.world.lock().scan_lock = None;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    assert_eq!(fixture.world.lock().scan_lock, None, "the scan lock is released with the page");
}

#[tokio::test(start_paused = true)]
async fn what_was_just_accepted_does_not_wait_for_the_scan_lock() {
    let fixture = Fixture::new();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    fixture.world.lock().scan_lock = Some("another replica".into());
    fixture.world.lock().live.push(route(1, 0));
    dispatcher.give(Channel::Push, Batch { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_before_the_append_is_shown_as_lost_to_others_and_won_again() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 0));
    fixture.world.lock().late_appends = 1;
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let health = publisher.health.clone();
    dispatcher.give(Channel::Push, Batch { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended, [route(1, 0).key]);
    assert_eq!(health.status().leases, (2, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_dispatched_before_the_stop_is_published() {
    let fixture = Fixture::new();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let mut later = route(1, 0);
    later.next_attempt_at = Timestamp::UNIX_EPOCH + Duration::from_secs(5);
    fixture.world.lock().live.push(later.clone());
    dispatcher.give(Channel::Push, Batch { routes: vec![later], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_breaks_off_what_takes_too_long() {
    let fixture = Fixture::new();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    fixture.world.lock().hanging.push("acquire_leases");
    dispatcher.give(Channel::Push, Batch { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(DRAIN_TIMEOUT * 2, publisher.run(receiver, stop)).await.expect("it stops");
    assert!(fixture.world.lock().calls.contains(&"acquire_leases"));
}

#[tokio::test(start_paused = true)]
async fn a_route_that_waited_longer_than_receipts_live_is_read_again_before_it_is_appended() {
    let fixture = Fixture::new();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    // It is no longer live: another replica published it, and the receipt has expired.
    dispatcher.give(Channel::Push, Batch { routes: vec![route(1, 0)], read_at: Instant::now() });
    tokio::time::advance(publisher.settings.dedupe_ttl).await;
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    let inner = fixture.world.lock();
    assert!(inner.calls.contains(&"get_live_routes"));
    assert_eq!(inner.appended.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_goes_out_in_few_full_chunks_and_two_together() {
    let (dispatcher, [receiver]) = dispatch([Channel::Push]);
    let mut batches = receiver.batches;
    let batch = |numbers: std::ops::Range<u64>| Batch {
        routes: numbers.map(|number| route(number, 0)).collect(),
        read_at: Instant::now(),
    };
    for first in (0..10 * 256).step_by(256) {
        dispatcher.give(Channel::Push, batch(first..first + 256));
    }
    let mut lengths = |batch_size: usize| -> Vec<usize> {
        let first = batches.try_recv().expect("there is more");
        merge(first, &mut batches, batch_size).iter().map(|batch| batch.routes.len()).collect()
    };
    assert_eq!(lengths(512), [512, 512]);
    assert_eq!(lengths(100), [256, 256], "a batch is no smaller than it came");
    assert_eq!(lengths(4_096), [1_024], "nothing is waited for");
}

#[tokio::test(start_paused = true)]
async fn what_was_just_accepted_goes_before_a_backlog_but_not_for_ever() {
    const CHUNK: u64 = 8;
    const BACKLOG: u64 = 20 * CHUNK;
    const FRESH: u64 = 10 * CHUNK;
    let fixture = Fixture::new();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let fresh: Vec<_> = (BACKLOG + 1..=BACKLOG + FRESH)
        .map(|number| LiveRoute {
            next_attempt_at: Timestamp::UNIX_EPOCH + Duration::from_secs(5),
            ..route(number, 0)
        })
        .collect();
    fixture.world.lock().live.extend((1..=BACKLOG).map(|number| route(number, 0)).chain(fresh.clone()));
    for routes in fresh.chunks(CHUNK as usize) {
        dispatcher.give(Channel::Push, Batch { routes: routes.to_vec(), read_at: Instant::now() });
    }
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.lock().live.is_empty()).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");

    let appended = fixture.world.lock().appended.clone();
    assert_eq!(appended.len() as u64, BACKLOG + FRESH);
    let last_fresh = appended.iter().rposition(|key| fresh.iter().any(|route| route.key == *key));
    let overdue_before_it = last_fresh.expect("it is there") as u64 + 1 - FRESH;
    assert_eq!(overdue_before_it, CHUNK, "one page after the first {DISPATCHED_CHUNKS_PER_PAGE} chunks");
}
