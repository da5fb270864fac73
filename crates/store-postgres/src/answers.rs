//! The stored responses of submissions, in the table of the crate `idempotency`: its scope is the endpoint
//! and the producer, its key the intent's idempotency key, its fingerprint the intent's.
//!
//! Claims are a transaction of their own. Responses are stored by the transaction of acceptance
//! ([`completions`]).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use domain::catalog::MAX_NAME;
use domain::intent::MAX_IDENTIFIER;
use domain::ports::{
    Abandonment, AnswerClaim, AnswerCondition, AnswerStore, AnswerToStore, ClaimOutcome, ClaimToken,
    KeySweep, StoreError,
};
use domain::record::IdempotencyScope;
use domain::submission::{AcceptedRequest, StoredAnswer};
use idempotency::{
    Answer, Claim, ClaimId, ClaimRequest, Completion, Fingerprint, FreeCompletion, Guarded, IdempotencyError,
    Key, KeyLookup, LockTtl, MAX_KEY_BYTES, MAX_SCOPE_BYTES, PostgresStore, RetentionTtl, Scope, Store,
    Token,
};

use crate::PgStore;
use crate::error::store_error;
use crate::records::{accepted_of, accepted_requests};

/// The retry delay of a request whose key is locked by an open transaction.
const BUSY_RETRY: Duration = Duration::from_secs(1);

impl AnswerStore for PgStore {
    async fn lookup_answers(
        &self,
        keys: &[(&IdempotencyScope, &str)],
    ) -> Result<Vec<Option<ClaimOutcome>>, StoreError> {
        const OPERATION: &str = "look up idempotency keys";
        let lookup = |(scope, fingerprint): &(&IdempotencyScope, &str)| {
            let (scope, key) = scope_and_key(scope)?;
            Ok(KeyLookup { scope, key, fingerprint: Fingerprint::new(fingerprint)? })
        };
        let lookups = keys.iter().map(lookup).collect::<Result<Vec<_>, _>>();
        let lookups = lookups.map_err(|error| idempotency_error(OPERATION, error))?;
        let found = self.keys().lookup(&lookups).await;
        let found = found.map_err(|error| idempotency_error(OPERATION, error))?;
        Ok(found.into_iter().map(|claim| claim.map(outcome)).collect())
    }

    async fn claim_answers(
        &self,
        claims: &[AnswerClaim<'_>],
        lock_ttl: Duration,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        const OPERATION: &str = "claim idempotency keys";
        let claim = |claim: &AnswerClaim<'_>| {
            Ok(ClaimRequest {
                id: claim_id(claim.scope, claim.token)?,
                fingerprint: Fingerprint::new(claim.fingerprint)?,
                lock_ttl: LockTtl::new(lock_ttl)?,
            })
        };
        let requests = claims.iter().map(claim).collect::<Result<Vec<_>, _>>();
        let requests = requests.map_err(|error| idempotency_error(OPERATION, error))?;
        let outcomes = self.keys().claim(&requests).await;
        let outcomes = outcomes.map_err(|error| idempotency_error(OPERATION, error))?;
        Ok(outcomes.into_iter().map(outcome).collect())
    }

    async fn abandon_answers(
        &self,
        claims: &[(IdempotencyScope, ClaimToken)],
    ) -> Result<Vec<Abandonment>, StoreError> {
        const OPERATION: &str = "abandon idempotency keys";
        let ids = claims.iter().map(|(scope, token)| claim_id(scope, *token)).collect::<Result<Vec<_>, _>>();
        let ids = ids.map_err(|error| idempotency_error(OPERATION, error))?;
        let outcomes = self.keys().abandon(&ids).await;
        let outcomes = outcomes.map_err(|error| idempotency_error(OPERATION, error))?;
        let abandonment = |guarded| match guarded {
            Guarded::Applied => Abandonment::Freed,
            Guarded::Fenced => Abandonment::NotFound,
            Guarded::Busy => Abandonment::Busy,
        };
        Ok(outcomes.into_iter().map(abandonment).collect())
    }

    async fn find_requests(
        &self,
        scopes: &[IdempotencyScope],
    ) -> Result<HashMap<IdempotencyScope, AcceptedRequest>, StoreError> {
        let session = self.session("look for accepted intents").await?;
        accepted_requests(&session.query(&accepted_of(scopes.iter())).await.map_err(store_error)?)
    }
}

impl KeySweep for PgStore {
    async fn sweep_idempotency_keys(&self, limit: usize) -> Result<u64, StoreError> {
        let swept = self.keys().sweep(limit as u64).await;
        swept.map_err(|error| idempotency_error("delete expired idempotency keys", error))
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
    pub(crate) claimed: Vec<Completion>,
    /// The input of [`idempotency::statements::complete_free`].
    pub(crate) free: Vec<FreeCompletion>,
}

impl Completions {
    pub(crate) fn of(answers: Vec<AnswerToStore>) -> Result<Self, StoreError> {
        let mut completions = Self::default();
        for answer in answers {
            let added = completions.add(answer);
            added.map_err(|error| idempotency_error("store answers", error))?;
        }
        Ok(completions)
    }

    fn add(
        &mut self,
        AnswerToStore { scope, condition, answer, kept_for }: AnswerToStore,
    ) -> Result<(), IdempotencyError> {
        let completion = |token| {
            let StoredAnswer { status, body } = answer;
            let answer = Answer { status, headers: Bytes::new(), body: body.into() };
            let retention_ttl = RetentionTtl::new(kept_for)?;
            Ok::<_, IdempotencyError>(Completion { id: claim_id(&scope, token)?, answer, retention_ttl })
        };
        match condition {
            AnswerCondition::Claimed(token) => self.claimed.push(completion(token)?),
            AnswerCondition::Free { fingerprint } => {
                let fingerprint = Fingerprint::new(&fingerprint)?;
                // No claim ever has this token: a completed key is claimed under no token.
                let completion = completion(ClaimToken([0; 16]))?;
                self.free.push(FreeCompletion { completion, fingerprint });
            }
        }
        Ok(())
    }
}

/// The endpoint, which precedes the producer in a scope.
const ENDPOINT: &str = "POST /v1/intents ";
// A key that cannot be claimed would fail its whole group.
const _: () = assert!(ENDPOINT.len() + MAX_NAME <= MAX_SCOPE_BYTES && MAX_IDENTIFIER <= MAX_KEY_BYTES);

fn claim_id(scope: &IdempotencyScope, token: ClaimToken) -> Result<ClaimId, IdempotencyError> {
    let (scope, key) = scope_and_key(scope)?;
    Ok(ClaimId { scope, key, token: Token::from(token.0) })
}

fn scope_and_key(scope: &IdempotencyScope) -> Result<(Scope, Key), IdempotencyError> {
    let endpoint = format!("{ENDPOINT}{}", scope.producer);
    Ok((Scope::new(&endpoint)?, Key::new(&scope.key)?))
}

fn outcome(claim: Claim) -> ClaimOutcome {
    match claim {
        Claim::New => ClaimOutcome::Claimed,
        Claim::Pending { free_in, .. } => ClaimOutcome::InProgress(free_in),
        Claim::Busy => ClaimOutcome::InProgress(BUSY_RETRY),
        Claim::Completed(Answer { status, body, .. }) => {
            ClaimOutcome::Answered(StoredAnswer { status, body: body.to_vec() })
        }
        Claim::Conflict => ClaimOutcome::OtherIntent,
    }
}

fn idempotency_error(operation: &'static str, error: IdempotencyError) -> StoreError {
    match error {
        IdempotencyError::Postgres(error) => store_error(error),
        error @ IdempotencyError::InvalidArgument(_) => {
            StoreError::Refused { operation, source: error.into() }
        }
        error => StoreError::Unavailable { operation, source: error.into() },
    }
}
