//! What a test puts into the database, and sees of it, that no port offers.

use std::sync::Arc;
use std::time::Duration;

use ambient::{ManualClock, Timestamp};
use domain::checkpoint::Checkpoint;
use domain::route::{LiveRoute, RouteKey, RouteStatus, Version};

use super::database::{MemoryDatabase, Row, Tables};
use super::lock;

/// All that a database had at one moment.
#[derive(Clone, Debug)]
pub struct Backup(Tables);

/// The state of a route, as far as it is not part of [`LiveRoute`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteState {
    /// What became of it.
    pub status: RouteStatus,
    /// How many attempts have failed.
    pub attempt_count: u32,
    /// When the next attempt is due, while the route is live.
    pub next_attempt_at: Option<Timestamp>,
    /// The id of its entry; empty before it is published.
    pub published_entry_id: String,
    /// Why the last attempt failed; empty if none did.
    pub last_error_classification: &'static str,
}

impl MemoryDatabase {
    /// A copy of everything.
    pub fn backup(&self) -> Backup {
        Backup(lock(&self.0).clone())
    }

    /// Puts everything back to the state of `backup`.
    pub fn restore(&self, backup: &Backup) {
        *lock(&self.0) = backup.0.clone();
    }

    /// Gives the database the clock by which it stamps what it saves about the outbound streams.
    pub fn set_clock(&self, clock: Arc<ManualClock>) {
        lock(&self.0).clock = Some(clock);
    }

    /// Puts the checkpoint of `stream` anywhere, whatever its fence; `None` removes it.
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
            last_error_message: String::new(),
            last_error_at: None,
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

    /// Gives the row of a route a value that cannot be read.
    pub fn corrupt_route(&self, key: &RouteKey) {
        lock(&self.0).corrupt.insert(key.clone());
    }

    /// What became of a route; `None` if there is none.
    pub fn route(&self, key: &RouteKey) -> Option<RouteState> {
        lock(&self.0).routes.get(key).map(|row| RouteState {
            status: row.status,
            attempt_count: row.route.attempt_count,
            next_attempt_at: row.status.is_live().then_some(row.route.next_attempt_at),
            published_entry_id: row.published_entry_id.clone(),
            last_error_classification: row.last_error_classification,
        })
    }

    /// How many routes are pending or failed.
    pub fn live_count(&self) -> usize {
        lock(&self.0).routes.values().filter(|row| row.status.is_live()).count()
    }
}
