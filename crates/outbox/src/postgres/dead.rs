//! The count of DEAD events in a table without an index of them. Each sample reads for a limited time, so
//! that its cost does not depend on the size of the table.

use std::time::Duration;

use pg::Session;
use tokio::time::Instant;

use super::delivered::BLOCKS_PER_STATEMENT;
use super::{PoisonError, PostgresStorage, column};
use crate::{EventTypes, OutboxError, statements};

/// The time for which one sample reads blocks; the next sample continues.
const MAX_SAMPLE_TIME: Duration = Duration::from_millis(500);

/// A count that cycles through the table continuously.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeadCount {
    /// The block at which the count continues.
    block: u32,
    /// The number of events found so far by this count.
    found: u64,
    /// The number of events that the previous count found in the whole table.
    complete: u64,
}

impl PostgresStorage {
    /// Continues the count. Returns the result of the last complete count, or of this one if it is higher.
    pub(super) async fn count_dead_by_blocks(
        &self,
        session: &Session,
        types: &EventTypes,
    ) -> Result<u64, OutboxError> {
        let mut count = *self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, blocks) = (Instant::now(), self.blocks(session).await?);
        loop {
            let range = count.block..count.block.saturating_add(BLOCKS_PER_STATEMENT);
            let end = range.end;
            let rows = session.query(statements::count_dead_of_blocks(&self.table, types, range)).await?;
            let dead = rows.first().map_or(Ok(0), |row| column::<i64>(row, "dead"))?;
            count.found += dead.max(0).unsigned_abs();
            count.block = end;
            if end >= blocks {
                count = DeadCount { complete: count.found, ..DeadCount::default() };
                break;
            }
            if begun.elapsed() >= MAX_SAMPLE_TIME {
                break;
            }
        }
        *self.dead.lock().unwrap_or_else(PoisonError::into_inner) = count;
        Ok(count.complete.max(count.found))
    }
}
