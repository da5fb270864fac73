//! Test access to the database: changes and queries that no port offers.

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::checkpoint::Checkpoint;
use domain::route::{LiveRoute, RouteKey, RouteStatus, Version};

use super::clock::ServerClock;
use super::database::{MemoryDatabase, Row, ServiceTables};
use super::lock;

/// A copy of all data of a database at one moment.
#[derive(Clone, Debug)]
pub struct Backup(ServiceTables);

/// The state of a route, except for the parts in [`LiveRoute`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRouteState {
    /// The status of the route.
    pub status: RouteStatus,
    /// The number of failed attempts.
    pub attempt_count: u32,
    /// The time of the next attempt, while the route is live.
    pub next_attempt_at: Option<Timestamp>,
    /// The id of the route's entry; empty before it is published.
    pub published_entry_id: String,
    /// The reason of the last failed attempt; empty if none failed.
    pub last_error_classification: &'static str,
}

impl MemoryDatabase {
    /// Returns a copy of all data.
    pub fn backup(&self) -> Backup {
        Backup(lock(&self.0).clone())
    }

    /// Restores the state of `backup`.
    pub fn restore(&self, backup: &Backup) {
        *lock(&self.0) = backup.0.clone();
    }

    /// Sets the clock for the timestamps that the database records about the outbound streams.
    pub fn set_clock(&self, clock: Arc<impl Clock + 'static>) {
        lock(&self.0).clock = Some(ServerClock::new(clock));
    }

    /// Sets the checkpoint of `stream` to any value, whatever its fence; `None` removes it.
    pub fn set_checkpoint(&self, stream: &str, checkpoint: Option<Checkpoint>) {
        let checkpoints = &mut lock(&self.0).checkpoints;
        match checkpoint {
            Some(checkpoint) => checkpoints.insert(stream.to_owned(), checkpoint),
            None => checkpoints.remove(stream),
        };
    }

    /// The checkpoint of `stream`.
    pub fn checkpoint(&self, stream: &str) -> Option<Checkpoint> {
        lock(&self.0).checkpoints.get(stream).copied()
    }

    /// Inserts a pending route without a record.
    pub fn put_route(&self, route: LiveRoute) {
        let row = Row {
            route,
            status: RouteStatus::Pending,
            published_entry_id: String::new(),
            published_at: None,
            last_error_classification: "",
        };
        lock(&self.0).routes.insert(row.route.key.clone(), row);
    }

    /// Raises the version of a route, as any change does.
    pub fn touch_route(&self, key: &RouteKey) {
        if let Some(row) = lock(&self.0).routes.get_mut(key) {
            let next = row.route.version.updated_at() + Duration::from_micros(1);
            row.route.version = Version::read(next);
        }
    }

    /// Makes a value in the row of a route unreadable.
    pub fn corrupt_route(&self, key: &RouteKey) {
        lock(&self.0).corrupt.insert(key.clone());
    }

    /// The state of a route; `None` if it does not exist.
    pub fn route(&self, key: &RouteKey) -> Option<StoredRouteState> {
        lock(&self.0).routes.get(key).map(|row| StoredRouteState {
            status: row.status,
            attempt_count: row.route.attempt_count,
            next_attempt_at: row.status.is_live().then_some(row.route.next_attempt_at),
            published_entry_id: row.published_entry_id.clone(),
            last_error_classification: row.last_error_classification,
        })
    }

    /// The number of pending or failed routes.
    pub fn live_count(&self) -> usize {
        lock(&self.0).routes.values().filter(|row| row.status.is_live()).count()
    }
}
