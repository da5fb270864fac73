//! The keys of submissions and their stored responses, in the table of the crate `idempotency`: the owner is
//! the endpoint and the producer, the fingerprint that of the intent.
//!
//! Claims are a transaction of their own. Responses are stored by the transaction of acceptance
//! ([`Completions`]).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use domain::ports::{
    AbandonOutcome, IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken, KeyCondition, KeySweep,
    ResponseToStore, StoreError,
};
use domain::record::IdempotencyKey;
use domain::submission::{AcceptedRequest, StoredResponse};
use idempotency::{
    Answer, ClaimId, CompletionRequest, Fingerprint, FreeCompletion, IdempotencyError, Key, KeyLookup,
    LockTtl, Owner, PostgresStore, RetentionTtl, Store, Token,
};

use crate::PgStore;
use crate::error::store_error;
use crate::records::{accepted_of, accepted_requests};

/// The retry delay of a request whose key is locked by an open transaction.
const BUSY_RETRY: Duration = Duration::from_secs(1);

impl IdempotencyStore for PgStore {
    async fn lookup_keys(
        &self,
        keys: &[(&IdempotencyKey, &str)],
    ) -> Result<Vec<Option<KeyClaim>>, StoreError> {
        const OPERATION: &str = "look up idempotency keys";
        let lookup = |(key, fingerprint): &(&IdempotencyKey, &str)| {
            let (owner, key) = self.endpoint.owner_and_key(key)?;
            Ok(KeyLookup { owner, key, fingerprint: Fingerprint::new(fingerprint)? })
        };
        let lookups: Vec<_> = keys.iter().map(lookup).collect::<Result<_, _>>().map_err(failed(OPERATION))?;
        let claims = self.keys().lookup(&lookups).await.map_err(failed(OPERATION))?;
        Ok(claims.into_iter().map(|claim| claim.map(from_stored)).collect())
    }

    async fn claim_keys(
        &self,
        requests: &[KeyClaimRequest<'_>],
        lock_ttl: Duration,
    ) -> Result<Vec<KeyClaim>, StoreError> {
        const OPERATION: &str = "claim idempotency keys";
        let request = |request: &KeyClaimRequest<'_>| {
            Ok(idempotency::ClaimRequest {
                id: self.endpoint.claim_id(request.key, request.token)?,
                fingerprint: Fingerprint::new(request.fingerprint)?,
                lock_ttl: LockTtl::new(lock_ttl)?,
            })
        };
        let requests: Vec<_> =
            requests.iter().map(request).collect::<Result<_, _>>().map_err(failed(OPERATION))?;
        let claims = self.keys().claim(&requests).await.map_err(failed(OPERATION))?;
        Ok(claims.into_iter().map(from_stored).collect())
    }

    async fn abandon_keys(
        &self,
        claims: &[(IdempotencyKey, KeyClaimToken)],
    ) -> Result<Vec<AbandonOutcome>, StoreError> {
        const OPERATION: &str = "abandon idempotency keys";
        let id = |(key, token): &(IdempotencyKey, KeyClaimToken)| self.endpoint.claim_id(key, *token);
        let ids: Vec<_> = claims.iter().map(id).collect::<Result<_, _>>().map_err(failed(OPERATION))?;
        let outcomes = self.keys().abandon(&ids).await.map_err(failed(OPERATION))?;
        let guarded = |outcome| match outcome {
            idempotency::Guarded::Applied => AbandonOutcome::Applied,
            idempotency::Guarded::Fenced => AbandonOutcome::Fenced,
            idempotency::Guarded::Busy => AbandonOutcome::Busy,
        };
        Ok(outcomes.into_iter().map(guarded).collect())
    }

    async fn find_requests(
        &self,
        keys: &[IdempotencyKey],
    ) -> Result<HashMap<IdempotencyKey, AcceptedRequest>, StoreError> {
        let session = self.session("look for accepted intents").await?;
        accepted_requests(&session.query(accepted_of(keys.iter())).await.map_err(store_error)?)
    }
}

impl KeySweep for PgStore {
    async fn sweep_idempotency_keys(&self, limit: usize) -> Result<u64, StoreError> {
        self.keys().sweep(limit as u64).await.map_err(failed("delete expired idempotency keys"))
    }
}

impl PgStore {
    fn keys(&self) -> PostgresStore {
        // Responses are stored in the transaction of acceptance, which is fenced if its claim was lost.
        PostgresStore::new(self.pool.clone()).with_asynchronous_claims()
    }
}

/// The responses of a batch, each in the list of the statement that stores it.
#[derive(Default)]
pub(crate) struct Completions {
    /// The input of [`idempotency::statements::complete`].
    pub(crate) claimed: Vec<CompletionRequest>,
    /// The input of [`idempotency::statements::complete_free`].
    pub(crate) free: Vec<FreeCompletion>,
}

impl Completions {
    pub(crate) fn of(endpoint: Endpoint, responses: &[ResponseToStore<'_>]) -> Result<Self, StoreError> {
        let mut completions = Self::default();
        for response in responses {
            completions.add(endpoint, response).map_err(failed("store responses"))?;
        }
        Ok(completions)
    }

    fn add(&mut self, endpoint: Endpoint, to_store: &ResponseToStore<'_>) -> Result<(), IdempotencyError> {
        let ResponseToStore { record, condition, response } = to_store;
        let token = match condition {
            KeyCondition::Claimed(token) => *token,
            // No claim ever has this token: a completed key is claimed under no token.
            KeyCondition::Free => KeyClaimToken([0; 16]),
        };
        let body = Bytes::copy_from_slice(&response.body);
        let kept_for = record.idempotency_expires_at.saturating_since(record.content.accepted_at);
        let completion = CompletionRequest {
            id: endpoint.claim_id(&record.idempotency_key, token)?,
            answer: Answer { status: response.status, headers: Bytes::new(), body },
            retention_ttl: RetentionTtl::new(kept_for)?,
        };
        match condition {
            KeyCondition::Claimed(_) => self.claimed.push(completion),
            KeyCondition::Free => {
                let fingerprint = Fingerprint::new(&record.fingerprint)?;
                self.free.push(FreeCompletion { completion, fingerprint });
            }
        }
        Ok(())
    }
}

/// The HTTP endpoint of the submissions, which precedes the producer in the owner of their keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint(pub(crate) &'static str);

impl Endpoint {
    fn claim_id(self, key: &IdempotencyKey, token: KeyClaimToken) -> Result<ClaimId, IdempotencyError> {
        let (owner, key) = self.owner_and_key(key)?;
        Ok(ClaimId { owner, key, token: Token::from(token.0) })
    }

    fn owner_and_key(self, key: &IdempotencyKey) -> Result<(Owner, Key), IdempotencyError> {
        Ok((Owner::new(&self.scope(key))?, Key::new(&key.key)?))
    }

    /// The owner of the key of an intent, which is the scope in the table.
    pub(crate) fn scope(self, key: &IdempotencyKey) -> String {
        format!("{} {}", self.0, key.producer)
    }
}

fn from_stored(claim: idempotency::Claim) -> KeyClaim {
    match claim {
        idempotency::Claim::New => KeyClaim::New,
        idempotency::Claim::Pending { free_in, .. } => KeyClaim::Pending(free_in),
        idempotency::Claim::Busy => KeyClaim::Pending(BUSY_RETRY),
        idempotency::Claim::Completed(Answer { status, body, .. }) => {
            KeyClaim::Completed(StoredResponse { status, body: body.to_vec() })
        }
        idempotency::Claim::Conflict => KeyClaim::Conflict,
    }
}

fn failed(operation: &'static str) -> impl Fn(IdempotencyError) -> StoreError {
    move |error| match error {
        IdempotencyError::Postgres(error) => store_error(error),
        error @ IdempotencyError::InvalidArgument(_) => {
            StoreError::Refused { operation, source: error.into() }
        }
        error => StoreError::Unavailable { operation, source: error.into() },
    }
}
