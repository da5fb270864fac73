//! What a publisher does when leases, streams and completions do not go its way.

use std::sync::Arc;

use ambient::{FixedJitter, ManualClock, SeededTokens};
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::fakes::{World, down, route};
use crate::handover::{Handover, handover};

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
    ) -> (RoutePublisher<World, World, World, SharedClock, FixedJitter, SeededTokens>, Inbox, Handover) {
        let (handover, [inbox]) = handover([Channel::Push]);
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
                poll_interval: Duration::from_millis(1),
                lease_ttl: Duration::from_secs(5),
                dedupe_ttl: Duration::from_secs(120),
                backoff: Backoff { min: Duration::from_secs(1), max: Duration::from_secs(9) },
            },
            metrics: Metrics::new(&meter("test")),
            status: Status::default(),
        };
        (publisher, inbox, handover)
    }

    /// Runs the publisher until `done`, with a bound.
    async fn run_until(&self, done: impl Fn(&World) -> bool) {
        let (publisher, inbox, _handover) = self.publisher();
        let stop = CancellationToken::new();
        let running = tokio::spawn(publisher.run(inbox, stop.clone()));
        let waited = timeout(BOUND, async {
            while !done(&self.world) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        waited.await.expect("the publisher gets there");
        stop.cancel();
        timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
    }
}

#[tokio::test]
async fn due_routes_are_appended_once_and_completed() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend((1..=20).map(|n| route(n, 0)));
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!((inner.appended.len(), inner.published.len(), inner.failed.len()), (20, 20, 0));
}

#[tokio::test]
async fn an_outage_of_any_store_costs_no_attempt_and_appends_nothing_twice() {
    for call in [
        "next_due",
        "take_turn",
        "list_due_routes",
        "acquire_leases",
        "append",
        "complete_routes_published",
        "end_turn",
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

#[tokio::test]
async fn a_redis_that_is_out_of_memory_is_waited_for_and_costs_no_attempt() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().out_of_memory = 3;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!((inner.appended.len(), inner.failed.len()), (2, 0));
}

#[tokio::test]
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

#[tokio::test]
async fn the_last_attempt_of_the_budget_makes_a_dead_letter() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 2));
    fixture.world.lock().refuses_appends = true;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let failed = fixture.world.lock().failed.clone();
    assert_eq!((failed[0].attempt_count, failed[0].retry_at), (3, None));
}

#[tokio::test]
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

#[tokio::test]
async fn a_receipt_where_a_lease_was_wanted_completes_without_appending() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 0));
    fixture.world.lock().leases.insert(route(1, 0).key, "published:77-0".into());
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    let inner = fixture.world.lock();
    assert_eq!(inner.appended.len(), 0);
    assert_eq!(inner.published[0].1, "77-0");
}

#[tokio::test]
async fn a_completion_that_is_refused_harms_no_other_and_is_reported_once() {
    let fixture = Fixture::new();
    let (publisher, inbox, _handover) = fixture.publisher();
    let desk = Desk::new(Channel::Push, inbox.stalled.clone(), CancellationToken::new());
    let routes: Vec<_> = (1..=8).map(|n| route(n, 0)).collect();
    fixture.world.lock().live = routes.clone();
    fixture.world.lock().refuses_completion = vec![routes[0].key.clone(), routes[4].key.clone()];
    for _ in 0..2 {
        let parcel = Parcel { routes: routes.clone(), read_at: Instant::now() };
        let published = publisher.publish(parcel, &desk);
        assert!(timeout(BOUND, published).await.expect("it comes to an end").is_ok());
    }
    let inner = fixture.world.lock();
    assert_eq!(inner.live, [routes[0].clone(), routes[4].clone()]);
    assert_eq!(inner.appended.len(), 8, "their receipts stand");
    assert_eq!(desk.scan().reported.len(), 2);
}

#[tokio::test]
async fn a_route_that_somebody_else_holds_is_left_to_them_and_taken_when_they_are_gone() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().leases.insert(route(1, 0).key, "another replica".into());
    fixture.run_until(|world| world.lock().live.len() == 1).await;
    assert_eq!(fixture.world.lock().appended, [route(2, 0).key]);
    fixture.world.lock().leases.clear();
    fixture.run_until(|world| world.lock().live.is_empty()).await;
}

#[tokio::test]
async fn due_routes_are_left_to_the_replica_whose_turn_it_is() {
    let fixture = Fixture::new();
    fixture.world.lock().live.extend([route(1, 0), route(2, 0)]);
    fixture.world.lock().turn = Some("another replica".into());
    let asked = |world: &World, call: &str| world.lock().calls.iter().filter(|made| **made == call).count();
    fixture.run_until(|world| asked(world, "take_turn") >= 2).await;
    assert_eq!((asked(&fixture.world, "list_due_routes"), asked(&fixture.world, "acquire_leases")), (0, 0));

    fixture.world.lock().turn = None;
    fixture.run_until(|world| world.lock().live.is_empty()).await;
    assert_eq!(fixture.world.lock().turn, None, "the turn is ended with the page");
}

#[tokio::test]
async fn what_was_just_accepted_waits_for_nobodys_turn() {
    let fixture = Fixture::new();
    let (publisher, inbox, handover) = fixture.publisher();
    fixture.world.lock().turn = Some("another replica".into());
    fixture.world.lock().live.push(route(1, 0));
    handover.give(Channel::Push, Parcel { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(inbox, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended.len(), 1);
}

#[tokio::test]
async fn a_lease_that_runs_out_before_the_append_is_shown_as_lost_to_others_and_won_again() {
    let fixture = Fixture::new();
    fixture.world.lock().live.push(route(1, 0));
    fixture.world.lock().late_appends = 1;
    let (publisher, inbox, handover) = fixture.publisher();
    let status = publisher.status.clone();
    handover.give(Channel::Push, Parcel { routes: vec![route(1, 0)], read_at: Instant::now() });
    handover.give(Channel::Push, Parcel { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(inbox, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended, [route(1, 0).key]);
    assert_eq!(status.get().leases, (2, 1));
}

#[tokio::test]
async fn what_was_handed_over_before_the_stop_is_published() {
    let fixture = Fixture::new();
    let (publisher, inbox, handover) = fixture.publisher();
    let mut later = route(1, 0);
    later.next_attempt_at = Timestamp::UNIX_EPOCH + Duration::from_secs(5);
    fixture.world.lock().live.push(later.clone());
    handover.give(Channel::Push, Parcel { routes: vec![later], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(inbox, stop)).await.expect("it stops");
    assert_eq!(fixture.world.lock().appended.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_breaks_off_what_takes_too_long() {
    let fixture = Fixture::new();
    let (publisher, inbox, handover) = fixture.publisher();
    fixture.world.lock().hanging.push("acquire_leases");
    handover.give(Channel::Push, Parcel { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(DRAIN * 2, publisher.run(inbox, stop)).await.expect("it stops");
    assert!(fixture.world.lock().calls.contains(&"acquire_leases"));
}

#[tokio::test]
async fn a_route_that_waited_longer_than_receipts_live_is_read_again_before_it_is_appended() {
    let fixture = Fixture::new();
    let (mut publisher, inbox, handover) = fixture.publisher();
    publisher.settings.dedupe_ttl = Duration::ZERO;
    // It is no longer live: somebody published it, and the receipt has run out.
    handover.give(Channel::Push, Parcel { routes: vec![route(1, 0)], read_at: Instant::now() });
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(inbox, stop)).await.expect("it stops");
    let inner = fixture.world.lock();
    assert!(inner.calls.contains(&"get_live_routes"));
    assert_eq!(inner.appended.len(), 0);
}

#[tokio::test]
async fn what_waits_goes_out_in_few_full_chunks_and_two_together() {
    let (handover, [inbox]) = handover([Channel::Push]);
    let mut parcels = inbox.parcels;
    let parcel = |numbers: std::ops::Range<u64>| Parcel {
        routes: numbers.map(|number| route(number, 0)).collect(),
        read_at: Instant::now(),
    };
    for first in (0..10 * 256).step_by(256) {
        handover.give(Channel::Push, parcel(first..first + 256));
    }
    let mut lengths = |batch_size: usize| -> Vec<usize> {
        let first = parcels.try_recv().expect("there is more");
        merge(first, &mut parcels, batch_size).iter().map(|parcel| parcel.routes.len()).collect()
    };
    assert_eq!(lengths(512), [512, 512]);
    assert_eq!(lengths(100), [256, 256], "a parcel is no smaller than it came");
    assert_eq!(lengths(4_096), [1_024], "nothing is waited for");
}

#[tokio::test]
async fn what_was_just_accepted_goes_before_a_backlog_but_not_for_ever() {
    const CHUNK: u64 = 8;
    const BACKLOG: u64 = 20 * CHUNK;
    const FRESH: u64 = 10 * CHUNK;
    let fixture = Fixture::new();
    let (publisher, inbox, handover) = fixture.publisher();
    let fresh: Vec<_> = (BACKLOG + 1..=BACKLOG + FRESH)
        .map(|number| LiveRoute {
            next_attempt_at: Timestamp::UNIX_EPOCH + Duration::from_secs(5),
            ..route(number, 0)
        })
        .collect();
    fixture.world.lock().live.extend((1..=BACKLOG).map(|number| route(number, 0)).chain(fresh.clone()));
    for routes in fresh.chunks(CHUNK as usize) {
        handover.give(Channel::Push, Parcel { routes: routes.to_vec(), read_at: Instant::now() });
    }
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(inbox, stop.clone()));
    let all = async {
        while !fixture.world.lock().live.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(BOUND, all).await.expect("everything is published");
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");

    let appended = fixture.world.lock().appended.clone();
    assert_eq!(appended.len() as u64, BACKLOG + FRESH);
    let last_fresh = appended.iter().rposition(|key| fresh.iter().any(|route| route.key == *key));
    let overdue_before_it = last_fresh.expect("it is there") as u64 + 1 - FRESH;
    assert_eq!(overdue_before_it, CHUNK, "one page after the first {FRESH_FIRST} chunks");
}
