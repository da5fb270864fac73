//! Random histories of producers that commit, roll back and commit late, and of relays that crash, pause and
//! return, checked against a model.

mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use outbox::{
    ClaimToken, ClaimedRows, EventTypes, FailedEvent, FailureKind, Marked, NewEvent, ReapRequest,
    RetryPolicy, Storage,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uuid::Uuid;

use self::run::Run;
use crate::support::{Db, LEASE, Memory, TICK, World, event, id, request};

const RELAYS: usize = 3;
const KEYS: [&str; 3] = ["", "k", "l"];
const RETRY: RetryPolicy =
    RetryPolicy { max_attempts: 3, base_delay: LEASE, max_delay: Duration::from_secs(180), jitter: 0.0 };

/// The next operation of a history.
#[derive(Clone, Debug)]
enum Op {
    /// A producer's transaction begins and writes an event that is due after `delay`.
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
    /// A claim, from the beginning or from the end of the relay's last claim.
    Claim {
        relay: usize,
        limit: u32,
        further: bool,
    },
    /// Claims of all relays at once.
    Race {
        limit: u32,
    },
    /// The relay publishes the events of one of its claims and marks them; the event at this place fails.
    Finish {
        relay: usize,
        back: usize,
        fails: Option<(usize, bool)>,
    },
    /// The relay releases a claim.
    Release {
        relay: usize,
        back: usize,
    },
    /// The relay loses its state; its claims remain.
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

/// The expected state of a committed event.
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

/// The promises in their simplest form.
#[derive(Clone, Default)]
struct Model {
    entries: BTreeMap<Uuid, Entry>,
}

impl Model {
    fn is_due(&self, event: &Uuid, now: Timestamp) -> bool {
        let entry = &self.entries[event];
        entry.status == Status::Pending && entry.holder.is_none() && entry.available_at <= now
    }

    /// True if the event may be the next one claimed of its key.
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

    /// Records a claim's result, or returns an error if it breaks a promise.
    fn claim(&mut self, token: &ClaimToken, claim: &ClaimedRows, now: Timestamp) -> Result<(), String> {
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
            if entry.reaped != claim.of_reaped {
                return Err(format!(
                    "{} was reaped: {}, as the others were not",
                    event.event_id, entry.reaped
                ));
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

    /// Returns the expected outcome of marking the event, and applies `change` if it is still held.
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

/// Records a failed attempt. `kind` overrides the policy.
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
