//! Rate-limited log lines about the behaviour of clients: without a limit a client could fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The interval between two lines about the same event.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Allows one line a minute, and counts the events that it stands for.
#[derive(Debug, Default)]
pub(crate) struct SparseLog(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    last: Option<Instant>,
    unlogged: u64,
}

impl SparseLog {
    /// Counts an event. Returns the number of events since the last line, if a line is due.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.unlogged += 1;
        let now = Instant::now();
        if state.last.is_some_and(|last| now < last + LOG_INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_minute_says_how_often_it_happened() {
        let log = SparseLog::default();
        assert_eq!((log.admit(), log.admit(), log.admit()), (Some(1), None, None));
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!((log.admit(), log.admit()), (Some(3), None));
    }
}
