//! Sessions of the console.

use std::future::Future;
use std::time::Duration;

use super::StoreError;

/// The SHA-256 of the id of a session. Only the browser has the id itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionHash(pub [u8; 32]);

/// The SHA-256 of a token, by which a session finds its token among those in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenHash(pub [u8; 32]);

/// The sessions of the console. They end by the store's clock, the same for every replica.
pub trait SessionStore: Send + Sync {
    /// Inserts a session of the token `token` that ends after `lifetime`. An id is 256 random bits.
    /// [`StoreError::Refused`] if the id exists; its session is not changed then.
    fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the token of a session; `None` if no session has this id, or it has ended.
    fn get_session(
        &self,
        id: &SessionHash,
    ) -> impl Future<Output = Result<Option<TokenHash>, StoreError>> + Send;

    /// Deletes a session, and returns the number deleted: 0 if it does not exist.
    fn delete_session(&self, id: &SessionHash) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Removes sessions that have ended.
pub trait SessionSweep: Send + Sync {
    /// Deletes at most `limit` sessions that have ended, the oldest first and together, and returns the
    /// number deleted.
    fn sweep_sessions(&self, limit: usize) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
