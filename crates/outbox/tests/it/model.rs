//! Drawn histories of producers that commit, roll back and commit late, and of relays that crash, pause and come back, against
//! what must be true of them.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use outbox::{
    Claim, ClaimToken, EventTypes, Failure, FailureKind, Marked, NewEvent, ReapRequest, RetryPolicy, Storage,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uuid::Uuid;

use crate::support::{Db, LEASE, Memory, TICK, World, event, id, request};

const RELAYS: usize = 3;
const KEYS: [&str; 3] = ["", "k", "l"];
const RETRY: RetryPolicy =
    RetryPolicy { max_attempts: 3, base_delay: LEASE, max_delay: Duration::from_secs(180), jitter: 0.0 };

/// What happens next.
#[derive(Clone, Debug)]
enum Op {
    /// A producer's transaction begins, and writes an event that is due after `delay`.
    Begin {
        key: usize,
        delay: Duration,
    },
    /// One of the open transactions ends.
    End {
        which: usize,
        commits: bool,
    },
    Pass {
        time: Duration,
    },
    /// From the beginning, or from where the relay's last claim ended.
    Claim {
        relay: usize,
        limit: u32,
        further: bool,
    },
    /// All relays at once.
    Race {
        limit: u32,
    },
    /// The relay publishes what it holds by one of its claims, and marks it: the event in this place fails.
    Finish {
        relay: usize,
        back: usize,
        fails: Option<(usize, bool)>,
    },
    /// The relay gives a claim back.
    Release {
        relay: usize,
        back: usize,
    },
    /// It forgets everything; what it has claimed stays claimed.
    Crash {
        relay: usize,
    },
    Reap,
}

fn any_op() -> impl Strategy<Value = Op> {
    let relay = 0..RELAYS;
    let times = prop_oneof![Just(TICK), Just(LEASE), Just(LEASE + TICK), Just(LEASE * 4)];
    let delays = prop_oneof![4 => Just(Duration::ZERO), 1 => Just(LEASE), 1 => Just(LEASE * 3)];
    let fails = prop::option::of((0..4_usize, any::<bool>()));
    prop_oneof![
        6 => (0..KEYS.len(), delays).prop_map(|(key, delay)| Op::Begin { key, delay }),
        6 => (0..4_usize, prop::bool::weighted(0.8)).prop_map(|(which, commits)| Op::End { which, commits }),
        4 => times.prop_map(|time| Op::Pass { time }),
        5 => (relay.clone(), 1..6_u32, any::<bool>())
            .prop_map(|(relay, limit, further)| Op::Claim { relay, limit, further }),
        1 => (1..4_u32).prop_map(|limit| Op::Race { limit }),
        5 => (relay.clone(), 0..3_usize, fails).prop_map(|(relay, back, fails)| Op::Finish { relay, back, fails }),
        1 => (relay.clone(), 0..3_usize).prop_map(|(relay, back)| Op::Release { relay, back }),
        1 => relay.prop_map(|relay| Op::Crash { relay }),
        3 => Just(Op::Reap),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Pending,
    Done,
    Dead,
}

/// What is true of a committed event.
#[derive(Clone, Debug)]
struct Entry {
    key: &'static str,
    created_at: Timestamp,
    available_at: Timestamp,
    status: Status,
    holder: Option<(ClaimToken, Timestamp)>,
    attempts: u32,
    reaped: bool,
    published: u32,
}

/// The promises, as plainly as they can be said.
#[derive(Clone, Default)]
struct Model {
    entries: BTreeMap<Uuid, Entry>,
}

impl Model {
    fn is_due(&self, event: &Uuid, now: Timestamp) -> bool {
        let entry = &self.entries[event];
        entry.status == Status::Pending && entry.holder.is_none() && entry.available_at <= now
    }

    /// Whether the event may be claimed next of its key.
    fn is_claimable(&self, event: &Uuid, now: Timestamp) -> bool {
        let entry = &self.entries[event];
        let place = (entry.created_at, *event);
        let of_key =
            || self.entries.iter().filter(|(_, other)| other.key == entry.key && !entry.key.is_empty());
        let blocks = |(id, other): (&Uuid, &Entry)| {
            let goes_before = (other.created_at, *id) < place && other.status == Status::Pending;
            other.holder.is_some() || goes_before && (other.attempts > 0 || other.available_at <= now)
        };
        self.is_due(event, now) && !of_key().any(blocks)
    }

    /// Takes what a claim returned, if it may.
    fn claim(&mut self, token: &ClaimToken, claim: &Claim, now: Timestamp) -> Result<(), String> {
        let mut taken = Vec::new();
        for event in &claim.events {
            let Some(entry) = self.entries.get(&event.event_id) else {
                return Err(format!("{} was never committed", event.event_id));
            };
            if !self.is_claimable(&event.event_id, now) {
                return Err(format!("{} must not be claimed now: {:?}", event.event_id, self.entries));
            }
            if event.attempts != entry.attempts || event.partition_key != entry.key {
                return Err(format!("{event:?} is not {entry:?}"));
            }
            if entry.reaped && claim.events.len() > 1 {
                return Err(format!("{} was reaped and is not alone", event.event_id));
            }
            // Later events of its key may follow in the same claim.
            taken.push(event.event_id);
            self.entries.get_mut(&event.event_id).expect("it is there").status = Status::Done;
        }
        for id in taken {
            let entry = self.entries.get_mut(&id).expect("it is there");
            (entry.status, entry.holder) = (Status::Pending, Some((token.clone(), now)));
        }
        Ok(())
    }

    /// What becomes of marking the event, with `change` if it is still held.
    fn mark(&mut self, token: &ClaimToken, event: Uuid, change: impl FnOnce(&mut Entry)) -> Marked {
        let entry = self.entries.get_mut(&event).expect("it was claimed");
        if entry.holder.as_ref().is_none_or(|(holder, _)| holder != token) {
            return Marked::Lost;
        }
        entry.holder = None;
        change(entry);
        Marked::Applied
    }

    fn reap(&mut self, now: Timestamp) -> u64 {
        let mut reaped = 0;
        for entry in self.entries.values_mut() {
            if entry.holder.as_ref().is_some_and(|(_, at)| *at < now - LEASE) {
                (entry.holder, entry.reaped) = (None, true);
                fail(entry, now, None);
                reaped += 1;
            }
        }
        reaped
    }
}

/// A failed attempt; `kind` is what the policy says unless it is given.
fn fail(entry: &mut Entry, now: Timestamp, kind: Option<FailureKind>) {
    entry.attempts += 1;
    match kind.unwrap_or_else(|| kind_of(entry.attempts)) {
        FailureKind::Dead => entry.status = Status::Dead,
        FailureKind::Retry(delay) => entry.available_at = now + delay,
    }
}

fn kind_of(attempts: u32) -> FailureKind {
    RETRY.delay_after(attempts, 0.0).map_or(FailureKind::Dead, FailureKind::Retry)
}

/// A claim that a relay remembers.
#[derive(Clone)]
struct Held {
    token: ClaimToken,
    claimed_at: Timestamp,
    claim: Claim,
}

struct Run<'a, W> {
    world: &'a W,
    model: Model,
    /// What has been written and not committed: the event, its key, when its transaction began, how long until it is due.
    open: Vec<(u64, &'static str, Timestamp, Duration)>,
    rolled_back: Vec<Uuid>,
    relays: [Vec<Held>; RELAYS],
    written: u64,
}

impl<'a, W: World> Run<'a, W> {
    fn new(world: &'a W) -> Self {
        Self {
            world,
            model: Model::default(),
            open: Vec::new(),
            rolled_back: Vec::new(),
            relays: Default::default(),
            written: 0,
        }
    }

    async fn step(&mut self, op: &Op) {
        let now = self.world.now().await;
        match *op {
            Op::Begin { key, delay } => {
                self.written += 1;
                // An order of ids that is not that of time.
                self.open.push((self.written * 7_919 % 10_007, KEYS[key], now, delay));
            }
            Op::End { which, commits } => self.end(which, commits).await,
            Op::Pass { time } => self.world.pass(time).await,
            Op::Claim { relay, limit, further } => self.claim(relay, limit, further).await,
            Op::Race { limit } => self.race(limit).await,
            Op::Finish { relay, back, fails } => self.finish(relay, back, fails).await,
            Op::Release { relay, back } => {
                if let Some(held) = self.held(relay, back) {
                    let events: Vec<Uuid> = held.claim.events.iter().map(|event| event.event_id).collect();
                    let expected: Vec<Marked> =
                        events.iter().map(|event| self.model.mark(&held.token, *event, |_| {})).collect();
                    assert_eq!(self.world.release(&held.token, &events).await, expected);
                }
            }
            Op::Crash { relay } => self.relays[relay].clear(),
            Op::Reap => self.reap().await,
        }
    }

    async fn reap(&mut self) {
        let expected = self.model.reap(self.world.now().await);
        let request = ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000 };
        let reaped = self.world.storage().reap_expired_leases(&request, &kind_of).await;
        assert_eq!(reaped.expect("no failure"), expected);
    }

    async fn end(&mut self, which: usize, commits: bool) {
        if which >= self.open.len() {
            return;
        }
        let (number, key, created_at, delay) = self.open.remove(which);
        if !commits {
            self.rolled_back.push(id(number));
            return;
        }
        let available_at = created_at + delay;
        let new = NewEvent { available_at: Some(available_at), ..event(number, key) };
        self.world.insert(new, created_at).await;
        let entry = Entry {
            key,
            created_at,
            available_at,
            status: Status::Pending,
            holder: None,
            attempts: 0,
            reaped: false,
            published: 0,
        };
        assert!(self.model.entries.insert(id(number), entry).is_none(), "ids are unique");
    }

    fn held(&self, relay: usize, back: usize) -> Option<Held> {
        self.relays[relay].iter().rev().nth(back).cloned()
    }

    async fn claim(&mut self, relay: usize, limit: u32, further: bool) {
        let mut request = request(limit);
        request.after = self.relays[relay].last().filter(|_| further).and_then(|held| held.claim.next);
        let now = self.world.now().await;
        let claim = self.world.claim_with(&request).await;
        let claimable = self.model.entries.keys().filter(|event| self.model.is_claimable(event, now)).count();
        let all = self.model.entries.len() < limit as usize;
        assert!(
            claimable == 0 || !all || request.after.is_some() || !claim.events.is_empty(),
            "{claimable} wait"
        );
        self.model.claim(&request.token, &claim, now).unwrap_or_else(|broken| panic!("{broken}: {claim:?}"));
        self.relays[relay].push(Held { token: request.token, claimed_at: now, claim });
    }

    async fn race(&mut self, limit: u32) {
        let requests = [request(limit), request(limit), request(limit)];
        let [a, b, c] = &requests;
        let now = self.world.now().await;
        let world = self.world;
        let (a, b, c) = tokio::join!(world.claim_with(a), world.claim_with(b), world.claim_with(c));
        let claims = [a, b, c];
        // In whatever order they took place: each is allowed after those before it.
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let allowed = orders.iter().find_map(|order| {
            let mut model = self.model.clone();
            let each = order.iter().try_for_each(|of| model.claim(&requests[*of].token, &claims[*of], now));
            each.ok().map(|()| model)
        });
        self.model = allowed.unwrap_or_else(|| panic!("no order allows {claims:?}"));
        for (relay, (request, claim)) in requests.into_iter().zip(claims).enumerate() {
            self.relays[relay].push(Held { token: request.token, claimed_at: now, claim });
        }
    }

    /// As a relay does it: in order, not after the deadline, and nothing of a key after one that failed.
    async fn finish(&mut self, relay: usize, back: usize, fails: Option<(usize, bool)>) {
        let Some(held) = self.held(relay, back) else { return };
        let now = self.world.now().await;
        if now > held.claimed_at + LEASE {
            // The publisher refuses, so that there is nothing to mark but what was published before: a zombie tries all the same.
            let events: Vec<Uuid> = held.claim.events.iter().map(|event| event.event_id).collect();
            let expected: Vec<Marked> = events
                .iter()
                .map(|event| self.model.mark(&held.token, *event, |entry| entry.status = Status::Done))
                .collect();
            for (event, marked) in events.iter().zip(&expected) {
                let entry = self.model.entries.get_mut(event).expect("it was claimed");
                entry.published += u32::from(*marked == Marked::Applied);
            }
            assert_eq!(self.world.deliver(&held.token, &events).await, expected);
            return;
        }
        let (mut done, mut failures, mut released) = (Vec::new(), Vec::new(), Vec::new());
        let mut blocked = "";
        for (place, event) in held.claim.events.iter().enumerate() {
            if !blocked.is_empty() && event.partition_key == blocked {
                released.push(event.event_id);
            } else if let Some((_, rejected)) = fails.filter(|(at, _)| *at == place) {
                let attempts = event.attempts + 1;
                let kind = if rejected { FailureKind::Dead } else { kind_of(attempts) };
                failures.push(Failure { event_id: event.event_id, attempts, error: "no".to_owned(), kind });
                blocked = &event.partition_key;
            } else {
                self.model.entries.get_mut(&event.event_id).expect("it was claimed").published += 1;
                done.push(event.event_id);
            }
        }
        let token = &held.token;
        let model = &mut self.model;
        let expected: Vec<Marked> =
            done.iter().map(|event| model.mark(token, *event, |entry| entry.status = Status::Done)).collect();
        assert_eq!(self.world.deliver(token, &done).await, expected);
        let expected: Vec<Marked> = failures
            .iter()
            .map(|failure| model.mark(token, failure.event_id, |entry| fail(entry, now, Some(failure.kind))))
            .collect();
        let marked = self.world.storage().mark_failed_batch(token, &failures).await;
        assert_eq!(marked.expect("no failure"), expected);
        let expected: Vec<Marked> = released.iter().map(|event| model.mark(token, *event, |_| {})).collect();
        assert_eq!(self.world.release(token, &released).await, expected);
    }

    /// All transactions are committed, all relays are killed, and another one empties the outbox.
    async fn all(mut self, ops: &[Op]) {
        for op in ops {
            self.step(op).await;
        }
        while !self.open.is_empty() {
            self.end(0, true).await;
        }
        self.relays = Default::default();
        // Each round may fail no more than one event of each key, and time heals the rest.
        for _ in 0..10 * (self.model.entries.len() + 1) {
            self.world.pass(LEASE * 4).await;
            self.reap().await;
            self.claim(0, 1_000, false).await;
            self.finish(0, 0, None).await;
        }
        for (event, entry) in &self.model.entries {
            let expected = match entry.status {
                Status::Done => "DELIVERED",
                Status::Dead => "DEAD",
                Status::Pending => panic!("{event} was never published: {entry:?}"),
            };
            let stored = self.world.get(*event).await.expect("it was committed");
            assert_eq!((&*stored.status, stored.attempts), (expected, entry.attempts), "{event}");
            assert!(entry.published > 0 || entry.status == Status::Dead, "{event} is lost");
        }
        for event in &self.rolled_back {
            assert_eq!(self.world.get(*event).await, None, "{event} was rolled back");
        }
    }
}

fn check(cases: u32, mut run: impl FnMut(&[Op])) {
    let run = std::cell::RefCell::new(&mut run);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let histories = prop::collection::vec(any_op(), 1..60);
    let outcome = runner.run(&histories, |ops| {
        (run.borrow_mut())(&ops);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn whatever_producers_and_relays_do_the_storage_in_memory_keeps_the_promises() {
    check(3_000, |ops| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async { Run::new(&Memory::new()).all(ops).await });
    });
}

fn on_postgresql(cases: u32, world: impl AsyncFn() -> Db) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    let db = runtime.block_on(world());
    check(cases, |ops| {
        runtime.block_on(async {
            db.execute("TRUNCATE openoutbox_events").await;
            Run::new(&db).all(ops).await;
        });
    });
}

#[test]
fn whatever_producers_and_relays_do_postgresql_keeps_the_promises() {
    on_postgresql(40, Db::new);
}

#[test]
fn whatever_producers_and_relays_do_a_table_without_indexes_keeps_the_promises() {
    on_postgresql(10, Db::without_indexes);
}
