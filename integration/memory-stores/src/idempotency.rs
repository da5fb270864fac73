//! Claimed keys and stored responses: rows of the same database, so that acceptance and responses commit in
//! one transaction.
//!
//! They expire by tokio's clock.

use std::collections::HashMap;
use std::time::Duration;

use domain::ports::{
    AbandonOutcome, IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken, KeyCondition, KeySweep,
    ResponseToStore, StoreError,
};
use domain::record::IdempotencyKey;
use domain::submission::AcceptedRequest;
use tokio::time::Instant;

use super::database::{MemoryDatabase, ServiceTables};
use super::lock;
use super::rows::KeyRow;

impl ServiceTables {
    /// The claim of this key, if it still belongs to `token`. An expired claim remains until another request
    /// wins the key.
    fn claim(&mut self, key: &IdempotencyKey, token: KeyClaimToken) -> Option<&mut KeyRow> {
        self.keys.get_mut(key).filter(|row| row.token == token && row.response.is_none())
    }

    /// Returns true if the conditions of all these responses hold.
    pub(super) fn may_store_responses(&mut self, responses: &[ResponseToStore<'_>]) -> bool {
        let now = Instant::now();
        responses.iter().all(|ResponseToStore { record, condition, .. }| match condition {
            KeyCondition::Claimed(token) => self.claim(&record.idempotency_key, *token).is_some(),
            KeyCondition::Free => {
                self.keys.get(&record.idempotency_key).is_none_or(|row| row.expires_at <= now)
            }
        })
    }

    /// Stores these responses, whose conditions hold.
    pub(super) fn store_responses(&mut self, responses: &[ResponseToStore<'_>]) {
        for ResponseToStore { record, response, .. } in responses {
            let kept_for = record.idempotency_expires_at.saturating_since(record.content.accepted_at);
            let row = KeyRow {
                token: KeyClaimToken([0; 16]),
                fingerprint: record.fingerprint.clone(),
                response: Some((*response).clone()),
                expires_at: Instant::now() + kept_for,
            };
            self.keys.insert(record.idempotency_key.clone(), row);
        }
    }

    fn request(&self, key: &IdempotencyKey) -> Option<AcceptedRequest> {
        let record = self.records.get(self.by_key.get(key)?)?;
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
        let mut keys: Vec<String> = lock(&self.0).keys.keys().map(|key| key.key.clone()).collect();
        keys.sort();
        keys
    }

    /// Ends the claim of a key, or the retention of its response.
    pub fn expire_key(&self, key: &IdempotencyKey) {
        if let Some(row) = lock(&self.0).keys.get_mut(key) {
            row.expires_at = Instant::now();
        }
    }
}

impl KeySweep for MemoryDatabase {
    async fn sweep_idempotency_keys(&self, limit: usize) -> Result<u64, StoreError> {
        let (mut tables, now) = (lock(&self.0), Instant::now());
        let rows = tables.keys.iter().filter(|(_, row)| row.expires_at <= now);
        let mut expired: Vec<_> = rows.map(|(key, row)| (row.expires_at, key.clone())).collect();
        expired.sort();
        expired.truncate(limit);
        for (_, key) in &expired {
            tables.keys.remove(key);
        }
        Ok(expired.len() as u64)
    }
}

impl IdempotencyStore for MemoryDatabase {
    async fn find_requests(
        &self,
        keys: &[IdempotencyKey],
    ) -> Result<HashMap<IdempotencyKey, AcceptedRequest>, StoreError> {
        let tables = lock(&self.0);
        Ok(keys.iter().filter_map(|key| Some((key.clone(), tables.request(key)?))).collect())
    }

    async fn lookup_keys(
        &self,
        keys: &[(&IdempotencyKey, &str)],
    ) -> Result<Vec<Option<KeyClaim>>, StoreError> {
        let (tables, now) = (lock(&self.0), Instant::now());
        let claim = |(key, fingerprint): &(&IdempotencyKey, &str)| {
            tables.keys.get(*key).and_then(|row| row.claim(fingerprint, now))
        };
        Ok(keys.iter().map(claim).collect())
    }

    async fn claim_keys(
        &self,
        claims: &[KeyClaimRequest<'_>],
        lock_ttl: Duration,
    ) -> Result<Vec<KeyClaim>, StoreError> {
        let (mut tables, now) = (lock(&self.0), Instant::now());
        let claim = |claim: &KeyClaimRequest<'_>| {
            let KeyClaimRequest { key, fingerprint, token } = *claim;
            if let Some(claim) = tables.keys.get(key).and_then(|row| row.claim(fingerprint, now)) {
                return claim;
            }
            let fingerprint = fingerprint.to_owned();
            let row = KeyRow { token, fingerprint, response: None, expires_at: now + lock_ttl };
            tables.keys.insert(key.clone(), row);
            KeyClaim::New
        };
        Ok(claims.iter().map(claim).collect())
    }

    async fn abandon_keys(
        &self,
        claims: &[(IdempotencyKey, KeyClaimToken)],
    ) -> Result<Vec<AbandonOutcome>, StoreError> {
        let mut tables = lock(&self.0);
        let abandon = |(key, token): &(IdempotencyKey, KeyClaimToken)| {
            if tables.claim(key, *token).is_none() {
                return AbandonOutcome::Fenced;
            }
            tables.keys.remove(key);
            AbandonOutcome::Applied
        };
        Ok(claims.iter().map(abandon).collect())
    }
}
