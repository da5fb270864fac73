//! An attempt to acquire a lock, and the release of a grant that no caller receives.
//!
//! A grant exists from the moment the server commits, whether or not the response arrives. So the attempt
//! runs to its end on its own task: if the caller has stopped waiting by then, or the response was lost, the
//! lock is released instead of blocking other clients until its lease ends.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::key::LockKey;
use crate::store::{Attempt, LockStore};
use crate::telemetry::LockOperation;
use crate::{Acquisition, LockError, LockId};

/// An attempt on its own task. If its grant may exist and no caller receives it, the grant is released.
pub(crate) struct Pending {
    store: Arc<LockStore>,
    lock_id: LockId,
    attempt: Option<JoinHandle<Result<Attempt, LockError>>>,
    delivered: bool,
}

impl Pending {
    pub(crate) fn start(store: Arc<LockStore>, key: LockKey, lock_id: LockId, ttl_ms: i64) -> Self {
        let (attempted, id) = (store.clone(), lock_id.clone());
        let attempt = Some(tokio::spawn(async move { attempted.acquire(&key, &id, ttl_ms).await }));
        Self { store, lock_id, attempt, delivered: false }
    }

    pub(crate) async fn outcome(mut self) -> Result<Acquisition, LockError> {
        let aborted = LockError::Aborted { operation: LockOperation::Acquire };
        let Some(attempt) = self.attempt.as_mut() else { return Err(aborted) };
        let ended = attempt.await;
        self.attempt = None;
        let attempt = match ended {
            Ok(Ok(Attempt::Unknown(error))) => return Err(error),
            Ok(attempt) => attempt,
            Err(_) => return Err(aborted),
        };
        self.delivered = true;
        Ok(match attempt? {
            Attempt::Granted(grant) => Acquisition::Acquired(grant),
            _ => Acquisition::Locked,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent: the lease expires.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.delivered) else { return };
        let (store, lock_id, attempt) = (self.store.clone(), self.lock_id.clone(), self.attempt.take());
        runtime.spawn(async move {
            let ended = match attempt {
                Some(attempt) => attempt.await.ok(),
                None => None,
            };
            if matches!(ended, None | Some(Ok(Attempt::Granted(_) | Attempt::Unknown(_)))) {
                // The store has reported a failure; the lease expires.
                drop(store.release_abandoned(&lock_id).await);
            }
        });
    }
}
