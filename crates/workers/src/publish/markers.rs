//! Markers of routes whose completion is not committed yet. They are renewed until it is.
//!
//! While the marker exists, no replica appends the route again. It is written with the append and expires
//! after the dedupe TTL. If the completion takes longer than one statement, the marker is renewed several
//! times within the TTL. After a crash of this replica, markers expire after one TTL at the latest; long
//! before that, another replica finds the due route and its marker.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{Acknowledged, LeaseStore, Published, ServerId, StoreError, error_chain};
use domain::route::RouteKey;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The number of times that markers are renewed within their TTL.
// MODEL-24
const RENEWALS_PER_TTL: u32 = 4;
/// The most markers that one call renews.
const RENEWED_AT_ONCE: usize = 512;
/// The pause before a failed renewal is tried again.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The markers that are renewed.
#[derive(Debug, Default)]
pub(super) struct Markers {
    held: Mutex<BTreeMap<RouteKey, Acknowledged>>,
    added: Notify,
}

impl Markers {
    /// Renews these markers from now on, the first time at once, because their age is not known.
    pub(super) fn hold<'a>(&self, published: impl Iterator<Item = &'a Published>) {
        let mut held = self.held();
        let before = held.len();
        held.extend(published.map(|route| (route.key.clone(), route.entry.clone())));
        if held.len() > before {
            self.added.notify_one();
        }
    }

    /// Stops renewing these markers. They expire by themselves.
    pub(super) fn stop_renewing<'a>(&self, keys: impl Iterator<Item = &'a RouteKey>) {
        let mut held = self.held();
        if !held.is_empty() {
            keys.for_each(|key| drop(held.remove(key)));
        }
    }

    /// Renews the held markers, for as long as it is polled.
    pub(super) async fn keep_alive<L: LeaseStore>(&self, leases: &L, ttl: Duration) -> Infallible {
        let interval = ttl / RENEWALS_PER_TTL;
        let mut wait = interval;
        loop {
            // After the wait, or when a marker is added, the held markers are renewed.
            drop(timeout(wait, self.added.notified()).await);
            wait = match self.renew(leases, ttl).await {
                Ok(()) => interval,
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), "markers were not renewed; trying again");
                    sleep(RENEWAL_RETRY_INTERVAL.min(interval)).await;
                    Duration::ZERO
                }
            };
        }
    }

    /// Renews the held markers. If the server that acknowledged an entry has been replaced, its marker is
    /// renewed only if it exists, and is not written again.
    async fn renew<L: LeaseStore>(&self, leases: &L, ttl: Duration) -> Result<(), StoreError> {
        let mut of_server: BTreeMap<ServerId, Vec<(RouteKey, String)>> = BTreeMap::new();
        for (key, entry) in self.held().iter() {
            let held = (key.clone(), entry.entry_id.clone());
            of_server.entry(entry.server.clone()).or_default().push(held);
        }
        for (server, held) in of_server {
            for chunk in held.chunks(RENEWED_AT_ONCE) {
                let markers: Vec<(&RouteKey, &str)> =
                    chunk.iter().map(|(key, id)| (key, id.as_str())).collect();
                leases.extend_markers(&server, &markers, ttl).await?;
            }
        }
        Ok(())
    }

    /// Locks the held markers. Nothing panics while the lock is held.
    fn held(&self) -> MutexGuard<'_, BTreeMap<RouteKey, Acknowledged>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
