//! Metrics that a replica reports without a store: the status of its workers and the use of its connections.
//!
//! They are computed when the metrics are read, not by a worker. So they are always current, and they also
//! show a hung worker, including the worker of the gauges.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use tokio::time::Instant;

use super::instruments::Instruments;
use crate::health::WorkerStatus;
use crate::reporter::ReplicaHealth;

/// Reports the status of `workers`, and the connections of the PostgreSQL pool: `pool_usage` returns the
/// numbers of open and idle ones.
pub fn observe_replica(
    meter: &Meter,
    workers: &ReplicaHealth,
    pool_usage: impl Fn() -> (usize, usize) + Send + Sync + 'static,
) {
    let make = Instruments::new(meter);
    let observed = workers.clone();
    make.observed_age(
        "notification.worker.blocked_age",
        "How long a worker has not been able to continue",
        move |gauge| observe(&observed, gauge, |status| status.blocked.as_ref().map(|blocked| blocked.since)),
    );
    let observed = workers.clone();
    make.observed_age(
        "notification.worker.last_pass_age",
        "Time since the last pass of a worker",
        move |gauge| observe(&observed, gauge, |status| Some(status.last_pass)),
    );
    make.observed_gauge(
        "notification.postgres.connections",
        "{connection}",
        "Connections of the pool by state",
        move |gauge| {
            let (open, idle) = pool_usage();
            gauge.observe(open.saturating_sub(idle) as u64, &[KeyValue::new("state", "used")]);
            gauge.observe(idle as u64, &[KeyValue::new("state", "idle")]);
        },
    );
}

/// Reports for each worker the time since an event of its status; 0 if there was none.
fn observe(
    workers: &ReplicaHealth,
    gauge: &dyn AsyncInstrument<f64>,
    since: impl Fn(&WorkerStatus) -> Option<Instant>,
) {
    let now = Instant::now();
    for health in workers.workers() {
        let since = since(&health.status());
        let age = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        gauge.observe(age.as_secs_f64(), &[KeyValue::new("worker", health.worker())]);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::fixtures::RecordedGauges;

    const BLOCKED: &str = "notification.worker.blocked_age";
    const LAST_PASS: &str = "notification.worker.last_pass_age";
    const CONNECTIONS: &str = "notification.postgres.connections";

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_shown_with_the_time_for_which_it_is_blocked_or_has_made_no_pass() {
        let (recorded, workers) = (RecordedGauges::default(), ReplicaHealth::default());
        observe_replica(&recorded.meter(), &workers, || (0, 0));
        let (intake, push) = (workers.add_worker("intake"), workers.add_worker("push"));
        intake.mark_blocked("the user directory");
        advance(Duration::from_secs(3)).await;
        intake.mark_blocked("the user directory");
        advance(Duration::from_secs(1)).await;
        recorded.read();
        assert_eq!(recorded.values(BLOCKED), [4.0, 0.0], "intake, push");
        assert_eq!(recorded.values(LAST_PASS), [1.0, 4.0], "intake, push");
        intake.mark_healthy();
        push.mark_healthy();
        recorded.read();
        assert_eq!(recorded.values(BLOCKED), [4.0, 0.0, 0.0, 0.0]);
        assert_eq!(recorded.values(LAST_PASS), [1.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    fn connections_are_shown_as_used_or_idle() {
        let recorded = RecordedGauges::default();
        observe_replica(&recorded.meter(), &ReplicaHealth::default(), || (7, 2));
        recorded.read();
        assert_eq!(recorded.values(CONNECTIONS), [5.0, 2.0], "used, idle");
    }
}
