//! What submissions need besides acceptance: stored answers, with which repeated requests are answered, and
//! the claims that keep two requests with one key apart.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::record::IdempotencyScope;
use crate::submission::{AcceptedRequest, StoredAnswer};

/// What makes a claim its claimer's own: a claim that expired and was won by another request has another
/// token.
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

/// What became of a claim that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abandonment {
    /// The key is free.
    Freed,
    /// There is no such claim: it has ended, or it has not reached PostgreSQL yet.
    NotFound,
    /// Another transaction holds the key open: nothing was changed.
    Busy,
}

/// On what it depends that an answer is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnswerCondition {
    /// The key is still claimed under this token.
    Claimed(ClaimToken),
    /// The key is free. It is taken for the intent with this fingerprint.
    Free {
        /// The fingerprint of the intent.
        fingerprint: String,
    },
}

/// An answer that is stored in the transaction of its acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerToStore {
    /// Whose key it is.
    pub scope: IdempotencyScope,
    /// What must hold of the key.
    pub condition: AnswerCondition,
    /// The answer.
    pub answer: StoredAnswer,
    /// For how long it is replayed.
    pub kept_for: Duration,
}

/// Where keys are read and claimed, and claims are given up. Answers are stored by
/// [`AcceptanceStore::accept`](super::AcceptanceStore::accept), together with what they tell of.
pub trait AnswerStore: Send + Sync {
    /// The intents that have those of these keys that are taken.
    fn find_requests(
        &self,
        scopes: &[IdempotencyScope],
    ) -> impl Future<Output = Result<HashMap<IdempotencyScope, AcceptedRequest>, StoreError>> + Send;

    /// What a request with each of these keys and fingerprints would be told, in their order; `None` for a
    /// key that is free. Nothing is claimed, and no row is waited for.
    fn lookup_answers(
        &self,
        keys: &[(&IdempotencyScope, &str)],
    ) -> impl Future<Output = Result<Vec<Option<ClaimOutcome>>, StoreError>> + Send;

    /// Claims these keys together, each for `lock_ttl` at most; an outcome for each, in their order. Of
    /// several claims of a key that is free one wins, and the others find it in progress. After an error it
    /// is unknown which keys were claimed.
    fn claim_answers(
        &self,
        claims: &[AnswerClaim<'_>],
        lock_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<ClaimOutcome>, StoreError>> + Send;

    /// Gives claims up, so that their keys are free; what became of each, in their order.
    fn abandon_answers(
        &self,
        claims: &[(IdempotencyScope, ClaimToken)],
    ) -> impl Future<Output = Result<Vec<Abandonment>, StoreError>> + Send;
}
