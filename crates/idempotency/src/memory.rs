//! Claims and stored responses in the memory of one process: for tests, and for a service with one replica
//! that may lose them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::{
    Answer, Claim, ClaimId, ClaimRequest, CompletionRequest, Fingerprint, Guarded, IdempotencyError, Key,
    KeyLookup, LockTtl, Owner, Store, Token,
};

/// A store in memory, with the clock of the tokio runtime. It keeps a bounded number of keys, and whole
/// responses, whose size is bounded by [`crate::IdempotencySettings::max_response_bytes`].
#[derive(Debug)]
pub struct MemoryStore {
    max_entries: usize,
    entries: Mutex<KeyEntries>,
}

type KeyEntries = HashMap<(Owner, Key), KeyEntry>;

#[derive(Debug)]
struct KeyEntry {
    token: Token,
    fingerprint: Fingerprint,
    /// The stored response; `None` while pending.
    answer: Option<Answer>,
    expires_at: Instant,
}

impl KeyEntry {
    fn is_live(&self, now: Instant) -> bool {
        self.expires_at >= now
    }

    fn tell(&self, fingerprint: &Fingerprint, now: Instant) -> Claim {
        let fingerprint_matches = self.fingerprint == *fingerprint;
        match &self.answer {
            None => Claim::Pending { fingerprint_matches, free_in: self.expires_at - now },
            Some(answer) if fingerprint_matches => Claim::Completed(answer.clone()),
            Some(_) => Claim::Conflict,
        }
    }
}

impl MemoryStore {
    /// Creates a store of at most `max_entries` keys. Beyond that, expired keys are deleted; if that is not
    /// enough, claims fail with [`IdempotencyError::Full`].
    pub fn new(max_entries: usize) -> Self {
        Self { max_entries, entries: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, KeyEntries> {
        // No step between two states of the map can panic, so the map is consistent even if another thread
        // panicked.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes each claim that the caller still holds.
    fn change<T>(
        &self,
        elements: &[T],
        id: impl Fn(&T) -> &ClaimId,
        change: impl Fn(&mut KeyEntries, (Owner, Key), &T),
    ) -> Vec<Guarded> {
        let mut entries = self.entries();
        let outcome = |element| {
            let ClaimId { owner, key, token } = id(element);
            let key = (owner.clone(), key.clone());
            if !entries.get(&key).is_some_and(|entry| entry.token == *token && entry.answer.is_none()) {
                return Guarded::Fenced;
            }
            change(&mut entries, key, element);
            Guarded::Applied
        };
        elements.iter().map(outcome).collect()
    }
}

impl Store for MemoryStore {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        let (entries, now) = (self.entries(), Instant::now());
        let lookup = |KeyLookup { owner, key, fingerprint }: &KeyLookup| {
            let entry = entries.get(&(owner.clone(), key.clone())).filter(|entry| entry.is_live(now));
            entry.map(|entry| entry.tell(fingerprint, now))
        };
        Ok(keys.iter().map(lookup).collect())
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.len().saturating_add(requests.len()) > self.max_entries {
            entries.retain(|_, entry| entry.is_live(now));
            let keys = requests.iter().map(|request| (request.id.owner.clone(), request.id.key.clone()));
            let absent: std::collections::HashSet<_> =
                keys.filter(|key| !entries.contains_key(key)).collect();
            if entries.len() + absent.len() > self.max_entries {
                return Err(IdempotencyError::Full { max_entries: self.max_entries });
            }
        }
        let claim = |request: &ClaimRequest| {
            let key = (request.id.owner.clone(), request.id.key.clone());
            if let Some(entry) = entries.get(&key).filter(|entry| entry.is_live(now)) {
                return entry.tell(&request.fingerprint, now);
            }
            let entry = KeyEntry {
                token: request.id.token,
                fingerprint: request.fingerprint.clone(),
                answer: None,
                expires_at: now + request.lock_ttl.as_duration(),
            };
            entries.insert(key, entry);
            Claim::New
        };
        Ok(requests.iter().map(claim).collect())
    }

    async fn complete(&self, completions: &[CompletionRequest]) -> Result<Vec<Guarded>, IdempotencyError> {
        let now = Instant::now();
        Ok(self.change(
            completions,
            |completion| &completion.id,
            |entries, key, completion| {
                if let Some(entry) = entries.get_mut(&key) {
                    entry.answer = Some(completion.answer.clone());
                    entry.expires_at = now + completion.retention_ttl.as_duration();
                }
            },
        ))
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        Ok(self.change(ids, |id| id, |entries, key, _| drop(entries.remove(&key))))
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        let end = Instant::now() + lock_ttl.as_duration();
        Ok(self.change(
            ids,
            |id| id,
            |entries, key, _| {
                if let Some(entry) = entries.get_mut(&key) {
                    entry.expires_at = end;
                }
            },
        ))
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        let now = Instant::now();
        let mut entries = self.entries();
        let mut expired: Vec<(Instant, (Owner, Key))> = entries
            .iter()
            .filter(|(_, entry)| !entry.is_live(now))
            .map(|(key, entry)| (entry.expires_at, key.clone()))
            .collect();
        expired.sort();
        expired.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        for (_, key) in &expired {
            entries.remove(key);
        }
        Ok(expired.len() as u64)
    }
}
