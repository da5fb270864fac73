//! The instruments of a relay. docs/metrics.md lists them, and a test compares the two.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use outbox::{RelayObserver, RelayState, Stats};
use workers::metrics::{Instruments, SECONDS};

/// Bucket bounds in events.
const EVENTS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 4096.0];

/// The value of the gauge while the relay runs.
const RUNNING: u64 = 1;
/// The value of the gauge while the relay is paused.
const PAUSED: u64 = 2;

/// Records the activity of a relay as metrics.
#[derive(Clone, Debug)]
pub(crate) struct RelayMetrics {
    events: Counter<u64>,
    leases_lost: Counter<u64>,
    requeued: Counter<u64>,
    batch_size: Histogram<u64>,
    latency: Histogram<f64>,
    pending: Gauge<u64>,
    retrying: Gauge<u64>,
    dead: Gauge<u64>,
    oldest_age: Gauge<f64>,
    state: Gauge<u64>,
}

impl RelayMetrics {
    /// Creates the instruments of `meter`.
    pub(crate) fn new(meter: &Meter) -> Self {
        let make = Instruments::new(meter);
        Self {
            events: make.counter("notification.outbox.events", "Claimed events by result"),
            leases_lost: make.counter(
                "notification.outbox.leases_lost",
                "Events whose result came after the end of their lease",
            ),
            requeued: make.counter(
                "notification.outbox.requeued",
                "DELIVERED events that Redis had lost and that are sent again",
            ),
            batch_size: make.sizes("notification.outbox.batch_size", "{event}", &EVENTS, "Events of a claim"),
            latency: make.duration(
                "notification.outbox.latency",
                &SECONDS,
                "From the creation of an event to its append",
            ),
            pending: make.gauge(
                "notification.outbox.pending",
                "{event}",
                "Due events that were never tried, counted up to 10,000",
            ),
            retrying: make.gauge(
                "notification.outbox.retrying",
                "{event}",
                "Events that have failed and will be tried again, counted up to 10,000",
            ),
            dead: make.gauge("notification.outbox.dead", "{event}", "DEAD events, counted up to 10,000"),
            oldest_age: make.age("notification.outbox.oldest_age", "Age of the oldest event that is due"),
            state: make.gauge(
                "notification.outbox.state",
                "{state}",
                "1 while the relay works, 2 while it is paused",
            ),
        }
    }
}

impl RelayObserver for RelayMetrics {
    fn claimed(&self, events: usize) {
        self.batch_size.record(events as u64, &[]);
    }

    fn marked(&self, result: &'static str, events: usize) {
        if events > 0 {
            self.events.add(events as u64, &[KeyValue::new("result", result)]);
        }
    }

    fn published(&self, latency: Duration) {
        self.latency.record(latency.as_secs_f64(), &[]);
    }

    fn leases_lost(&self, events: usize) {
        if events > 0 {
            self.leases_lost.add(events as u64, &[]);
        }
    }

    fn requeued(&self, events: usize) {
        self.requeued.add(events as u64, &[]);
    }

    fn state(&self, state: &RelayState) {
        let value = match state {
            RelayState::Running => RUNNING,
            RelayState::Paused { .. } => PAUSED,
        };
        self.state.record(value, &[]);
    }

    fn backlog(&self, stats: &Stats) {
        self.pending.record(stats.pending, &[]);
        self.retrying.record(stats.retrying, &[]);
        self.dead.record(stats.dead, &[]);
        self.oldest_age.record(stats.oldest_age.as_secs_f64(), &[]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::metrics::{InstrumentBuilder, InstrumentProvider, SyncInstrument};

    use super::*;

    /// Keeps the values recorded by gauges and counters.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<Vec<(String, f64)>>>);

    struct Instrument(String, Recorded);

    impl Instrument {
        fn record(&self, value: f64) {
            self.1.0.lock().expect("no test panics with it").push((self.0.clone(), value));
        }
    }

    impl SyncInstrument<u64> for Instrument {
        fn measure(&self, value: u64, labels: &[KeyValue]) {
            let labels: Vec<String> = labels.iter().map(|label| format!(" {}", label.value)).collect();
            Self(self.0.clone() + &labels.concat(), self.1.clone()).record(value as f64);
        }
    }

    impl SyncInstrument<f64> for Instrument {
        fn measure(&self, value: f64, _: &[KeyValue]) {
            self.record(value);
        }
    }

    impl InstrumentProvider for Recorded {
        fn u64_counter(&self, builder: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
            Counter::new(Arc::new(Instrument(builder.name.into_owned(), self.clone())))
        }

        fn u64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<u64>>) -> Gauge<u64> {
            Gauge::new(Arc::new(Instrument(builder.name.into_owned(), self.clone())))
        }

        fn f64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<f64>>) -> Gauge<f64> {
            Gauge::new(Arc::new(Instrument(builder.name.into_owned(), self.clone())))
        }
    }

    #[test]
    fn the_state_is_1_then_2_and_counts_of_nothing_are_no_series() {
        let recorded = Recorded::default();
        let metrics = RelayMetrics::new(&Meter::new(Arc::new(recorded.clone())));
        metrics.state(&RelayState::Running);
        metrics.state(&RelayState::Paused { waiting_for: "Redis".to_owned() });
        metrics.marked("delivered", 3);
        metrics.marked("failed", 0);
        metrics.leases_lost(0);
        metrics.backlog(&Stats { pending: 7, oldest_age: Duration::from_millis(1500), ..Stats::default() });
        let values = recorded.0.lock().expect("no test panics with it").clone();
        let expected = [
            ("notification.outbox.state", 1.0),
            ("notification.outbox.state", 2.0),
            ("notification.outbox.events delivered", 3.0),
            ("notification.outbox.pending", 7.0),
            ("notification.outbox.retrying", 0.0),
            ("notification.outbox.dead", 0.0),
            ("notification.outbox.oldest_age", 1.5),
        ];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
    }
}
