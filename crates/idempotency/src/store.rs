//! The port to a store of claims and responses, with its requests and results.

use std::time::Duration;

use bytes::Bytes;

use crate::{Fingerprint, IdempotencyError, Key, LockTtl, Owner, RetentionTtl, Token};

/// The id of one claim of one key, as used by its holder.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClaimId {
    /// The owner of the key.
    pub owner: Owner,
    /// The idempotency key.
    pub key: Key,
    /// The token of this attempt.
    pub token: Token,
}

/// A request to claim a key in order to process its request.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The claim, with a token that was never used before.
    pub id: ClaimId,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The time for which the claim is held.
    pub lock_ttl: LockTtl,
}

/// A request to look up the outcome that a claim of this key would have.
#[derive(Clone, Debug)]
pub struct KeyLookup {
    /// The owner of the key.
    pub owner: Owner,
    /// The idempotency key.
    pub key: Key,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
}

/// The outcome of claiming a key.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The caller holds the key until the lock TTL ends: it processes the request, then completes or
    /// abandons.
    New,
    /// Another attempt is processing a request with this key, or the caller itself: a claim is not
    /// re-entrant.
    Pending {
        /// True if that request has the fingerprint of this one.
        fingerprint_matches: bool,
        /// The time until its lock TTL ends, by the clock of the store.
        free_in: Duration,
    },
    /// The request was processed before.
    Completed(Answer),
    /// Another request with this key was processed before.
    Conflict,
    /// Another transaction has locked the key, or changes it continually. It is unknown whether the key is
    /// free; nothing was claimed.
    Busy,
}

/// A response to store for a key that the caller has claimed.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// The claim that is completed.
    pub id: ClaimId,
    /// The response that repeats get.
    pub answer: Answer,
    /// The time for which they get it.
    pub retention_ttl: RetentionTtl,
}

/// A response to store for a free key, without a claim before it.
#[derive(Clone, Debug)]
pub struct FreeCompletion {
    /// The key, response and retention TTL. The token must never have been used before.
    pub completion: CompletionRequest,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
}

/// The stored response to a request. Stores keep its parts byte for byte and do not interpret them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The HTTP status, 100 to 999; the table rejects any other.
    pub status: u16,
    /// The replayed headers, in the form of [`Answer::from_response`].
    pub headers: Bytes,
    /// The body.
    pub body: Bytes,
}

/// The outcome of changing a claim that the caller must still hold.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarded {
    /// The claim was changed.
    Applied,
    /// The claim is not pending under this token: it has been completed or abandoned, or another attempt has
    /// claimed the key after the lock TTL. Nothing was changed.
    Fenced,
    /// Another transaction has locked the key. Nothing was changed; the same call may succeed later.
    Busy,
}

/// Claims and stored responses, shared by all processes that use the store. Each method takes many elements
/// and returns one outcome for each, in their order; each element is decided independently.
///
/// The life of a key: free, then pending under the token that claimed it, then completed or free again. A
/// pending or completed key that expires is free. All times are those of the store's clock, never a client's.
pub trait Store: Send + Sync + 'static {
    /// Returns the outcome that [`Store::claim`] would have for each of these keys; `None` for a key that it
    /// would claim. Changes nothing and waits for no row, so the result may be outdated at once.
    fn lookup(
        &self,
        keys: &[KeyLookup],
    ) -> impl Future<Output = Result<Vec<Option<Claim>>, IdempotencyError>> + Send;

    /// Claims each key that is free. If a key occurs twice, the first element may get it, and the second
    /// finds it pending.
    ///
    /// After an error it is unknown which keys were claimed: the caller abandons all of them.
    fn claim(
        &self,
        requests: &[ClaimRequest],
    ) -> impl Future<Output = Result<Vec<Claim>, IdempotencyError>> + Send;

    /// Stores the responses, each for its retention TTL from now. A claim whose lock TTL has ended is still
    /// completed unless another attempt has claimed the key, because the request was processed.
    fn complete(
        &self,
        completions: &[CompletionRequest],
    ) -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Frees the keys at once.
    fn abandon(&self, ids: &[ClaimId])
    -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Sets the end of the claims to `lock_ttl` from now.
    fn extend(
        &self,
        ids: &[ClaimId],
        lock_ttl: LockTtl,
    ) -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Deletes at most `limit` expired keys, the oldest first, and returns their number. It only frees space.
    fn sweep(&self, limit: u64) -> impl Future<Output = Result<u64, IdempotencyError>> + Send;
}
