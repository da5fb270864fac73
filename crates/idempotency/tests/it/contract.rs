//! The contract of every store. Each test runs on both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use idempotency::{
    Answer, Claim, ClaimId, ClaimRequest, Guarded, LockTtl, MAX_CLAIM_BATCH, Owner, RetentionTtl, Store,
};
use tokio::task::JoinSet;

use crate::support::{LOCK, RETENTION, TICK, World, completion, is_pending, lookup, request, waits_or_pends};

/// Expands each function to a test on the store in memory and to one on PostgreSQL.
macro_rules! on_both_stores {
    ($($name:ident)+) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(&crate::support::Memory::new()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&crate::support::Db::new().await).await;
            })+
        }
    };
}

on_both_stores! {
    of_many_claims_of_a_free_key_exactly_one_is_new
    a_claim_is_not_reentrant
    a_replay_is_the_answer_byte_for_byte
    another_fingerprint_conflicts_once_completed_and_is_pending_before
    the_holder_of_an_expired_claim_cannot_touch_the_next_one
    the_two_times_to_live_are_not_swapped
    a_late_completion_counts_if_no_other_attempt_has_claimed_the_key
    the_first_completion_wins_and_cannot_be_abandoned
    an_abandoned_key_is_free_at_once
    a_sweep_deletes_what_is_expired_and_nothing_else
    claims_that_race_abandons_and_sweeps_never_fail_and_never_share_a_key
    an_extension_replaces_the_end_of_a_claim
    a_pending_key_tells_when_it_is_free
    equal_keys_of_two_owners_are_two_keys
    each_claim_of_a_batch_is_decided_by_itself
    of_one_key_twice_in_a_batch_the_first_wins
    a_look_up_says_what_a_claim_would_and_claims_nothing
    each_change_of_a_batch_is_decided_by_itself
    a_batch_of_any_size_is_claimed
    batches_in_opposite_orders_never_deadlock
    changes_of_the_same_claims_in_opposite_orders_never_deadlock
    no_elements_are_no_outcomes
}

async fn a_look_up_says_what_a_claim_would_and_claims_nothing(world: &impl World) {
    world.completed("answered").await;
    let claimed = world.claimed("claimed").await;
    let expired = world.completed("expired").await;
    world.pass(RETENTION + TICK).await;
    let answered = world.completed("answered").await.answer;
    assert_eq!(world.extend(&claimed.id, LOCK).await, Guarded::Applied);
    assert_ne!(expired.answer, answered);
    let asked = [
        ("free", "f", None),
        ("answered", "f", Some(Claim::Completed(answered))),
        ("answered", "other", Some(Claim::Conflict)),
        ("claimed", "f", Some(Claim::Pending { fingerprint_matches: true, free_in: LOCK })),
        ("claimed", "other", Some(Claim::Pending { fingerprint_matches: false, free_in: LOCK })),
        ("expired", "f", None),
    ];
    let lookups: Vec<_> = asked.iter().map(|(key, fingerprint, _)| lookup(key, fingerprint)).collect();
    for _ in 0..2 {
        let found = world.store().lookup(&lookups).await.expect("no failure");
        assert_eq!(found, asked.clone().map(|(.., expected)| expected));
    }
    assert_eq!(world.claim(&request("free", "f")).await, Claim::New);
}

// I-01
async fn of_many_claims_of_a_free_key_exactly_one_is_new(world: &impl World) {
    for count in [50, 500] {
        let key = format!("k{count}");
        let mut claims = JoinSet::new();
        for _ in 0..count {
            let (store, request) = (world.store().clone(), request(&key, "f"));
            claims.spawn(async move { store.claim(&[request]).await.expect("no failure").remove(0) });
        }
        let claims = claims.join_all().await;
        assert_eq!(claims.iter().filter(|claim| **claim == Claim::New).count(), 1);
        assert_eq!(claims.iter().filter(|claim| waits_or_pends(claim)).count(), count - 1);
    }
}

// I-02
async fn a_claim_is_not_reentrant(world: &impl World) {
    let request = world.claimed("k").await;
    let again = world.claim(&request).await;
    assert_eq!(again, Claim::Pending { fingerprint_matches: true, free_in: LOCK });
}

// I-03
async fn a_replay_is_the_answer_byte_for_byte(world: &impl World) {
    let large: Vec<u8> = (0..1024 * 1024_u32).map(|at| (at % 251) as u8).collect();
    for (key, body) in
        [("empty", &b""[..]), ("zeros", b"a\0b\0"), ("no text", &[0xff, 0xfe]), ("1 MiB", &large)]
    {
        let claim = world.claimed(key).await;
        let mut completion = completion(&claim.id, 201, body);
        completion.answer.headers = Bytes::from_static(b"x: \xff\0\n");
        assert_eq!(world.complete(&completion).await, Guarded::Applied);
        let Claim::Completed(Answer { status, headers, body: replayed }) =
            world.claim(&request(key, "f")).await
        else {
            panic!("{key} is not completed");
        };
        assert_eq!((status, &*headers), (201, &b"x: \xff\0\n"[..]), "{key}");
        assert!(replayed == body, "{key}: the body differs");
    }
}

// I-04
async fn another_fingerprint_conflicts_once_completed_and_is_pending_before(world: &impl World) {
    let claim = world.claimed("k").await;
    let other = request("k", "another");
    assert_eq!(world.claim(&other).await, Claim::Pending { fingerprint_matches: false, free_in: LOCK });
    assert_eq!(world.complete(&completion(&claim.id, 200, b"")).await, Guarded::Applied);
    assert_eq!(world.claim(&other).await, Claim::Conflict);
}

// I-05
async fn the_holder_of_an_expired_claim_cannot_touch_the_next_one(world: &impl World) {
    let old = world.claimed("k").await.id;
    world.pass(LOCK).await;
    assert!(is_pending(&world.claim(&request("k", "f")).await), "at its very end it is still live");
    world.pass(TICK).await;
    let new = world.claimed("k").await;
    assert_eq!(world.complete(&completion(&old, 500, b"old")).await, Guarded::Fenced);
    assert_eq!(world.abandon(&old).await, Guarded::Fenced);
    assert_eq!(world.extend(&old, Duration::from_secs(1)).await, Guarded::Fenced);
    let seen = world.claim(&request("k", "f")).await;
    assert_eq!(seen, Claim::Pending { fingerprint_matches: true, free_in: LOCK });
    assert_eq!(world.complete(&completion(&new.id, 200, b"new")).await, Guarded::Applied);
}

// I-06
async fn the_two_times_to_live_are_not_swapped(world: &impl World) {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    for (key, lock, retention) in [("a", second, hour), ("b", hour, second)] {
        let claim = ClaimRequest { lock_ttl: LockTtl::new(lock).expect("valid"), ..request(key, "f") };
        assert_eq!(world.claim(&claim).await, Claim::New);
        world.pass(lock).await;
        assert!(is_pending(&world.claim(&request(key, "f")).await), "{key}: within the lock TTL");
        let mut completion = completion(&claim.id, 200, b"");
        completion.retention_ttl = RetentionTtl::new(retention).expect("valid");
        assert_eq!(world.complete(&completion).await, Guarded::Applied);
        world.pass(retention).await;
        let replayed = world.claim(&request(key, "f")).await;
        assert!(matches!(replayed, Claim::Completed(_)), "{key}: within the retention TTL");
        world.pass(TICK).await;
        assert_eq!(world.claim(&request(key, "f")).await, Claim::New, "{key}: after it");
    }
}

// I-07
async fn a_late_completion_counts_if_no_other_attempt_has_claimed_the_key(world: &impl World) {
    let claim = world.claimed("k").await;
    world.pass(LOCK * 2).await;
    assert_eq!(world.complete(&completion(&claim.id, 200, b"late")).await, Guarded::Applied);
    world.pass(RETENTION).await;
    assert!(matches!(world.claim(&request("k", "f")).await, Claim::Completed(_)));
}

// I-08
async fn the_first_completion_wins_and_cannot_be_abandoned(world: &impl World) {
    let first = world.completed("k").await;
    assert_eq!(world.complete(&completion(&first.id, 500, b"second")).await, Guarded::Fenced);
    assert_eq!(world.abandon(&first.id).await, Guarded::Fenced);
    assert_eq!(world.extend(&first.id, LOCK).await, Guarded::Fenced);
    assert_eq!(world.claim(&request("k", "f")).await, Claim::Completed(first.answer));
}

// I-09
async fn an_abandoned_key_is_free_at_once(world: &impl World) {
    let claim = world.claimed("k").await;
    assert_eq!(world.abandon(&claim.id).await, Guarded::Applied);
    assert_eq!(world.abandon(&claim.id).await, Guarded::Fenced);
    world.claimed("k").await;
}

// I-10
async fn a_sweep_deletes_what_is_expired_and_nothing_else(world: &impl World) {
    for key in ["pending 1", "pending 2", "pending 3"] {
        world.claimed(key).await;
        world.pass(TICK).await;
    }
    let completed = world.completed("completed").await;
    world.pass(LOCK - TICK * 2).await;
    // The first ended a moment ago, the second ends now, the third and the completed key are live.
    assert_eq!(world.store().sweep(10).await.expect("no failure"), 1);
    assert_eq!(world.claim(&request("pending 1", "f")).await, Claim::New);
    for key in ["pending 2", "pending 3"] {
        assert!(is_pending(&world.claim(&request(key, "f")).await), "{key}");
    }
    assert_eq!(world.claim(&request("completed", "f")).await, Claim::Completed(completed.answer));
    world.pass(RETENTION + LOCK).await;
    for expected in [3, 1, 0] {
        assert_eq!(world.store().sweep(3).await.expect("no failure"), expected, "at most three at a time");
    }
}

// I-12
async fn claims_that_race_abandons_and_sweeps_never_fail_and_never_share_a_key(world: &impl World) {
    let holders = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (store, holders) = (world.store().clone(), holders.clone());
        tasks.spawn(async move {
            for _ in 0..100 {
                let request = request("k", "f");
                match store
                    .claim(std::slice::from_ref(&request))
                    .await
                    .expect("a claim never fails")
                    .remove(0)
                {
                    Claim::New => {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders at a time");
                        tokio::task::yield_now().await;
                        holders.fetch_sub(1, Ordering::SeqCst);
                        let abandoned = store.abandon(&[request.id]).await.expect("no failure");
                        assert_ne!(abandoned, [Guarded::Fenced]);
                    }
                    other => assert!(waits_or_pends(&other), "{other:?}"),
                }
                store.sweep(10).await.expect("a sweep never fails");
            }
        });
    }
    tasks.join_all().await;
}

async fn an_extension_replaces_the_end_of_a_claim(world: &impl World) {
    let claim = world.claimed("k").await;
    world.pass(LOCK / 2).await;
    assert_eq!(world.extend(&claim.id, LOCK).await, Guarded::Applied);
    world.pass(LOCK).await;
    assert!(is_pending(&world.claim(&request("k", "f")).await));
    world.pass(TICK).await;
    assert_eq!(world.extend(&claim.id, LOCK).await, Guarded::Applied, "no other attempt has claimed it");
    assert!(is_pending(&world.claim(&request("k", "f")).await));
}

async fn a_pending_key_tells_when_it_is_free(world: &impl World) {
    world.claimed("k").await;
    let passed = Duration::from_millis(1234);
    world.pass(passed).await;
    let free_in = LOCK - passed;
    assert_eq!(world.claim(&request("k", "f")).await, Claim::Pending { fingerprint_matches: true, free_in });
}

async fn equal_keys_of_two_owners_are_two_keys(world: &impl World) {
    let first = world.completed("k").await;
    let mut other = request("k", "another");
    other.id.owner = Owner::new("orders:another client").expect("an owner");
    assert_eq!(world.claim(&other).await, Claim::New);
    let mixed = ClaimId { owner: other.id.owner.clone(), ..first.id.clone() };
    assert_eq!(world.abandon(&mixed).await, Guarded::Fenced);
    assert_eq!(world.abandon(&other.id).await, Guarded::Applied);
    assert_eq!(world.claim(&request("k", "f")).await, Claim::Completed(first.answer));
}

async fn each_claim_of_a_batch_is_decided_by_itself(world: &impl World) {
    world.claimed("pending").await;
    let completed = world.completed("completed").await;
    world.completed("conflict").await;
    let requests =
        [request("new", "f"), request("conflict", "g"), request("pending", "g"), request("completed", "f")];
    let claims = world.store().claim(&requests).await.expect("no failure");
    assert_eq!(claims[0], Claim::New);
    assert_eq!(claims[1], Claim::Conflict);
    assert_eq!(claims[2], Claim::Pending { fingerprint_matches: false, free_in: LOCK });
    assert_eq!(claims[3], Claim::Completed(completed.answer));
}

async fn of_one_key_twice_in_a_batch_the_first_wins(world: &impl World) {
    let same_token = request("a", "f");
    let requests = [request("b", "f"), same_token.clone(), same_token.clone(), request("b", "g")];
    let claims = world.store().claim(&requests).await.expect("no failure");
    let pending = |fingerprint_matches| Claim::Pending { fingerprint_matches, free_in: LOCK };
    assert_eq!(claims, [Claim::New, Claim::New, pending(true), pending(false)]);
    assert_eq!(world.complete(&completion(&requests[0].id, 200, b"")).await, Guarded::Applied);
    // The same claim is completed twice in one call: the first completion counts.
    let twice = [completion(&same_token.id, 200, b"1"), completion(&same_token.id, 200, b"2")];
    let outcomes = world.store().complete(&twice).await.expect("no failure");
    assert_eq!(outcomes, [Guarded::Applied, Guarded::Fenced]);
    assert_eq!(world.claim(&request("a", "f")).await, Claim::Completed(twice[0].answer.clone()));
}

async fn each_change_of_a_batch_is_decided_by_itself(world: &impl World) {
    let held = [world.claimed("z").await.id, world.claimed("a").await.id];
    let (gone, never) = (world.completed("m").await.id, request("n", "f").id);
    let ids = [held[0].clone(), gone, held[1].clone(), never];
    let expected = [Guarded::Applied, Guarded::Fenced, Guarded::Applied, Guarded::Fenced];
    let lock_ttl = LockTtl::default();
    assert_eq!(world.store().extend(&ids, lock_ttl).await.expect("no failure"), expected);
    let completions = ids.clone().map(|id| completion(&id, 200, id.key.as_str().as_bytes()));
    assert_eq!(world.store().complete(&completions).await.expect("no failure"), expected);
    for completed in [&completions[0], &completions[2]] {
        let seen = world.claim(&request(completed.id.key.as_str(), "f")).await;
        assert_eq!(seen, Claim::Completed(completed.answer.clone()), "each has its own answer");
    }
    let others = [world.claimed("c").await.id, ids[1].clone(), world.claimed("b").await.id, ids[3].clone()];
    assert_eq!(world.store().abandon(&others).await.expect("no failure"), expected);
}

async fn a_batch_of_any_size_is_claimed(world: &impl World) {
    let requests: Vec<ClaimRequest> =
        (0..MAX_CLAIM_BATCH * 2 + 1).map(|number| request(&number.to_string(), "f")).collect();
    let claims = world.store().claim(&requests).await.expect("no failure");
    assert!(claims.len() == requests.len() && claims.iter().all(|claim| *claim == Claim::New));
    let ids: Vec<ClaimId> = requests.into_iter().map(|request| request.id).collect();
    let abandoned = world.store().abandon(&ids).await.expect("no failure");
    assert!(abandoned.len() == ids.len() && abandoned.iter().all(|outcome| *outcome == Guarded::Applied));
}

async fn batches_in_opposite_orders_never_deadlock(world: &impl World) {
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let store = world.store().clone();
        tasks.spawn(async move {
            for _ in 0..20 {
                let mut requests: Vec<ClaimRequest> =
                    (0..20).map(|number| request(&number.to_string(), "f")).collect();
                if task % 2 == 0 {
                    requests.reverse();
                }
                let claims = store.claim(&requests).await.expect("no deadlock");
                let won = requests.into_iter().zip(claims).filter(|(_, claim)| *claim == Claim::New);
                let won: Vec<ClaimId> = won.map(|(request, _)| request.id).collect();
                let extended = store.extend(&won, LockTtl::default()).await.expect("no deadlock");
                assert!(extended.iter().all(|outcome| *outcome != Guarded::Fenced));
                let abandoned = store.abandon(&won).await.expect("no deadlock");
                assert!(abandoned.iter().all(|outcome| *outcome != Guarded::Fenced));
            }
        });
    }
    tasks.join_all().await;
}

async fn changes_of_the_same_claims_in_opposite_orders_never_deadlock(world: &impl World) {
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(world.claimed(&number.to_string()).await.id);
    }
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (store, mut ids) = (world.store().clone(), ids.clone());
        if task % 2 == 0 {
            ids.reverse();
        }
        tasks.spawn(async move {
            for _ in 0..25 {
                let extended = store.extend(&ids, LockTtl::default()).await.expect("no deadlock");
                assert!(extended.iter().all(|outcome| *outcome != Guarded::Fenced));
            }
        });
    }
    tasks.join_all().await;
}

async fn no_elements_are_no_outcomes(world: &impl World) {
    let store = world.store();
    assert!(store.claim(&[]).await.expect("no failure").is_empty());
    assert!(store.complete(&[]).await.expect("no failure").is_empty());
    assert!(store.abandon(&[]).await.expect("no failure").is_empty());
    assert!(store.extend(&[], LockTtl::default()).await.expect("no failure").is_empty());
    assert_eq!(store.sweep(0).await.expect("no failure"), 0);
}
