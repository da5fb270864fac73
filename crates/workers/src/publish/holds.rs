//! Routes that an operator holds: a publisher keeps them instead of appending them (ADR 0058).
//!
//! A publisher keeps a route only under its lease and without a marker: an appended route is completed,
//! whatever is held. Crash recovery: between lease and commit, the lease expires and the route is still due;
//! after the commit it is kept.

use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::hold::{HoldsInForce, RouteToHold};
use domain::ports::{HoldStore, StoreError};
use domain::route::RouteKey;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::RoutePublisher;
use super::chunk::{Encoded, Leased};
use super::state::PublisherState;
use crate::health::Stopped;
use crate::ports::Ports;

/// The time for which the holds that were read are used. A new hold is in force within twice that on every
/// replica.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The holds in force, as the publishers of a replica last read them. They are read only while routes are
/// published.
#[derive(Debug, Default)]
pub struct CurrentHolds {
    last: Mutex<Option<(Instant, Arc<HoldsInForce>)>>,
}

impl CurrentHolds {
    /// Returns the holds, read at most [`MAX_AGE`] ago.
    async fn get(&self, store: &impl HoldStore) -> Result<Arc<HoldsInForce>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some((read_at, holds)) = &*last
            && read_at.elapsed() < MAX_AGE
        {
            return Ok(Arc::clone(holds));
        }
        let read_at = Instant::now();
        let holds = Arc::new(store.holds_in_force().await?);
        *last = Some((read_at, Arc::clone(&holds)));
        Ok(holds)
    }
}

impl<P: Ports> RoutePublisher<P> {
    /// Returns true if any of these routes is held.
    pub(super) async fn has_held(
        &self,
        routes: &[Encoded<'_>],
        shared: &PublisherState,
    ) -> Result<bool, Stopped> {
        let holds = shared.until_answered(|| self.holds.get(&self.routes)).await?;
        Ok(!holds.is_empty() && routes.iter().any(|encoded| holds.of(encoded.route).is_some()))
    }

    /// Keeps the leased routes that are held, and returns the others.
    pub(super) async fn without_held<'a>(
        &self,
        leased: Leased<'a>,
        shared: &PublisherState,
    ) -> Result<Leased<'a>, Stopped> {
        let holds = shared.until_answered(|| self.holds.get(&self.routes)).await?;
        if holds.is_empty() {
            return Ok(leased);
        }
        let Leased { token, routes } = leased;
        let (mut free, mut held) = (Vec::with_capacity(routes.len()), Vec::new());
        for encoded in routes {
            match holds.of(encoded.route) {
                None => free.push(encoded),
                Some(hold) => held.push(RouteToHold {
                    key: encoded.route.key.clone(),
                    version: encoded.route.version,
                    hold: hold.clone(),
                }),
            }
        }
        if !held.is_empty() {
            // Routes that are not kept are due as before: another transaction has locked them, or they
            // changed.
            match self.routes.hold_routes(&held, self.clock.now()).await {
                Ok(kept) => self.metrics.attempts(self.channel, "held", kept.len()),
                Err(error) => shared.pause_after(&error).await?,
            }
            let keys: Vec<&RouteKey> = held.iter().map(|route| &route.key).collect();
            self.release(&keys, &token).await;
        }
        Ok(Leased { token, routes: free })
    }
}
