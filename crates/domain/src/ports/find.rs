//! Search by any id.

use std::future::Future;

use ambient::Timestamp;

use super::StoreError;
use crate::find::{FindQuery, Matches};

/// Finds intents, notifications and routes by any of their ids.
pub trait Finder: Send + Sync {
    /// Returns everything that `query` refers to at `now`. Each lookup uses an index or examines a bounded
    /// number of rows or entries. If Redis is unavailable, the result contains what the tables show.
    fn find(
        &self,
        query: &FindQuery,
        now: Timestamp,
    ) -> impl Future<Output = Result<Matches, StoreError>> + Send;
}
