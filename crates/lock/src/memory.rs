//! Locks in memory, for tests of programs that use locks. They follow the rules of the tables, by a clock
//! that the test chooses, and are lost when the process ends.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::Clock;
use pg::PgError;
use tokio::time::{Instant, sleep};

use crate::fence::FENCE_MAX;
use crate::key::{LockKey, hash_key};
use crate::statements::{PURGE_AFTER_MS, TIME_TOLERANCE_MS};
use crate::store::{Attempt, Selector};
use crate::telemetry::Reason;
use crate::{GrantedLock, LockError, LockId, LockInfo};

/// The interval at which a holder checks its session.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The way to locks in memory: it can delay a call, make it fail, and lose its response.
pub trait Gate: Send + Sync {
    /// Waits until the call reaches the locks. Returns a number for [`Gate::response`]; after an error, the
    /// call does not reach them.
    fn request<'a>(
        &'a self,
        operation: &'static str,
    ) -> Pin<Box<dyn Future<Output = Result<u64, PgError>> + Send + 'a>>;

    /// Returns false once the client's process has ended.
    fn is_running(&self) -> bool {
        true
    }

    /// Waits until the response reaches the caller. After an error, the caller does not know whether the call
    /// was carried out.
    fn response<'a>(
        &'a self,
        operation: &'static str,
        request: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), PgError>> + Send + 'a>>;
}

/// Locks in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryLocks {
    tables: Arc<Mutex<MemoryTables>>,
    sessions: Arc<Mutex<Sessions>>,
    clock: Arc<dyn Clock>,
    gate: Option<Arc<dyn Gate>>,
}

/// The processes that have the session of a grant open, by the key of the lock's row and the fence.
type Sessions = BTreeMap<(String, u64), Option<Arc<dyn Gate>>>;

/// The session of a grant in memory. Dropping it ends it.
pub(crate) struct MemorySession {
    sessions: Arc<Mutex<Sessions>>,
    grant: (String, u64),
}

/// A copy of all locks and counters at one moment.
#[derive(Clone, Debug)]
pub struct LocksBackup(MemoryTables);

#[derive(Clone, Default, Debug)]
struct MemoryTables {
    rows: BTreeMap<String, LockRow>,
    counters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
struct LockRow {
    id: LockId,
    user_key: String,
    fence: u64,
    acquired_at_ms: i64,
    expires_at_ms: i64,
}

impl LockRow {
    fn is_live(&self, now_ms: i64) -> bool {
        self.expires_at_ms > now_ms - TIME_TOLERANCE_MS
    }
}

impl fmt::Debug for MemoryLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLocks").field("tables", &self.tables()).finish_non_exhaustive()
    }
}

impl MemoryLocks {
    /// Creates locks with this clock, which all clients reach at once.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { tables: Arc::default(), sessions: Arc::default(), clock, gate: None }
    }

    /// Returns the same locks for a client that reaches them through `gate`.
    #[must_use]
    pub fn through(&self, gate: Arc<dyn Gate>) -> Self {
        Self { gate: Some(gate), ..self.clone() }
    }

    /// Returns a copy of all locks and counters.
    pub fn backup(&self) -> LocksBackup {
        LocksBackup(self.tables().clone())
    }

    /// Restores the state of `backup`.
    pub fn restore(&self, backup: &LocksBackup) {
        *self.tables() = backup.0.clone();
    }

    /// Ends all sessions, as a restart of the server does.
    pub fn end_sessions(&self) {
        lock(&self.sessions).clear();
    }

    fn tables(&self) -> MutexGuard<'_, MemoryTables> {
        lock(&self.tables)
    }

    /// Carries out a call at the time of the clock at which it reaches the locks.
    async fn call<T>(
        &self,
        operation: &'static str,
        run: impl FnOnce(&mut MemoryTables, i64) -> T,
    ) -> Result<T, PgError> {
        let Some(gate) = &self.gate else { return Ok(run(&mut self.tables(), self.clock.now().as_millis())) };
        let request = gate.request(operation).await?;
        let value = run(&mut self.tables(), self.clock.now().as_millis());
        gate.response(operation, request).await.map(|()| value)
    }

    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl_ms: i64,
        same_ttl_ms: Option<i64>,
    ) -> Result<Attempt, LockError> {
        let asked_at = Instant::now();
        let granted = self
            .call("acquire a lock", |tables, now_ms| {
                if let Some(row) = tables.rows.get_mut(&key.storage).filter(|row| row.is_live(now_ms)) {
                    let length_ms = same_ttl_ms.unwrap_or(row.expires_at_ms - row.acquired_at_ms);
                    if row.expires_at_ms - length_ms > now_ms + TIME_TOLERANCE_MS {
                        row.expires_at_ms = now_ms + length_ms;
                        row.acquired_at_ms = row.acquired_at_ms.min(now_ms);
                    }
                    return Ok(None);
                }
                let counter = tables.counters.entry(key.fence.clone()).or_default();
                if *counter >= FENCE_MAX {
                    return Err(LockError::FencesUsedUp);
                }
                *counter += 1;
                let row = LockRow {
                    id: id.clone(),
                    user_key: key.user.clone(),
                    fence: *counter,
                    acquired_at_ms: now_ms,
                    expires_at_ms: now_ms + ttl_ms,
                };
                let grant = GrantedLock {
                    lock_id: id.clone(),
                    fence: row.fence,
                    expires_at_ms: row.expires_at_ms,
                    asked_at,
                };
                tables.rows.insert(key.storage.clone(), row);
                Ok(Some(grant))
            })
            .await;
        match granted {
            Ok(granted) => Ok(granted?.map_or(Attempt::Locked, Attempt::Granted)),
            Err(error) => Ok(Attempt::Unknown(error.into())),
        }
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl_ms: i64) -> Result<Result<i64, Reason>, LockError> {
        let extended = self.call("extend a lock", |tables, now_ms| {
            let (_, row) = tables.live(id, now_ms)?;
            row.expires_at_ms = now_ms + ttl_ms;
            Ok(row.expires_at_ms)
        });
        Ok(extended.await?)
    }

    pub(crate) async fn release(&self, id: &LockId) -> Result<Result<i64, Reason>, LockError> {
        let released = self.call("release a lock", |tables, now_ms| {
            let (key, row) = tables.live(id, now_ms)?;
            let (key, expires_at_ms) = (key.clone(), row.expires_at_ms);
            tables.rows.remove(&key);
            Ok(expires_at_ms)
        });
        Ok(released.await?)
    }

    pub(crate) async fn find(&self, which: Selector<'_>) -> Result<Option<LockInfo>, LockError> {
        let found = self.call("look up a lock", |tables, now_ms| {
            let row = match which {
                Selector::Key(key) => tables.rows.get(&key.storage),
                Selector::Id(id) => tables.rows.values().find(|row| row.id == *id),
            };
            let row = row.filter(|row| row.is_live(now_ms))?;
            let free_in_ms = (row.expires_at_ms + TIME_TOLERANCE_MS - now_ms).max(0);
            Some(LockInfo {
                key_hash: hash_key(&row.user_key),
                lock_id_hash: row.id.hash(),
                expires_at_ms: row.expires_at_ms,
                acquired_at_ms: row.acquired_at_ms,
                fence: row.fence,
                free_in: Duration::from_millis(free_in_ms.unsigned_abs()),
            })
        });
        Ok(found.await?)
    }

    pub(crate) async fn expired_at_ms(&self, key: &LockKey) -> Result<Option<i64>, LockError> {
        let expired = self.call("look up an expired lock", |tables, now_ms| {
            let row = tables.rows.get(&key.storage).filter(|row| !row.is_live(now_ms))?;
            Some(row.expires_at_ms)
        });
        Ok(expired.await?)
    }

    pub(crate) async fn open_session(&self, key: &LockKey, fence: u64) -> Result<MemorySession, LockError> {
        let (grant, gate) = ((key.storage.clone(), fence), self.gate.clone());
        let opened = self.call("open the session of a lock", |_, _| {
            lock(&self.sessions).insert(grant.clone(), gate);
            MemorySession { sessions: Arc::clone(&self.sessions), grant }
        });
        Ok(opened.await?)
    }

    pub(crate) async fn has_session(&self, key: &LockKey, fence: u64) -> Result<bool, LockError> {
        let found = self.call("look for the session of a lock", |_, _| self.is_tied(key, fence));
        Ok(found.await?)
    }

    pub(crate) async fn release_orphan(&self, key: &LockKey, fence: u64) -> Result<bool, LockError> {
        let released = self.call("release a lock whose session has ended", |tables, _| {
            let is_orphan = tables.rows.get(&key.storage).is_some_and(|row| row.fence == fence)
                && !self.is_tied(key, fence);
            is_orphan && tables.rows.remove(&key.storage).is_some()
        });
        Ok(released.await?)
    }

    fn is_tied(&self, key: &LockKey, fence: u64) -> bool {
        let sessions = lock(&self.sessions);
        let session = sessions.get(&(key.storage.clone(), fence));
        session.is_some_and(|gate| gate.as_ref().is_none_or(|gate| gate.is_running()))
    }

    pub(crate) async fn purge(&self, limit: u64) -> Result<u64, LockError> {
        let purged = self.call("purge expired locks", |tables, now_ms| {
            let old = tables.rows.iter().filter(|(_, row)| row.expires_at_ms < now_ms - PURGE_AFTER_MS);
            let mut old: Vec<(i64, String)> =
                old.map(|(key, row)| (row.expires_at_ms, key.clone())).collect();
            old.sort();
            old.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            for (_, key) in &old {
                tables.rows.remove(key);
            }
            old.len() as u64
        });
        Ok(purged.await?)
    }

    pub(crate) async fn raise_counter(&self, key: &LockKey, floor: i64) -> Result<u64, LockError> {
        let raised = self.call("raise a fence counter", |tables, _| {
            let counter = tables.counters.entry(key.fence.clone()).or_default();
            *counter = (*counter).max(floor.max(0).unsigned_abs());
            *counter
        });
        Ok(raised.await?)
    }
}

impl MemoryTables {
    /// The key and the row of a live lock.
    fn live(&mut self, id: &LockId, now_ms: i64) -> Result<(&String, &mut LockRow), Reason> {
        let found = self.rows.iter_mut().find(|(_, row)| row.id == *id).ok_or(Reason::NotFound)?;
        if found.1.is_live(now_ms) { Ok(found) } else { Err(Reason::Expired) }
    }
}

impl MemorySession {
    /// Waits until the session has ended.
    pub(crate) async fn ended(&self) {
        while lock(&self.sessions).contains_key(&self.grant) {
            sleep(SESSION_CHECK_INTERVAL).await;
        }
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        lock(&self.sessions).remove(&self.grant);
    }
}

impl fmt::Debug for MemorySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemorySession").field(&self.grant).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
