//! The locks of one database, wherever they are kept, observed.

use std::time::Duration;

use pg::Session;

use crate::key::{LockKey, hash_key};
use crate::tables::LockTables;
use crate::telemetry::{EventSink, LockEvent, LockOperation, LockOutcome, Reason};
use crate::{Extension, GrantedLock, LockError, LockId, LockInfo, Release};

/// The number of attempts to release an abandoned lock, which has no caller that could retry.
const ABANDONED_RELEASE_ATTEMPTS: u32 = 3;
/// The pause between two of these attempts.
const ABANDONED_RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The outcome of one attempt to acquire.
#[derive(Debug)]
pub(crate) enum Attempt {
    Granted(GrantedLock),
    Locked,
    /// The attempt failed after it was sent: the lock may have been granted.
    Unknown(LockError),
}

/// The selector of a row of the locks.
#[derive(Clone, Copy)]
pub(crate) enum Selector<'a> {
    Key(&'a LockKey),
    Id(&'a LockId),
}

/// The locks of one database, observed.
#[derive(Clone)]
pub(crate) struct LockStore {
    pub(crate) locks: Locks,
    pub(crate) telemetry: EventSink,
    /// True if all clients acquire a key for the same time.
    pub(crate) same_ttl: bool,
    /// True if guards tie their grants to sessions.
    pub(crate) ties_to_sessions: bool,
}

/// The place of the locks.
#[derive(Clone)]
pub(crate) enum Locks {
    /// Two tables in PostgreSQL.
    Tables(LockTables),
    #[cfg(feature = "memory")]
    Memory(crate::MemoryLocks),
}

impl LockStore {
    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl_ms: i64,
    ) -> Result<Attempt, LockError> {
        let same_ttl_ms = self.same_ttl.then_some(ttl_ms);
        let attempt = match &self.locks {
            Locks::Tables(tables) => tables.acquire(key, id, ttl_ms, same_ttl_ms).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.acquire(key, id, ttl_ms, same_ttl_ms).await,
        };
        self.telemetry.report(|| LockEvent {
            operation: LockOperation::Acquire,
            outcome: match &attempt {
                Ok(Attempt::Granted(_)) => LockOutcome::Done,
                Ok(Attempt::Locked) => LockOutcome::Refused(Reason::Locked),
                Ok(Attempt::Unknown(error)) | Err(error) => LockOutcome::Failed(error),
            },
            key_hash: Some(hash_key(&key.user)),
            lock_id_hash: Some(id.hash()),
        });
        attempt
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl_ms: i64) -> Result<Extension, LockError> {
        let changed = match &self.locks {
            Locks::Tables(tables) => tables.extend(id, ttl_ms).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.extend(id, ttl_ms).await,
        };
        self.report(LockOperation::Extend, id, &changed);
        Ok(match changed? {
            Ok(expires_at_ms) => Extension::Extended { expires_at_ms },
            Err(_) => Extension::NotHeld,
        })
    }

    pub(crate) async fn release(&self, id: &LockId) -> Result<Release, LockError> {
        let changed = match &self.locks {
            Locks::Tables(tables) => tables.release(id).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.release(id).await,
        };
        self.report(LockOperation::Release, id, &changed);
        Ok(match changed? {
            Ok(_) => Release::Released,
            Err(_) => Release::NotHeld,
        })
    }

    /// Releases a lock that no caller waits for, and retries transient failures.
    pub(crate) async fn release_abandoned(&self, id: &LockId) -> Result<Release, LockError> {
        for _ in 1..ABANDONED_RELEASE_ATTEMPTS {
            match self.release(id).await {
                Err(error) if error.is_transient() => tokio::time::sleep(ABANDONED_RELEASE_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.release(id).await
    }

    fn report<T>(
        &self,
        operation: LockOperation,
        id: &LockId,
        changed: &Result<Result<T, Reason>, LockError>,
    ) {
        self.telemetry.report(|| LockEvent {
            operation,
            outcome: match changed {
                Ok(Ok(_)) => LockOutcome::Done,
                Ok(Err(reason)) => LockOutcome::Refused(*reason),
                Err(error) => LockOutcome::Failed(error),
            },
            key_hash: None,
            lock_id_hash: Some(id.hash()),
        });
    }

    pub(crate) async fn lookup(&self, which: Selector<'_>) -> Result<Option<LockInfo>, LockError> {
        let found = match &self.locks {
            Locks::Tables(tables) => tables.find(which).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.find(which).await,
        };
        let (key_hash, lock_id_hash) = match which {
            Selector::Key(key) => (Some(key), None),
            Selector::Id(id) => (None, Some(id)),
        };
        self.telemetry.report(|| LockEvent {
            operation: LockOperation::Lookup,
            outcome: match &found {
                Ok(Some(_)) => LockOutcome::Done,
                Ok(None) => LockOutcome::Refused(Reason::NotFound),
                Err(error) => LockOutcome::Failed(error),
            },
            key_hash: key_hash.map(|key| hash_key(&key.user)),
            lock_id_hash: lock_id_hash.map(LockId::hash),
        });
        found
    }

    /// Opens the session of a grant.
    pub(crate) async fn open_session(&self, key: &LockKey, fence: u64) -> Result<GrantSession, LockError> {
        match &self.locks {
            Locks::Tables(tables) => {
                Ok(GrantSession::Connection(tables.open_session(key, fence).await?.into()))
            }
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => Ok(GrantSession::Memory(locks.open_session(key, fence).await?)),
        }
    }

    pub(crate) async fn has_session(&self, key: &LockKey, fence: u64) -> Result<bool, LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.has_session(key, fence).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.has_session(key, fence).await,
        }
    }

    pub(crate) async fn release_orphan(&self, key: &LockKey, fence: u64) -> Result<Release, LockError> {
        let released = match &self.locks {
            Locks::Tables(tables) => tables.release_orphan(key, fence).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.release_orphan(key, fence).await,
        };
        self.telemetry.report(|| LockEvent {
            operation: LockOperation::Release,
            outcome: match &released {
                Ok(true) => LockOutcome::Done,
                Ok(false) => LockOutcome::Refused(Reason::NotFound),
                Err(error) => LockOutcome::Failed(error),
            },
            key_hash: Some(hash_key(&key.user)),
            lock_id_hash: None,
        });
        Ok(if released? { Release::Released } else { Release::NotHeld })
    }

    pub(crate) async fn expired_at_ms(&self, key: &LockKey) -> Result<Option<i64>, LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.expired_at_ms(key).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.expired_at_ms(key).await,
        }
    }

    pub(crate) async fn purge(&self, limit: u64) -> Result<u64, LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.purge(limit).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.purge(limit).await,
        }
    }

    pub(crate) async fn raise_counter(&self, key: &LockKey, floor: i64) -> Result<u64, LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.raise_counter(key, floor).await,
            #[cfg(feature = "memory")]
            Locks::Memory(locks) => locks.raise_counter(key, floor).await,
        }
    }

    pub(crate) async fn setup_schema(&self) -> Result<(), LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.setup_schema().await,
            #[cfg(feature = "memory")]
            Locks::Memory(_) => Ok(()),
        }
    }

    pub(crate) async fn check_schema(&self) -> Result<(), LockError> {
        match &self.locks {
            Locks::Tables(tables) => tables.check_schema().await,
            #[cfg(feature = "memory")]
            Locks::Memory(_) => Ok(()),
        }
    }
}

/// The session of a grant, which other clients see until it ends. Dropping it ends it.
#[derive(Debug)]
pub(crate) enum GrantSession {
    Connection(Box<Session>),
    #[cfg(feature = "memory")]
    Memory(crate::memory::MemorySession),
}

impl GrantSession {
    /// Waits until the session has ended, which the server does when this process or the connection ends.
    pub(crate) async fn ended(&self) {
        match self {
            Self::Connection(session) => session.ended().await,
            #[cfg(feature = "memory")]
            Self::Memory(session) => session.ended().await,
        }
    }
}
