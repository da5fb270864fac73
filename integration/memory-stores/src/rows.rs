//! Rows of the database in memory.

use domain::ports::{KeyClaim, KeyClaimToken};
use domain::submission::StoredResponse;
use serde_json::Value;
use tokio::time::Instant;

/// A claimed or completed key.
#[derive(Clone, Debug)]
pub(super) struct KeyRow {
    pub(super) token: KeyClaimToken,
    pub(super) fingerprint: String,
    /// The response; `None` while the key is claimed.
    pub(super) response: Option<StoredResponse>,
    pub(super) expires_at: Instant,
}

impl KeyRow {
    /// The outcome of a request with this fingerprint at `now`; `None` if the key is free.
    pub(super) fn claim(&self, fingerprint: &str, now: Instant) -> Option<KeyClaim> {
        let outcome = match &self.response {
            None => KeyClaim::Pending(self.expires_at - now),
            Some(response) if self.fingerprint == fingerprint => KeyClaim::Completed(response.clone()),
            Some(_) => KeyClaim::Conflict,
        };
        (self.expires_at > now).then_some(outcome)
    }
}

/// A row of `operator_actions`.
#[derive(Clone, PartialEq, Debug)]
pub struct RecordedAction {
    /// The operator.
    pub actor: String,
    /// The name of the action.
    pub action: String,
    /// The arguments of the action.
    pub arguments: Value,
    /// The number of affected rows.
    pub affected: u64,
    /// The id of the request.
    pub request_id: String,
}
