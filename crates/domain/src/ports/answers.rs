//! Stored responses, which are replayed to repeated requests, and the claims that separate concurrent
//! requests with one key. Submissions need both in addition to acceptance.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::record::IdempotencyScope;
use crate::submission::{AcceptedRequest, StoredAnswer};

/// The token that identifies one claim. If a claim expires and another request claims the key, the token is
/// different.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimToken(pub [u8; 16]);

/// A claim of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerClaim<'a> {
    /// The producer and the key.
    pub scope: &'a IdempotencyScope,
    /// The fingerprint of the intent. A response is replayed to the same intent only.
    pub fingerprint: &'a str,
    /// A token that no other claim has.
    pub token: ClaimToken,
}

/// The outcome of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The key is claimed until its response is stored, the claim is abandoned, or the lock TTL has passed.
    Claimed,
    /// Another request has claimed the key. Its claim ends at the latest after this time.
    InProgress(Duration),
    /// The response to the same intent is stored.
    Answered(StoredAnswer),
    /// The key belongs to another intent.
    OtherIntent,
}

/// The outcome of abandoning a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abandonment {
    /// The key is free.
    Freed,
    /// The claim does not exist: it has ended, or it has not reached PostgreSQL yet.
    NotFound,
    /// Another transaction has locked the key. Nothing was changed.
    Busy,
}

/// The condition for storing a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnswerCondition {
    /// The key is still claimed under this token.
    Claimed(ClaimToken),
    /// The key is free. It becomes taken by the intent with this fingerprint.
    Free {
        /// The fingerprint of the intent.
        fingerprint: String,
    },
}

/// A response that is stored in the transaction of its acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerToStore {
    /// The producer and the key.
    pub scope: IdempotencyScope,
    /// The condition on the key.
    pub condition: AnswerCondition,
    /// The response.
    pub answer: StoredAnswer,
    /// The time for which the response is replayed.
    pub kept_for: Duration,
}

/// Reads and claims keys, and abandons claims. [`AcceptanceStore::accept`](super::AcceptanceStore::accept)
/// stores the responses, together with the acceptance that they report.
pub trait AnswerStore: Send + Sync {
    /// Returns the accepted intents of those keys that are taken.
    fn find_requests(
        &self,
        scopes: &[IdempotencyScope],
    ) -> impl Future<Output = Result<HashMap<IdempotencyScope, AcceptedRequest>, StoreError>> + Send;

    /// Returns the outcome that a claim with each key and fingerprint would have, in the given order; `None`
    /// for a key that is free. Claims no key and waits for no row.
    fn lookup_answers(
        &self,
        keys: &[(&IdempotencyScope, &str)],
    ) -> impl Future<Output = Result<Vec<Option<ClaimOutcome>>, StoreError>> + Send;

    /// Claims these keys together, each for at most `lock_ttl`, and returns an outcome for each, in the given
    /// order. If several requests claim a free key, one wins, and the others find it in progress. After an
    /// error, any of the keys may have been claimed.
    fn claim_answers(
        &self,
        claims: &[AnswerClaim<'_>],
        lock_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<ClaimOutcome>, StoreError>> + Send;

    /// Abandons claims, so that their keys are free, and returns an outcome for each, in the given order.
    fn abandon_answers(
        &self,
        claims: &[(IdempotencyScope, ClaimToken)],
    ) -> impl Future<Output = Result<Vec<Abandonment>, StoreError>> + Send;
}
