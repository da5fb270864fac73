//! Waits for a condition instead of for a time.

use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);

/// Calls `ask` until it returns a value. Panics with `what` if it returns none within `bound`.
pub async fn wait_for<T>(what: &str, bound: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        // A call of `ask` may hang.
        let left = bound.saturating_sub(started.elapsed());
        if let Ok(Some(answer)) = tokio::time::timeout(left, ask()).await {
            return answer;
        }
        assert!(started.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
