//! The information that observers receive, and that they do not.

use std::sync::Arc;

use lock::{LockEvent, LockManager, LockObserver, TableNames, hash_key};

use crate::support::{Db, TTL, TTL_MS, granted};

#[tokio::test]
async fn each_operation_is_observed_with_its_reason_and_without_names() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    let grant = granted(locks.try_acquire("payment:123", TTL).await);
    let _ = locks.try_acquire("payment:123", TTL).await.expect("locked");
    let _ = locks.extend(&grant.lock_id, TTL).await.expect("extended");
    let _ = locks.lookup("payment:123").await.expect("looked up");
    db.pass(TTL_MS + 1000).await;
    let _ = locks.extend(&grant.lock_id, TTL).await.expect("expired");
    let _ = locks.purge_expired().await.expect("purged");
    db.pass(TTL_MS).await;
    let _ = locks.purge_expired().await.expect("purged");
    let _ = locks.release(&grant.lock_id).await.expect("not held");
    let told = events.drain().await;
    let short: Vec<&str> = told.iter().map(|(short, _)| short.as_str()).collect();
    assert_eq!(
        short,
        [
            "Acquire Done",
            "Acquire Refused(Locked)",
            "Extend Done",
            "Lookup Done",
            "Extend Refused(Expired)",
            "Release Refused(NotFound)",
        ]
    );
    let hash = hash_key("payment:123");
    assert!(told[0].1.contains(&hash) && told[0].1.contains(&grant.lock_id.hash()));
    for (_, full) in &told {
        assert!(!full.contains("payment") && !full.contains(grant.lock_id.as_str()), "{full}");
    }
}

#[tokio::test]
async fn what_fails_is_told_too() {
    let db = Db::without_tables().await;
    let (locks, events) = db.observed();
    assert!(locks.try_acquire("k", TTL).await.is_err());
    assert_eq!(events.drain().await[0].0, "Acquire Failed(InvalidArgument)");
}

#[tokio::test]
async fn an_observer_that_panics_changes_no_operation() {
    struct Panics;
    impl LockObserver for Panics {
        fn observe(&self, _: &LockEvent<'_>) {
            panic!("an observer's own fault");
        }
    }
    let db = Db::new().await;
    let locks = LockManager::observed(db.pool(""), TableNames::default(), Arc::new(Panics));
    let grant = granted(locks.try_acquire("k", TTL).await);
    assert!(locks.owns(&grant.lock_id).await.expect("looked up"));
}
