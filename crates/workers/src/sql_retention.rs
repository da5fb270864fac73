//! Deleting what is older than its knob: oldest first, in short chunks, beside running traffic.
//!
//! A record with a live route stays, however old it is; how many such there are is counted and said. Killed in the
//! middle, the next pass goes on with what is left. Two replicas at once delete the same rows once.

use std::time::{Duration, Instant};

use ambient::{Clock, Timestamp};
use domain::ports::{Election, Expired, RetentionStore, StoreError, Term, error_chain};
use domain::record::NotificationId;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{Trouble, pause};

/// How long one DELETE should take; the chunk grows and shrinks around it. As short as what the traffic itself asks for, so
/// that nobody waits for more than a moment behind it.
const CHUNK_TIME: Duration = Duration::from_millis(5);
const FIRST_CHUNK: u64 = 1_000;
const LARGEST_CHUNK: u64 = 20_000;
const SMALLEST_CHUNK: u64 = 50;
/// After a DELETE or a page, how many times as long as it took the others have the database to themselves, and the longest.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Records that are looked at together.
const PAGE: usize = 200;

/// What retention is told by configuration.
#[derive(Clone, Copy, Debug)]
pub struct RetentionSettings {
    /// How long a record is kept after its acceptance.
    pub records: Duration,
    /// How long a malformed intent is kept.
    pub malformed_intents: Duration,
    /// Between passes.
    pub interval: Duration,
}

/// The loop that deletes.
#[derive(Debug)]
pub struct SqlRetention<E, S, C> {
    /// Who of the replicas sweeps.
    pub election: E,
    /// What it deletes from.
    pub store: S,
    /// The time.
    pub clock: C,
    /// How old is too old.
    pub settings: RetentionSettings,
    /// What is counted.
    pub metrics: Metrics,
    /// How the loop stands.
    pub status: Status,
}

/// What one pass did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Records that were deleted.
    pub records: u64,
    /// Expired records that stay because a route of theirs is live.
    pub kept_back: u64,
    /// Malformed intents that were deleted.
    pub malformed_intents: u64,
    /// The longest that one DELETE took.
    pub longest_chunk: Duration,
}

/// The number of rows that go at once, adapted to how long that takes.
struct ChunkSize(u64);

impl ChunkSize {
    fn took(&mut self, time: Duration) {
        if time > CHUNK_TIME {
            self.0 = (self.0 / 2).max(SMALLEST_CHUNK);
        } else if time < CHUNK_TIME / 2 {
            self.0 = (self.0 * 2).min(LARGEST_CHUNK);
        }
    }
}

impl<E: Election, S: RetentionStore, C: Clock> SqlRetention<E, S, C> {
    /// Runs until `stop`, a pass every interval.
    pub async fn run(self, stop: CancellationToken) {
        let mut trouble = Trouble::new("retention");
        loop {
            let wait = match self.run_if_elected(&stop).await {
                Ok(swept) => {
                    trouble.clear();
                    self.status.passed();
                    self.report(swept);
                    self.settings.interval
                }
                Err(error) => {
                    self.status.fails(&error_chain(&error));
                    trouble.note(&error)
                }
            };
            if !pause(&stop, wait).await {
                break;
            }
        }
    }

    /// One pass, unless another replica is at it. The office saves work and no more: two at once do no harm.
    async fn run_if_elected(&self, stop: &CancellationToken) -> Result<Swept, StoreError> {
        let Some(term) = self.election.stand().await? else { return Ok(Swept::default()) };
        let over = stop.child_token();
        let swept = tokio::select! {
            swept = self.run_once(&over) => swept,
            () = term.lost() => Ok(Swept::default()),
        };
        term.resign().await;
        swept
    }

    /// One pass over both tables, ended early by `stop` between two chunks.
    pub async fn run_once(&self, stop: &CancellationToken) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        let mut swept = Swept::default();
        self.sweep_records(now - self.settings.records, &mut swept, stop).await?;
        self.sweep_malformed_intents(now - self.settings.malformed_intents, &mut swept, stop).await?;
        Ok(swept)
    }

    async fn sweep_records(
        &self,
        cutoff: Timestamp,
        swept: &mut Swept,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut size = ChunkSize(FIRST_CHUNK);
        let mut last: Option<Expired> = None;
        loop {
            let looked = Instant::now();
            let page = self.store.list_expired_records(cutoff, last.as_ref(), PAGE).await?;
            let look = looked.elapsed();
            let mut rest = page.as_slice();
            while !rest.is_empty() {
                let length = chunk_length(rest, size.0);
                let (chunk, behind) = rest.split_at(length);
                let ids: Vec<NotificationId> = chunk
                    .iter()
                    .filter(|record| record.live_routes == 0)
                    .map(|record| record.notification_id.clone())
                    .collect();
                swept.kept_back += (chunk.len() - ids.len()) as u64;
                if !ids.is_empty() {
                    let started = Instant::now();
                    let deleted = self.store.delete_records(&ids, cutoff).await?;
                    size.took(started.elapsed());
                    swept.longest_chunk = swept.longest_chunk.max(started.elapsed());
                    swept.records += deleted;
                    self.metrics.deleted("records", deleted);
                    if !breathe(stop, started.elapsed()).await {
                        return Ok(());
                    }
                }
                rest = behind;
            }
            // A page may hold nothing that may go: the look alone is worth a rest, and the stop is looked at.
            if page.len() < PAGE || !breathe(stop, look).await {
                return Ok(());
            }
            last = page.into_iter().next_back();
        }
    }

    async fn sweep_malformed_intents(
        &self,
        cutoff: Timestamp,
        swept: &mut Swept,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut size = ChunkSize(FIRST_CHUNK);
        loop {
            let limit = size.0;
            let started = Instant::now();
            let deleted = self.store.delete_malformed_intents(cutoff, limit as usize).await?;
            size.took(started.elapsed());
            swept.longest_chunk = swept.longest_chunk.max(started.elapsed());
            swept.malformed_intents += deleted;
            self.metrics.deleted("malformed_intents", deleted);
            if deleted < limit || !breathe(stop, started.elapsed()).await {
                return Ok(());
            }
        }
    }

    fn report(&self, swept: Swept) {
        self.metrics.kept_back(swept.kept_back);
        if swept.kept_back > 0 {
            tracing::warn!(
                records = swept.kept_back,
                "expired records stay because a route of theirs is still live"
            );
        }
        if swept.records + swept.malformed_intents > 0 {
            tracing::info!(
                records = swept.records,
                malformed_intents = swept.malformed_intents,
                longest_chunk_ms = u64::try_from(swept.longest_chunk.as_millis()).unwrap_or(u64::MAX),
                "retention removed old rows"
            );
        }
    }
}

/// Leaves the database to the others for several times as long as it was just used. False if the service stops.
async fn breathe(stop: &CancellationToken, time: Duration) -> bool {
    pause(stop, (time * REST).min(LONGEST_REST)).await
}

/// How many of the records, with their routes, make a chunk of `rows` rows; at least one record.
fn chunk_length(records: &[Expired], rows: u64) -> usize {
    let mut sum = 0;
    let fits = records.iter().take_while(|record| {
        sum += 1 + record.routes;
        sum <= rows
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests;
