//! Who is signed in to the console.

use std::future::Future;
use std::time::Duration;

use super::StoreError;

/// The SHA-256 of the id of a session. The id itself is known to the browser alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionHash(pub [u8; 32]);

/// The SHA-256 of a token, by which its session finds it among the tokens in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenHash(pub [u8; 32]);

/// The sessions of the console. They end by the store's clock, the same for every replica.
pub trait SessionStore: Send + Sync {
    /// Inserts a session of the token `token` that ends after `lifetime`. An id is 256 random bits: one that
    /// is there already is [`StoreError::Refused`], and its session stays as it is.
    fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The token of a session; `None` if there is no session of this id, or it has ended.
    fn get_session(
        &self,
        id: &SessionHash,
    ) -> impl Future<Output = Result<Option<TokenHash>, StoreError>> + Send;

    /// Deletes a session, and returns how many were deleted: 0 if it is not there.
    fn delete_session(&self, id: &SessionHash) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Sessions that have ended.
pub trait SessionSweep: Send + Sync {
    /// Deletes at most `limit` sessions that have ended, the oldest first and together, and returns how many.
    fn sweep_sessions(&self, limit: usize) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
