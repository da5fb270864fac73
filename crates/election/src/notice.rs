//! The leader-change notice, by which a leader that steps down notifies other candidates.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

/// The leader-change notice of one leadership. Delivery is best effort: a lost notice delays the takeover
/// until the next campaign.
pub trait Notice: Send + Sync {
    /// The error of sending or awaiting a notice.
    type Error: Error + Send + Sync + 'static;

    /// Notifies one other candidate that the leader has stepped down.
    fn announce(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Waits for such a notice, but no longer than `at_most`.
    fn wait(&self, at_most: Duration) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// No notice, for work that may wait until the next campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNotice;

impl Notice for NoNotice {
    type Error = Infallible;

    async fn announce(&self) -> Result<(), Infallible> {
        Ok(())
    }

    async fn wait(&self, at_most: Duration) -> Result<(), Infallible> {
        tokio::time::sleep(at_most).await;
        Ok(())
    }
}
