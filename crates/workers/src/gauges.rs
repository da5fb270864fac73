//! The gauges, which are read every few seconds. Each query reads the end of an index or is a bounded count.

use std::cmp::Ordering;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::ports::{CheckpointCache, CheckpointStore, IntentStream, RouteStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{Pass, Passes, run_passes};

/// Between two measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// Due routes are counted no further than this.
const DEPTH_CAP: usize = 10_000;

/// The worker that keeps the gauges up to date.
#[derive(Debug)]
pub struct Gauges<S, I, K, C> {
    /// What is due, and how far intake has got.
    pub store: S,
    /// What is not read yet.
    pub intents: I,
    /// The checkpoint, where PostgreSQL has none.
    pub cache: K,
    /// The time.
    pub clock: C,
    /// The intents stream.
    pub stream: String,
    /// What is shown.
    pub metrics: Metrics,
    /// How the worker is doing.
    pub health: Health,
}

impl<S: RouteStore + CheckpointStore, I: IntentStream, K: CheckpointCache, C: Clock> Gauges<S, I, K, C> {
    /// Runs until `stop`; `pool_usage` returns open and idle connections.
    pub async fn run(self, pool_usage: impl Fn() -> (usize, usize) + Send, stop: CancellationToken) {
        run_passes(&self.health, &stop, MEASURE_INTERVAL, GaugesLoop { gauges: &self, pool_usage }).await;
    }

    async fn run_once(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let oldest = self.store.next_due().await?.into_values().min();
        let depth = self.store.count_due_routes(now, DEPTH_CAP).await?;
        self.metrics.schedule(depth, oldest.map_or(Duration::ZERO, |due| now.saturating_since(due)));
        let since = self
            .oldest_unprocessed()
            .await?
            .and_then(|id| i64::try_from(id.millis).ok())
            .and_then(|ms| Timestamp::from_millis(ms).ok());
        self.metrics.oldest_unprocessed(since.map_or(Duration::ZERO, |since| now.saturating_since(since)));
        Ok(())
    }

    /// The first entry without an outcome. It is read from the stores and not from the intake of this process, so that every
    /// replica reports it, even while no replica leads.
    async fn oldest_unprocessed(&self) -> Result<Option<EntryId>, StoreError> {
        let processed = match self.store.load_checkpoint(&self.stream).await? {
            Some(checkpoint) => checkpoint.last_entry_id,
            None => self.cache.load(&self.stream).await?.entry().unwrap_or(EntryId::ZERO),
        };
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

/// The passes of [`Gauges::run`].
struct GaugesLoop<'a, S, I, K, C, P> {
    gauges: &'a Gauges<S, I, K, C>,
    pool_usage: P,
}

impl<S, I, K, C, P> Passes for GaugesLoop<'_, S, I, K, C, P>
where
    S: RouteStore + CheckpointStore,
    I: IntentStream,
    K: CheckpointCache,
    C: Clock,
    P: Fn() -> (usize, usize) + Send,
{
    async fn run_once(&mut self, _: &CancellationToken) -> Result<Pass, StoreError> {
        let (open, idle) = (self.pool_usage)();
        self.gauges.metrics.pool(open, idle);
        self.gauges.run_once().await?;
        Ok(Pass::PauseFor(MEASURE_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Recorded, STREAM, World, intent};

    const AGE: &str = "notification.intent_stream.oldest_unprocessed_age";

    /// The age in seconds that is shown at 100 ms when entries 10 and 20 are in the stream, and the last generated one is 20.
    async fn age(durable: Option<u64>, cached: Option<u64>) -> Vec<f64> {
        let world = World::new(Timestamp::from_millis(100).expect("in range"));
        let recorded = Recorded::default();
        for (number, key) in [(10, "key-1"), (20, "key-2")] {
            world.intents.put(intent(number, key, "u-1"));
        }
        durable.into_iter().for_each(|number| world.set_durable(EntryId::new(number, 0)));
        cached.into_iter().for_each(|number| world.set_cached(EntryId::new(number, 0)));
        let gauges = Gauges {
            store: world.database,
            intents: world.intents,
            cache: world.cache,
            clock: world.clock,
            stream: STREAM.into(),
            metrics: Metrics::new(&recorded.meter()),
            health: Health::new("gauges"),
        };
        gauges.run_once().await.expect("the stores are there");
        recorded.values(AGE)
    }

    #[tokio::test(start_paused = true)]
    async fn every_replica_shows_the_age_of_what_no_leader_has_processed() {
        assert_eq!(age(None, None).await, [0.09], "no replica ever led");
        assert_eq!(age(Some(10), None).await, [0.08]);
        assert_eq!(age(Some(20), None).await, [0.0], "nothing waits");
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_is_based_on_the_cached_checkpoint_if_postgresql_has_none() {
        assert_eq!(age(None, Some(10)).await, [0.08]);
        assert_eq!(age(Some(10), Some(20)).await, [0.08]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_was_recreated_counts_from_its_first_entry() {
        assert_eq!(age(Some(1_000), None).await, [0.09]);
    }
}
