//! Makes the routes of released holds due again, the oldest first (ADR 0058).
//!
//! Every replica looks for released holds; chunks skip rows that another one has locked. To avoid a backlog
//! in which other routes wait, a chunk is released only while fewer than [`MAX_DUE_ROUTES`] are due. Crash
//! recovery: each chunk is a transaction, and the next look continues with what is left.

use std::time::Duration;

use ambient::Clock;
use domain::hold::HoldKey;
use domain::operations::CHUNK_ROUTES;
use domain::ports::{HoldStore, RouteStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::bulk_change::MAX_DUE_ROUTES;
use crate::health::Health;
use crate::passes::{Pass, Passes, run_passes};

/// The interval at which a replica looks for released holds.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause before the due routes are counted again, and after a chunk of which others have locked every
/// row.
const DUE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The worker that makes the routes of released holds due.
#[derive(Debug)]
pub struct HoldRelease<S, C> {
    /// The store of holds and routes.
    pub store: S,
    /// The clock. Released routes are due at its time.
    pub clock: C,
    /// The health of the worker.
    pub health: Health,
}

impl<S: HoldStore + RouteStore, C: Clock> HoldRelease<S, C> {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        run_passes(&self.health, &stop, LOOK_INTERVAL, ReleaseLoop(&self)).await;
    }

    /// Releases one chunk of the first released hold.
    async fn release_chunk(&self, hold: &HoldKey) -> Result<Pass, StoreError> {
        let now = self.clock.now();
        if self.store.count_due_routes(now, MAX_DUE_ROUTES).await? >= MAX_DUE_ROUTES as u64 {
            return Ok(Pass::PauseFor(DUE_POLL_INTERVAL));
        }
        if self.store.release_routes(hold, CHUNK_ROUTES, now).await? > 0 {
            return Ok(Pass::Continue);
        }
        if self.store.end_hold(hold).await? {
            tracing::info!(hold = %hold, "every route of a released hold is due again");
            return Ok(Pass::Continue);
        }
        Ok(Pass::PauseFor(DUE_POLL_INTERVAL))
    }
}

struct ReleaseLoop<'a, S, C>(&'a HoldRelease<S, C>);

impl<S: HoldStore + RouteStore, C: Clock> Passes for ReleaseLoop<'_, S, C> {
    async fn run_once(&mut self, _: &CancellationToken) -> Result<Pass, StoreError> {
        match self.0.store.released_holds().await?.first() {
            None => Ok(Pass::PauseFor(LOOK_INTERVAL)),
            Some(hold) => self.0.release_chunk(hold).await,
        }
    }
}

#[cfg(test)]
mod tests;
