//! Background work of a relay: reaps expired leases and samples the backlog.

use std::time::Duration;

use ambient::{Episode, Jitter, Recovery, error_chain};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::chunk::failure_kind;
use super::marks::list_ids;
use super::set_aside::SetAside;
use crate::{OutboxError, ReapRequest, RelayObserver, RelaySettings, Storage};

/// The pause between two samples of the backlog.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(30);
/// The largest count of each kind in a sample.
const MAX_BACKLOG_COUNT: u64 = 10_000;
/// The largest number of leases reaped in one transaction.
const MAX_REAP_BATCH: u32 = 500;
/// The number of searches for expired leases during one lease.
const REAPS_PER_LEASE: u32 = 3;

/// Reaps now, and then every third of a lease, until `stop`.
pub(crate) async fn reap(
    storage: &impl Storage,
    settings: &RelaySettings,
    jitter: &dyn Jitter,
    stop: &CancellationToken,
) {
    let (failures, mut set_aside) = (Episode::default(), SetAside::default());
    while !stop.is_cancelled() {
        // A stop ends it at any point: another relay reaps the remaining leases.
        let reaping = reap_all(storage, settings, jitter, &mut set_aside);
        let Some(outcome) = stop.run_until_cancelled(reaping).await else { break };
        note(&failures, "reap expired leases", outcome);
        pause(stop, settings.lease_timeout / REAPS_PER_LEASE).await;
    }
}

async fn reap_all(
    storage: &impl Storage,
    settings: &RelaySettings,
    jitter: &dyn Jitter,
    set_aside: &mut SetAside,
) -> Result<(), OutboxError> {
    let mut reaped = 0;
    loop {
        let request = ReapRequest {
            types: settings.types.clone(),
            lease_timeout: settings.lease_timeout,
            limit: MAX_REAP_BATCH,
            except: set_aside.event_ids(Instant::now()),
        };
        let kind = |attempts| failure_kind(&settings.retry, attempts, jitter);
        let done = storage.reap_expired_leases(&request, &kind).await?;
        reaped += done.count;
        let mut has_room = true;
        for event_id in &done.refused {
            has_room &= set_aside.add(*event_id, Instant::now()).is_some();
        }
        if !done.refused.is_empty() {
            tracing::error!(
                events = done.refused.len(),
                event_ids = %list_ids(done.refused.iter().copied()),
                "the outbox table rejects the release of expired claims; these events and later ones of their keys wait"
            );
        }
        if !done.is_followed || !has_room {
            break;
        }
    }
    if reaped > 0 {
        tracing::warn!(
            events = reaped,
            "leases of outbox events had expired; the events are tried again, in smaller groups"
        );
    }
    Ok(())
}

/// Samples the backlog now, and then every [`BACKLOG_INTERVAL`], until `stop`.
pub(crate) async fn sample(
    storage: &impl Storage,
    settings: &RelaySettings,
    observer: &impl RelayObserver,
    stop: &CancellationToken,
) {
    let failures = Episode::default();
    while !stop.is_cancelled() {
        let outcome =
            storage.stats(&settings.types, MAX_BACKLOG_COUNT).await.map(|stats| observer.backlog(&stats));
        note(&failures, "count the backlog", outcome);
        pause(stop, BACKLOG_INTERVAL).await;
    }
}

/// Logs the beginning and the end of an outage.
fn note(failures: &Episode, task: &'static str, outcome: Result<(), OutboxError>) {
    let now = Instant::now().into_std();
    match outcome {
        Ok(()) => {
            if let Some(Recovery { times, lasted_ms }) = failures.recovered(now) {
                tracing::info!(task, times, lasted_ms, "background task of the outbox relay recovered");
            }
        }
        Err(error) => {
            let failure = failures.failed(now, ());
            if failure.is_logged {
                let (error, times) = (error_chain(&error), failure.times);
                tracing::warn!(task, error, times, "background task of the outbox relay failed; retrying");
            }
        }
    }
}

async fn pause(stop: &CancellationToken, time: Duration) {
    // If cancelled, the loop ends.
    let _: Option<()> = stop.run_until_cancelled(tokio::time::sleep(time)).await;
}
