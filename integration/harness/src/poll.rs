//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);

/// Asks until there is an answer. Panics with `what` if there is none within `bound`.
pub async fn wait_for<T>(what: &str, bound: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        // What is asked may be what does not answer.
        let left = bound.saturating_sub(started.elapsed());
        if let Ok(Some(answer)) = tokio::time::timeout(left, ask()).await {
            return answer;
        }
        assert!(started.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
