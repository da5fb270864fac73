//! Guards and work under a lock: renewal, loss, hand-over, waiting.

use std::time::Duration;

use lock::{Acquisition, ErrorCode, LockError, LockOptions, Release, Retry};
use tokio::time::{Instant, timeout};

use crate::support::{BOUND, Db, TTL, is_locked, log};

/// Renewed every 200 ms, trusted for 500 ms.
const SHORT: Duration = Duration::from_millis(600);

fn patient() -> LockOptions {
    LockOptions { ttl: TTL, retry: Retry { max_retries: 1000, timeout: BOUND, ..Retry::default() } }
}

fn within(timeout: Duration) -> LockOptions {
    LockOptions { ttl: TTL, retry: Retry { timeout, ..Retry::default() } }
}

#[tokio::test]
async fn a_guard_holds_until_it_is_released() {
    let db = Db::new().await;
    let guard = db.locks.try_hold("k", TTL).await.expect("no failure").expect("free");
    assert_eq!(guard.fence(), 1);
    assert!(guard.remaining() > Duration::from_secs(20) && guard.remaining() <= TTL * 5 / 6);
    assert!(db.locks.try_hold("k", TTL).await.expect("no failure").is_none());
    let lost = guard.lost();
    assert!(!lost.is_cancelled());
    assert_eq!(guard.release().await.expect("released"), Release::Released);
    assert!(lost.is_cancelled());
    assert_eq!(db.acquire("k").await.fence, 2);
}

#[tokio::test]
async fn a_guard_renews_its_lease() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    // Renewed after a second, and not lost in the first two and a half.
    let guard = locks.try_hold("k", Duration::from_secs(3)).await.expect("no failure").expect("free");
    let granted = db.value::<i64>("SELECT expires_at_ms FROM locks").await;
    db.pass(500).await;
    events.until("Extend Done").await;
    assert_eq!(db.value::<i64>("SELECT expires_at_ms FROM locks").await, granted + 500);
    assert!(!guard.lost().is_cancelled());
}

#[tokio::test]
async fn a_guard_that_is_dropped_releases_its_lock() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    drop(locks.try_hold("k", TTL).await.expect("no failure").expect("free"));
    events.until("Release Done").await;
    assert_eq!(db.acquire("k").await.fence, 2);
}

#[tokio::test]
async fn a_release_in_the_background_that_fails_is_logged_with_its_cause() {
    let db = Db::new().await;
    let guard = db.locks.try_hold("k", TTL).await.expect("no failure").expect("free");
    let hash = guard.lock_id().hash();
    db.execute("DROP TABLE locks").await;
    drop(guard);
    let begin = Instant::now();
    let line = loop {
        match log().lines().find(|line| line.contains(&hash)) {
            Some(line) => break line.to_owned(),
            None => tokio::task::yield_now().await,
        }
        assert!(begin.elapsed() < BOUND, "nothing is logged");
    };
    assert!(line.contains("could not release a lock") && line.contains("does not exist"), "{line}");
}

#[tokio::test]
async fn a_lease_that_was_deleted_is_lost() {
    let db = Db::new().await;
    let guard = db.locks.try_hold("k", SHORT).await.expect("no failure").expect("free");
    db.execute("DELETE FROM locks").await;
    timeout(BOUND, guard.lost().cancelled()).await.expect("lost");
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.release().await.expect("no failure"), Release::NotHeld);
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_while_the_server_still_counts_it() {
    let db = Db::new().await;
    let guard = db.locks.try_hold("k", SHORT).await.expect("no failure").expect("free");
    let blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    timeout(BOUND, guard.lost().cancelled()).await.expect("lost");
    assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(guard.release().await.expect("no failure"), Release::Released);
}

#[tokio::test]
async fn a_release_continues_when_its_caller_stops_waiting() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    let guard = locks.try_hold("k", TTL).await.expect("no failure").expect("free");
    let blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    tokio::select! {
        outcome = guard.release() => panic!("the row was held: {outcome:?}"),
        () = db.until_blocked(1) => {}
    }
    blocker.batch_execute("COMMIT").await.expect("committed");
    events.until("Release Done").await;
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}

#[tokio::test]
async fn a_release_without_a_guard_continues_too() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    let grant = db.acquire("k").await;
    let blocker = db.block("SELECT FROM locks FOR UPDATE").await;
    tokio::select! {
        outcome = locks.release(&grant.lock_id) => panic!("the row was held: {outcome:?}"),
        () = db.until_blocked(1) => {}
    }
    blocker.batch_execute("COMMIT").await.expect("committed");
    events.until("Release Done").await;
}

#[tokio::test]
async fn work_runs_under_its_lock_and_gives_its_result() {
    let db = Db::new().await;
    let work = async |lease: lock::Lease| {
        assert!(is_locked(&db.locks.try_acquire("k", TTL).await));
        lease.fence
    };
    assert_eq!(db.locks.lock("k", patient(), work).await.expect("done"), 1);
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}

#[tokio::test]
async fn work_that_fails_gives_its_error_and_its_lock_back() {
    let db = Db::new().await;
    let outcome = db.locks.lock("k", patient(), |_| async { Err::<(), _>("its own error") }).await;
    assert_eq!(outcome.expect("the lock was well"), Err("its own error"));
    assert!(!db.locks.is_locked("k").await.expect("looked up"));
}

#[tokio::test]
async fn work_that_panics_gives_its_lock_back() {
    let db = Db::new().await;
    let (locks, events) = db.observed();
    let work =
        tokio::spawn(async move { locks.lock("k", patient(), |_| async { panic!("its own fault") }).await });
    assert!(work.await.expect_err("panics").is_panic());
    events.until("Release Done").await;
}

#[tokio::test]
async fn work_that_loses_its_lease_is_dropped() {
    let db = Db::new().await;
    let options = LockOptions { ttl: SHORT, ..patient() };
    let work = db.locks.lock("k", options, |_| async {
        db.execute("DELETE FROM locks").await;
        std::future::pending::<()>().await;
    });
    let error = timeout(BOUND, work).await.expect("ends").expect_err("lost");
    assert!(matches!(error, LockError::Lost { fence: 1 }), "{error}");
}

#[tokio::test]
async fn who_waits_too_long_gets_a_timeout() {
    let db = Db::new().await;
    db.acquire("k").await;
    let error = db.locks.hold("k", within(Duration::from_millis(300))).await.expect_err("locked");
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(matches!(error, LockError::AcquisitionTimeout { attempts: 2.., last: None, .. }), "{error:?}");
}

#[tokio::test]
async fn attempts_are_counted() {
    let db = Db::new().await;
    db.acquire("k").await;
    let retry = Retry { max_retries: 2, delay: Duration::from_millis(1), ..Retry::default() };
    let error = db.locks.hold("k", LockOptions { ttl: TTL, retry }).await.expect_err("locked");
    assert!(matches!(error, LockError::AcquisitionTimeout { attempts: 3, .. }), "{error:?}");
}

#[tokio::test]
async fn who_waits_gets_the_lock_once_it_is_free() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    let (locks, events) = db.observed();
    let release = async {
        events.until("Acquire Refused(Locked)").await;
        db.locks.release(&grant.lock_id).await.expect("released")
    };
    let (guard, released) = tokio::join!(locks.hold("k", patient()), release);
    assert_eq!((guard.expect("acquired").fence(), released), (2, Release::Released));
}

#[tokio::test]
async fn failures_that_pass_are_waited_out() {
    let db = Db::new().await;
    fail_reading_the_clock(&db, "40001", 3).await;
    let guard = db.locks.hold("k", patient()).await.expect("acquired");
    assert_eq!(guard.fence(), 1);
}

#[tokio::test]
async fn failures_that_do_not_pass_in_time_are_named() {
    let db = Db::new().await;
    fail_reading_the_clock(&db, "40001", 1_000_000).await;
    let error = db.locks.hold("k", within(Duration::from_millis(300))).await.expect_err("fails");
    let LockError::AcquisitionTimeout { last: Some(last), .. } = error else { panic!("{error:?}") };
    assert_eq!(last.code(), ErrorCode::ServiceUnavailable);
}

#[tokio::test]
async fn permanent_failures_are_returned_at_once() {
    let db = Db::new().await;
    fail_reading_the_clock(&db, "22000", 1).await;
    let error = db.locks.hold("k", patient()).await.expect_err("fails");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(matches!(db.locks.try_acquire("k", TTL).await, Ok(Acquisition::Acquired(_))));
}

/// Makes the next `times` reads of the database's clock fail. Sequences are not rolled back.
async fn fail_reading_the_clock(db: &Db, state: &str, times: u32) {
    db.execute(&format!(
        "CREATE SEQUENCE asked; GRANT USAGE ON asked TO svc;
         CREATE OR REPLACE FUNCTION test.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
         BEGIN
             IF nextval('asked') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF;
             RETURN to_timestamp(0) + (SELECT now_ms FROM test.fake_clock) * interval '1 millisecond';
         END $$"
    ))
    .await;
    // Acquiring a key that has a row reads the clock first; without a row there would be nothing to compare.
    db.execute("INSERT INTO locks VALUES ('k', 'aaaaaaaaaaaaaaaaaaaaaa', 0, 0, '000000000000000', 'k')")
        .await;
}
