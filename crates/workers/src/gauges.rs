//! What is looked up now and then so that a dashboard can show it. Each look is an index's end or a bounded count.

use std::cmp::Ordering;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::ports::{AcceptanceStore, Bookmark, IntentStream, OffsetStore, RouteStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::worker::{Trouble, pause};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Due routes are counted no further than this.
const DEPTH_CAP: usize = 10_000;

/// The loop that keeps the gauges up to date.
#[derive(Debug)]
pub struct Gauges<S, I, O, C> {
    /// What is due, and how far intake has got.
    pub store: S,
    /// What is not read yet.
    pub intents: I,
    /// How far intake had got before PostgreSQL knew of it.
    pub offsets: O,
    /// The time.
    pub clock: C,
    /// The intents stream.
    pub stream: String,
    /// What is shown.
    pub metrics: Metrics,
}

impl<S: RouteStore + AcceptanceStore, I: IntentStream, O: OffsetStore, C: Clock> Gauges<S, I, O, C> {
    /// Runs until `stop`; `pool_usage` tells open and idle connections.
    pub async fn run(self, pool_usage: impl Fn() -> (usize, usize) + Send, stop: CancellationToken) {
        let mut trouble = Trouble::new("gauges");
        loop {
            let (open, idle) = pool_usage();
            self.metrics.pool(open, idle);
            let wait = match self.run_once().await {
                Ok(()) => {
                    trouble.clear();
                    INTERVAL
                }
                Err(error) => INTERVAL.max(trouble.note(&error)),
            };
            if !pause(&stop, wait).await {
                break;
            }
        }
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

    /// The first entry without an outcome. Asked of the stores and not of the intake beside, so that every replica knows
    /// it, even while nobody leads.
    async fn oldest_unprocessed(&self) -> Result<Option<EntryId>, StoreError> {
        let settled = match self.store.load_progress(&self.stream).await? {
            Some(progress) => progress.last_entry_id,
            None => match self.offsets.load(&self.stream).await? {
                Bookmark::At(mark) => mark.last_entry_id,
                Bookmark::Missing | Bookmark::Garbled(_) => EntryId::ZERO,
            },
        };
        let state = self.intents.inspect().await?;
        match state.last_generated.cmp(&settled) {
            // Made anew: nothing of it has been read.
            Ordering::Less => Ok(state.first),
            Ordering::Equal => Ok(None),
            Ordering::Greater => self.intents.first_after(settled).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use ambient::ManualClock;
    use domain::ports::Progress;

    use super::*;
    use crate::fakes::{Recorded, World, intent};

    const AGE: &str = "notification.intent_stream.oldest_unprocessed_age_ms";

    /// The age that is shown at 100 ms when entries 10 and 20 are in the stream, and the last generated one is 20.
    async fn age(progress: Option<u64>, bookmark: Option<u64>) -> Vec<u64> {
        let (world, recorded) = (World::default(), Recorded::default());
        let at = |number| Progress { fence: 1, last_entry_id: EntryId::new(number, 0) };
        {
            let mut inner = world.lock();
            inner.stream = vec![intent(10, "key-1", "u-1"), intent(20, "key-2", "u-1")];
            inner.last_generated = EntryId::new(20, 0);
            inner.progress = progress.map(at);
            inner.bookmark = bookmark.map(at);
        }
        let gauges = Gauges {
            store: world.clone(),
            intents: world.clone(),
            offsets: world,
            clock: ManualClock::new(Timestamp::from_millis(100).expect("in range")),
            stream: "intents".into(),
            metrics: Metrics::new(&recorded.meter()),
        };
        gauges.run_once().await.expect("the fakes are there");
        recorded.values(AGE)
    }

    #[tokio::test]
    async fn every_replica_shows_the_age_of_what_no_leader_has_settled() {
        assert_eq!(age(None, None).await, [90], "nobody ever led");
        assert_eq!(age(Some(10), None).await, [80]);
        assert_eq!(age(Some(20), None).await, [0], "nothing waits");
    }

    #[tokio::test]
    async fn the_age_goes_by_the_bookmark_where_postgresql_knows_nothing() {
        assert_eq!(age(None, Some(10)).await, [80]);
        assert_eq!(age(Some(10), Some(20)).await, [80]);
    }

    #[tokio::test]
    async fn a_stream_that_was_made_anew_counts_from_its_first_entry() {
        assert_eq!(age(Some(1_000), None).await, [90]);
    }
}
