//! The leader-change notice: how a leader that steps down reaches the other candidates.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

/// The leader-change notice of one leadership. Delivery is best effort: a notice that is lost costs the wait
/// until the next campaign.
pub trait Notice: Send + Sync {
    /// Why a notice could not be sent or awaited.
    type Error: Error + Send + Sync + 'static;

    /// Notifies one other candidate that the leader has stepped down.
    fn announce(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns when such a notice arrives, or after `at_most`.
    fn wait(&self, at_most: Duration) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// No notice: for work that may wait until the next campaign.
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
