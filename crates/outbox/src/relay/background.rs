//! What a relay does beside publishing: it reaps leases that are over, and samples the backlog.

use std::time::Duration;

use ambient::{Jitter, error_chain};
use tokio_util::sync::CancellationToken;

use super::chunk::failure_kind;
use crate::{Observer, OutboxError, ReapRequest, RelaySettings, Storage};

/// Between two samples of the backlog.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(30);
/// The most of each kind that a sample counts.
const MAX_BACKLOG_COUNT: u64 = 10_000;
/// The most leases that are reaped in one transaction.
const MAX_REAP_BATCH: u32 = 500;
/// Looks for leases that are over, within a lease.
const REAPS_PER_LEASE: u32 = 3;

/// Reaps now, and then every third of a lease, until `stop`.
pub(crate) async fn reap(
    storage: &impl Storage,
    settings: &RelaySettings,
    jitter: &dyn Jitter,
    stop: &CancellationToken,
) {
    let mut failing = false;
    while !stop.is_cancelled() {
        let outcome = reap_all(storage, settings, jitter, stop).await;
        if let Some(error) = first_failure(&mut failing, outcome) {
            tracing::warn!(error, "leases of outbox events could not be reaped; trying again");
        }
        pause(stop, settings.lease_timeout / REAPS_PER_LEASE).await;
    }
}

async fn reap_all(
    storage: &impl Storage,
    settings: &RelaySettings,
    jitter: &dyn Jitter,
    stop: &CancellationToken,
) -> Result<(), OutboxError> {
    let request = ReapRequest {
        types: settings.types.clone(),
        lease_timeout: settings.lease_timeout,
        limit: MAX_REAP_BATCH,
    };
    let mut reaped = 0;
    while !stop.is_cancelled() {
        let kind = |attempts| failure_kind(&settings.retry, attempts, jitter);
        let count = storage.reap_expired_leases(&request, &kind).await?;
        reaped += count;
        if count < u64::from(MAX_REAP_BATCH) {
            break;
        }
    }
    if reaped > 0 {
        tracing::warn!(
            events = reaped,
            "leases of outbox events had expired; the events are tried again, each by itself"
        );
    }
    Ok(())
}

/// Samples the backlog now, and then every [`BACKLOG_INTERVAL`], until `stop`.
pub(crate) async fn sample(
    storage: &impl Storage,
    settings: &RelaySettings,
    observer: &impl Observer,
    stop: &CancellationToken,
) {
    let mut failing = false;
    while !stop.is_cancelled() {
        let outcome =
            storage.stats(&settings.types, MAX_BACKLOG_COUNT).await.map(|stats| observer.backlog(&stats));
        if let Some(error) = first_failure(&mut failing, outcome) {
            tracing::warn!(error, "the backlog of the outbox could not be counted; trying again");
        }
        pause(stop, BACKLOG_INTERVAL).await;
    }
}

/// The error, if the call before did not fail.
fn first_failure(failing: &mut bool, outcome: Result<(), OutboxError>) -> Option<String> {
    let before = std::mem::replace(failing, outcome.is_err());
    outcome.err().filter(|_| !before).map(|error| error_chain(&error))
}

async fn pause(stop: &CancellationToken, time: Duration) {
    // Cancelled, the loop ends.
    let _: Option<()> = stop.run_until_cancelled(tokio::time::sleep(time)).await;
}
