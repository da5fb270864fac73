//! The sessions of the console.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{Clock, ManualClock, Timestamp};
use domain::ports::{SessionHash, SessionStore, SessionSweep, StoreError, TokenHash};

use super::lock;

/// The sessions of the console, with the time of the clock. Clones share them, as replicas share the
/// database.
#[derive(Clone, Debug)]
pub struct MemorySessions {
    clock: Arc<ManualClock>,
    /// The token of each session, and its end.
    sessions: Arc<Mutex<BTreeMap<SessionHash, (TokenHash, Timestamp)>>>,
}

impl MemorySessions {
    /// A store without sessions.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, sessions: Arc::default() }
    }

    /// The ids of all sessions that have not been deleted.
    pub fn ids(&self) -> Vec<SessionHash> {
        lock(&self.sessions).keys().copied().collect()
    }
}

impl SessionStore for MemorySessions {
    async fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        match lock(&self.sessions).entry(*id) {
            Entry::Vacant(free) => {
                free.insert((*token, self.clock.now() + lifetime));
                Ok(())
            }
            Entry::Occupied(_) => Err(StoreError::Refused {
                operation: "insert a session of the console",
                source: "there is a session of this id".into(),
            }),
        }
    }

    async fn get_session(&self, id: &SessionHash) -> Result<Option<TokenHash>, StoreError> {
        let now = self.clock.now();
        let sessions = lock(&self.sessions);
        Ok(sessions.get(id).filter(|(_, expires_at)| *expires_at > now).map(|(token, _)| *token))
    }

    async fn delete_session(&self, id: &SessionHash) -> Result<u64, StoreError> {
        Ok(lock(&self.sessions).remove(id).is_some().into())
    }
}

impl SessionSweep for MemorySessions {
    async fn sweep_sessions(&self, limit: usize) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut sessions = lock(&self.sessions);
        let ended = sessions.iter().filter(|(_, (_, expires_at))| *expires_at <= now);
        let mut ended: Vec<(Timestamp, SessionHash)> = ended.map(|(id, (_, at))| (*at, *id)).collect();
        ended.sort_unstable();
        ended.truncate(limit);
        for (_, id) in &ended {
            sessions.remove(id);
        }
        Ok(ended.len() as u64)
    }
}
