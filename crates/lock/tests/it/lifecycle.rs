//! L-01: acquire, hold, release.

use lock::{LockId, Release};

use crate::support::{Db, TTL};

// L-01
#[tokio::test]
async fn a_lock_is_held_until_it_is_released() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    assert_eq!(grant.fence, 1);
    assert!(db.locks.is_locked("k").await.expect("looked up"));
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}

// L-01
#[tokio::test]
async fn locks_of_three_keys_do_not_concern_each_other() {
    let db = Db::new().await;
    let (a, b, c) = tokio::join!(db.acquire("a"), db.acquire("b"), db.acquire("c"));
    assert_eq!(db.locks.release(&b.lock_id).await.expect("released"), Release::Released);
    assert!(db.locks.owns(&a.lock_id).await.expect("looked up"));
    assert!(!db.locks.owns(&b.lock_id).await.expect("looked up"));
    assert!(db.locks.owns(&c.lock_id).await.expect("looked up"));
}

// L-01
#[tokio::test]
async fn only_the_first_release_succeeds() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::NotHeld);
}

// L-01
#[tokio::test]
async fn an_id_that_was_never_granted_releases_nothing() {
    let db = Db::new().await;
    let unknown = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").expect("well formed");
    assert_eq!(db.locks.release(&unknown).await.expect("released"), Release::NotHeld);
}

// L-01
#[tokio::test]
async fn ten_cycles_in_a_row_all_acquire_and_release() {
    let db = Db::new().await;
    for fence in 1..=10 {
        let grant = db.acquire("k").await;
        assert_eq!(grant.fence, fence);
        assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    }
}

// L-01
#[tokio::test]
async fn a_holder_that_acquires_again_finds_the_key_locked() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    assert!(crate::support::is_locked(&db.locks.try_acquire("k", TTL).await));
    assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
}
