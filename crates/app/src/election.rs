//! Who leads: the fenced lock of the crate `lock`, in the words of the workers' port.
//!
//! The lock decides, by PostgreSQL's clock. When it is worth standing again is only a guess, and cheap: a resignation is
//! announced in Redis; otherwise one looks now and then whether the lease is still being renewed, and looks more closely
//! once it is not. No clock of this process is compared with another's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::ports::{Election, Fence, StoreError, Term};
use lock::{ErrorCode, Guard, LockError, LockManager, Release};
use store_redis::RedisHints;

/// How long a term lasts unless it is renewed, which it is three times as often.
pub const TERM: Duration = Duration::from_secs(10);
/// Half a term: two looks that see no renewal between them come before the term is over.
const LOOK: Duration = Duration::from_secs(5);
/// Once a term is no longer renewed.
const CLOSE_LOOK: Duration = Duration::from_millis(400);

const _: () = assert!(lock::FENCE_MAX == domain::ports::FENCE_MAX, "both mean the same fences");

/// An office that one process at a time may hold.
#[derive(Debug)]
pub struct LockElection {
    locks: LockManager,
    key: String,
    hints: Option<RedisHints>,
    /// When the present term ends, as last seen.
    seen: Mutex<Option<i64>>,
}

impl LockElection {
    /// The office `key`; resignations are announced by `hints`, if there are any.
    pub fn new(locks: LockManager, key: String, hints: Option<RedisHints>) -> Self {
        Self { locks, key, hints, seen: Mutex::new(None) }
    }

    /// How long until it is worth looking again, going by whether the term was renewed since the last look.
    async fn patience(&self) -> Duration {
        let ends = match self.locks.lookup(&self.key).await {
            Ok(Some(term)) => term.expires_at_ms,
            // Vacant, or not to be known: the next try will tell.
            Ok(None) | Err(_) => return CLOSE_LOOK,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = seen.replace(ends) != Some(ends);
        if renewed { LOOK } else { CLOSE_LOOK }
    }
}

impl Election for LockElection {
    type Term = Held;

    async fn stand(&self) -> Result<Option<Held>, StoreError> {
        let guard = self
            .locks
            .try_hold(&self.key, TERM)
            .await
            .map_err(|error| store_error("stand for election", error))?;
        Ok(guard.map(|guard| Held { fence: guard.fence(), guard, hints: self.hints.clone() }))
    }

    async fn vacancy(&self) {
        let patience = self.patience().await;
        let heard = match &self.hints {
            Some(hints) => hints.wait(patience).await,
            None => Err(StoreError::Unavailable {
                operation: "listen for a vacancy",
                source: "nobody announces it".into(),
            }),
        };
        if heard.is_err() {
            tokio::time::sleep(patience).await;
        }
    }

    async fn raise_above(&self, floor: Fence) -> Result<(), StoreError> {
        let raised = self.locks.raise_fence(&self.key, floor).await;
        raised.map(drop).map_err(|error| store_error("raise the fence", error))
    }
}

/// A term that has begun.
#[derive(Debug)]
pub struct Held {
    fence: Fence,
    guard: Guard,
    hints: Option<RedisHints>,
}

impl Term for Held {
    fn fence(&self) -> Fence {
        self.fence
    }

    async fn lost(&self) {
        self.guard.lost().cancelled().await;
    }

    async fn resign(self) {
        match self.guard.release().await {
            Ok(Release::Released) => {}
            // It had ended, or will end by itself.
            Ok(Release::NotHeld) => return,
            Err(error) => {
                tracing::warn!(
                    error = domain::ports::error_chain(&error),
                    "a lock was not released and ends by itself"
                );
                return;
            }
        }
        if let Some(hints) = &self.hints
            && let Err(error) = hints.announce().await
        {
            tracing::debug!(error = domain::ports::error_chain(&error), "a vacancy was not announced");
        }
    }
}

fn store_error(operation: &'static str, error: LockError) -> StoreError {
    match error.code() {
        ErrorCode::InvalidArgument => StoreError::Refused { operation, source: error.into() },
        _ => StoreError::Unavailable { operation, source: error.into() },
    }
}
