//! L-03, L-10, L-11, L-20, L-22: the end of leases, and the clock that decides it.

use std::time::Duration;

use lock::{Extension, Release};

use crate::support::{Db, TTL, TTL_MS, granted, is_locked};

// L-10
#[tokio::test]
async fn a_lease_999_ms_over_is_live_for_every_client() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    db.pass(TTL_MS + 999).await;
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
    let expires_at_ms = db.now().await + TTL_MS;
    assert_eq!(
        db.locks.extend(&grant.lock_id, TTL).await.expect("extended"),
        Extension::Extended { expires_at_ms }
    );
    db.pass(TTL_MS + 999).await;
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("released"), Release::Released);
}

// L-10
#[tokio::test]
async fn a_lease_1000_ms_over_is_dead_for_every_client() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    db.pass(TTL_MS + 1000).await;
    assert!(!db.locks.owns(&grant.lock_id).await.expect("looked up"));
    assert_eq!(db.locks.extend(&grant.lock_id, TTL).await.expect("no failure"), Extension::NotHeld);
    assert_eq!(db.locks.release(&grant.lock_id).await.expect("no failure"), Release::NotHeld);
    assert_eq!(db.acquire("k").await.fence, 2);
}

// L-03
#[tokio::test]
async fn an_extension_replaces_the_end_and_may_shorten_it() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    db.pass(10_000).await;
    for seconds in [60, 5] {
        let expires_at_ms = db.now().await + seconds * 1000;
        let extension = db.locks.extend(&grant.lock_id, Duration::from_secs(seconds as u64)).await;
        assert_eq!(extension.expect("extended"), Extension::Extended { expires_at_ms });
    }
    db.pass(6_000).await;
    assert_eq!(db.acquire("k").await.fence, 2);
}

// L-03
#[tokio::test]
async fn an_extended_lease_outlives_its_first_end() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    for _ in 0..3 {
        db.pass(20_000).await;
        let extension = db.locks.extend(&grant.lock_id, TTL).await.expect("no failure");
        assert!(matches!(extension, Extension::Extended { .. }));
    }
    assert_eq!(db.locks.lookup("k").await.expect("looked up").expect("held").fence, grant.fence);
}

// L-03
#[tokio::test]
async fn a_short_lease_ends_while_a_long_one_continues() {
    let db = Db::new().await;
    granted(db.locks.try_acquire("short", Duration::from_millis(1)).await);
    db.acquire("long").await;
    db.pass(1001).await;
    assert!(!db.locks.is_locked("short").await.expect("looked up"));
    assert!(db.locks.is_locked("long").await.expect("looked up"));
}

// L-11
#[tokio::test]
async fn a_lease_begins_after_the_wait_for_the_row() {
    let db = Db::new().await;
    let first = db.acquire("k").await;
    assert_eq!(db.locks.release(&first.lock_id).await.expect("released"), Release::Released);
    let blocker = db.block("SELECT FROM fence_counters FOR UPDATE").await;
    let locks = db.locks.clone();
    let waiting = tokio::spawn(async move { locks.try_acquire("k", TTL).await });
    db.until_blocked(1).await;
    db.pass(2000).await;
    blocker.batch_execute("COMMIT").await.expect("committed");
    let grant = granted(waiting.await.expect("no panic"));
    assert_eq!(grant.expires_at_ms - db.now().await, TTL_MS);
}

// L-11
#[tokio::test]
async fn a_lease_that_ends_while_its_extension_waits_stays_ended() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    let blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    let (locks, id) = (db.locks.clone(), grant.lock_id.clone());
    let waiting = tokio::spawn(async move { locks.extend(&id, TTL).await });
    db.until_blocked(1).await;
    db.pass(TTL_MS + 1000).await;
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(waiting.await.expect("no panic").expect("no failure"), Extension::NotHeld);
}

// L-11
#[tokio::test]
async fn a_lease_that_another_extends_meanwhile_is_judged_by_its_new_end() {
    for release in [false, true] {
        let db = Db::new().await;
        let grant = db.acquire("k").await;
        let blocker = db.block("UPDATE locks SET expires_at_ms = expires_at_ms + 1000000").await;
        let (locks, id) = (db.locks.clone(), grant.lock_id.clone());
        let waiting = tokio::spawn(async move {
            if release {
                locks.release(&id).await.map(|outcome| outcome == Release::Released)
            } else {
                locks.extend(&id, TTL).await.map(|outcome| outcome != Extension::NotHeld)
            }
        });
        db.until_blocked(1).await;
        db.pass(TTL_MS + 1000).await;
        blocker.batch_execute("COMMIT").await.expect("committed");
        assert!(waiting.await.expect("no panic").expect("no failure"), "release: {release}");
        assert_eq!(db.locks.owns(&grant.lock_id).await.expect("looked up"), !release);
    }
}

// L-11
#[tokio::test]
async fn a_server_whose_clock_is_a_century_off_is_the_one_that_counts() {
    let db = Db::new().await;
    for now in [1, 4_000_000_000_000] {
        db.execute(&format!("UPDATE fake_clock SET now_ms = {now}")).await;
        let grant = db.acquire(&format!("at {now}")).await;
        assert_eq!(grant.expires_at_ms, now + TTL_MS);
        assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
        db.pass(TTL_MS + 1000).await;
        assert!(!db.locks.owns(&grant.lock_id).await.expect("looked up"));
    }
}

// L-20
#[tokio::test]
async fn purging_deletes_locks_over_2000_ms_past_their_end_and_nothing_else() {
    let db = Db::new().await;
    for (key, ttl_ms) in [("over", 1), ("at the limit", 2), ("dead", 1000), ("live", 60_000)] {
        granted(db.locks.try_acquire(key, Duration::from_millis(ttl_ms)).await);
    }
    db.pass(2002).await;
    assert_eq!(db.locks.purge_expired().await.expect("purged"), 1);
    let left: String = db.value("SELECT string_agg(key, ', ' ORDER BY key) FROM locks").await;
    assert_eq!(left, "at the limit, dead, live");
    assert_eq!(db.value::<i64>("SELECT count(*) FROM fence_counters").await, 4);
}

// L-20
#[tokio::test]
async fn purging_skips_a_row_that_another_transaction_has_locked() {
    let db = Db::new().await;
    db.acquire("k").await;
    db.pass(TTL_MS + 5000).await;
    let _blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    assert_eq!(db.locks.purge_expired().await.expect("purged"), 0);
}

/// Creates a lease by a clock that is ahead: granted then, or granted before and extended then.
async fn ahead(db: &Db, extended: bool) -> lock::GrantedLock {
    const HOUR_MS: i64 = 3_600_000;
    let granted_before = if extended { Some(db.acquire("k").await) } else { None };
    db.pass(HOUR_MS).await;
    let grant = match granted_before {
        Some(grant) => {
            // The lease was kept alive while the clock jumped.
            let alive = format!("UPDATE test.locks SET expires_at_ms = {}", db.now().await + TTL_MS);
            db.execute(&alive).await;
            grant
        }
        None => db.acquire("k").await,
    };
    db.pass(-HOUR_MS).await;
    grant
}

// L-22
#[tokio::test]
async fn a_lease_from_a_clock_that_was_set_back_is_over_after_its_time_and_not_before() {
    for extended in [false, true] {
        let db = Db::new().await;
        ahead(&db, extended).await;
        let others = if extended { db.locks.with_same_ttl() } else { db.locks.clone() };
        assert!(is_locked(&others.try_acquire("k", TTL).await));
        db.pass(TTL_MS + 999).await;
        assert!(is_locked(&others.try_acquire("k", TTL).await), "extended: {extended}");
        db.pass(1).await;
        assert_eq!(granted(others.try_acquire("k", TTL).await).fence, 2, "extended: {extended}");
    }
}

// L-22
#[tokio::test]
async fn a_living_holder_keeps_its_lease_when_the_clock_is_set_back() {
    for extended in [false, true] {
        let db = Db::new().await;
        let grant = ahead(&db, extended).await;
        let others = if extended { db.locks.with_same_ttl() } else { db.locks.clone() };
        for _ in 0..5 {
            assert!(is_locked(&others.try_acquire("k", TTL).await));
            db.pass(TTL_MS / 2).await;
            let extension = db.locks.extend(&grant.lock_id, TTL).await.expect("no failure");
            assert!(matches!(extension, Extension::Extended { .. }), "extended: {extended}");
        }
    }
}

// L-22
#[tokio::test]
async fn a_long_lease_is_not_cut_short_by_a_client_that_asks_for_a_short_one() {
    let db = Db::new().await;
    let day = Duration::from_secs(24 * 60 * 60);
    granted(db.locks.try_acquire("k", day).await);
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    db.pass(day.as_millis() as i64 + 999).await;
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
}

// L-22
#[tokio::test]
async fn a_lease_from_a_clock_that_was_set_back_is_held_while_its_holder_changes_it() {
    let db = Db::new().await;
    ahead(&db, false).await;
    let _holder = db.block("SELECT FROM locks FOR UPDATE").await;
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
}
