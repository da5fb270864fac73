//! A store that reports every outcome to an observer, for metrics, without keys and owners.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{
    Claim, ClaimId, ClaimRequest, CompletionRequest, Guarded, IdempotencyError, KeyLookup, LockTtl, Store,
};

/// The kind of an operation on keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyOperation {
    /// [`Store::lookup`].
    Lookup,
    /// [`Store::claim`].
    Claim,
    /// [`Store::complete`].
    Complete,
    /// [`Store::abandon`].
    Abandon,
    /// [`Store::extend`].
    Extend,
    /// [`Store::sweep`].
    Sweep,
}

/// The outcome of an operation for one key.
#[derive(Debug)]
pub enum ObservedOutcome<'a> {
    /// The outcome of a claim, or of a lookup for a key that is not free.
    Claim(&'a Claim),
    /// The key is free.
    Free,
    /// The outcome of a change.
    Guarded(Guarded),
    /// An expired key was deleted.
    Swept,
    /// The operation failed.
    Failed(&'a IdempotencyError),
}

/// The number of keys of one operation that have the same outcome.
#[derive(Debug)]
pub struct KeyEvent<'a> {
    /// The operation.
    pub operation: KeyOperation,
    /// Its outcome.
    pub outcome: ObservedOutcome<'a>,
    /// The number of keys.
    pub keys: u64,
}

/// Observes every outcome, on the task that caused it, so it must return at once.
///
/// A panic in it is caught; an observer cannot change the operation.
pub trait KeyObserver: Send + Sync + 'static {
    /// Called when an operation has ended for one or several keys.
    fn observe(&self, event: &KeyEvent<'_>);
}

/// A store whose outcomes are observed.
pub struct ObservedStore<S> {
    store: S,
    observer: Arc<dyn KeyObserver>,
}

impl<S: Store> ObservedStore<S> {
    /// Wraps a store so that `observer` receives its outcomes.
    pub fn new(store: S, observer: Arc<dyn KeyObserver>) -> Self {
        Self { store, observer }
    }

    fn tell(&self, operation: KeyOperation, outcome: ObservedOutcome<'_>, keys: u64) {
        // A panic has been written to standard error by the panic hook; there is nothing to add.
        drop(catch_unwind(AssertUnwindSafe(|| {
            self.observer.observe(&KeyEvent { operation, outcome, keys });
        })));
    }

    fn tell_each<T>(
        &self,
        operation: KeyOperation,
        keys: usize,
        outcomes: &Result<Vec<T>, IdempotencyError>,
        outcome: impl for<'a> Fn(&'a T) -> ObservedOutcome<'a>,
    ) {
        match outcomes {
            Ok(outcomes) => outcomes.iter().for_each(|each| self.tell(operation, outcome(each), 1)),
            Err(error) => self.tell(operation, ObservedOutcome::Failed(error), keys as u64),
        }
    }
}

impl<S: Store> Store for ObservedStore<S> {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        let found = self.store.lookup(keys).await;
        self.tell_each(KeyOperation::Lookup, keys.len(), &found, |each| {
            each.as_ref().map_or(ObservedOutcome::Free, ObservedOutcome::Claim)
        });
        found
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        let claims = self.store.claim(requests).await;
        self.tell_each(KeyOperation::Claim, requests.len(), &claims, |claim| ObservedOutcome::Claim(claim));
        claims
    }

    async fn complete(&self, completions: &[CompletionRequest]) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.complete(completions).await;
        self.tell_each(KeyOperation::Complete, completions.len(), &outcomes, |each| {
            ObservedOutcome::Guarded(*each)
        });
        outcomes
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.abandon(ids).await;
        self.tell_each(KeyOperation::Abandon, ids.len(), &outcomes, |each| ObservedOutcome::Guarded(*each));
        outcomes
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.extend(ids, lock_ttl).await;
        self.tell_each(KeyOperation::Extend, ids.len(), &outcomes, |each| ObservedOutcome::Guarded(*each));
        outcomes
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        let swept = self.store.sweep(limit).await;
        match &swept {
            Ok(0) => {}
            Ok(keys) => self.tell(KeyOperation::Sweep, ObservedOutcome::Swept, *keys),
            Err(error) => self.tell(KeyOperation::Sweep, ObservedOutcome::Failed(error), 0),
        }
        swept
    }
}
