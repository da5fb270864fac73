//! Retries, so that a restart of a server interrupts an audit and does not end it.

use std::time::Duration;

use domain::ports::StoreError;
use tokio::time::{Instant, sleep};

/// The longest time that a store may be unavailable.
const MAX_UNAVAILABLE: Duration = Duration::from_secs(30);
/// The pause before a call is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the result of the call. The call is tried again while the store is unavailable or busy.
pub(super) async fn retry<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let since = Instant::now();
    loop {
        match call().await {
            Err(StoreError::Unavailable { .. } | StoreError::TimedOut { .. } | StoreError::Locked { .. })
                if since.elapsed() < MAX_UNAVAILABLE =>
            {
                sleep(RETRY_INTERVAL).await
            }
            outcome => return outcome,
        }
    }
}
