//! A held lock: renewed in the background, released when the guard is dropped.
//!
//! The guard uses only its own monotonic clock. For the holder, the lease ends a sixth of its length before
//! the server would end it, counted from the time at which the last successful renewal was *requested*. A
//! process that was suspended finds its lease lost when it wakes up, but code between two awaits may run
//! before that: check [`Guard::remaining`], and let the target of the write check the fence.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::key::LockKey;
use crate::store::LockStore;
use crate::telemetry::LockOperation;
use crate::{Extension, GrantedLock, LockError, LockId, Release};

/// A held lock. Dropping it releases the lock in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases its lock at once"]
pub struct Guard {
    lock_id: LockId,
    fence: u64,
    lost: CancellationToken,
    ends: watch::Receiver<Instant>,
    stop: oneshot::Sender<Explicit>,
    keeper: JoinHandle<Result<Release, LockError>>,
}

/// The message of a caller that waits for the release and receives its outcome; a guard that is only dropped
/// sends nothing.
#[derive(Debug)]
struct Explicit;

impl Guard {
    pub(crate) fn start(
        store: Arc<LockStore>,
        key: LockKey,
        grant: GrantedLock,
        schedule: RenewalSchedule,
    ) -> Self {
        let GrantedLock { lock_id, fence, asked_at, .. } = grant.clone();
        let lost = CancellationToken::new();
        let (ends_tx, ends) = watch::channel(asked_at + schedule.trusted);
        let (stop, stopped) = oneshot::channel();
        let keeper = tokio::spawn(keep(store, key, grant, schedule, ends_tx, lost.clone(), stopped));
        Self { lock_id, fence, lost, ends, stop, keeper }
    }

    /// Returns the fence of this grant, higher than that of every earlier grant of this key.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns the id of this grant.
    pub fn lock_id(&self) -> &LockId {
        &self.lock_id
    }

    /// Returns a token that is cancelled when the lease can no longer be relied on: a renewal was refused,
    /// none has succeeded for five sixths of the time to live, the renewing task ended for another reason, or
    /// the guard was dropped. It stays cancelled.
    pub fn lost(&self) -> CancellationToken {
        self.lost.child_token()
    }

    /// Returns the time for which the lease can be relied on without another renewal; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        if self.lost.is_cancelled() {
            return Duration::ZERO;
        }
        self.ends.borrow().saturating_duration_since(Instant::now())
    }

    /// Releases the lock and returns its outcome: whether the lock was still held. Continues in the
    /// background if the caller stops waiting.
    pub async fn release(self) -> Result<Release, LockError> {
        // The keeper ends early only if it panicked or the runtime shuts down: then the join fails.
        drop(self.stop.send(Explicit));
        self.keeper.await.unwrap_or(Err(LockError::Aborted { operation: LockOperation::Release }))
    }

    /// Releases the lock and waits for the release. A failure is logged where it occurs; the lease then
    /// expires.
    pub(crate) async fn dispose(self) {
        drop(self.stop);
        drop(self.keeper.await);
    }
}

/// The times of a lease's renewals, and the time for which it is trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalSchedule {
    pub(crate) ttl_ms: i64,
    /// The time from a request to the end of the trust in its grant.
    trusted: Duration,
    /// The time from a successful request to the next.
    renew_after: Duration,
    /// The timeout of one renewal.
    attempt_timeout: Duration,
    /// The time from a failed renewal to the next.
    retry_after: Duration,
}

impl RenewalSchedule {
    pub(crate) fn of(ttl: Duration, ttl_ms: i64) -> Self {
        Self {
            ttl_ms,
            trusted: ttl * 5 / 6,
            renew_after: ttl / 3,
            attempt_timeout: ttl / 6,
            retry_after: ttl / 24,
        }
    }
}

/// Renews until the lease is lost or the guard is released, then releases. A lost lease is released too,
/// because the server may still consider it live.
async fn keep(
    store: Arc<LockStore>,
    key: LockKey,
    grant: GrantedLock,
    schedule: RenewalSchedule,
    ends: watch::Sender<Instant>,
    lost: CancellationToken,
    mut stopped: oneshot::Receiver<Explicit>,
) -> Result<Release, LockError> {
    let lock_id = &grant.lock_id;
    let renewals = renew(schedule, grant.asked_at, &ends, || store.extend(lock_id, schedule.ttl_ms));
    // It lasts until the lock is released, so that no other client releases it at the same time.
    let mut session = pin!(keep_session(&store, &key, &grant, schedule));
    let is_lost = async {
        tokio::select! {
            biased;
            why = renewals => why,
            () = &mut session => "its session ended, and another client released it",
        }
    };
    let asked = until_released(is_lost, lock_id, lost, &mut stopped).await;
    let released = store.release_abandoned(lock_id).await;
    if let (Err(_), Err(error)) = (asked, &released) {
        tracing::warn!(
            lock_id_hash = lock_id.hash(),
            error = ambient::error_chain(error),
            "could not release a lock: it stays locked until its lease expires"
        );
    }
    released
}

/// Waits until the guard is released or dropped. Cancels `lost` as soon as `is_lost` ends for any reason,
/// including a panic or the drop of this task.
async fn until_released(
    is_lost: impl Future<Output = &'static str>,
    lock_id: &LockId,
    lost: CancellationToken,
    stopped: &mut oneshot::Receiver<Explicit>,
) -> Result<Explicit, oneshot::error::RecvError> {
    let renewing = lost.drop_guard();
    tokio::select! {
        biased;
        asked = &mut *stopped => asked,
        why = is_lost => {
            tracing::warn!(lock_id_hash = lock_id.hash(), why, "a lock was lost");
            drop(renewing);
            stopped.await
        }
    }
}

/// Keeps the grant tied to a session. Ends if another client released the lock while there was none.
async fn keep_session(store: &LockStore, key: &LockKey, grant: &GrantedLock, schedule: RenewalSchedule) {
    if !store.ties_to_sessions {
        return std::future::pending().await;
    }
    loop {
        // Without a session, other clients wait for the end of the lease.
        if let Ok(session) = store.open_session(key, grant.fence).await {
            session.ended().await;
            if let Ok(Extension::NotHeld) = store.extend(&grant.lock_id, schedule.ttl_ms).await {
                return;
            }
        }
        sleep(schedule.retry_after).await;
    }
}

/// Renews every third of the time to live while that keeps the lease; returns the reason for its end.
async fn renew<F>(
    schedule: RenewalSchedule,
    asked_at: Instant,
    ends: &watch::Sender<Instant>,
    mut extend: impl FnMut() -> F,
) -> &'static str
where
    F: Future<Output = Result<Extension, LockError>>,
{
    let mut next = asked_at + schedule.renew_after;
    loop {
        let end = *ends.borrow();
        let attempt = async {
            sleep_until(next).await;
            let asked_at = Instant::now();
            (asked_at, timeout(schedule.attempt_timeout, extend()).await)
        };
        // The end is checked first: a grant is worthless if its response is seen too late.
        let (asked_at, answer) = tokio::select! {
            biased;
            () = sleep_until(end) => return "no renewal succeeded in time",
            attempt = attempt => attempt,
        };
        match answer {
            Ok(Ok(Extension::Extended { .. })) => {
                ends.send_replace(asked_at + schedule.trusted);
                next = asked_at + schedule.renew_after;
            }
            Ok(Ok(Extension::NotHeld)) => return "a renewal was refused",
            // The store has reported the error; there may be time for another attempt.
            Ok(Err(_)) | Err(_) => next = Instant::now() + schedule.retry_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;

    use pg::PgError;

    use super::*;

    const TTL: Duration = Duration::from_secs(24);

    /// Runs renewals whose results come from a list, the last one repeatedly. Returns the reason for the end,
    /// the time of each request and the time at the end, in seconds.
    async fn run(answers: &[fn() -> Result<Extension, LockError>]) -> (&'static str, Vec<u64>, u64) {
        let start = Instant::now();
        let schedule = RenewalSchedule::of(TTL, 24_000);
        let (ends, _) = watch::channel(start + schedule.trusted);
        let asked = Mutex::new(Vec::new());
        let why = renew(schedule, start, &ends, || {
            let mut asked = asked.lock().expect("not poisoned");
            let answer = answers[asked.len().min(answers.len() - 1)];
            asked.push(start.elapsed().as_secs());
            std::future::ready(answer())
        })
        .await;
        (why, asked.into_inner().expect("not poisoned"), start.elapsed().as_secs())
    }

    fn extended() -> Result<Extension, LockError> {
        Ok(Extension::Extended { expires_at_ms: 0 })
    }

    fn not_held() -> Result<Extension, LockError> {
        Ok(Extension::NotHeld)
    }

    fn unavailable() -> Result<Extension, LockError> {
        Err(PgError::unavailable("extend a lock", "connection refused").into())
    }

    // L-21
    #[tokio::test]
    async fn a_lock_whose_renewals_panicked_is_lost() {
        let lost = CancellationToken::new();
        let (_stop, mut stopped) = oneshot::channel();
        let keeper = tokio::spawn({
            let lost = lost.clone();
            let panicking = async { panic!("a bug in the renewals") };
            async move { until_released(panicking, &LockId::from_bytes([0; 16]), lost, &mut stopped).await }
        });
        assert!(keeper.await.expect_err("it panicked").is_panic());
        assert!(lost.is_cancelled());
    }

    // L-21
    #[tokio::test]
    async fn a_lock_whose_keeper_is_dropped_is_lost() {
        let lost = CancellationToken::new();
        let (_stop, mut stopped) = oneshot::channel();
        let lock_id = LockId::from_bytes([0; 16]);
        let mut keeper =
            Box::pin(until_released(std::future::pending(), &lock_id, lost.clone(), &mut stopped));
        assert!(if_ready(keeper.as_mut()).await.is_none());
        assert!(!lost.is_cancelled());
        drop(keeper);
        assert!(lost.is_cancelled());
    }

    /// The output of a future that is ready at its first poll.
    async fn if_ready<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_at_each_third_and_lost_with_the_first_refusal() {
        let (why, asked, ended) = run(&[extended, extended, not_held]).await;
        assert_eq!((why, asked, ended), ("a renewal was refused", vec![8, 16, 24], 24));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_cannot_be_renewed_is_lost_before_it_ends() {
        let (why, asked, ended) = run(&[unavailable]).await;
        assert_eq!((why, ended), ("no renewal succeeded in time", 20));
        assert_eq!(asked, (8..20).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_succeeds_at_last_keeps_the_lease() {
        let (_, asked, ended) = run(&[unavailable, unavailable, extended, not_held]).await;
        assert_eq!((asked, ended), (vec![8, 9, 10, 18], 18));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_without_an_answer_is_given_up_and_tried_again() {
        let start = Instant::now();
        let schedule = RenewalSchedule::of(TTL, 24_000);
        let (ends, _) = watch::channel(start + schedule.trusted);
        let mut asked = Vec::new();
        renew(schedule, start, &ends, || {
            asked.push(start.elapsed().as_secs());
            std::future::pending()
        })
        .await;
        assert_eq!((asked, start.elapsed().as_secs()), (vec![8, 13, 18], 20));
    }
}
