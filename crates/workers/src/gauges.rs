//! What is looked up now and then so that a dashboard can show it. Each look is an index's end or a bounded count.

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::ports::{IntentStream, RouteStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{Trouble, pause};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Due routes are counted no further than this.
const DEPTH_CAP: usize = 10_000;

/// The loop that keeps the gauges up to date.
#[derive(Debug)]
pub struct Gauges<R, I, C> {
    /// What is due.
    pub routes: R,
    /// What is not read yet.
    pub intents: I,
    /// The time.
    pub clock: C,
    /// Where intake is.
    pub intake: Status,
    /// What is shown.
    pub metrics: Metrics,
}

impl<R: RouteStore, I: IntentStream, C: Clock> Gauges<R, I, C> {
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
        let oldest = self.routes.next_due().await?.into_values().min();
        let depth = self.routes.count_due_routes(now, DEPTH_CAP).await?;
        self.metrics.schedule(depth, oldest.map_or(Duration::ZERO, |due| now.saturating_since(due)));
        if let Some(position) = self.intake.get().position {
            let first = self.intents.first_after(position).await?;
            let since = first
                .and_then(|id| i64::try_from(id.millis).ok())
                .and_then(|ms| Timestamp::from_millis(ms).ok());
            self.metrics
                .oldest_unprocessed(since.map_or(Duration::ZERO, |since| now.saturating_since(since)));
        }
        Ok(())
    }
}
