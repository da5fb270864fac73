//! Campaigns for a leadership, and a leader's term.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambient::error_chain;
use lock::{Guard, LockError, LockId, LockManager, Release};
use tokio::time::{Instant, sleep_until};

use crate::Notice;

/// The length of a term unless renewed. A leader renews it every third of this time.
pub const TERM: Duration = Duration::from_secs(10);
/// The longest time between two campaigns while a leader renews its term.
pub const LEADER_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two campaigns: while a term is about to end, or no process leads.
pub const CAMPAIGN_INTERVAL_MIN: Duration = Duration::from_millis(400);

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
    /// True for short, frequent terms, whose beginnings and ends are logged at level debug only.
    for_passes: bool,
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
        }
    }

    /// Logs terms at level debug, for work whose terms last only for one pass.
    #[must_use]
    pub fn for_passes(self) -> Self {
        Self { for_passes: true, ..self }
    }

    /// Campaigns once. Returns `None` if another process leads.
    pub async fn campaign(&self) -> Result<Option<RenewedTerm<N>>, LockError> {
        self.release_last_term().await?;
        let Some(guard) = self.locks.try_hold(&self.key, TERM).await? else { return Ok(None) };
        let (replica, leadership, fence) = (&*self.candidate, &*self.key, guard.fence());
        match self.for_passes {
            true => tracing::debug!(replica, leadership, fence, "leadership won"),
            false => tracing::info!(replica, leadership, fence, "leadership won"),
        }
        Ok(Some(RenewedTerm { leadership: self.clone(), guard }))
    }

    /// Waits until another campaign may succeed: until soon after the leader stepped down or its term ended,
    /// otherwise for [`LEADER_POLL_INTERVAL`].
    pub async fn leader_change(&self) {
        let interval = self.campaign_interval().await;
        let campaign_at = Instant::now() + interval;
        // Without a working notice the interval alone decides.
        if self.notice.wait(interval).await.is_err() {
            sleep_until(campaign_at).await;
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

    /// Returns the time until the lease ends by PostgreSQL's clock unless renewed, within the bounds of the
    /// interval.
    async fn campaign_interval(&self) -> Duration {
        match self.locks.lookup(&self.key).await {
            Ok(Some(held)) => held.free_in.clamp(CAMPAIGN_INTERVAL_MIN, LEADER_POLL_INTERVAL),
            // Free or unknown: the next campaign finds out.
            Ok(None) | Err(_) => CAMPAIGN_INTERVAL_MIN,
        }
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
