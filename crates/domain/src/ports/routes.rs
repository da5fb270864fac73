//! Reads and changes the state of routes.

use std::collections::HashMap;
use std::future::Future;

use ambient::Timestamp;

use super::StoreError;
use crate::route::{Channel, Failed, LiveRoute, Published, RouteKey};

/// The order in which due routes are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueOrder {
    /// The routes that have been due longest first.
    OldestFirst,
    /// The routes that became due last first.
    NewestFirst,
}

/// A position in the list of due routes. The listing resumes after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueCursor {
    /// The due time of the last listed route, as stored: the row may contain a time that cannot be parsed.
    pub next_attempt_at: String,
    /// The key of the last listed route.
    pub key: RouteKey,
}

/// One page of due routes.
#[derive(Debug, Default)]
pub struct DuePage {
    /// The routes that could be read.
    pub routes: Vec<LiveRoute>,
    /// The rows that could not be read; the others are not affected.
    pub corrupt: Vec<StoreError>,
    /// The position after which the next page begins; `None` when this was the last page.
    pub next: Option<DueCursor>,
}

/// The outcome of one completion.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// Written, or already exactly as intended.
    Applied,
    /// The route changed since it was read; nothing was written.
    Conflict,
    /// Another transaction has locked the row; nothing was written.
    Locked,
}

/// The handling of rows that another transaction has locked, in a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowLocks {
    /// Waits for a bounded time, then writes the other rows. Nearly always the fastest.
    Wait,
    /// Writes the other rows at once. For rows that are known to be locked.
    Skip,
}

/// The routes of a channel that are not published because attempts failed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FailureCounts {
    /// Routes whose last attempt failed and that are tried again.
    pub failing: u64,
    /// Dead letters that no operator discarded.
    pub dead_letters: u64,
    /// The time of the oldest of these dead letters.
    pub oldest_dead_letter: Option<Timestamp>,
}

/// The state of routes. Every change contains the version on which it was decided.
pub trait RouteStore: Send + Sync {
    /// Returns routes of `channel` that are due at `now`, in this order, starting after `after`.
    fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Returns for each channel the time at which its first live route is or was due.
    fn next_due(&self) -> impl Future<Output = Result<HashMap<Channel, Timestamp>, StoreError>> + Send;

    /// Counts the routes that are due at `now`, at most up to `cap`.
    fn count_due_routes(
        &self,
        now: Timestamp,
        cap: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Counts for each channel the routes that fail and those that are open dead letters, the oldest ones
    /// first, each at most up to `cap` for all channels together.
    fn count_failures(
        &self,
        cap: usize,
    ) -> impl Future<Output = Result<HashMap<Channel, FailureCounts>, StoreError>> + Send;

    /// Returns the present state of these routes, in any order. Routes that are no longer live are left out.
    fn get_live_routes(&self, keys: &[&RouteKey])
    -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Marks routes published, and returns an outcome for each, in the given order.
    fn complete_routes_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        locks: RowLocks,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;

    /// Schedules the retry of routes or makes them dead letters, and returns an outcome for each, in the
    /// given order.
    fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        locks: RowLocks,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}
