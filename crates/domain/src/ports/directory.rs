//! The user directory.

use std::future::Future;

use crate::recipient::Lookup;

/// The user directory.
pub trait UserDirectory: Send + Sync {
    /// What [`UserDirectory::look_up`] would answer without a wait, because all of these users are known here; `None` if it
    /// would have to ask for one of them.
    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>>;

    /// Looks up each user, concurrently within a bound, in the given order; the answers have the same order. One call
    /// takes a bounded time. A user without an answer by then is [`Lookup::Unavailable`]; the other answers are kept.
    fn look_up(&self, user_ids: &[&str]) -> impl Future<Output = Vec<Lookup>> + Send;
}
