//! The log of slow statements.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The duration from which a statement is reported as slow, including the wait for locks and for the
/// statements before it on its connection.
pub const SLOW_STATEMENT: Duration = Duration::from_secs(1);
/// The shortest time between two reports of a statement.
pub const SLOW_STATEMENT_INTERVAL: Duration = Duration::from_secs(60);

/// The time of the last report of each statement. Names are constants, so their number is bounded.
static REPORTED: Mutex<Option<HashMap<&str, Instant>>> = Mutex::new(None);

/// Logs a statement that was slow, unless it was reported a short time ago.
pub(crate) fn report(statement: &'static str, elapsed: Duration) {
    if elapsed >= SLOW_STATEMENT && !statement.is_empty() && is_due(statement, Instant::now()) {
        let lasted_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(statement_name = statement, statement_ms = lasted_ms, "slow statement");
    }
}

fn is_due(statement: &'static str, now: Instant) -> bool {
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    let reported = reported.get_or_insert_default();
    let is_due = reported.get(statement).is_none_or(|last| now - *last >= SLOW_STATEMENT_INTERVAL);
    if is_due {
        reported.insert(statement, now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_statement_is_reported_once_a_minute() {
        let start = Instant::now();
        assert!(is_due("test.slow", start));
        assert!(!is_due("test.slow", start + SLOW_STATEMENT_INTERVAL - Duration::from_millis(1)));
        assert!(is_due("test.other", start));
        assert!(is_due("test.slow", start + SLOW_STATEMENT_INTERVAL));
    }
}
