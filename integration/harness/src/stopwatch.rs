//! Measures durations without the time in which the whole machine was suspended.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the watching thread wakes up.
const TICK: Duration = Duration::from_millis(10);
/// The delay of a tick from which on the machine counts as suspended: a virtual machine is suspended for
/// seconds now and then.
const STOP: Duration = Duration::from_millis(250);

static STOPS: LazyLock<Mutex<Stops>> = LazyLock::new(|| {
    std::thread::spawn(watch);
    Mutex::new(Stops { total: Duration::ZERO, last: Instant::now() })
});

#[expect(clippy::disallowed_methods, reason = "how late it wakes up is what is measured")]
fn watch() {
    loop {
        std::thread::sleep(TICK);
        stops(|stops| stops.tick(Instant::now()));
    }
}

fn stops<T>(call: impl FnOnce(&mut Stops) -> T) -> T {
    call(&mut STOPS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The detected suspensions of the machine.
#[derive(Debug)]
struct Stops {
    total: Duration,
    last: Instant,
}

impl Stops {
    fn tick(&mut self, now: Instant) {
        let late = now.duration_since(self.last).saturating_sub(TICK);
        if late > STOP {
            self.total += late;
        }
        self.last = now;
    }
}

/// A stopwatch that stops while the machine is suspended. A slow process is not a suspended machine: a thread
/// of this process, which does nothing else, distinguishes the two.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
    stopped_before: Duration,
}

impl Stopwatch {
    /// Starts the stopwatch.
    pub fn start() -> Self {
        let (started, stopped_before) = Self::now();
        Self { started, stopped_before }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        let (now, stopped) = Self::now();
        now.duration_since(self.started).saturating_sub(stopped - self.stopped_before)
    }

    /// The current time and the total of suspensions, including an overdue tick: this thread may be the first
    /// one that runs after a suspension.
    fn now() -> (Instant, Duration) {
        stops(|stops| {
            let now = Instant::now();
            stops.tick(now);
            (now, stops.total)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_is_much_too_late_is_a_stop_and_another_is_none() {
        let start = Instant::now();
        let mut stops = Stops { total: Duration::ZERO, last: start };
        stops.tick(start + TICK + STOP);
        assert_eq!(stops.total, Duration::ZERO);
        stops.tick(start + TICK + STOP + TICK + Duration::from_secs(2));
        assert_eq!(stops.total, Duration::from_secs(2));
    }

    #[test]
    fn without_a_stop_it_shows_the_time_that_passed() {
        let begun = Instant::now();
        let watch = Stopwatch::start();
        while begun.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let (shown, passed) = (watch.elapsed(), begun.elapsed());
        assert!(shown <= passed && shown > Duration::ZERO, "{shown:?} of {passed:?}");
    }
}
