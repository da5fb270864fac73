//! A store of idempotency keys in memory whose claims can be made to hang.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use idempotency::{
    Claim, ClaimId, ClaimRequest, CompletionRequest, Guarded, IdempotencyError, KeyLookup, LockTtl,
    MemoryStore, Store,
};

pub(crate) struct HangingStore {
    pub(crate) store: MemoryStore,
    pub(crate) hangs: Arc<AtomicBool>,
}

impl Store for HangingStore {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        self.store.lookup(keys).await
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        if self.hangs.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        self.store.claim(requests).await
    }

    async fn complete(&self, completions: &[CompletionRequest]) -> Result<Vec<Guarded>, IdempotencyError> {
        self.store.complete(completions).await
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        self.store.abandon(ids).await
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        self.store.extend(ids, lock_ttl).await
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        self.store.sweep(limit).await
    }
}
