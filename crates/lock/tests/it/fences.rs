//! L-04, L-13, L-14, L-19: fences always rise.

use lock::{ErrorCode, FENCE_MAX, FENCE_WARN, LockManager, Release, TableNames, format_fence, hash_key};

use crate::support::{Db, TTL, TTL_MS, granted, log};

// L-04
#[tokio::test]
async fn fences_rise_with_each_grant_of_a_key_and_each_key_counts_for_itself() {
    let db = Db::new().await;
    let mut texts = Vec::new();
    for fence in 1..=5 {
        let grant = db.acquire("k").await;
        assert_eq!(grant.fence, fence);
        texts.push(format_fence(grant.fence).expect("fits"));
        assert_eq!(db.value::<String>("SELECT fence FROM locks").await, texts[texts.len() - 1]);
        assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    }
    assert!(texts.is_sorted());
    assert_eq!(db.acquire("other").await.fence, 1);
}

// L-14
#[tokio::test]
async fn a_counter_survives_release_expiry_purge_setup_and_restart() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    assert_eq!(db.acquire("k").await.fence, 2, "after a release");
    db.pass(TTL_MS + 5000).await;
    assert_eq!(db.acquire("k").await.fence, 3, "after expiry");
    for fence in 4..=6 {
        db.pass(TTL_MS + 5000).await;
        assert_eq!(db.locks.purge_expired().await.expect("purged"), 1);
        assert_eq!(db.acquire("k").await.fence, fence, "after a purge");
    }
    db.pass(TTL_MS + 5000).await;
    db.locks.setup_schema().await.expect("set up again");
    assert_eq!(db.acquire("k").await.fence, 7, "after another setup");
    db.pass(TTL_MS + 5000).await;
    let restarted = LockManager::new(db.pool(""), TableNames::default());
    assert_eq!(granted(restarted.try_acquire("k", TTL).await).fence, 8, "after a restart");
}

// L-14
#[tokio::test]
async fn the_service_has_no_right_to_delete_a_counter() {
    let db = Db::new().await;
    db.acquire("k").await;
    for sql in ["DELETE FROM fence_counters", "TRUNCATE fence_counters"] {
        let refused = db.pool("").session("try").await.expect("connects").execute_batch(sql).await;
        assert_eq!(
            refused.expect_err("refused").sql_state().map(|state| state.code()),
            Some("42501"),
            "{sql}"
        );
    }
}

// L-13
#[tokio::test]
async fn a_counter_at_its_end_grants_nothing_and_changes_nothing() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    db.execute(&format!("UPDATE fence_counters SET fence = {FENCE_MAX}")).await;
    let error = db.locks.try_acquire("k", TTL).await.expect_err("no fence is left");
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(db.value::<i64>("SELECT fence FROM fence_counters").await, FENCE_MAX as i64);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM locks").await, 0);
}

// L-13
#[tokio::test]
async fn the_last_fence_is_granted() {
    let db = Db::new().await;
    assert_eq!(db.locks.raise_fence("k", FENCE_MAX - 1).await.expect("raised"), FENCE_MAX - 1);
    assert_eq!(db.acquire("k").await.fence, FENCE_MAX);
}

// L-13
#[tokio::test]
async fn fences_that_run_out_are_warned_of() {
    let db = Db::new().await;
    let warned = || log().lines().any(|line| line.contains("WARN") && line.contains(&hash_key("runs out")));
    db.locks.raise_fence("runs out", FENCE_WARN - 1).await.expect("raised");
    let grant = db.acquire("runs out").await;
    assert!(!warned());
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
    assert_eq!(db.acquire("runs out").await.fence, FENCE_WARN + 1);
    assert!(warned());
}

#[tokio::test]
async fn a_counter_is_raised_and_never_lowered() {
    let db = Db::new().await;
    assert_eq!(db.locks.raise_fence("k", 41).await.expect("raised"), 41);
    assert_eq!(db.acquire("k").await.fence, 42);
    assert_eq!(db.locks.raise_fence("k", 7).await.expect("raised"), 42);
    let error = db.locks.raise_fence("k", FENCE_MAX + 1).await.expect_err("too high");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

// L-19
#[tokio::test]
async fn what_a_paused_holder_writes_after_it_was_succeeded_is_refused() {
    let db = Db::new().await;
    db.execute("CREATE TABLE register (fence bigint, value text); INSERT INTO register VALUES (0, 'empty')")
        .await;
    let write = async |fence: u64, value: &str| -> i64 {
        let sql = format!(
            "WITH written AS (UPDATE register SET fence = {fence}, value = '{value}' WHERE fence <= {fence} RETURNING 1)
             SELECT count(*) FROM written"
        );
        db.value(&sql).await
    };
    let paused = db.acquire("leader").await;
    assert_eq!(write(paused.fence, "by the first").await, 1);
    db.pass(TTL_MS + 1000).await;
    let successor = db.acquire("leader").await;
    assert_eq!(write(successor.fence, "by the second").await, 1);
    assert_eq!(write(paused.fence, "by the first, late").await, 0);
    assert_eq!(db.value::<String>("SELECT value FROM register").await, "by the second");
}
