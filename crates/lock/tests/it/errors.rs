//! L-08: invalid requests are rejected and affect no other client.

use std::time::Duration;

use lock::{ErrorCode, LockError, LockManager, TableNames};

use crate::support::{Db, TTL, granted, nowhere};

// L-08
#[tokio::test]
async fn keys_and_times_that_cannot_be_are_refused_before_anything_is_sent() {
    let locks = LockManager::new(nowhere(), TableNames::default());
    for key in [String::new(), "x".repeat(600), "nul\0".to_owned()] {
        let error = locks.try_acquire(&key, TTL).await.expect_err("refused");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{key:?}");
        let error = locks.lookup(&key).await.expect_err("refused");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{key:?}");
    }
    let error = locks.try_acquire("k", Duration::ZERO).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

// L-08
#[tokio::test]
async fn keys_of_any_script_and_punctuation_are_locks_of_their_own() {
    let db = Db::new().await;
    let keys = ["a:b", "a b", "a'b\"c;--", "ключ", "鍵", "🔒", "a\\b", "%_", "A:B"];
    for key in keys {
        assert_eq!(db.acquire(key).await.fence, 1, "{key}");
        assert!(db.locks.is_locked(key).await.expect("looked up"));
    }
    assert_eq!(db.acquire(&"a".repeat(512)).await.fence, 1);
}

// L-08
#[tokio::test]
async fn a_storm_of_errors_leaves_the_locks_usable() {
    let db = Db::new().await;
    for _ in 0..50 {
        assert!(db.locks.try_acquire("", TTL).await.is_err());
        assert!(db.locks.try_acquire("k", Duration::ZERO).await.is_err());
    }
    assert_eq!(db.acquire("k").await.fence, 1);
}

// L-08
#[tokio::test]
async fn a_statement_that_fails_midway_leaves_neither_lock_nor_fence() {
    let db = Db::new().await;
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON locks FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let error = db.locks.try_acquire("k", TTL).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(error.is_transient());
    assert_eq!(db.value::<i64>("SELECT count(*) FROM fence_counters").await, 0);
    db.execute("DROP TRIGGER refuse ON locks").await;
    assert_eq!(db.acquire("k").await.fence, 1);
}

// L-08
#[tokio::test]
async fn missing_tables_are_an_invalid_argument() {
    let db = Db::without_tables().await;
    let error = db.locks.try_acquire("k", TTL).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

// L-08
#[tokio::test]
async fn no_server_is_an_unavailable_service_and_its_error_names_the_operation() {
    let locks = LockManager::new(nowhere(), TableNames::default());
    let error = locks.try_acquire("k", TTL).await.expect_err("no server");
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert_eq!(error.to_string(), "could not acquire a lock");
    assert!(matches!(error, LockError::Store(_)));
}

// L-08
#[tokio::test]
async fn a_user_that_does_not_exist_is_an_authentication_failure() {
    let db = Db::new().await;
    let locks = LockManager::new(db.pool_of("nobody"), TableNames::default());
    let error = locks.try_acquire("k", TTL).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::AuthFailed);
}

// L-08
#[tokio::test]
async fn a_time_to_live_of_a_month_is_granted() {
    let db = Db::new().await;
    granted(db.locks.try_acquire("k", lock::MAX_TTL).await);
}
