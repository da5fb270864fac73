//! A publisher while leases, streams and completions fail.

mod attempts;
mod completions;
mod confirmations;
mod holds;
mod leases;
mod permits;
mod resends;

use std::sync::Arc;

use ambient::{FixedJitter, SeededTokens};
use domain::ports::{LeaseOutcome, LeaseToken};
use domain::route::{LiveRoute, RouteKey, RouteStatus};
use memory_stores::{Call, Effect, StoredRouteState};
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::dispatch::{Dispatcher, Receiver, dispatch};
use crate::fixtures::{World, WorldPorts, acknowledged, down, locked, refused, route, timed_out};

const BOUND: Duration = Duration::from_secs(20);
const LEASE_TTL: Duration = Duration::from_secs(5);
/// The TTL of leases and locks that another replica holds.
const OTHERS_TTL: Duration = Duration::from_secs(3_600);

type Publisher = RoutePublisher<WorldPorts>;

struct Fixture {
    world: World,
    traces: Traces,
}

impl Default for Fixture {
    fn default() -> Self {
        Self { world: World::new(Timestamp::UNIX_EPOCH), traces: Traces::default() }
    }
}

/// A batch of routes that were just accepted: no other replica sees them as due.
fn fresh(routes: Vec<LiveRoute>) -> RouteBatch {
    let read_at = Instant::now();
    RouteBatch { routes, read_at, due_at: read_at + LEASE_TTL }
}

/// A batch of due routes.
fn due(routes: Vec<LiveRoute>) -> RouteBatch {
    let read_at = Instant::now();
    RouteBatch { routes, read_at, due_at: read_at }
}

/// The token of another replica.
fn another() -> LeaseToken {
    LeaseToken("another replica".to_owned())
}

impl Fixture {
    fn publisher(&self) -> (Publisher, Receiver, Dispatcher) {
        let (dispatcher, [receiver]) = dispatch([Channel::Push]);
        let publisher = RoutePublisher {
            channel: Channel::Push,
            routes: self.world.database.clone(),
            next_due: Arc::default(),
            holds: Arc::default(),
            leases: self.world.publishing.clone(),
            outbound: self.world.publishing.clone(),
            clock: Arc::clone(&self.world.clock),
            jitter: FixedJitter(0.0),
            tokens: SeededTokens::new(1),
            settings: PublishSettings {
                batch_size: 8,
                poll_interval: Duration::from_millis(100),
                lease_ttl: LEASE_TTL,
                dedupe_ttl: Duration::from_secs(120),
                backoff: BackoffBounds { min: Duration::from_secs(1), max: Duration::from_secs(9) },
            },
            metrics: Metrics::new(&meter("test")),
            traces: self.traces.clone(),
            health: Health::new("push"),
        };
        (publisher, receiver, dispatcher)
    }

    /// Inserts these routes.
    fn put(&self, routes: impl IntoIterator<Item = LiveRoute>) {
        for route in routes {
            self.world.database.put_route(route);
        }
    }

    /// Returns the state of the route with this number.
    fn state(&self, number: u64) -> StoredRouteState {
        self.world.database.route(&route(number, 0).key).expect("it was put there")
    }

    /// Makes another replica hold the leases of these routes.
    async fn hold(&self, keys: &[RouteKey]) {
        let keys: Vec<&RouteKey> = keys.iter().collect();
        let won = LeaseStore::acquire_leases(&*self.world.publishing, &keys, &another(), OTHERS_TTL).await;
        assert_eq!(won.expect("it is there"), vec![LeaseOutcome::Won; keys.len()]);
    }

    /// Makes the other replica release them.
    async fn release(&self, keys: &[RouteKey]) {
        let keys: Vec<&RouteKey> = keys.iter().collect();
        LeaseStore::release_leases(&*self.world.publishing, &keys, &another()).await.expect("it is there");
    }

    /// Makes another replica hold the scan lock.
    async fn hold_scan_lock(&self) {
        let (store, token) = (&*self.world.publishing, another());
        let held = LeaseStore::acquire_scan_lock(store, Channel::Push, &token, OTHERS_TTL).await;
        assert!(held.expect("it is there"));
    }

    /// Makes every lease expire just before each of the next `times` appends.
    fn lose_leases_before_appends(&self, times: usize) {
        let (publishing, mut left) = (self.world.publishing.clone(), times);
        self.world.script.on("append", move |_| {
            if left > 0 {
                left -= 1;
                publishing.lose_leases();
            }
            Effect::Pass
        });
    }

    /// Makes statements that read more than `most` routes time out.
    fn time_out_reads_above(&self, most: usize) {
        let rule = move |routes| match routes > most {
            true => Effect::Fail(timed_out("read")),
            false => Effect::Pass,
        };
        let limit = |call: &Call| call.elements[0].parse().expect("a number");
        self.world.script.on("list_due_routes", move |call| rule(limit(call)));
        self.world.script.on("get_live_routes", move |call| rule(call.elements.len()));
    }

    /// Makes the store refuse every statement that completes one of these routes.
    fn refuse_completions<const N: usize>(&self, numbers: [u64; N]) {
        let keys = numbers.map(|number| route(number, 0).key.to_string());
        for operation in ["complete_routes_published", "complete_routes_failed"] {
            let keys = keys.clone();
            self.world.script.on(operation, move |call| {
                match keys.iter().any(|key| call.elements.contains(key)) {
                    true => Effect::Fail(refused(operation)),
                    false => Effect::Pass,
                }
            });
        }
    }

    /// Makes the store accept every completion again.
    fn allow_completions(&self) {
        for operation in ["complete_routes_published", "complete_routes_failed"] {
            self.world.script.off(operation);
        }
    }

    /// Waits until `done`, with a bound.
    async fn until(&self, done: impl Fn(&World) -> bool) {
        self.world.script.until(BOUND, || done(&self.world)).await;
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

/// Routes that a dead replica accepted and did not publish become due after a backlog of older routes.
// INV-11
#[tokio::test(start_paused = true)]
async fn what_has_just_become_due_does_not_wait_for_the_end_of_a_backlog() {
    let fixture = Fixture::default();
    fixture.put((1..=4_000).map(|n| route(n, 0)));
    fixture.world.script.on("append", |_| Effect::Delay(Duration::from_millis(50)));
    let (publisher, receiver, _dispatcher) = fixture.publisher();
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.publishing.entry_count(Channel::Push) >= 400).await;
    fixture.world.clock.advance(Duration::from_secs(5));
    let late = LiveRoute { next_attempt_at: fixture.world.clock.now(), ..route(9_999, 0) };
    fixture.put([late.clone()]);
    let due = Instant::now();
    fixture.until(|world| world.appended().contains(&late.key.to_string())).await;
    assert!(due.elapsed() < Duration::from_secs(1), "{:?}", due.elapsed());
    assert!(fixture.world.database.live_count() > 1_000, "the backlog is still there");
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn each_row_that_cannot_be_read_is_listed_no_more_often_than_an_idle_scan_looks() {
    let fixture = Fixture::default();
    for number in 1..=3 {
        fixture.put([route(number, 0)]);
        fixture.world.database.corrupt_route(&route(number, 0).key);
    }
    fixture.put([LiveRoute { channel: Channel::Email, ..route(9, 0) }]);
    fixture.run_for(Duration::from_secs(60)).await;
    let listed = fixture.world.script.count("list_due_routes");
    assert!((12..=14).contains(&listed), "{listed} listings in a minute");
}

#[tokio::test(start_paused = true)]
async fn idle_publishers_of_a_replica_ask_together_wherever_they_began() {
    let fixture = Fixture::default();
    let next_due = Arc::new(NextDue::default());
    let stop = CancellationToken::new();
    let mut running = Vec::new();
    for _ in 0..3 {
        let (publisher, receiver, dispatcher) = fixture.publisher();
        let publisher = Publisher { next_due: Arc::clone(&next_due), ..publisher };
        let stop = stop.clone();
        running.push(tokio::spawn(async move {
            publisher.run(receiver, stop).await;
            drop(dispatcher);
        }));
        tokio::time::sleep(Duration::from_millis(1_600)).await;
    }
    let before = fixture.world.script.count("next_due");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = fixture.world.script.count("next_due") - before;
    assert!((12..=14).contains(&asked), "{asked} questions of three publishers in a minute");
    stop.cancel();
    for publisher in running {
        publisher.await.expect("it does not panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_failed_is_asked_again_and_no_old_answer_is_used() {
    let fixture = Fixture::default();
    let (next_due, start) = (NextDue::default(), Instant::now());
    let of = async |since| next_due.of(Channel::Push, since, &fixture.world.database).await;
    assert_eq!(of(start).await.expect("is there").at, None);
    fixture.put([route(1, 0)]);
    assert_eq!(of(start).await.expect("is there").at, None, "it was asked before");
    tokio::time::advance(Duration::from_secs(1)).await;
    fixture.world.script.fail("next_due", down("next_due"));
    assert!(of(Instant::now()).await.is_err());
    let due = of(start).await.expect("is there again");
    assert_eq!((due.at, due.asked_at), (Some(Timestamp::UNIX_EPOCH), Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_gets_no_answer_keeps_no_other_publisher() {
    let fixture = Fixture::default();
    let (next_due, start) = (NextDue::default(), Instant::now());
    let mut questions = 0;
    fixture.world.script.on("next_due", move |_| {
        questions += 1;
        if questions == 1 { Effect::Hang } else { Effect::Pass }
    });
    fixture.put([route(1, 0)]);
    let of = async |channel| next_due.of(channel, start, &fixture.world.database).await;
    let hanging = of(Channel::Email);
    let other = async {
        // The first query is in progress.
        fixture.until(|world| world.script.count("next_due") == 1).await;
        of(Channel::Push).await.expect("is there")
    };
    let due = tokio::select! {
        _ = hanging => panic!("the first question gets no answer"),
        due = other => due,
    };
    assert_eq!(due.at, Some(Timestamp::UNIX_EPOCH));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_was_dispatched_before_the_stop_is_published() {
    let fixture = Fixture::default();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let mut later = route(1, 0);
    later.next_attempt_at = Timestamp::UNIX_EPOCH + Duration::from_secs(5);
    fixture.put([later.clone()]);
    dispatcher.give(Channel::Push, fresh(vec![later]));
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_breaks_off_what_takes_too_long() {
    let fixture = Fixture::default();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    fixture.world.script.on("grant_permit", |_| Effect::Hang);
    dispatcher.give(Channel::Push, fresh(vec![route(1, 0)]));
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(DRAIN_TIMEOUT * 2, publisher.run(receiver, stop)).await.expect("it stops");
    assert!(fixture.world.script.count("grant_permit") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_waited_longer_than_markers_live_is_read_again_before_it_is_appended() {
    let fixture = Fixture::default();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    // The route is no longer live: another replica published it, and the marker has expired.
    dispatcher.give(Channel::Push, fresh(vec![route(1, 0)]));
    tokio::time::advance(publisher.settings.dedupe_ttl).await;
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, publisher.run(receiver, stop)).await.expect("it stops");
    let world = &fixture.world;
    assert!(world.script.count("get_live_routes") > 0);
    assert_eq!(world.publishing.entry_count(Channel::Push), 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_goes_out_in_few_full_chunks_and_two_together() {
    let (dispatcher, [receiver]) = dispatch([Channel::Push]);
    let mut batches = receiver.batches;
    let batch = |numbers: std::ops::Range<u64>| fresh(numbers.map(|number| route(number, 0)).collect());
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
    let fixture = Fixture::default();
    let (publisher, receiver, dispatcher) = fixture.publisher();
    let accepted: Vec<_> = (BACKLOG + 1..=BACKLOG + FRESH)
        .map(|number| LiveRoute {
            next_attempt_at: Timestamp::UNIX_EPOCH + Duration::from_secs(5),
            ..route(number, 0)
        })
        .collect();
    fixture.put((1..=BACKLOG).map(|number| route(number, 0)).chain(accepted.clone()));
    for routes in accepted.chunks(CHUNK as usize) {
        dispatcher.give(Channel::Push, fresh(routes.to_vec()));
    }
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(receiver, stop.clone()));
    fixture.until(|world| world.database.live_count() == 0).await;
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");

    let appended = fixture.world.appended();
    assert_eq!(appended.len() as u64, BACKLOG + FRESH);
    let last_fresh =
        appended.iter().rposition(|key| accepted.iter().any(|route| route.key.to_string() == *key));
    let overdue_before_it = last_fresh.expect("it is there") as u64 + 1 - FRESH;
    assert_eq!(overdue_before_it, CHUNK, "one page after the first {DISPATCHED_CHUNKS_PER_PAGE} chunks");
}
