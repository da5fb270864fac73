//! The time by the clock of the database.

use ambient::{Clock, Timestamp};
use tokio::time::Instant;

/// The database's clock, read once and continued by the monotonic clock of this process: the clock of an
/// operator's machine may be wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    read: Timestamp,
    at: Instant,
}

impl StoreClock {
    /// Creates a clock from a time that the database has just returned.
    pub(crate) fn new(read: Timestamp) -> Self {
        Self { read, at: Instant::now() }
    }

    /// The time at which the database's clock was read.
    pub(crate) fn begun(&self) -> Timestamp {
        self.read
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.read + self.at.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_continues_from_what_the_database_said() {
        let read: Timestamp = "2026-04-02T09:00:00Z".parse().expect("a time");
        let clock = StoreClock::new(read);
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert_eq!(clock.now(), "2026-04-02T09:00:05Z".parse().expect("a time"));
        assert_eq!(clock.begun(), read);
    }
}
