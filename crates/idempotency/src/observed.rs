//! A store that tells an observer of every outcome, for metrics. Neither keys nor scopes are told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{Claim, ClaimId, ClaimRequest, Completion, Guarded, IdempotencyError, KeyLookup, LockTtl, Store};

/// What is done to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
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

/// How an operation ended for one key.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// What became of a claim, or would become of it.
    Claim(&'a Claim),
    /// The key is free.
    Free,
    /// What became of a change.
    Guarded(Guarded),
    /// An expired key was deleted.
    Swept,
    /// The operation failed.
    Failed(&'a IdempotencyError),
}

/// Outcomes of one operation that are alike.
#[derive(Debug)]
pub struct Event<'a> {
    /// What was done.
    pub operation: Operation,
    /// How it ended.
    pub outcome: Outcome<'a>,
    /// For how many keys.
    pub keys: u64,
}

/// Is told of every outcome, on the task that caused it: it must return at once.
///
/// A panic in it is caught; nothing it does changes the operation.
pub trait Observer: Send + Sync + 'static {
    /// An operation has ended for one or several keys.
    fn observe(&self, event: &Event<'_>);
}

/// A store whose outcomes are observed.
pub struct Observed<S> {
    store: S,
    observer: Arc<dyn Observer>,
}

impl<S: Store> Observed<S> {
    /// The same store, telling `observer`.
    pub fn new(store: S, observer: Arc<dyn Observer>) -> Self {
        Self { store, observer }
    }

    fn tell(&self, operation: Operation, outcome: Outcome<'_>, keys: u64) {
        // A panic has been written to standard error by the panic hook; there is nothing to add.
        drop(catch_unwind(AssertUnwindSafe(|| {
            self.observer.observe(&Event { operation, outcome, keys });
        })));
    }

    fn tell_each<T>(
        &self,
        operation: Operation,
        keys: usize,
        outcomes: &Result<Vec<T>, IdempotencyError>,
        outcome: impl for<'a> Fn(&'a T) -> Outcome<'a>,
    ) {
        match outcomes {
            Ok(outcomes) => outcomes.iter().for_each(|each| self.tell(operation, outcome(each), 1)),
            Err(error) => self.tell(operation, Outcome::Failed(error), keys as u64),
        }
    }
}

impl<S: Store> Store for Observed<S> {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        let found = self.store.lookup(keys).await;
        self.tell_each(Operation::Lookup, keys.len(), &found, |each| {
            each.as_ref().map_or(Outcome::Free, Outcome::Claim)
        });
        found
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        let claims = self.store.claim(requests).await;
        self.tell_each(Operation::Claim, requests.len(), &claims, |claim| Outcome::Claim(claim));
        claims
    }

    async fn complete(&self, completions: &[Completion]) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.complete(completions).await;
        self.tell_each(Operation::Complete, completions.len(), &outcomes, |each| Outcome::Guarded(*each));
        outcomes
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.abandon(ids).await;
        self.tell_each(Operation::Abandon, ids.len(), &outcomes, |each| Outcome::Guarded(*each));
        outcomes
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        let outcomes = self.store.extend(ids, lock_ttl).await;
        self.tell_each(Operation::Extend, ids.len(), &outcomes, |each| Outcome::Guarded(*each));
        outcomes
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        let swept = self.store.sweep(limit).await;
        match &swept {
            Ok(0) => {}
            Ok(keys) => self.tell(Operation::Sweep, Outcome::Swept, *keys),
            Err(error) => self.tell(Operation::Sweep, Outcome::Failed(error), 0),
        }
        swept
    }
}
