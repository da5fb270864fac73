//! L-02, L-09, L-16, L-23: many clients acquire the same key.

use std::sync::Arc;

use lock::{Acquisition, LockManager, Release, TableNames};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{Db, TTL, TTL_MS, granted, is_locked};

// L-02
#[tokio::test]
async fn a_key_that_is_held_is_locked_for_every_other_client() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    for _ in 0..3 {
        assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    }
    assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
}

// L-02
#[tokio::test]
async fn waiters_get_nothing_until_the_lease_has_ended() {
    let db = Db::new().await;
    db.acquire("k").await;
    db.pass(TTL_MS + 999).await;
    for _ in 0..3 {
        assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    }
    db.pass(1).await;
    assert_eq!(db.acquire("k").await.fence, 2);
}

// L-02
#[tokio::test]
async fn a_released_key_can_be_acquired_at_once() {
    let db = Db::new().await;
    let first = db.acquire("k").await;
    assert_eq!(db.locks.release(&first.lock_id).await.expect("released"), Release::Released);
    assert_ne!(db.acquire("k").await.lock_id, first.lock_id);
}

// L-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_that_race_for_a_key_never_seen_one_wins_with_fence_one() {
    const RACERS: usize = 64;
    let db = Db::new().await;
    for round in 0..200 {
        let key: Arc<str> = format!("key {round}").into();
        let barrier = Arc::new(Barrier::new(RACERS));
        let mut racers = JoinSet::new();
        for _ in 0..RACERS {
            let (locks, key, barrier) = (db.locks.clone(), key.clone(), barrier.clone());
            racers.spawn(async move {
                barrier.wait().await;
                locks.try_acquire(&key, TTL).await.expect("no failure")
            });
        }
        let outcomes = racers.join_all().await;
        let fences: Vec<u64> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Acquisition::Acquired(grant) => Some(grant.fence),
                Acquisition::Locked => None,
            })
            .collect();
        assert_eq!(fences, [1], "{key}");
    }
    let counters = "SELECT count(*) FROM fence_counters WHERE fence = 1";
    assert_eq!(db.value::<i64>(counters).await, 200);
}

// L-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_have_no_gaps_however_many_contend() {
    let db = Db::new().await;
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let locks = db.locks.clone();
        workers.spawn(async move {
            let mut fences = Vec::new();
            while fences.len() < 10 {
                if let Acquisition::Acquired(grant) = locks.try_acquire("k", TTL).await.expect("no failure") {
                    fences.push(grant.fence);
                    assert_eq!(locks.release(&grant.lock_id).await.expect("released"), Release::Released);
                }
            }
            fences
        });
    }
    let mut fences = workers.join_all().await.concat();
    fences.sort_unstable();
    assert_eq!(fences, (1..=80).collect::<Vec<u64>>());
}

// L-16
#[tokio::test]
async fn finding_a_key_locked_needs_no_right_to_write() {
    let db = Db::new().await;
    let reader = LockManager::new(db.pool("-c default_transaction_read_only=on"), TableNames::default());
    db.acquire("k").await;
    assert!(is_locked(&reader.try_acquire("k", TTL).await));
    // The same session could not have written: acquiring fails if no client holds the key.
    assert!(reader.try_acquire("free", TTL).await.is_err());
}

// L-16
#[tokio::test]
async fn an_answer_that_a_key_is_locked_waits_for_no_other_client() {
    let db = Db::new().await;
    db.acquire("k").await;
    let _blocker = db.block("SELECT FROM locks FOR UPDATE; SELECT FROM fence_counters FOR UPDATE").await;
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
}

// L-16
#[tokio::test]
async fn an_attempt_that_is_locked_out_leaves_both_rows_as_they_are() {
    let db = Db::new().await;
    db.acquire("k").await;
    let rows = "SELECT string_agg(l.ctid::text || l.xmin || l.xmax || l::text || c.ctid || c.xmin || c.xmax || c::text, ';')
                FROM locks l, fence_counters c";
    let before: String = db.value(rows).await;
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    assert_eq!(db.value::<String>(rows).await, before);
}

// L-02
#[tokio::test]
async fn who_waited_for_a_winner_is_locked_and_uses_up_no_fence() {
    let db = Db::new().await;
    db.acquire("k").await;
    db.pass(TTL_MS + 1000).await;
    // Both find the lease dead, then wait for the counter; the second finds the first's new lease.
    let blocker = db.block("SELECT FROM fence_counters FOR UPDATE").await;
    let (one, other) = (db.locks.clone(), db.locks.clone());
    let one = tokio::spawn(async move { one.try_acquire("k", TTL).await });
    let other = tokio::spawn(async move { other.try_acquire("k", TTL).await });
    db.until_blocked(2).await;
    blocker.batch_execute("COMMIT").await.expect("committed");
    let (one, other) = (one.await.expect("no panic"), other.await.expect("no panic"));
    let (winner, loser) = if is_locked(&one) { (other, one) } else { (one, other) };
    assert!(is_locked(&loser));
    assert_eq!(granted(winner).fence, 2);
    assert_eq!(db.value::<i64>("SELECT fence FROM fence_counters").await, 2);
}

// L-23
#[tokio::test]
async fn a_client_of_the_original_that_is_acquiring_is_waited_for() {
    let db = Db::new().await;
    // The original client has read that the key is free, without locking a row, and has not written yet.
    let original = db.block("SELECT pg_advisory_xact_lock(hashtext('k'))").await;
    let locks = db.locks.clone();
    let acquiring = tokio::spawn(async move { locks.try_acquire("k", TTL).await });
    db.until_blocked(1).await;
    let grant = format!(
        "INSERT INTO fence_counters (fence_key, fence, key_debug) VALUES ('fence:k', 1, 'k');
         INSERT INTO locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
         VALUES ('k', 'AAAAAAAAAAAAAAAAAAAAAA', {0} + 30000, {0}, '000000000000001', 'k'); COMMIT",
        db.now().await
    );
    original.batch_execute(&grant).await.expect("granted");
    let outcome = acquiring.await.expect("it does not panic");
    // If the machine is suspended, the client may have stopped waiting.
    assert!(!matches!(outcome, Ok(lock::Acquisition::Acquired(_))), "{outcome:?}");
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
}
