//! The operations on locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Jitter, RandomJitter, RandomTokens, Tokens};
use pg::PgPool;
use tokio_util::sync::CancellationToken;

use crate::attempt::Pending;
use crate::fence::FENCE_MAX;
use crate::guard::{Guard, RenewalSchedule};
use crate::key::LockKey;
use crate::retry::Retry;
use crate::schema::TableNames;
use crate::store::{LockStore, Locks, Selector};
use crate::tables::LockTables;
use crate::telemetry::{EventSink, LockObserver, LockOperation};
use crate::{Acquisition, Extension, GrantedLock, LockError, LockId, LockInfo, Release};

/// The default time to live of a lock.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The longest time to live. A lock that is needed for longer is renewed.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The largest number of rows that one [`LockManager::purge_expired`] deletes.
pub const PURGE_BATCH: u64 = 1000;

/// Options for acquiring and holding a lock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LockOptions {
    /// The time after which a crashed holder loses the lock.
    pub ttl: Duration,
    /// The retries while another client holds the lock.
    pub retry: Retry,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL, retry: Retry::default() }
    }
}

/// The lease under which work runs.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The fence to send with each write that the lock protects.
    pub fence: u64,
    /// A token that is cancelled when the lease can no longer be relied on; the work is then dropped.
    pub lost: CancellationToken,
}

/// The locks of one pair of tables. Clones are cheap and share everything.
#[derive(Clone)]
pub struct LockManager {
    store: Arc<LockStore>,
    tokens: Arc<dyn Tokens>,
    jitter: Arc<dyn Jitter>,
    abort: Option<CancellationToken>,
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut manager = f.debug_struct("LockManager");
        match &self.store.locks {
            Locks::Tables(tables) => manager.field("tables", &tables.names),
            #[cfg(feature = "memory")]
            Locks::Memory(_) => &mut manager,
        };
        manager.finish_non_exhaustive()
    }
}

impl LockManager {
    /// Creates a manager of locks in the tables `names`, which [`LockManager::setup_schema`] or a migration
    /// has created.
    pub fn new(pool: PgPool, names: TableNames) -> Self {
        Self::build(Locks::Tables(LockTables { pool, names }), EventSink::default())
    }

    /// Creates a manager of locks in memory, for tests.
    #[cfg(feature = "memory")]
    pub fn in_memory(locks: crate::MemoryLocks) -> Self {
        Self::build(Locks::Memory(locks), EventSink::default())
    }

    /// Does the same with an `observer` of every operation.
    pub fn observed(pool: PgPool, names: TableNames, observer: Arc<dyn LockObserver>) -> Self {
        Self::build(Locks::Tables(LockTables { pool, names }), EventSink(Some(observer)))
    }

    fn build(locks: Locks, telemetry: EventSink) -> Self {
        let store = Arc::new(LockStore { locks, telemetry, same_ttl: false, ties_to_sessions: false });
        Self { store, tokens: Arc::new(RandomTokens), jitter: Arc::new(RandomJitter), abort: None }
    }

    /// Returns the same locks for a caller that may cancel: once `token` is cancelled, operations in progress
    /// end with [`LockError::Aborted`], and later ones send nothing. A lock that was granted meanwhile is
    /// released.
    pub fn cancelled_by(&self, token: CancellationToken) -> Self {
        Self { abort: Some(token), ..self.clone() }
    }

    /// Returns the same locks, with the caller's promise that all clients acquire a key for the same time to
    /// live. A lease that lasts longer than that from now was written by a clock that was ahead and has been
    /// corrected, so it is shortened to that time from now. Without this promise only leases whose grant is
    /// in the future are shortened.
    #[must_use]
    pub fn with_same_ttl(&self) -> Self {
        let store = LockStore { same_ttl: true, ..(*self.store).clone() };
        Self { store: Arc::new(store), ..self.clone() }
    }

    /// Returns the same locks, whose guards tie each grant to a session of PostgreSQL: a connection of the
    /// pool that is open until the guard is dropped or the process ends. Once it has ended, other clients can
    /// release the lock: see [`LockManager::release_orphan`]. A guard whose connection alone has ended opens
    /// another one, and considers the lock lost if it was released meanwhile.
    #[must_use]
    pub fn tied_to_sessions(&self) -> Self {
        let store = LockStore { ties_to_sessions: true, ..(*self.store).clone() };
        Self { store: Arc::new(store), ..self.clone() }
    }

    /// Creates the tables if they are missing, and checks that existing ones can be used.
    pub async fn setup_schema(&self) -> Result<(), LockError> {
        self.store.setup_schema().await
    }

    /// Checks that every statement of this crate can be prepared on the tables.
    pub async fn check_schema(&self) -> Result<(), LockError> {
        self.store.check_schema().await
    }

    /// Returns the same locks with another source of ids.
    #[must_use]
    pub fn with_tokens(&self, tokens: Arc<dyn Tokens>) -> Self {
        Self { tokens, ..self.clone() }
    }

    /// Tries once to acquire `key` for `ttl`. The lock is not renewed: see [`LockManager::hold`].
    ///
    /// If the caller stops waiting, or the response is lost, the lock is released in the background.
    pub async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Acquisition, LockError> {
        let (key, ttl_ms) = (LockKey::parse(key)?, millis(ttl)?);
        self.unless_aborted(LockOperation::Acquire, self.attempt(&key, ttl_ms)).await
    }

    /// Tries once to acquire `key`; the guard renews it. Returns `None` if another client holds it.
    pub async fn try_hold(&self, key: &str, ttl: Duration) -> Result<Option<Guard>, LockError> {
        let (key, ttl_ms) = (LockKey::parse(key)?, millis(ttl)?);
        let acquired = self.unless_aborted(LockOperation::Acquire, self.attempt(&key, ttl_ms)).await?;
        Ok(match acquired {
            Acquisition::Acquired(grant) => Some(self.guard(key, grant, RenewalSchedule::of(ttl, ttl_ms))),
            Acquisition::Locked => None,
        })
    }

    /// Acquires `key`, waiting while other clients hold it and retrying transient failures; the guard renews
    /// it.
    ///
    /// Returns [`LockError::AcquisitionTimeout`] if that took too long. There is no queue: any waiter may be
    /// next.
    pub async fn hold(&self, key: &str, options: LockOptions) -> Result<Guard, LockError> {
        let (key, ttl_ms) = (LockKey::parse(key)?, millis(options.ttl)?);
        let grant =
            self.unless_aborted(LockOperation::Acquire, self.win(&key, ttl_ms, options.retry)).await?;
        Ok(self.guard(key, grant, RenewalSchedule::of(options.ttl, ttl_ms)))
    }

    /// Runs `work` while holding `key`, and always releases the key: also if the work panics or is dropped.
    ///
    /// If the lease is lost, the work is dropped at its next await and the result is [`LockError::Lost`].
    /// Errors of the work are part of its own result.
    pub async fn lock<T, W: Future<Output = T>>(
        &self,
        key: &str,
        options: LockOptions,
        work: impl FnOnce(Lease) -> W,
    ) -> Result<T, LockError> {
        let guard = self.hold(key, options).await?;
        let (fence, lost) = (guard.fence(), guard.lost());
        let work = work(Lease { fence, lost: lost.clone() });
        let held = async { lost.run_until_cancelled(work).await.ok_or(LockError::Lost { fence }) };
        let outcome = self.unless_aborted(LockOperation::Work, held).await;
        guard.dispose().await;
        outcome
    }

    /// Sets the end of the lease of `lock_id` to `ttl` from now. Has no effect on a lease that has ended.
    pub async fn extend(&self, lock_id: &LockId, ttl: Duration) -> Result<Extension, LockError> {
        let ttl_ms = millis(ttl)?;
        self.unless_aborted(LockOperation::Extend, self.store.extend(lock_id, ttl_ms)).await
    }

    /// Ends the lease of `lock_id`. Once sent, it continues even if the caller stops waiting.
    pub async fn release(&self, lock_id: &LockId) -> Result<Release, LockError> {
        let (store, lock_id) = (self.store.clone(), lock_id.clone());
        let release = async {
            let released = tokio::spawn(async move { store.release(&lock_id).await }).await;
            released.unwrap_or(Err(LockError::Aborted { operation: LockOperation::Release }))
        };
        self.unless_aborted(LockOperation::Release, release).await
    }

    /// Returns the live lock of `key`, for people and dashboards: it may have ended when it is read.
    pub async fn lookup(&self, key: &str) -> Result<Option<LockInfo>, LockError> {
        let key = LockKey::parse(key)?;
        self.unless_aborted(LockOperation::Lookup, self.store.lookup(Selector::Key(&key))).await
    }

    /// Returns true if the grant of `key` with this fence is tied to a session that has not ended. A client
    /// that has seen the session, and then sees none, knows that the process of the holder or its connection
    /// has ended. One that has never seen it knows nothing: the grant may not be tied.
    pub async fn has_session(&self, key: &str, fence: u64) -> Result<bool, LockError> {
        let key = LockKey::parse(key)?;
        self.unless_aborted(LockOperation::Lookup, self.store.has_session(&key, fence)).await
    }

    /// Ends the lease of the grant of `key` with this fence, unless it has a session that has not ended. Its
    /// holder may still run: the lock is then lost for it, and the fence keeps the order of its writes.
    pub async fn release_orphan(&self, key: &str, fence: u64) -> Result<Release, LockError> {
        let key = LockKey::parse(key)?;
        self.unless_aborted(LockOperation::Release, self.store.release_orphan(&key, fence)).await
    }

    /// Returns the end of a lease of `key` that expired without a release, in milliseconds since 1970 by the
    /// server's clock. Returns `None` if the lease is live, or if its end is unknown: the lock was released
    /// or purged, or never acquired.
    pub async fn expired_at_ms(&self, key: &str) -> Result<Option<i64>, LockError> {
        let key = LockKey::parse(key)?;
        self.unless_aborted(LockOperation::Lookup, self.store.expired_at_ms(&key)).await
    }

    /// Returns the live lock of `lock_id`, with the same caution.
    pub async fn lookup_by_id(&self, lock_id: &LockId) -> Result<Option<LockInfo>, LockError> {
        self.unless_aborted(LockOperation::Lookup, self.store.lookup(Selector::Id(lock_id))).await
    }

    /// Returns true if a client holds `key`, with the same caution.
    pub async fn is_locked(&self, key: &str) -> Result<bool, LockError> {
        Ok(self.lookup(key).await?.is_some())
    }

    /// Returns true if `lock_id` holds its lock, with the same caution: never write because of it.
    pub async fn owns(&self, lock_id: &LockId) -> Result<bool, LockError> {
        Ok(self.lookup_by_id(lock_id).await?.is_some())
    }

    /// Deletes at most [`PURGE_BATCH`] locks that expired over 2 s ago, and returns their number. Counters
    /// stay.
    pub async fn purge_expired(&self) -> Result<u64, LockError> {
        self.unless_aborted(LockOperation::Purge, self.store.purge(PURGE_BATCH)).await
    }

    /// Raises the fence counter of `key` to `floor`, never lowers it, and returns it.
    ///
    /// For a database that was restored from a backup: the protected data has seen higher fences than the
    /// restored counter.
    pub async fn raise_fence(&self, key: &str, floor: u64) -> Result<u64, LockError> {
        let key = LockKey::parse(key)?;
        let floor = i64::try_from(floor).ok().filter(|&floor| floor <= FENCE_MAX as i64);
        let floor =
            floor.ok_or_else(|| LockError::InvalidArgument(format!("no fence is above {FENCE_MAX}")))?;
        self.unless_aborted(LockOperation::RaiseFence, self.store.raise_counter(&key, floor)).await
    }

    fn guard(&self, key: LockKey, grant: GrantedLock, schedule: RenewalSchedule) -> Guard {
        Guard::start(self.store.clone(), key, grant, schedule)
    }

    async fn win(&self, key: &LockKey, ttl_ms: i64, retry: Retry) -> Result<GrantedLock, LockError> {
        let (mut attempts, mut last) = (0, None);
        let won = tokio::time::timeout(retry.timeout, async {
            loop {
                attempts += 1;
                match self.attempt(key, ttl_ms).await {
                    Ok(Acquisition::Acquired(grant)) => return Ok(Some(grant)),
                    Ok(Acquisition::Locked) => last = None,
                    Err(error) if error.is_transient() => last = Some(Box::new(error)),
                    Err(error) => return Err(error),
                }
                if attempts > retry.max_retries {
                    return Ok(None);
                }
                tokio::time::sleep(retry.pause(attempts, self.jitter.fraction())).await;
            }
        });
        match won.await.unwrap_or(Ok(None))? {
            Some(grant) => Ok(grant),
            None => Err(LockError::AcquisitionTimeout { attempts, waited: retry.timeout, last }),
        }
    }

    async fn attempt(&self, key: &LockKey, ttl_ms: i64) -> Result<Acquisition, LockError> {
        Pending::start(self.store.clone(), key.clone(), LockId::from_bytes(self.tokens.next()), ttl_ms)
            .outcome()
            .await
    }

    async fn unless_aborted<T>(
        &self,
        operation: LockOperation,
        work: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        match &self.abort {
            None => work.await,
            Some(token) => {
                token.run_until_cancelled(work).await.unwrap_or(Err(LockError::Aborted { operation }))
            }
        }
    }
}

/// Converts a time to live to whole milliseconds.
fn millis(ttl: Duration) -> Result<i64, LockError> {
    let millis = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    if millis < 1 || ttl > MAX_TTL {
        return Err(LockError::InvalidArgument(format!(
            "a time to live is from 1 ms to {MAX_TTL:?}, not {ttl:?}"
        )));
    }
    Ok(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    // L-08
    #[test]
    fn a_time_to_live_is_at_least_a_millisecond() {
        for millis_given in [100, 1000, 30_000, 3_600_000] {
            assert_eq!(millis(Duration::from_millis(millis_given)).expect("valid"), millis_given as i64);
        }
        for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            assert!(matches!(millis(ttl), Err(LockError::InvalidArgument(_))), "{ttl:?}");
        }
    }
}
