//! L-24: locks that are tied to sessions.

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, ManualClock, Timestamp};
use lock::{LockManager, MemoryLocks, Release};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{BOUND, Db, TTL};

/// Ends the connections that have the session of a grant open.
const END_SESSIONS: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2";

/// Waits until the grant with this fence has a session, or has none.
async fn until_session(locks: &LockManager, fence: u64, expected: bool) {
    let begin = Instant::now();
    while locks.has_session("k", fence).await.expect("no failure") != expected {
        assert!(begin.elapsed() < BOUND, "the session of the grant is as before");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Holds a lock in a session, which `end_sessions` then ends.
async fn check_orphan(locks: LockManager, end_sessions: impl AsyncFn()) {
    let guard = locks.tied_to_sessions().try_hold("k", TTL).await.expect("no failure").expect("free");
    let fence = guard.fence();
    until_session(&locks, fence, true).await;
    assert!(!locks.has_session("k", fence + 1).await.expect("no failure"), "another grant");
    assert!(!locks.has_session("other", fence).await.expect("no failure"), "another key");
    assert_eq!(locks.release_orphan("k", fence).await.expect("no failure"), Release::NotHeld);
    assert!(!guard.lost().is_cancelled());

    end_sessions().await;
    until_session(&locks, fence, false).await;
    until_session(&locks, fence, true).await;
    assert!(!guard.lost().is_cancelled(), "the holder has opened another session");

    // The holder opens another one after a second or two.
    let begin = Instant::now();
    loop {
        end_sessions().await;
        assert_eq!(locks.release_orphan("k", fence + 1).await.expect("no failure"), Release::NotHeld);
        if locks.release_orphan("k", fence).await.expect("no failure") == Release::Released {
            break;
        }
        assert!(begin.elapsed() < BOUND, "the lock is tied to a session that has ended");
    }
    assert_eq!(locks.release_orphan("k", fence).await.expect("no failure"), Release::NotHeld);
    let next = locks.try_hold("k", TTL).await.expect("no failure").expect("free");
    assert_eq!(next.fence(), fence + 1);
    timeout(BOUND, guard.lost().cancelled()).await.expect("the holder notices the end of its session");
    assert_eq!(guard.release().await.expect("no failure"), Release::NotHeld);
    assert!(locks.is_locked("k").await.expect("no failure"), "the next holder keeps its lock");
}

// L-24
#[tokio::test]
async fn the_lock_of_a_session_that_has_ended_can_be_released_by_others() {
    let db = Db::new().await;
    check_orphan(db.locks.clone(), async || db.execute(END_SESSIONS).await).await;
}

// L-24
#[tokio::test]
async fn sessions_in_memory_follow_the_same_rules() {
    let clock: Arc<dyn Clock> =
        Arc::new(ManualClock::new(Timestamp::from_millis(1_000_000_000_000).expect("a time")));
    let memory = MemoryLocks::new(clock);
    check_orphan(LockManager::in_memory(memory.clone()), async || memory.end_sessions()).await;
}

// L-24
#[tokio::test]
async fn a_release_ends_the_session_and_other_locks_have_none() {
    let db = Db::new().await;
    let tied = db.locks.tied_to_sessions();
    let guard = tied.try_hold("k", TTL).await.expect("no failure").expect("free");
    until_session(&db.locks, 1, true).await;
    assert_eq!(guard.release().await.expect("released"), Release::Released);
    until_session(&db.locks, 1, false).await;
    let untied = db.locks.try_hold("k", TTL).await.expect("no failure").expect("free");
    assert!(!db.locks.has_session("k", untied.fence()).await.expect("no failure"));
}
