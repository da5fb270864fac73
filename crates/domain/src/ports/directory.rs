//! The interface of the user directory.

use std::future::Future;

use crate::recipient::Lookup;

/// Looks up users.
pub trait UserDirectory: Send + Sync {
    /// The most users that one call should look up, at least 1. Few if each lookup is a request, so that
    /// entries before a slow one do not wait long.
    fn users_per_call(&self) -> usize;

    /// Returns the result of [`UserDirectory::look_up`] without waiting, because all of these users are
    /// cached; `None` if one of them would need a request.
    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>>;

    /// Looks up each user, concurrently within a bound; the results have the order of `user_ids`. One call
    /// takes a bounded time. A user without a result by then is [`Lookup::Unavailable`]; the other results
    /// are kept.
    fn look_up(&self, user_ids: &[&str]) -> impl Future<Output = Vec<Lookup>> + Send;
}
