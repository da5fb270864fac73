//! Campaigns for a leadership, and a leader's term.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambient::error_chain;
use lock::{Guard, LockError, LockId, LockManager, Release};
use tokio::time::{Instant, sleep, sleep_until};

use crate::Notice;

/// The length of a term unless renewed. A leader renews it every third of this time.
pub const TERM: Duration = Duration::from_secs(10);
/// The longest time between two campaigns while a leader renews its term.
pub const LEADER_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two campaigns: while a term is about to end, or no process leads.
pub const CAMPAIGN_INTERVAL_MIN: Duration = Duration::from_millis(400);
/// The interval at which a candidate checks that the session of the leader's process is open.
pub const SESSION_POLL_INTERVAL: Duration = Duration::from_millis(900);

/// A candidate's handle on one leadership.
#[derive(Clone, Debug)]
pub struct Leadership<N> {
    locks: LockManager,
    key: Arc<str>,
    candidate: Arc<str>,
    notice: N,
    /// The lock of a term that could not be released because PostgreSQL was unavailable. Without a release it
    /// would make every candidate wait, this one included, after PostgreSQL is back.
    unreleased: Arc<Mutex<Option<LockId>>>,
    /// True for short, frequent terms, whose beginnings and ends are logged at level debug only, and which
    /// have no session.
    for_passes: bool,
    /// The fence of the last term whose session this candidate has seen; zero for none.
    seen_session: Arc<AtomicU64>,
}

impl<N: Notice + Clone> Leadership<N> {
    /// Creates a candidate for the leadership of `key` among all processes with the same tables of locks.
    /// `candidate` is the name of this process in the log. Keys must come from a bounded set: the lock keeps
    /// a counter for each.
    pub fn new(locks: LockManager, key: &str, candidate: &str, notice: N) -> Self {
        Self {
            locks: locks.with_same_ttl(),
            key: key.into(),
            candidate: candidate.into(),
            notice,
            unreleased: Arc::default(),
            for_passes: false,
            seen_session: Arc::default(),
        }
    }

    /// Logs terms at level debug and ties them to no session, for work whose terms last only for one pass.
    #[must_use]
    pub fn for_passes(self) -> Self {
        Self { for_passes: true, ..self }
    }

    /// Campaigns once. Returns `None` if another process leads.
    pub async fn campaign(&self) -> Result<Option<RenewedTerm<N>>, LockError> {
        self.release_last_term().await?;
        let locks = if self.for_passes { self.locks.clone() } else { self.locks.tied_to_sessions() };
        let Some(guard) = locks.try_hold(&self.key, TERM).await? else { return Ok(None) };
        let (replica, leadership, fence) = (&*self.candidate, &*self.key, guard.fence());
        match self.for_passes {
            true => tracing::debug!(replica, leadership, fence, "leadership won"),
            false => tracing::info!(replica, leadership, fence, "leadership won"),
        }
        Ok(Some(RenewedTerm { leadership: self.clone(), guard }))
    }

    /// Waits until another campaign may succeed: until soon after the leader stepped down, its process died
    /// or its term ended, otherwise for [`LEADER_POLL_INTERVAL`].
    pub async fn leader_change(&self) {
        // Free or unknown: the next campaign finds out.
        let held = self.locks.lookup(&self.key).await.ok().flatten();
        let free_in = held.as_ref().map_or(Duration::ZERO, |held| held.free_in);
        let interval = free_in.clamp(CAMPAIGN_INTERVAL_MIN, LEADER_POLL_INTERVAL);
        let campaign_at = Instant::now() + interval;
        let notified = async {
            // Without a working notice the interval alone decides.
            if self.notice.wait(interval).await.is_err() {
                sleep_until(campaign_at).await;
            }
        };
        tokio::select! {
            biased;
            () = notified => {}
            () = self.leader_death(held.map(|held| held.fence)) => {}
        }
    }

    /// Waits until the session of the term with this fence has ended, and releases its lock, unless another
    /// candidate has. A term whose session was never seen may have none; it ends with its lease.
    async fn leader_death(&self, fence: Option<u64>) {
        let Some(fence) = fence.filter(|_| !self.for_passes) else { return std::future::pending().await };
        loop {
            match self.locks.has_session(&self.key, fence).await {
                Ok(true) => {
                    self.seen_session.store(fence, Ordering::Relaxed);
                }
                Ok(false) if self.seen_session.load(Ordering::Relaxed) == fence => {
                    match self.locks.release_orphan(&self.key, fence).await {
                        Ok(Release::Released) => {
                            let (replica, leadership) = (&*self.candidate, &*self.key);
                            tracing::info!(replica, leadership, fence, "the leader's session has ended");
                            return;
                        }
                        // Another candidate was faster, or the leader has opened another session.
                        Ok(Release::NotHeld) => return,
                        Err(_) => {}
                    }
                }
                // It may not have a session yet, or PostgreSQL is unavailable.
                Ok(false) | Err(_) => {}
            }
            sleep(SESSION_POLL_INTERVAL).await;
        }
    }

    /// Makes the fences of all later terms higher than `floor`, for a database that was restored to an older
    /// state.
    pub async fn raise_fence(&self, floor: u64) -> Result<(), LockError> {
        self.locks.raise_fence(&self.key, floor).await.map(drop)
    }

    /// Releases the lock of the last term, if its release failed at the end of the term.
    async fn release_last_term(&self) -> Result<(), LockError> {
        let Some(lock_id) = self.unreleased().clone() else { return Ok(()) };
        // Released or expired, the lock no longer blocks candidates.
        self.locks.release(&lock_id).await.map(drop)?;
        self.unreleased().take();
        Ok(())
    }

    fn unreleased(&self) -> std::sync::MutexGuard<'_, Option<LockId>> {
        self.unreleased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leader's term, renewed in the background. Dropping it ends the term without a notice.
#[derive(Debug)]
pub struct RenewedTerm<N> {
    leadership: Leadership<N>,
    guard: Guard,
}

impl<N: Notice + Clone> RenewedTerm<N> {
    /// Returns the fence, which is higher than that of every earlier term of this leadership.
    pub fn fence(&self) -> u64 {
        self.guard.fence()
    }

    /// Waits until the term can no longer be relied on, which is before it ends for other processes, by the
    /// monotonic clock of this process.
    pub async fn lost(&self) {
        self.guard.lost().cancelled().await;
    }

    /// Ends the term and sends the leader-change notice, so that another candidate need not wait for the
    /// lease to expire. Failures are logged; after a failure the lease expires, or this process releases the
    /// lock at its next campaign if that comes first.
    pub async fn step_down(self) {
        let (fence, lock_id) = (self.guard.fence(), self.guard.lock_id().clone());
        let Leadership { key, candidate, notice, for_passes, .. } = &self.leadership;
        match self.guard.release().await {
            Ok(Release::Released) => {
                let (replica, leadership) = (&**candidate, &**key);
                match for_passes {
                    true => tracing::debug!(replica, leadership, fence, "stepped down from leadership"),
                    false => tracing::info!(replica, leadership, fence, "stepped down from leadership"),
                }
            }
            // The lease has expired or will expire, so no notice is sent.
            Ok(Release::NotHeld) => return,
            Err(error) => {
                *self.leadership.unreleased() = Some(lock_id);
                let error = error_chain(&error);
                tracing::warn!(
                    leadership = &**key,
                    fence,
                    error,
                    "could not step down from leadership; the lease is released by the next campaign or expires"
                );
                return;
            }
        }
        if let Err(error) = notice.announce().await {
            tracing::debug!(
                leadership = &**key,
                error = error_chain(&error),
                "the leader-change notice was not sent"
            );
        }
    }
}
