//! Random histories of many clients that crash, pause and return late, checked against a model.

use std::collections::BTreeMap;
use std::time::Duration;

use idempotency::{Answer, Claim, ClaimId, ClaimRequest, Guarded, LockTtl, RetentionTtl, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{Db, LOCK, Memory, RETENTION, TICK, World, completion, request};

const CLIENTS: usize = 4;
const KEYS: usize = 3;
const FINGERPRINTS: [&str; 2] = ["f", "g"];

/// The next operation of a history. A client without an operation pauses.
#[derive(Clone, Debug)]
enum Op {
    /// Several claims at once, some of which may be equal.
    Claim {
        client: usize,
        wishes: Vec<(usize, usize)>,
    },
    /// A completion of any claim that the client remembers, including old ones.
    Complete {
        client: usize,
        key: usize,
        back: usize,
        retention: Duration,
    },
    Abandon {
        client: usize,
        key: usize,
        back: usize,
    },
    Extend {
        client: usize,
        key: usize,
        back: usize,
        lock: Duration,
    },
    /// Completions of all claims that the client remembers, in one call.
    CompleteAll {
        client: usize,
    },
    /// The client loses its state; its claims remain.
    Crash {
        client: usize,
    },
    Pass {
        time: Duration,
    },
    Sweep,
    /// All clients claim at once.
    Race {
        key: usize,
    },
    /// The holder completes and abandons while another client claims, all at once.
    Duel {
        key: usize,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    let (client, key, back) = (0..CLIENTS, 0..KEYS, 0..3_usize);
    let remembered = (client.clone(), key.clone(), back);
    let wishes = prop::collection::vec((key.clone(), 0..FINGERPRINTS.len()), 1..5);
    let short_or_long = prop_oneof![Just(LOCK), Just(RETENTION)];
    let times = prop_oneof![
        Just(TICK),
        Just(LOCK - TICK),
        Just(LOCK),
        Just(LOCK + TICK),
        Just(RETENTION),
        Just(RETENTION + TICK)
    ];
    prop_oneof![
        6 => (client.clone(), wishes).prop_map(|(client, wishes)| Op::Claim { client, wishes }),
        3 => (remembered.clone(), short_or_long.clone())
            .prop_map(|((client, key, back), retention)| Op::Complete { client, key, back, retention }),
        2 => remembered.clone().prop_map(|(client, key, back)| Op::Abandon { client, key, back }),
        2 => (remembered, short_or_long)
            .prop_map(|((client, key, back), lock)| Op::Extend { client, key, back, lock }),
        1 => client.clone().prop_map(|client| Op::CompleteAll { client }),
        1 => client.prop_map(|client| Op::Crash { client }),
        4 => times.prop_map(|time| Op::Pass { time }),
        2 => Just(Op::Sweep),
        1 => key.clone().prop_map(|key| Op::Race { key }),
        2 => key.prop_map(|key| Op::Duel { key }),
    ]
}

/// The expected state of one key, from its claim until it is deleted.
#[derive(Clone)]
struct Entry {
    claim: ClaimRequest,
    answer: Option<Answer>,
    ends: Duration,
}

/// The promise in its simplest form.
#[derive(Default)]
struct Model {
    entries: BTreeMap<String, Entry>,
    now: Duration,
}

impl Model {
    fn live(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.ends >= self.now)
    }

    fn claim(&mut self, claim: &ClaimRequest) -> Claim {
        let key = claim.id.key.as_str();
        let Some(entry) = self.live(key) else {
            let ends = self.now + claim.lock_ttl.as_duration();
            self.entries.insert(key.to_owned(), Entry { claim: claim.clone(), answer: None, ends });
            return Claim::New;
        };
        let fingerprint_matches = entry.claim.fingerprint == claim.fingerprint;
        match &entry.answer {
            None => Claim::Pending { fingerprint_matches, free_in: entry.ends - self.now },
            Some(answer) if fingerprint_matches => Claim::Completed(answer.clone()),
            Some(_) => Claim::Conflict,
        }
    }

    /// Returns the entry that the holder of `id` may change.
    fn held(&mut self, id: &ClaimId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.key.as_str());
        entry.filter(|entry| entry.claim.id == *id && entry.answer.is_none())
    }

    fn complete(&mut self, id: &ClaimId, answer: &Answer, retention: Duration) -> Guarded {
        let ends = self.now + retention;
        let Some(entry) = self.held(id) else { return Guarded::Fenced };
        (entry.answer, entry.ends) = (Some(answer.clone()), ends);
        Guarded::Applied
    }

    fn abandon(&mut self, id: &ClaimId) -> Guarded {
        if self.held(id).is_none() {
            return Guarded::Fenced;
        }
        self.entries.remove(id.key.as_str());
        Guarded::Applied
    }

    fn extend(&mut self, id: &ClaimId, lock: Duration) -> Guarded {
        let ends = self.now + lock;
        let Some(entry) = self.held(id) else { return Guarded::Fenced };
        entry.ends = ends;
        Guarded::Applied
    }

    fn sweep(&mut self) -> u64 {
        let (now, before) = (self.now, self.entries.len());
        self.entries.retain(|_, entry| entry.ends >= now);
        (before - self.entries.len()) as u64
    }
}

struct Run<'a, W> {
    world: &'a W,
    model: Model,
    memories: [Vec<ClaimId>; CLIENTS],
    answers: u16,
}

impl<'a, W: World> Run<'a, W> {
    fn new(world: &'a W) -> Self {
        Self { world, model: Model::default(), memories: Default::default(), answers: 0 }
    }

    fn remembered(&self, client: usize, key: usize, back: usize) -> Option<ClaimId> {
        let of_key = |id: &&ClaimId| id.key.as_str() == key.to_string();
        self.memories[client].iter().rev().filter(of_key).nth(back).cloned()
    }

    /// Returns a completion with a unique response.
    fn next_completion(&mut self, id: &ClaimId, retention: Duration) -> idempotency::CompletionRequest {
        self.answers += 1;
        let mut completion = completion(id, 200, &self.answers.to_be_bytes());
        completion.retention_ttl = RetentionTtl::new(retention).expect("valid");
        completion
    }

    async fn step(&mut self, op: &Op) {
        match op {
            Op::Claim { client, wishes } => self.claim(*client, wishes).await,
            &Op::Complete { client, key, back, retention } => {
                if let Some(id) = self.remembered(client, key, back) {
                    let completion = self.next_completion(&id, retention);
                    let expected = self.model.complete(&id, &completion.answer, retention);
                    assert_eq!(self.world.complete(&completion).await, expected);
                }
            }
            &Op::Abandon { client, key, back } => {
                if let Some(id) = self.remembered(client, key, back) {
                    let expected = self.model.abandon(&id);
                    assert_eq!(self.world.abandon(&id).await, expected);
                }
            }
            &Op::Extend { client, key, back, lock } => {
                if let Some(id) = self.remembered(client, key, back) {
                    let expected = self.model.extend(&id, lock);
                    assert_eq!(self.world.extend(&id, lock).await, expected);
                }
            }
            Op::CompleteAll { client } => {
                let ids = self.memories[*client].clone();
                let completions: Vec<_> = ids.iter().map(|id| self.next_completion(id, LOCK)).collect();
                let expected: Vec<Guarded> = completions
                    .iter()
                    .map(|each| self.model.complete(&each.id, &each.answer, LOCK))
                    .collect();
                let outcomes = self.world.store().complete(&completions).await.expect("no failure");
                assert_eq!(outcomes, expected);
            }
            Op::Crash { client } => self.memories[*client].clear(),
            Op::Pass { time } => {
                self.world.pass(*time).await;
                self.model.now += *time;
            }
            Op::Sweep => {
                let expected = self.model.sweep();
                assert_eq!(self.world.store().sweep(100).await.expect("no failure"), expected);
            }
            Op::Race { key } => self.race(*key).await,
            Op::Duel { key } => self.duel(*key).await,
        }
    }

    async fn claim(&mut self, client: usize, wishes: &[(usize, usize)]) {
        let requests: Vec<ClaimRequest> =
            wishes.iter().map(|(key, print)| request(&key.to_string(), FINGERPRINTS[*print])).collect();
        let claims = self.world.store().claim(&requests).await.expect("no failure");
        for (request, claim) in requests.iter().zip(claims) {
            assert_eq!(claim, self.model.claim(request));
            if claim == Claim::New {
                self.memories[client].push(request.id.clone());
            }
        }
    }

    async fn race(&mut self, key: usize) {
        let requests = [(); CLIENTS].map(|()| request(&key.to_string(), "f"));
        let [a, b, c, d] = &requests;
        let world = self.world;
        let (a, b, c, d) = tokio::join!(world.claim(a), world.claim(b), world.claim(c), world.claim(d));
        // The winner is checked first: for all others the key is then pending.
        let mut outcomes: Vec<(usize, Claim)> = [a, b, c, d].into_iter().enumerate().collect();
        outcomes.sort_by_key(|(_, claim)| *claim != Claim::New);
        for (client, claim) in outcomes {
            assert_eq!(claim, self.model.claim(&requests[client]));
            if claim == Claim::New {
                self.memories[client].push(requests[client].id.clone());
            }
        }
    }

    async fn duel(&mut self, key: usize) {
        let Some(entry) = self.model.live(&key.to_string()).filter(|entry| entry.answer.is_none()) else {
            return;
        };
        let holder = entry.claim.id.clone();
        let (completion, other) = (self.next_completion(&holder, LOCK), request(&key.to_string(), "f"));
        let world = self.world;
        let (completed, abandoned, claim) =
            tokio::join!(world.complete(&completion), world.abandon(&holder), world.claim(&other));
        let before = self.model.claim(&other);
        match (completed, abandoned) {
            (Guarded::Applied, Guarded::Fenced) => {
                assert_eq!(self.model.complete(&holder, &completion.answer, LOCK), Guarded::Applied);
                assert!(claim == before || claim == self.model.claim(&other), "{claim:?}");
            }
            (Guarded::Fenced, Guarded::Applied) => {
                assert_eq!(self.model.abandon(&holder), Guarded::Applied);
                if claim == Claim::New {
                    assert_eq!(self.model.claim(&other), Claim::New);
                    self.memories[0].push(other.id);
                } else {
                    assert_eq!(claim, before);
                }
            }
            outcomes => panic!("exactly one of the two counts: {outcomes:?}"),
        }
    }

    async fn all(&mut self, ops: &[Op]) {
        for op in ops {
            self.step(op).await;
        }
        // Checks the final state of each key.
        self.claim(0, &(0..KEYS).flat_map(|key| [(key, 0), (key, 1)]).collect::<Vec<_>>()).await;
    }
}

fn check(cases: u32, mut run: impl FnMut(&[Op])) {
    let run = std::cell::RefCell::new(&mut run);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let histories = prop::collection::vec(any_op(), 1..40);
    let outcome = runner.run(&histories, |ops| {
        (run.borrow_mut())(&ops);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn whatever_clients_do_the_store_in_memory_does_what_the_model_does() {
    check(2_000, |ops| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async { Run::new(&Memory::new()).all(ops).await });
    });
}

#[test]
fn whatever_clients_do_postgresql_does_what_the_model_does() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    let db = runtime.block_on(Db::new());
    check(80, |ops| {
        runtime.block_on(async {
            db.execute("TRUNCATE idempotency_keys").await;
            Run::new(&db).all(ops).await;
        });
    });
}

/// The model supports no other lock TTL.
#[test]
fn the_lock_ttl_of_the_tests_is_the_default() {
    assert_eq!(LockTtl::default().as_duration(), LOCK);
}
