//! L-07, L-17: callers that stop waiting.

use std::time::Duration;

use lock::{ErrorCode, LockError, LockId, LockManager, LockOptions, TableNames};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Db, TTL, granted, nowhere};

fn code<T: std::fmt::Debug>(outcome: Result<T, LockError>) -> ErrorCode {
    outcome.expect_err("it fails").code()
}

// L-07
#[tokio::test]
async fn what_was_aborted_before_it_began_sends_nothing() {
    // If anything were sent, it would fail with another error, because there is no server.
    let token = CancellationToken::new();
    let locks = LockManager::new(nowhere(), TableNames::default());
    assert_eq!(code(locks.try_acquire("k", TTL).await), ErrorCode::ServiceUnavailable);
    let locks = locks.cancelled_by(token.clone());
    token.cancel();
    let id = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").expect("well formed");
    assert_eq!(code(locks.try_acquire("k", TTL).await), ErrorCode::Aborted);
    assert_eq!(code(locks.extend(&id, TTL).await), ErrorCode::Aborted);
    assert_eq!(code(locks.release(&id).await), ErrorCode::Aborted);
    assert_eq!(code(locks.is_locked("k").await), ErrorCode::Aborted);
    assert_eq!(code(locks.lookup_by_id(&id).await), ErrorCode::Aborted);
    assert_eq!(code(locks.hold("k", LockOptions::default()).await), ErrorCode::Aborted);
}

// L-07
#[tokio::test]
async fn a_token_that_never_fires_changes_nothing() {
    let db = Db::new().await;
    let locks = db.locks.cancelled_by(CancellationToken::new());
    let grant = granted(locks.try_acquire("k", TTL).await);
    assert!(locks.owns(&grant.lock_id).await.expect("looked up"));
}

// L-07
#[tokio::test]
async fn one_token_ends_all_that_is_under_way_at_once() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    let _blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    let token = CancellationToken::new();
    let locks = db.locks.cancelled_by(token.clone());
    let under_way = async {
        let (extended, released) =
            tokio::join!(locks.extend(&grant.lock_id, TTL), locks.release(&grant.lock_id));
        (code(extended), code(released))
    };
    let abort = async {
        db.until_blocked(2).await;
        token.cancel();
        Instant::now()
    };
    let (codes, aborted_at) = tokio::join!(under_way, abort);
    assert_eq!(codes, (ErrorCode::Aborted, ErrorCode::Aborted));
    // Without the token they would end when the operation timeout of ten seconds has passed.
    assert!(aborted_at.elapsed() < Duration::from_secs(5));
}

// L-07
#[tokio::test]
async fn a_lock_granted_to_a_caller_that_is_gone_is_released() {
    let db = Db::new().await;
    let first = db.acquire("k").await;
    let _ = db.locks.release(&first.lock_id).await.expect("released");
    let (locks, events) = db.observed();
    let blocker = db.block("SELECT FROM fence_counters FOR UPDATE").await;
    tokio::select! {
        outcome = locks.try_acquire("k", TTL) => panic!("the key was blocked: {outcome:?}"),
        () = db.until_blocked(1) => {}
    }
    blocker.batch_execute("COMMIT").await.expect("committed");
    events.until("Acquire Done").await;
    events.until("Release Done").await;
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
    assert_eq!(db.acquire("k").await.fence, 3);
}

// L-17
#[tokio::test]
async fn work_that_is_cancelled_gives_its_lock_up_at_once() {
    let db = Db::new().await;
    let token = CancellationToken::new();
    let locks = db.locks.cancelled_by(token.clone());
    let outcome = locks.lock("k", LockOptions::default(), |_| async {
        assert!(db.locks.is_locked("k").await.expect("looked up"));
        token.cancel();
        std::future::pending::<()>().await;
    });
    let outcome = timeout(BOUND, outcome).await.expect("ends");
    assert!(matches!(outcome, Err(LockError::Aborted { .. })), "{outcome:?}");
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}

// L-17
#[tokio::test]
async fn work_that_is_dropped_gives_its_lock_up() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    let work = locks.lock("k", LockOptions::default(), |_| std::future::pending::<()>());
    tokio::select! {
        _ = work => panic!("the work never ends"),
        () = events.until("Acquire Done") => {}
    }
    events.until("Release Done").await;
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}
