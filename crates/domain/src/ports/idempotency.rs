//! Idempotency keys of submissions: claims, which separate concurrent requests with one key, and stored
//! responses, which are replayed to repeated requests. The states of a key are those of the crate
//! `idempotency`.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::record::{IdempotencyKey, Record};
use crate::submission::{AcceptedRequest, StoredResponse};

/// The token that identifies one claim. If a claim expires and another request claims the key, the token is
/// different.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyClaimToken(pub [u8; 16]);

/// A request to claim a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyClaimRequest<'a> {
    /// The key.
    pub key: &'a IdempotencyKey,
    /// The fingerprint of the intent. A response is replayed to the same intent only.
    pub fingerprint: &'a str,
    /// A token that no other claim has.
    pub token: KeyClaimToken,
}

/// The outcome of claiming a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyClaim {
    /// The key is claimed until its response is stored, the claim is abandoned, or the lock TTL has passed.
    New,
    /// Another request has claimed the key. Its claim ends at the latest after this time.
    Pending(Duration),
    /// The response to the same intent is stored.
    Completed(StoredResponse),
    /// The response to another intent is stored.
    Conflict,
}

/// The outcome of abandoning a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbandonOutcome {
    /// The key is free.
    Applied,
    /// The claim does not exist: it has ended, or it has not reached PostgreSQL yet.
    Fenced,
    /// Another transaction has locked the key. Nothing was changed.
    Busy,
}

/// The condition on a key for storing a response under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyCondition {
    /// The key is still claimed under this token.
    Claimed(KeyClaimToken),
    /// The key is free. It becomes taken by the intent.
    Free,
}

/// A response that is stored in the transaction of its acceptance, for as long as the record reports its key
/// as taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseToStore<'a> {
    /// The accepted intent, with its key.
    pub record: &'a Record,
    /// The condition on the key.
    pub condition: KeyCondition,
    /// The response.
    pub response: &'a StoredResponse,
}

/// Reads and claims keys, and abandons claims. [`AcceptanceStore::accept`](super::AcceptanceStore::accept)
/// stores the responses, together with the acceptance that they report.
pub trait IdempotencyStore: Send + Sync {
    /// Returns the accepted intents of those keys that are taken.
    fn find_requests(
        &self,
        keys: &[IdempotencyKey],
    ) -> impl Future<Output = Result<HashMap<IdempotencyKey, AcceptedRequest>, StoreError>> + Send;

    /// Returns the outcome that a claim with each key and fingerprint would have, in the given order; `None`
    /// for a key that is free. Claims no key and waits for no row.
    fn lookup_keys(
        &self,
        keys: &[(&IdempotencyKey, &str)],
    ) -> impl Future<Output = Result<Vec<Option<KeyClaim>>, StoreError>> + Send;

    /// Claims these keys together, each for at most `lock_ttl`, and returns an outcome for each, in the given
    /// order. If several requests claim a free key, one wins, and the others find it pending. After an error,
    /// any of the keys may have been claimed.
    fn claim_keys(
        &self,
        requests: &[KeyClaimRequest<'_>],
        lock_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<KeyClaim>, StoreError>> + Send;

    /// Abandons claims, so that their keys are free, and returns an outcome for each, in the given order.
    fn abandon_keys(
        &self,
        claims: &[(IdempotencyKey, KeyClaimToken)],
    ) -> impl Future<Output = Result<Vec<AbandonOutcome>, StoreError>> + Send;
}
