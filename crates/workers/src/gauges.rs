//! The gauges whose values come from the stores, measured every few seconds. Each query reads the end of an
//! index or is a bounded count.
//!
//! Values from PostgreSQL and from Redis are measured separately, so that while one of the two is unavailable
//! the values from the other stay current. Values that need no store are measured elsewhere
//! ([`observe_replica`](crate::metrics::observe_replica)).

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::hold::HoldKey;
use domain::ports::{
    CheckpointCache, CheckpointStore, Cutoff, Expired, HoldStore, IntentStream, MalformedKey, RetentionStore,
    RouteStore, StoreError,
};
use domain::record::NotificationId;
use domain::route::Channel;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{Pass, Passes, run_passes};

/// The interval between two measurements, or between two checks whether anything reads them.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval between two measurements of the age of the oldest rows and of failures. Retention works by
/// the hour, and a count reads up to 10,000 rows.
const EXPIRED_INTERVAL: Duration = Duration::from_secs(60);
/// The bound of the count of due routes.
const DEPTH_CAP: usize = 10_000;

/// The bound of the counts of failing routes and of open dead letters.
const FAILURES_CAP: usize = 10_000;

/// The label of PostgreSQL.
const POSTGRESQL: &str = "postgresql";
/// The label of Redis.
const REDIS: &str = "redis";

/// The worker that keeps the gauges up to date.
#[derive(Debug)]
pub struct Gauges<S, I, K, C> {
    /// The store of routes and holds, of rows that expire, and of the durable checkpoint.
    pub store: S,
    /// The intents stream, for entries without an outcome.
    pub intents: I,
    /// The cached checkpoint, used if PostgreSQL has none or is unavailable.
    pub cache: K,
    /// The clock.
    pub clock: C,
    /// The key of the intents stream.
    pub stream: String,
    /// The retention of records.
    pub record_retention: Duration,
    /// The retention of malformed intents.
    pub malformed_retention: Duration,
    /// The instruments.
    pub metrics: Metrics,
    /// The health of the worker.
    pub health: Health,
}

/// The ports of PostgreSQL that the gauges use.
pub trait GaugeStore:
    RouteStore + HoldStore + CheckpointStore + RetentionStore<NotificationId> + RetentionStore<MalformedKey>
{
}

impl<S> GaugeStore for S where
    S: RouteStore
        + HoldStore
        + CheckpointStore
        + RetentionStore<NotificationId>
        + RetentionStore<MalformedKey>
{
}

impl<S: GaugeStore, I: IntentStream, K: CheckpointCache, C: Clock> Gauges<S, I, K, C> {
    /// Runs until `stop`. While the gauges are not read (`is_read` returns false), it sends no requests to
    /// the stores.
    pub async fn run(self, is_read: impl Fn() -> bool + Send, stop: CancellationToken) {
        let passes = GaugesLoop { gauges: &self, is_read, seen: GaugesState::default() };
        run_passes(&self.health, &stop, MEASURE_INTERVAL, passes).await;
    }

    /// Measures the values from PostgreSQL, the checkpoint first.
    async fn measure_postgres(&self, seen: &mut GaugesState) -> Result<(), StoreError> {
        seen.is_current = false;
        let loaded = self.store.load_checkpoint(&self.stream).await?;
        seen.checkpoint = loaded.map(|checkpoint| checkpoint.last_entry_id);
        seen.is_current = true;
        let now = self.clock.now();
        self.measure_due(now).await?;
        self.measure_holds(now, &mut seen.holds).await?;
        if seen.next_expired_look.is_none_or(|at| at <= Instant::now()) {
            self.measure_expired(now).await?;
            self.measure_failures(now).await?;
            seen.next_expired_look = Some(Instant::now() + EXPIRED_INTERVAL);
        }
        Ok(())
    }

    async fn measure_due(&self, now: Timestamp) -> Result<(), StoreError> {
        let due = self.store.next_due().await?;
        let due_for =
            |since: Option<&Timestamp>| since.map_or(Duration::ZERO, |since| now.saturating_since(*since));
        Channel::ALL.iter().for_each(|channel| self.metrics.due(*channel, due_for(due.get(channel))));
        let first = due.values().min();
        let is_due = first.is_some_and(|first| *first <= now);
        let depth = if is_due { self.store.count_due_routes(now, DEPTH_CAP).await? } else { 0 };
        self.metrics.schedule(depth, due_for(first));
        Ok(())
    }

    /// Records the holds, and zeros for those that were seen before and are gone.
    async fn measure_holds(&self, now: Timestamp, seen: &mut BTreeSet<HoldKey>) -> Result<(), StoreError> {
        let mut gone = std::mem::take(seen);
        for hold in self.store.list_holds().await? {
            self.metrics.held(&hold.key, now.saturating_since(hold.since), hold.routes.count);
            gone.remove(&hold.key);
            seen.insert(hold.key);
        }
        gone.iter().for_each(|hold| self.metrics.held(hold, Duration::ZERO, 0));
        Ok(())
    }

    async fn measure_failures(&self, now: Timestamp) -> Result<(), StoreError> {
        let counts = self.store.count_failures(FAILURES_CAP).await?;
        let of = |channel: &Channel| counts.get(channel).copied().unwrap_or_default();
        Channel::ALL.iter().for_each(|channel| self.metrics.failures(*channel, of(channel), now));
        Ok(())
    }

    async fn measure_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        let cutoff = Cutoff::new(now, self.record_retention);
        let oldest = RetentionStore::<NotificationId>::list_expired(&self.store, cutoff, None, 1).await?;
        self.metrics.expired("records", expired_for(cutoff, &oldest));
        let cutoff = Cutoff::new(now, self.malformed_retention);
        let oldest = RetentionStore::<MalformedKey>::list_expired(&self.store, cutoff, None, 1).await?;
        self.metrics.expired("malformed_intents", expired_for(cutoff, &oldest));
        Ok(())
    }

    /// Measures the values from Redis. Every replica reports them, even while no replica leads.
    async fn measure_redis(&self, seen: &GaugesState) -> Result<(), StoreError> {
        let processed = self.processed(seen).await?;
        let since = self
            .oldest_unprocessed(processed)
            .await?
            .and_then(|id| i64::try_from(id.millis).ok())
            .and_then(|ms| Timestamp::from_millis(ms).ok());
        let now = self.clock.now();
        self.metrics.oldest_unprocessed(since.map_or(Duration::ZERO, |since| now.saturating_since(since)));
        Ok(())
    }

    /// Returns the last entry with an outcome. While this replica cannot use PostgreSQL, a leader that can
    /// use it moves the durable checkpoint, and the cached one after it. Then the later of the last loaded
    /// checkpoint and the cached one is correct.
    async fn processed(&self, seen: &GaugesState) -> Result<EntryId, StoreError> {
        if let (Some(durable), true) = (seen.checkpoint, seen.is_current) {
            return Ok(durable);
        }
        let cached = self.cache.load(&self.stream).await?.entry();
        Ok(seen.checkpoint.max(cached).unwrap_or(EntryId::ZERO))
    }

    /// Returns the first entry without an outcome. It is read from the stores, not from the intake of this
    /// process.
    async fn oldest_unprocessed(&self, processed: EntryId) -> Result<Option<EntryId>, StoreError> {
        // An absent stream has no age; intake reports it.
        let Some(state) = self.intents.inspect().await? else { return Ok(None) };
        match state.last_generated.cmp(&processed) {
            // The stream was recreated: none of its entries has been read.
            Ordering::Less => Ok(state.first),
            Ordering::Equal => Ok(None),
            Ordering::Greater => self.intents.first_after(processed).await,
        }
    }
}

/// Returns how long the first of these rows has been past its retention.
fn expired_for<K>(cutoff: Cutoff, oldest: &[Expired<K>]) -> Duration {
    oldest.first().map_or(Duration::ZERO, |row| cutoff.at.saturating_since(row.at))
}

/// The passes of [`Gauges::run`].
struct GaugesLoop<'a, S, I, K, C, R> {
    gauges: &'a Gauges<S, I, K, C>,
    is_read: R,
    seen: GaugesState,
}

/// The state that one pass leaves to the next.
#[derive(Default)]
struct GaugesState {
    /// The durable checkpoint that was loaded last.
    checkpoint: Option<EntryId>,
    /// True if the checkpoint was loaded in this pass.
    is_current: bool,
    /// The time of the next measurement of the age of the oldest rows.
    next_expired_look: Option<Instant>,
    /// The holds that were recorded last.
    holds: BTreeSet<HoldKey>,
}

impl<S, I, K, C, R> Passes for GaugesLoop<'_, S, I, K, C, R>
where
    S: GaugeStore,
    I: IntentStream,
    K: CheckpointCache,
    C: Clock,
    R: Fn() -> bool + Send,
{
    async fn run_once(&mut self, _: &CancellationToken) -> Result<Pass, StoreError> {
        if (self.is_read)() {
            let gauges = self.gauges;
            let postgres = gauges.measure_postgres(&mut self.seen).await;
            gauges.metrics.looked_at(POSTGRESQL, postgres.as_ref().copied());
            let redis = gauges.measure_redis(&self.seen).await;
            gauges.metrics.looked_at(REDIS, redis.as_ref().copied());
            postgres.and(redis)?;
        }
        Ok(Pass::PauseFor(MEASURE_INTERVAL))
    }
}

#[cfg(test)]
mod tests;
