//! What submissions need besides acceptance: stored answers, with which repeated requests are answered, and the claims that keep
//! two requests with one key apart.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::record::IdempotencyScope;
use crate::submission::{AcceptedRequest, StoredAnswer};

/// What makes a claim its claimer's own: a claim that expired and was won by another request has another token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimToken(pub [u8; 16]);

/// A key to be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerClaim<'a> {
    /// Whose key it is.
    pub scope: &'a IdempotencyScope,
    /// The fingerprint of the intent: an answer is replayed to the same intent only.
    pub fingerprint: &'a str,
    /// A token that no other claim has.
    pub token: ClaimToken,
}

/// What became of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The key is claimed, until its answer is stored, the claim is abandoned, or the lock TTL is over.
    Claimed,
    /// Another request has claimed the key. Its claim ends after this time at the latest.
    InProgress(Duration),
    /// The same intent was answered before.
    Answered(StoredAnswer),
    /// Another intent was answered before.
    OtherIntent,
}

/// An answer that is stored in the transaction of its acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerToStore {
    /// Whose key it is.
    pub scope: IdempotencyScope,
    /// The token of its claim.
    pub token: ClaimToken,
    /// The answer.
    pub answer: StoredAnswer,
    /// For how long it is replayed.
    pub kept_for: Duration,
}

/// Where keys are claimed and claims are given up. Answers are stored by
/// [`AcceptanceStore::accept`](super::AcceptanceStore::accept), together with what they tell of.
pub trait AnswerStore: Send + Sync {
    /// The intents that have those of these keys that are taken.
    fn find_requests(
        &self,
        scopes: &[IdempotencyScope],
    ) -> impl Future<Output = Result<HashMap<IdempotencyScope, AcceptedRequest>, StoreError>> + Send;

    /// Claims all of these keys in one transaction, each for `lock_ttl` at most; an outcome for each, in their order. No two
    /// have the same key.
    fn claim_answers(
        &self,
        claims: &[AnswerClaim<'_>],
        lock_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<ClaimOutcome>, StoreError>> + Send;

    /// Gives claims up, so that their keys are free. A claim that is no longer there is no error.
    fn abandon_answers(
        &self,
        claims: &[(IdempotencyScope, ClaimToken)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
