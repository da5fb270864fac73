//! The instruments of the state store. docs/metrics.md lists them, and a test compares the two.

use axum::http::StatusCode;
use http_server::Answered;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use workers::metrics::Instruments;

/// Bucket bounds in seconds: fine up to the expected latency, coarse beyond it.
const SECONDS: [f64; 14] =
    [0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The operation of a request to a path that does not exist, or with a method that its path does not support.
const NO_OPERATION: &str = "none";

/// Counts the responses of the state store.
#[derive(Clone, Debug)]
pub(crate) struct StateMetrics {
    requests: Counter<u64>,
    cas_conflicts: Counter<u64>,
    duration: Histogram<f64>,
}

impl StateMetrics {
    /// Creates the instruments of `meter`.
    pub(crate) fn new(meter: &Meter) -> Self {
        let make = Instruments::new(meter);
        Self {
            requests: make.counter("state.requests", "Requests to the state store by operation and status"),
            cas_conflicts: make.counter(
                "state.cas_conflicts",
                "Writes whose condition on the version or the status did not hold",
            ),
            duration: make.duration(
                "state.request.duration",
                &SECONDS,
                "From the first byte of a request to its answer",
            ),
        }
    }

    /// Counts a response.
    pub(crate) fn answered(&self, answered: &Answered<'_>) {
        // The names of operations are constants of the crate `state`, so their number is bounded, whatever
        // clients send.
        let known = state::http::OPERATIONS.into_iter().find(|known| Some(*known) == answered.route);
        let operation = KeyValue::new("operation", known.unwrap_or(NO_OPERATION));
        let code = KeyValue::new("code", i64::from(answered.status.as_u16()));
        if matches!(answered.status, StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED) {
            self.cas_conflicts.add(1, std::slice::from_ref(&operation));
        }
        self.requests.add(1, &[operation.clone(), code]);
        self.duration.record(answered.duration.as_secs_f64(), &[operation]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use opentelemetry::metrics::{InstrumentBuilder, InstrumentProvider, SyncInstrument};

    use super::*;

    /// Keeps the labels of recorded counts.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<Vec<String>>>);

    impl SyncInstrument<u64> for Recorded {
        fn measure(&self, value: u64, labels: &[KeyValue]) {
            let labels: Vec<String> =
                labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect();
            self.0.lock().expect("no test panics with it").push(format!("{value} {}", labels.join(" ")));
        }
    }

    impl InstrumentProvider for Recorded {
        fn u64_counter(&self, _: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
            Counter::new(Arc::new(self.clone()))
        }
    }

    #[test]
    fn answers_are_counted_by_operation_and_status_and_by_nothing_that_a_client_chose() {
        let recorded = Recorded::default();
        let metrics = StateMetrics::new(&Meter::new(Arc::new(recorded.clone())));
        for (route, status) in [
            (Some("batch_get"), StatusCode::OK),
            (Some("/keys/secret"), StatusCode::NOT_FOUND),
            (None, StatusCode::NOT_FOUND),
            (Some("put"), StatusCode::PRECONDITION_FAILED),
            (Some("patch"), StatusCode::CONFLICT),
        ] {
            metrics.answered(&Answered { route, status, duration: Duration::ZERO });
        }
        let expected = [
            "1 operation=batch_get code=200",
            "1 operation=none code=404",
            "1 operation=none code=404",
            "1 operation=put",
            "1 operation=put code=412",
            "1 operation=patch",
            "1 operation=patch code=409",
        ];
        assert_eq!(*recorded.0.lock().expect("no test panics with it"), expected);
    }
}
