//! The deletion of console sessions that have ended. There are a few a day.

use ambient::Clock;
use domain::ports::{Election, SessionSweep, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RetentionWorker, TablePass};

/// The name of the table in metrics and in the log.
pub(super) const TABLE: &str = "console_sessions";
/// The most sessions of a chunk.
const MAX_CHUNK_SESSIONS: usize = 256;

impl<E, S, C> RetentionWorker<E, S, C>
where
    E: Election,
    S: SessionSweep,
    C: Clock,
{
    /// Deletes chunk after chunk until one is not full, or until `stop`.
    pub(super) async fn sweep_sessions(
        &self,
        pass: &mut TablePass,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        while !stop.is_cancelled() {
            let started = Instant::now();
            let deleted = self.store.sweep_sessions(MAX_CHUNK_SESSIONS).await?;
            let took = started.elapsed();
            pass.longest_chunk = pass.longest_chunk.max(took);
            pass.deleted += deleted;
            self.metrics.deleted(TABLE, deleted);
            if deleted < MAX_CHUNK_SESSIONS as u64 {
                break;
            }
            pass.rest(stop, took).await;
        }
        Ok(())
    }
}
