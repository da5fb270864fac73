//! The user directory.

use std::future::Future;

use crate::recipient::Lookup;

/// The user directory.
pub trait UserDirectory: Send + Sync {
    /// The most users that one call should look up, more than 0: few if each of them is a request, so that
    /// entries before a slow one do not wait for it long.
    fn users_per_call(&self) -> usize;

    /// What [`UserDirectory::look_up`] would answer without a wait, because all of these users are known
    /// here; `None` if it would have to ask for one of them.
    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>>;

    /// Looks up each user, concurrently within a bound, in the given order; the answers have the same order.
    /// One call takes a bounded time. A user without an answer by then is [`Lookup::Unavailable`]; the other
    /// answers are kept.
    fn look_up(&self, user_ids: &[&str]) -> impl Future<Output = Vec<Lookup>> + Send;
}
