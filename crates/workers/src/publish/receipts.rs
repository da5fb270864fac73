//! Receipts of routes whose completion is not committed yet; they are renewed until it is.
//!
//! As long as the receipt exists, no replica appends the route again. It is written with the append and
//! expires after the dedupe TTL. If the completion takes longer than one statement, it is renewed several
//! times within the TTL. After a crash of this replica, receipts expire after one TTL at the latest; long
//! before that, another replica finds the due route and its receipt.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{Acknowledged, LeaseStore, Published, ServerId, StoreError, error_chain};
use domain::route::RouteKey;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How many times within their lifetime receipts are renewed.
const RENEWALS_PER_TTL: u32 = 4;
/// The most receipts that are renewed by one call.
const RENEWED_AT_ONCE: usize = 512;
/// How soon a renewal that failed is tried again.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The receipts that are renewed.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    held: Mutex<HashMap<RouteKey, Acknowledged>>,
    added: Notify,
}

impl Receipts {
    /// Renews these from now on, the first time at once, because their age is not known.
    pub(super) fn hold<'a>(&self, published: impl Iterator<Item = &'a Published>) {
        let mut held = self.held();
        let before = held.len();
        held.extend(published.map(|route| (route.key.clone(), route.entry.clone())));
        if held.len() > before {
            self.added.notify_one();
        }
    }

    /// Stops renewing these; they expire by themselves.
    pub(super) fn stop_renewing<'a>(&self, keys: impl Iterator<Item = &'a RouteKey>) {
        let mut held = self.held();
        if !held.is_empty() {
            keys.for_each(|key| drop(held.remove(key)));
        }
    }

    /// Renews what is held, for as long as it is polled.
    pub(super) async fn keep_alive<L: LeaseStore>(&self, leases: &L, ttl: Duration) -> Infallible {
        let interval = ttl / RENEWALS_PER_TTL;
        let mut wait = interval;
        loop {
            // Elapsed or woken up, what is held is renewed.
            drop(timeout(wait, self.added.notified()).await);
            wait = match self.renew(leases, ttl).await {
                Ok(()) => interval,
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), "receipts were not renewed; trying again");
                    sleep(RENEWAL_RETRY_INTERVAL.min(interval)).await;
                    Duration::ZERO
                }
            };
        }
    }

    /// On another server than the one that acknowledged an entry, its receipt is renewed if it exists, and
    /// not written again.
    async fn renew<L: LeaseStore>(&self, leases: &L, ttl: Duration) -> Result<(), StoreError> {
        let mut of_server: HashMap<ServerId, Vec<(RouteKey, String)>> = HashMap::new();
        for (key, entry) in self.held().iter() {
            let held = (key.clone(), entry.entry_id.clone());
            of_server.entry(entry.server.clone()).or_default().push(held);
        }
        for (server, held) in of_server {
            for chunk in held.chunks(RENEWED_AT_ONCE) {
                let receipts: Vec<(&RouteKey, &str)> =
                    chunk.iter().map(|(key, id)| (key, id.as_str())).collect();
                leases.extend_receipts(&server, &receipts, ttl).await?;
            }
        }
        Ok(())
    }

    /// Nothing panics while the lock is held.
    fn held(&self) -> MutexGuard<'_, HashMap<RouteKey, Acknowledged>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
