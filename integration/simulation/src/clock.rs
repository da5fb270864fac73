//! The wall clock of a simulated machine: the time of the simulation, plus the error of that machine.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use tokio::time::Instant;

/// The time at which each simulation begins.
const START_MILLIS: i64 = 1_775_121_700_000;

/// The wall clock of a machine.
#[derive(Debug)]
pub(crate) struct MachineClock {
    started: Instant,
    /// The difference between this clock and the time of the simulation, in milliseconds.
    error_ms: AtomicI64,
}

impl MachineClock {
    /// Creates a clock that is wrong by `error_ms`. The simulation began at `started`.
    pub(crate) fn new(started: Instant, error_ms: i64) -> Self {
        Self { started, error_ms: AtomicI64::new(error_ms) }
    }

    /// Sets the clock forward, or back if `by_ms` is negative.
    pub(crate) fn step(&self, by_ms: i64) {
        self.error_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        // Cannot fail: the clocks are wrong by minutes at most.
        let start = Timestamp::from_millis(START_MILLIS).expect("a time of this century");
        let (time, error_ms) = (start + self.started.elapsed(), self.error_ms.load(Ordering::SeqCst));
        let error = Duration::from_millis(error_ms.unsigned_abs());
        if error_ms < 0 { time - error } else { time + error }
    }
}
