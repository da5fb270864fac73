//! Pauses that end when the service stops.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Waits. Returns false if the service stops meanwhile.
pub(crate) async fn pause(stop: &CancellationToken, time: Duration) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
}
