//! The port that looks up the leader, on the lock: only the lock has the present term. The name of the leader
//! is in its report (`replicas`).

use ambient::Timestamp;
use domain::ports::{LeaderLookup, StoreError};
use domain::query::LeaderTerm;
use lock::LockManager;

use super::election::store_error;

/// The name of the leadership for reading `stream`.
pub(super) fn intake_leadership(stream: &str) -> String {
    format!("intake:{stream}")
}

/// Looks up the leader of intake.
#[derive(Clone, Debug)]
pub struct LockLookup {
    locks: LockManager,
    leadership: String,
}

impl LockLookup {
    /// Creates a lookup of the leader of the intake of `stream` in these locks.
    pub fn new(locks: LockManager, stream: &str) -> Self {
        Self { locks, leadership: intake_leadership(stream) }
    }
}

impl LeaderLookup for LockLookup {
    async fn leader(&self) -> Result<Option<LeaderTerm>, StoreError> {
        const OPERATION: &str = "look up the leader";
        let held =
            self.locks.lookup(&self.leadership).await.map_err(|error| store_error(OPERATION, error))?;
        let Some(held) = held else { return Ok(None) };
        let since = self.time("locks.acquired_at_ms", held.acquired_at_ms)?;
        Ok(Some(LeaderTerm { since, fence: held.fence }))
    }

    async fn last_term_end(&self) -> Result<Option<Timestamp>, StoreError> {
        let ended = self.locks.expired_at_ms(&self.leadership).await;
        let ended = ended.map_err(|error| store_error("look up the end of the last term", error))?;
        ended.map(|ended| self.time("locks.expires_at_ms", ended)).transpose()
    }
}

impl LockLookup {
    fn time(&self, place: &'static str, millis: i64) -> Result<Timestamp, StoreError> {
        Timestamp::from_millis(millis).map_err(|error| StoreError::Corrupt {
            place,
            key: self.leadership.clone(),
            problem: error.to_string(),
        })
    }
}
