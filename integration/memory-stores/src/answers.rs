//! Claimed keys and stored responses: rows of the same database, so that acceptance and responses commit in
//! one transaction.
//!
//! They expire by tokio's clock.

use std::collections::HashMap;
use std::time::Duration;

use domain::ports::{
    Abandonment, AnswerClaim, AnswerCondition, AnswerStore, AnswerToStore, ClaimOutcome, ClaimToken,
    KeySweep, StoreError,
};
use domain::record::IdempotencyScope;
use domain::submission::{AcceptedRequest, StoredAnswer};
use tokio::time::Instant;

use super::database::{MemoryDatabase, Tables};
use super::lock;

#[derive(Clone, Debug)]
pub(super) struct AnswerRow {
    token: ClaimToken,
    fingerprint: String,
    /// The response; `None` while the key is claimed.
    answer: Option<StoredAnswer>,
    expires_at: Instant,
}

impl AnswerRow {
    /// The outcome of a request with this fingerprint at `now`; `None` if the key is free.
    fn tell(&self, fingerprint: &str, now: Instant) -> Option<ClaimOutcome> {
        let outcome = match &self.answer {
            None => ClaimOutcome::InProgress(self.expires_at - now),
            Some(answer) if self.fingerprint == fingerprint => ClaimOutcome::Answered(answer.clone()),
            Some(_) => ClaimOutcome::OtherIntent,
        };
        (self.expires_at > now).then_some(outcome)
    }
}

impl Tables {
    /// The claim of this key, if it still belongs to `token`. An expired claim remains until another request
    /// wins the key.
    fn claim(&mut self, scope: &IdempotencyScope, token: ClaimToken) -> Option<&mut AnswerRow> {
        self.answers.get_mut(scope).filter(|row| row.token == token && row.answer.is_none())
    }

    /// Returns true if the conditions of all these responses hold.
    pub(super) fn may_store_answers(&mut self, answers: &[AnswerToStore]) -> bool {
        let now = Instant::now();
        answers.iter().all(|answer| match &answer.condition {
            AnswerCondition::Claimed(token) => self.claim(&answer.scope, *token).is_some(),
            AnswerCondition::Free { .. } => {
                self.answers.get(&answer.scope).is_none_or(|row| row.expires_at <= now)
            }
        })
    }

    /// Stores these responses, whose conditions hold.
    pub(super) fn store_answers(&mut self, answers: Vec<AnswerToStore>) {
        for AnswerToStore { scope, condition, answer, kept_for } in answers {
            let expires_at = Instant::now() + kept_for;
            match condition {
                AnswerCondition::Claimed(token) => {
                    if let Some(row) = self.claim(&scope, token) {
                        row.answer = Some(answer);
                        row.expires_at = expires_at;
                    }
                }
                AnswerCondition::Free { fingerprint } => {
                    let token = ClaimToken([0; 16]);
                    let row = AnswerRow { token, fingerprint, answer: Some(answer), expires_at };
                    self.answers.insert(scope, row);
                }
            }
        }
    }

    fn request(&self, scope: &IdempotencyScope) -> Option<AcceptedRequest> {
        let record = self.records.get(self.scopes.get(scope)?)?;
        Some(AcceptedRequest {
            notification_id: record.notification_id.clone(),
            fingerprint: record.fingerprint.clone(),
            accepted_at: record.content.accepted_at,
            routes: self.routes_of(&record.notification_id).count(),
        })
    }
}

impl MemoryDatabase {
    /// The keys that are claimed or have a response, sorted, including expired ones that have not been swept.
    pub fn idempotency_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = lock(&self.0).answers.keys().map(|scope| scope.key.clone()).collect();
        keys.sort();
        keys
    }

    /// Ends the claim of a key, or the retention of its response.
    pub fn expire_answer(&self, scope: &IdempotencyScope) {
        if let Some(row) = lock(&self.0).answers.get_mut(scope) {
            row.expires_at = Instant::now();
        }
    }
}

impl KeySweep for MemoryDatabase {
    async fn sweep_idempotency_keys(&self, limit: usize) -> Result<u64, StoreError> {
        let (mut tables, now) = (lock(&self.0), Instant::now());
        let rows = tables.answers.iter().filter(|(_, row)| row.expires_at <= now);
        let mut expired: Vec<_> = rows.map(|(scope, row)| (row.expires_at, scope.clone())).collect();
        expired.sort();
        expired.truncate(limit);
        for (_, scope) in &expired {
            tables.answers.remove(scope);
        }
        Ok(expired.len() as u64)
    }
}

impl AnswerStore for MemoryDatabase {
    async fn find_requests(
        &self,
        scopes: &[IdempotencyScope],
    ) -> Result<HashMap<IdempotencyScope, AcceptedRequest>, StoreError> {
        let tables = lock(&self.0);
        Ok(scopes.iter().filter_map(|scope| Some((scope.clone(), tables.request(scope)?))).collect())
    }

    async fn lookup_answers(
        &self,
        keys: &[(&IdempotencyScope, &str)],
    ) -> Result<Vec<Option<ClaimOutcome>>, StoreError> {
        let (tables, now) = (lock(&self.0), Instant::now());
        let told = |(scope, fingerprint): &(&IdempotencyScope, &str)| {
            tables.answers.get(*scope).and_then(|row| row.tell(fingerprint, now))
        };
        Ok(keys.iter().map(told).collect())
    }

    async fn claim_answers(
        &self,
        claims: &[AnswerClaim<'_>],
        lock_ttl: Duration,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        let (mut tables, now) = (lock(&self.0), Instant::now());
        let claim = |claim: &AnswerClaim<'_>| {
            let AnswerClaim { scope, fingerprint, token } = *claim;
            if let Some(told) = tables.answers.get(scope).and_then(|row| row.tell(fingerprint, now)) {
                return told;
            }
            let fingerprint = fingerprint.to_owned();
            let row = AnswerRow { token, fingerprint, answer: None, expires_at: now + lock_ttl };
            tables.answers.insert(scope.clone(), row);
            ClaimOutcome::Claimed
        };
        Ok(claims.iter().map(claim).collect())
    }

    async fn abandon_answers(
        &self,
        claims: &[(IdempotencyScope, ClaimToken)],
    ) -> Result<Vec<Abandonment>, StoreError> {
        let mut tables = lock(&self.0);
        let abandon = |(scope, token): &(IdempotencyScope, ClaimToken)| {
            if tables.claim(scope, *token).is_none() {
                return Abandonment::NotFound;
            }
            tables.answers.remove(scope);
            Abandonment::Freed
        };
        Ok(claims.iter().map(abandon).collect())
    }
}
