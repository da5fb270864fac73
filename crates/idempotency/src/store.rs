//! Where claims and answers are kept: what is asked of a store, and what it answers.

use std::time::Duration;

use bytes::Bytes;

use crate::{Fingerprint, IdempotencyError, Key, LockTtl, RetentionTtl, Scope, Token};

/// One claim of one key, as its holder names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClaimId {
    /// Whom the key belongs to.
    pub scope: Scope,
    /// The idempotency key.
    pub key: Key,
    /// The token of this attempt.
    pub token: Token,
}

/// The wish to process the request that a key stands for.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What is claimed, with a token that was never used before.
    pub id: ClaimId,
    /// That of the request.
    pub fingerprint: Fingerprint,
    /// How long the claim is held.
    pub lock_ttl: LockTtl,
}

/// The question what a request with this key would be told.
#[derive(Clone, Debug)]
pub struct KeyLookup {
    /// Whom the key belongs to.
    pub scope: Scope,
    /// The idempotency key.
    pub key: Key,
    /// That of the request.
    pub fingerprint: Fingerprint,
}

/// What became of the wish to claim a key.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The key is the caller's until the lock TTL ends: it processes the request, then completes or abandons.
    New,
    /// Another attempt is processing a request with this key, or the caller itself: a claim is not
    /// re-entrant.
    Pending {
        /// Whether that request has the fingerprint of this one.
        fingerprint_matches: bool,
        /// How long until its lock TTL ends, by the clock of the store.
        free_in: Duration,
    },
    /// The request was processed before.
    Completed(Answer),
    /// Another request with this key was processed before.
    Conflict,
    /// Another transaction holds the key open, or changes it all the time. Whether it is free is unknown;
    /// nothing was claimed.
    Busy,
}

/// An answer to be stored for a key that the caller has claimed.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The claim that is completed.
    pub id: ClaimId,
    /// What repeats get.
    pub answer: Answer,
    /// For how long they get it.
    pub retention_ttl: RetentionTtl,
}

/// An answer to be stored for a key that is free, without a claim before it.
#[derive(Clone, Debug)]
pub struct FreeCompletion {
    /// Key, answer and retention TTL. The token is one that was never used before.
    pub completion: Completion,
    /// That of the request.
    pub fingerprint: Fingerprint,
}

/// The answer to a request. Stores keep its parts byte for byte and do not look into them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The HTTP status, 100 to 999; the table refuses any other.
    pub status: u16,
    /// The headers that are replayed, in the form of [`Answer::from_response`].
    pub headers: Bytes,
    /// The body.
    pub body: Bytes,
}

/// What became of the change of a claim that must still be the caller's.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarded {
    /// It was changed.
    Applied,
    /// The claim is not pending under this token: it has been completed or abandoned, or another attempt has
    /// claimed the key after the lock TTL. Nothing was changed.
    Fenced,
    /// Another transaction holds the key open. Nothing was changed; the same call may succeed later.
    Busy,
}

/// Claims and answers, shared by all processes that use the store. Each method takes many elements and gives
/// one outcome for each, in their order; each element is decided by itself.
///
/// The life of a key: free, then pending under the token that claimed it, then completed or free again. A
/// pending or completed key that expires is free. Time is that of the store; no client's clock takes part.
pub trait Store: Send + Sync + 'static {
    /// What [`Store::claim`] would answer to a request with each of these keys; `None` for a key that it
    /// would claim. It changes nothing and waits for no row: the answer may be out of date at once.
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

    /// Stores the answers, each for its retention TTL from now. A claim whose lock TTL has ended is completed
    /// all the same unless another attempt has claimed the key: the request was processed.
    fn complete(
        &self,
        completions: &[Completion],
    ) -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Frees the keys at once.
    fn abandon(&self, ids: &[ClaimId])
    -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Lets the claims end `lock_ttl` from now.
    fn extend(
        &self,
        ids: &[ClaimId],
        lock_ttl: LockTtl,
    ) -> impl Future<Output = Result<Vec<Guarded>, IdempotencyError>> + Send;

    /// Deletes at most `limit` expired keys, the oldest first, and returns how many. Nothing depends on it
    /// but space.
    fn sweep(&self, limit: u64) -> impl Future<Output = Result<u64, IdempotencyError>> + Send;
}
