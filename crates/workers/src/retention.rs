//! Retention deletes rows that are older than configured, oldest first, in short chunks, beside the traffic.
//!
//! A record with a live route is kept, regardless of its age. A row that another transaction holds, or that
//! cannot be deleted, is skipped until the next pass. Both are counted and reported, and neither stops the
//! deletion of other rows. Expired idempotency keys are deleted too ([`keys`]), and console sessions that
//! have ended ([`sessions`]).
//!
//! Crash recovery: a chunk is one transaction, so a crash leaves the chunks before it deleted and the others
//! unchanged; row locks end with the connection. The next pass of any replica continues with the remaining
//! rows. Two concurrent passes delete each row once: the leadership only avoids repeated work. The adapted
//! sizes are lost and adapted again.

mod keys;
mod report;
mod sessions;

use std::time::Duration;

use ambient::Clock;
use domain::ports::{
    Cutoff, Election, Expired, KeySweep, MalformedKey, OperatorActionId, RetentionStore, SessionSweep,
    StoreError, error_chain,
};
use domain::record::NotificationId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batch_limit::BatchLimit;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{CurrentTerm, Pass, Passes, run_passes, while_leading};
use crate::pause::pause;
use report::{report_deleted, report_what_stays};

/// The target time of one chunk. It is about as long as a statement of the traffic, so that these statements
/// wait only briefly.
const CHUNK_TARGET_TIME: Duration = Duration::from_millis(5);
/// The cost of deleting a row besides its values, in bytes: a large value is stored in rows of about this
/// size.
const ROW_COST: usize = 2 * 1024;
/// The cost of the first chunk, and of the smallest one that is not caused by a timeout. In a smaller chunk,
/// the round trips and the commit would take most of the time.
const MIN_CHUNK_COST: usize = 512 * 1024;
/// The highest cost of a chunk, unless it is a single row.
const MAX_CHUNK_COST: usize = 16 * 1024 * 1024;
/// The most expired rows in one page.
const MAX_PAGE_ROWS: usize = 200;
/// The pause after a chunk or a page, as a multiple of its duration, and the longest such pause.
const REST_FACTOR: u32 = 3;
const MAX_REST: Duration = Duration::from_secs(1);
/// The duration of a pass after which it rests only as long as it works: rows expire faster than it deletes
/// them, and the tables grow.
const LONG_PASS: Duration = Duration::from_secs(60);
/// The number of tables that a pass deletes from.
const TABLES: usize = 5;

/// The configuration of retention.
#[derive(Clone, Copy, Debug)]
pub struct RetentionSettings {
    /// The retention of a record after its acceptance.
    pub records: Duration,
    /// The retention of a malformed intent.
    pub malformed_intents: Duration,
    /// The retention of a row of `operator_actions`.
    pub operator_actions: Duration,
    /// The pause between passes.
    pub interval: Duration,
}

/// The worker that deletes expired rows.
#[derive(Debug)]
pub struct RetentionWorker<E, S, C> {
    /// The election of the replica that runs a pass.
    pub election: E,
    /// The store of the tables.
    pub store: S,
    /// The clock.
    pub clock: C,
    /// The retention of the tables, and the interval of passes.
    pub settings: RetentionSettings,
    /// The instruments.
    pub metrics: Metrics,
    /// The health of the worker.
    pub health: Health,
}

/// The sizes of pages and chunks, by table. They are kept between passes, so that a chunk that was too large
/// is not repeated.
#[derive(Debug)]
struct Limits {
    records: TableLimits,
    malformed_intents: TableLimits,
    operator_actions: TableLimits,
    /// The number of keys in a chunk.
    idempotency_keys: BatchLimit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: TableLimits::default(),
            malformed_intents: TableLimits::default(),
            operator_actions: TableLimits::default(),
            idempotency_keys: keys::chunk_limit(),
        }
    }
}

#[derive(Debug)]
struct TableLimits {
    /// The number of rows in a page.
    page: BatchLimit,
    /// The cost of a chunk.
    chunk: BatchLimit,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self {
            page: BatchLimit::new(MAX_PAGE_ROWS),
            chunk: BatchLimit::with_target(MIN_CHUNK_COST, MAX_CHUNK_COST, CHUNK_TARGET_TIME),
        }
    }
}

/// The result of one pass in one table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TablePass {
    /// The time at which it began.
    begun: Instant,
    /// Rows that were deleted, without dependent rows.
    deleted: u64,
    /// Expired records that are kept because one of their routes is live.
    live: u64,
    /// Rows that another transaction held.
    locked: u64,
    /// Rows that could not be deleted even alone.
    failed: u64,
    /// The error of the last of them.
    failure: Option<String>,
    /// The longest duration of a chunk.
    longest_chunk: Duration,
}

impl TablePass {
    fn begin() -> Self {
        let begun = Instant::now();
        Self {
            begun,
            deleted: 0,
            live: 0,
            locked: 0,
            failed: 0,
            failure: None,
            longest_chunk: Duration::ZERO,
        }
    }

    /// Pauses in proportion to the time for which the database was just used. Returns false if the service
    /// stops.
    async fn rest(&self, stop: &CancellationToken, time: Duration) -> bool {
        let factor = if self.begun.elapsed() < LONG_PASS { REST_FACTOR } else { 1 };
        pause(stop, (time * factor).min(MAX_REST)).await
    }
}

/// A store of all the tables that a pass deletes from.
pub trait RetainedTables:
    RetentionStore<NotificationId>
    + RetentionStore<MalformedKey>
    + RetentionStore<OperatorActionId>
    + KeySweep
    + SessionSweep
{
}

impl<S> RetainedTables for S where
    S: RetentionStore<NotificationId>
        + RetentionStore<MalformedKey>
        + RetentionStore<OperatorActionId>
        + KeySweep
        + SessionSweep
{
}

impl<E, S, C> RetentionWorker<E, S, C>
where
    E: Election,
    S: RetainedTables,
    C: Clock,
{
    /// Runs until `stop`, with a pass every interval.
    pub async fn run(self, stop: CancellationToken) {
        let passes = RetentionLoop { retention: &self, limits: Limits::default() };
        run_passes(&self.health, &stop, Duration::ZERO, passes).await;
    }

    /// Runs one pass over all tables, ended early by `stop` between two chunks. If a table fails, the others
    /// still have their pass.
    async fn run_once(&self, limits: &mut Limits, stop: &CancellationToken) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut records = TablePass::begin();
        let cutoff = Cutoff::new(now, self.settings.records);
        let first = self
            .delete_expired::<NotificationId>("records", cutoff, &mut limits.records, &mut records, stop)
            .await;
        let mut malformed = TablePass::begin();
        let cutoff = Cutoff::new(now, self.settings.malformed_intents);
        let of_table = &mut limits.malformed_intents;
        let second = self
            .delete_expired::<MalformedKey>("malformed_intents", cutoff, of_table, &mut malformed, stop)
            .await;
        let mut actions = TablePass::begin();
        let cutoff = Cutoff::new(now, self.settings.operator_actions);
        let of_table = &mut limits.operator_actions;
        let third = self
            .delete_expired::<OperatorActionId>("operator_actions", cutoff, of_table, &mut actions, stop)
            .await;
        let mut keys = TablePass::begin();
        let fourth = self.sweep_keys(&mut limits.idempotency_keys, &mut keys, stop).await;
        let mut sessions = TablePass::begin();
        let fifth = self.sweep_sessions(&mut sessions, stop).await;
        let result = first.and(second).and(third).and(fourth).and(fifth);
        let passes = [
            ("records", &records),
            ("malformed_intents", &malformed),
            ("operator_actions", &actions),
            (keys::TABLE, &keys),
            (sessions::TABLE, &sessions),
        ];
        report_deleted(passes);
        // A pass that failed is repeated soon, and would log the same again.
        if result.is_ok() {
            report_what_stays(passes);
        }
        result
    }

    async fn delete_expired<K: Clone + Send + Sync>(
        &self,
        table: &'static str,
        cutoff: Cutoff,
        limits: &mut TableLimits,
        pass: &mut TablePass,
        stop: &CancellationToken,
    ) -> Result<(), StoreError>
    where
        S: RetentionStore<K>,
    {
        let mut last: Option<Expired<K>> = None;
        while !stop.is_cancelled() {
            let limit = limits.page.get();
            let started = Instant::now();
            let page = match self.store.list_expired(cutoff, last.as_ref(), limit).await {
                Err(StoreError::TimedOut { .. }) if limits.page.failed(limit) => {
                    pass.rest(stop, started.elapsed()).await;
                    continue;
                }
                page => page?,
            };
            limits.page.succeeded(page.len(), started.elapsed());
            let took = started.elapsed();
            let (live, removable): (Vec<&Expired<K>>, Vec<&Expired<K>>) =
                page.iter().partition(|row| row.live);
            pass.live += live.len() as u64;
            self.metrics.stays(table, "live", live.len() as u64);
            self.delete_page(table, cutoff, &removable, &mut limits.chunk, pass, stop).await?;
            // Listing a page takes time even if none of its rows is deleted, so a pause follows.
            if page.len() < limit || !pass.rest(stop, took).await {
                break;
            }
            last = page.into_iter().next_back();
        }
        Ok(())
    }

    /// Deletes the rows of a page in chunks. A chunk that fails because of its rows is bisected to isolate
    /// them.
    async fn delete_page<K: Sync>(
        &self,
        table: &'static str,
        cutoff: Cutoff,
        mut rows: &[&Expired<K>],
        limit: &mut BatchLimit,
        pass: &mut TablePass,
        stop: &CancellationToken,
    ) -> Result<(), StoreError>
    where
        S: RetentionStore<K>,
    {
        while !rows.is_empty() && !stop.is_cancelled() {
            let (chunk, later) = rows.split_at(chunk_length(rows, limit.get()));
            let chunk_cost = chunk.iter().map(|row| cost(row)).sum();
            let keys: Vec<&K> = chunk.iter().map(|row| &row.key).collect();
            let started = Instant::now();
            let result = self.store.delete_expired(&keys, cutoff).await;
            let took = started.elapsed();
            pass.longest_chunk = pass.longest_chunk.max(took);
            match result {
                Ok(removal) => {
                    // A chunk that was cut by the limit counts as a full one.
                    let size = if later.is_empty() { chunk_cost } else { limit.get().max(chunk_cost) };
                    limit.succeeded(size, took);
                    pass.deleted += removal.removed;
                    pass.live += removal.live;
                    pass.locked += removal.locked;
                    self.metrics.deleted(table, removal.removed);
                    self.metrics.stays(table, "live", removal.live);
                    self.metrics.stays(table, "locked", removal.locked);
                    rows = later;
                }
                Err(error) if !is_about_the_rows(&error) => return Err(error),
                Err(_) if chunk.len() > 1 => {
                    limit.failed(chunk_cost);
                }
                Err(StoreError::Locked { .. }) => {
                    pass.locked += 1;
                    self.metrics.stays(table, "locked", 1);
                    rows = later;
                }
                Err(error) => {
                    pass.failed += 1;
                    pass.failure = Some(error_chain(&error));
                    self.metrics.stays(table, "failed", 1);
                    rows = later;
                }
            }
            pass.rest(stop, took).await;
        }
        Ok(())
    }
}

/// The passes of [`RetentionWorker::run`].
struct RetentionLoop<'a, E, S, C> {
    retention: &'a RetentionWorker<E, S, C>,
    limits: Limits,
}

impl<E, S, C> Passes for RetentionLoop<'_, E, S, C>
where
    E: Election,
    S: RetainedTables,
    C: Clock,
{
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let (retention, limits) = (self.retention, &mut self.limits);
        let pass =
            |leadership: CurrentTerm| async move { retention.run_once(limits, &leadership.over).await };
        // If another replica leads, that replica deletes.
        while_leading(&retention.election, &retention.health, stop, pass).await?.transpose()?;
        Ok(Pass::PauseFor(retention.settings.interval))
    }
}

/// True if fewer rows, or other rows, might be deleted although these could not.
fn is_about_the_rows(error: &StoreError) -> bool {
    matches!(error, StoreError::TimedOut { .. } | StoreError::Locked { .. } | StoreError::Refused { .. })
}

/// Returns the cost of deleting a row and its dependent rows, in bytes.
fn cost<K>(row: &Expired<K>) -> usize {
    let rows = usize::try_from(row.rows).unwrap_or(usize::MAX);
    rows.saturating_mul(ROW_COST).saturating_add(usize::try_from(row.bytes).unwrap_or(usize::MAX))
}

/// Returns the number of rows that make a chunk that costs at most `limit`; at least one.
fn chunk_length<K>(rows: &[&Expired<K>], limit: usize) -> usize {
    let mut sum: usize = 0;
    let fits = rows.iter().take_while(|row| {
        sum = sum.saturating_add(cost(row));
        sum <= limit
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests;
