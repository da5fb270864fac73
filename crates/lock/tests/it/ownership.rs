//! L-06: only the holder of a grant can change its lock.

use lock::{Extension, LockId, Release};

use crate::support::{Db, TTL, TTL_MS};

// L-06
#[tokio::test]
async fn a_well_formed_id_without_a_lock_neither_extends_nor_releases() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    for text in ["abcdefghijklmnopqrstuv", "AAAAAAAAAAAAAAAAAAAAAA"] {
        let foreign = LockId::parse(text).expect("well formed");
        assert_eq!(db.locks.extend(&foreign, TTL).await.expect("no failure"), Extension::NotHeld);
        let (a, b, c) =
            tokio::join!(db.locks.release(&foreign), db.locks.release(&foreign), db.locks.release(&foreign));
        assert!([a, b, c].iter().all(|outcome| matches!(outcome, Ok(Release::NotHeld))));
    }
    assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
}

// L-06
#[tokio::test]
async fn releasing_one_lock_leaves_the_other() {
    let db = Db::new().await;
    let (one, other) = (db.acquire("one").await, db.acquire("other").await);
    assert_eq!(db.locks.release(&other.lock_id).await.expect("released"), Release::Released);
    assert!(db.locks.owns(&one.lock_id).await.expect("looked up"));
}

// L-06
#[tokio::test]
async fn a_holder_that_was_succeeded_can_do_nothing_to_its_successor() {
    let db = Db::new().await;
    let old = db.acquire("k").await;
    db.pass(TTL_MS + 1000).await;
    let new = db.acquire("k").await;
    assert_eq!(db.locks.extend(&old.lock_id, TTL).await.expect("no failure"), Extension::NotHeld);
    assert_eq!(db.locks.release(&old.lock_id).await.expect("no failure"), Release::NotHeld);
    assert!(!db.locks.owns(&old.lock_id).await.expect("looked up"));
    assert!(db.locks.owns(&new.lock_id).await.expect("looked up"));
}
