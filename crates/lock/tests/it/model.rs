//! Random histories of many clients that crash, pause and return late, checked against a model.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, ManualClock, Timestamp};
use lock::{Acquisition, Extension, LockId, LockManager, MemoryLocks, Release};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{Db, TTL, TTL_MS};

const CLIENTS: usize = 4;
const KEYS: usize = 2;

/// The next operation of a history. A client without an operation pauses.
#[derive(Clone, Debug)]
enum Op {
    Acquire {
        client: usize,
        key: usize,
    },
    /// A release by any id that the client remembers, including old ones.
    Release {
        client: usize,
        key: usize,
        back: usize,
    },
    Extend {
        client: usize,
        key: usize,
        back: usize,
    },
    /// The client loses its state; its locks remain.
    Crash {
        client: usize,
    },
    Pass {
        millis: i64,
    },
    Purge,
    /// All clients acquire at once.
    Race {
        key: usize,
    },
    /// The last holder extends and releases while another client acquires, all at once.
    Duel {
        key: usize,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    let passes =
        prop_oneof![Just(1), Just(999), Just(1000), Just(TTL_MS - 1), Just(TTL_MS), Just(TTL_MS + 1000)];
    let (client, key, back) = (0..CLIENTS, 0..KEYS, 0..3_usize);
    prop_oneof![
        4 => (client.clone(), key.clone()).prop_map(|(client, key)| Op::Acquire { client, key }),
        2 => (client.clone(), key.clone(), back.clone()).prop_map(|(client, key, back)| Op::Release { client, key, back }),
        2 => (client.clone(), key.clone(), back).prop_map(|(client, key, back)| Op::Extend { client, key, back }),
        1 => client.prop_map(|client| Op::Crash { client }),
        4 => passes.prop_map(|millis| Op::Pass { millis }),
        1 => Just(Op::Purge),
        1 => key.clone().prop_map(|key| Op::Race { key }),
        2 => key.prop_map(|key| Op::Duel { key }),
    ]
}

/// The expected state of one key.
#[derive(Default)]
struct KeyModel {
    held: Option<(LockId, i64)>,
    last_fence: u64,
    released: HashSet<LockId>,
}

impl KeyModel {
    fn is_live(&self, now: i64) -> bool {
        self.held.as_ref().is_some_and(|(_, expires)| *expires > now - 1000)
    }

    fn holds(&self, id: &LockId, now: i64) -> bool {
        self.is_live(now) && self.held.as_ref().is_some_and(|(held, _)| held == id)
    }

    /// Checks a grant: no other client holds the key, and the fence is the next one.
    fn grant(&mut self, acquired: Acquisition, now: i64) -> Option<LockId> {
        let Acquisition::Acquired(grant) = acquired else {
            assert!(self.is_live(now), "no client holds the key, and yet it is locked");
            return None;
        };
        assert!(!self.is_live(now), "a second holder");
        assert_eq!(grant.fence, self.last_fence + 1);
        assert_eq!(grant.expires_at_ms, now + TTL_MS);
        self.last_fence = grant.fence;
        self.held = Some((grant.lock_id.clone(), grant.expires_at_ms));
        Some(grant.lock_id)
    }

    fn extend(&mut self, id: &LockId, extended: Extension, now: i64) {
        let expected = if self.holds(id, now) {
            self.held = Some((id.clone(), now + TTL_MS));
            Extension::Extended { expires_at_ms: now + TTL_MS }
        } else {
            Extension::NotHeld
        };
        assert_eq!(extended, expected);
    }

    fn release(&mut self, id: &LockId, released: Release, now: i64) {
        let expected = if self.holds(id, now) { Release::Released } else { Release::NotHeld };
        assert_eq!(released, expected);
        if released == Release::Released {
            assert!(self.released.insert(id.clone()), "released twice");
            self.held = None;
        }
    }
}

/// The place of the locks.
enum Place {
    Tables(Db),
    Memory(LockManager, Arc<ManualClock>),
}

impl Place {
    fn in_memory() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let clock_of_locks: Arc<dyn Clock> = clock.clone();
        Self::Memory(LockManager::in_memory(MemoryLocks::new(clock_of_locks)), clock)
    }

    fn locks(&self) -> &LockManager {
        match self {
            Self::Tables(db) => &db.locks,
            Self::Memory(locks, _) => locks,
        }
    }

    async fn pass(&self, millis: i64) {
        match self {
            Self::Tables(db) => db.pass(millis).await,
            Self::Memory(_, clock) => clock.advance(Duration::from_millis(millis.unsigned_abs())),
        }
    }

    async fn now(&self) -> i64 {
        match self {
            Self::Tables(db) => db.now().await,
            Self::Memory(_, clock) => clock.now().as_millis(),
        }
    }
}

struct World<'a> {
    place: &'a Place,
    names: [String; KEYS],
    keys: [KeyModel; KEYS],
    memories: [[Vec<LockId>; KEYS]; CLIENTS],
    now: i64,
}

impl World<'_> {
    async fn acquire(&self, key: usize) -> Acquisition {
        self.place.locks().try_acquire(&self.names[key], TTL).await.expect("no failure")
    }

    async fn extend(&self, id: &LockId) -> Extension {
        self.place.locks().extend(id, TTL).await.expect("no failure")
    }

    async fn release(&self, id: &LockId) -> Release {
        self.place.locks().release(id).await.expect("no failure")
    }

    fn remembered(&self, client: usize, key: usize, back: usize) -> Option<LockId> {
        self.memories[client][key].iter().rev().nth(back).cloned()
    }

    async fn step(&mut self, op: &Op) {
        match *op {
            Op::Acquire { client, key } => {
                let acquired = self.acquire(key).await;
                self.memories[client][key].extend(self.keys[key].grant(acquired, self.now));
            }
            Op::Release { client, key, back } => {
                if let Some(id) = self.remembered(client, key, back) {
                    let released = self.release(&id).await;
                    self.keys[key].release(&id, released, self.now);
                }
            }
            Op::Extend { client, key, back } => {
                if let Some(id) = self.remembered(client, key, back) {
                    let extended = self.extend(&id).await;
                    self.keys[key].extend(&id, extended, self.now);
                }
            }
            Op::Crash { client } => self.memories[client] = Default::default(),
            Op::Pass { millis } => {
                self.place.pass(millis).await;
                self.now += millis;
            }
            Op::Purge => {
                self.place.locks().purge_expired().await.expect("purged");
            }
            Op::Race { key } => self.race(key).await,
            Op::Duel { key } => self.duel(key).await,
        }
    }

    async fn race(&mut self, key: usize) {
        let (a, b, c, d) =
            tokio::join!(self.acquire(key), self.acquire(key), self.acquire(key), self.acquire(key));
        // The winner is checked first: for all others the key is then locked.
        let mut outcomes = [a, b, c, d].into_iter().enumerate().collect::<Vec<_>>();
        outcomes.sort_by_key(|(_, outcome)| matches!(outcome, Acquisition::Locked));
        for (client, acquired) in outcomes {
            self.memories[client][key].extend(self.keys[key].grant(acquired, self.now));
        }
    }

    async fn duel(&mut self, key: usize) {
        let Some((id, _)) = self.keys[key].held.clone() else { return };
        let (extended, acquired, released) =
            tokio::join!(self.extend(&id), self.acquire(key), self.release(&id));
        let model = &mut self.keys[key];
        // The three operations may have happened in any order, which the outcomes show.
        if extended != Extension::NotHeld {
            model.extend(&id, extended, self.now);
        }
        if matches!(acquired, Acquisition::Acquired(_)) {
            model.release(&id, released, self.now);
            self.memories[0][key].extend(model.grant(acquired, self.now));
        } else {
            assert!(model.is_live(self.now), "locked before the release, so it was live");
            model.release(&id, released, self.now);
        }
    }

    async fn check(&self) {
        for (name, model) in self.names.iter().zip(&self.keys) {
            let found = self.place.locks().lookup(name).await.expect("looked up");
            assert_eq!(found.is_some(), model.is_live(self.now), "{name}");
            assert!(found.is_none_or(|found| found.fence == model.last_fence));
        }
    }
}

#[test]
fn whatever_clients_do_there_is_one_holder_and_fences_rise() {
    check(60, async || Place::Tables(Db::new().await));
}

#[test]
fn locks_in_memory_follow_the_same_rules() {
    check(500, async || Place::in_memory());
}

/// Runs this many random histories.
fn check(cases: u32, place: impl AsyncFnOnce() -> Place) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let place = runtime.block_on(place());
    let mut case = 0;
    let mut names = || {
        case += 1;
        [format!("{case} a"), format!("{case} b")]
    };
    let names = std::cell::RefCell::new(&mut names);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let histories = prop::collection::vec(any_op(), 1..40);
    let outcome = runner.run(&histories, |ops| {
        let names = (names.borrow_mut())();
        runtime.block_on(async {
            let now = place.now().await;
            let mut world =
                World { place: &place, names, keys: Default::default(), memories: Default::default(), now };
            for op in &ops {
                world.step(op).await;
                world.check().await;
            }
        });
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
