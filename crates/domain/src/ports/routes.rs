//! The state of routes.

use std::collections::HashMap;
use std::future::Future;

use ambient::Timestamp;

use super::StoreError;
use crate::route::{Channel, Failed, LiveRoute, Published, RouteKey};

/// Which end of the list of due routes is listed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueOrder {
    /// The longest due first.
    OldestFirst,
    /// What became due last first.
    NewestFirst,
}

/// A place in the list of due routes: the listing resumes after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueCursor {
    /// When the last listed route was due, as the store writes it: the row may hold a time that is not
    /// readable.
    pub next_attempt_at: String,
    /// Which route it was.
    pub key: RouteKey,
}

/// One page of due routes.
#[derive(Debug, Default)]
pub struct DuePage {
    /// The routes that could be read.
    pub routes: Vec<LiveRoute>,
    /// The rows that could not be read; the others are not affected.
    pub corrupt: Vec<StoreError>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<DueCursor>,
}

/// What became of one completion.
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

/// What a completion does about a row that another transaction has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowLocks {
    /// Waits for a bounded time, then writes the other rows. Nearly always the fastest.
    Wait,
    /// Writes the other rows at once. For rows that are known to be locked.
    Skip,
}

/// The state of routes. Every change names the version it was decided on.
pub trait RouteStore: Send + Sync {
    /// Routes of `channel` that are due at `now`, in this order, from after `after` on.
    fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// For each channel, when its first live route is or was due.
    fn next_due(&self) -> impl Future<Output = Result<HashMap<Channel, Timestamp>, StoreError>> + Send;

    /// How many routes are due at `now`, counted no further than `cap`.
    fn count_due_routes(
        &self,
        now: Timestamp,
        cap: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// These routes as they are now, in any order; those no longer live are left out.
    fn get_live_routes(&self, keys: &[&RouteKey])
    -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Marks routes published, with an outcome for each in the order given.
    fn complete_routes_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        locks: RowLocks,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;

    /// Schedules the retry of routes or makes them dead letters, with an outcome for each in the order given.
    fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        locks: RowLocks,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}
