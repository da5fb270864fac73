//! The user directory.

use std::future::Future;

use crate::recipient::Lookup;

/// The user directory.
pub trait UserDirectory: Send + Sync {
    /// Looks up each user, concurrently within a bound, in the given order; the answers have the same order. One call
    /// takes a bounded time. A user without an answer by then is [`Lookup::Unavailable`]; the other answers are kept.
    fn look_up(&self, user_ids: &[&str]) -> impl Future<Output = Vec<Lookup>> + Send;
}
