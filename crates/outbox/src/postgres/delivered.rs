//! Listing what is DELIVERED: by its index, or block by block of a table that lacks it.

use std::time::Duration;

use pg::{PgError, RawTimestamp, Session};
use tokio_postgres::Row;

use super::{PostgresStorage, column};
use crate::row_id::RowId;
use crate::statements::{self, Newest};
use crate::{ComparisonStart, DeliveredCursor, DeliveredEvent, DeliveredPage, EventTypes, OutboxError};

/// The blocks that are read with one statement.
pub(super) const BLOCKS_PER_STATEMENT: u32 = 512;

impl PostgresStorage {
    pub(super) async fn name_of_table(&self) -> Result<String, OutboxError> {
        let session = self.pool.session("ask which outbox this is").await?;
        let rows = session.query(&statements::identity(&self.table)).await?;
        column(one(&session, &rows)?, "identity")
    }

    pub(super) async fn start_of_comparison(&self, window: Duration) -> Result<ComparisonStart, OutboxError> {
        let has_index = self.indexes().await?.delivered;
        let session = self.pool.session("look for the newest delivered event of the outbox").await?;
        let newest =
            if has_index { Newest::ByIndex } else { Newest::Known(self.newest_by_blocks(&session).await?) };
        let rows = session.query(&statements::comparison_start(&self.table, window, newest)).await?;
        let row = one(&session, &rows)?;
        Ok(ComparisonStart { now: column(row, "now")?, since: column(row, "since")? })
    }

    async fn newest_by_blocks(&self, session: &Session) -> Result<Option<RawTimestamp>, OutboxError> {
        let blocks = self.blocks(session).await?;
        let mut newest = None;
        for block in (0..blocks).step_by(BLOCKS_PER_STATEMENT as usize) {
            let range = block..block.saturating_add(BLOCKS_PER_STATEMENT);
            let rows = session.query(&statements::newest_delivered_of_blocks(&self.table, range)).await?;
            newest = newest.max(column::<Option<RawTimestamp>>(one(session, &rows)?, "newest")?);
        }
        Ok(newest)
    }

    pub(super) async fn blocks(&self, session: &Session) -> Result<u32, OutboxError> {
        let rows = session.query(&statements::blocks(&self.table)).await?;
        let blocks: i64 = column(one(session, &rows)?, "blocks")?;
        Ok(u32::try_from(blocks).unwrap_or_default())
    }

    pub(super) async fn page_of_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> Result<DeliveredPage, OutboxError> {
        let by_index = match cursor {
            Some(DeliveredCursor::After(..)) => true,
            Some(DeliveredCursor::Block(_)) => false,
            None => self.indexes().await?.delivered,
        };
        let session = self.pool.session("list delivered events of the outbox").await?;
        if by_index {
            let after = match cursor {
                Some(DeliveredCursor::After(at, id)) => Some((at, id)),
                _ => None,
            };
            let statement = statements::list_delivered(&self.table, types, since, after, limit);
            let events = read(&session.query(&statement).await?)?;
            let last = events.last().filter(|_| events.len() >= limit as usize);
            let next = last.map(|last| DeliveredCursor::After(last.delivered_at, last.event_id));
            return Ok(DeliveredPage { events, next });
        }
        let from = match cursor {
            Some(DeliveredCursor::Block(block)) => block,
            _ => 0,
        };
        let to = from.saturating_add(BLOCKS_PER_STATEMENT);
        let statement = statements::list_delivered_of_blocks(&self.table, types, since, from..to);
        let events = read(&session.query(&statement).await?)?;
        let next = (to < self.blocks(&session).await?).then_some(DeliveredCursor::Block(to));
        Ok(DeliveredPage { events, next })
    }
}

fn one<'a>(session: &Session, rows: &'a [Row]) -> Result<&'a Row, OutboxError> {
    Ok(rows.first().ok_or_else(|| PgError::unavailable(session.operation(), "no row"))?)
}

fn read(rows: &[Row]) -> Result<Vec<DeliveredEvent>, OutboxError> {
    let read = |row| {
        Ok(DeliveredEvent {
            event_id: column::<RowId>(row, "event_id")?.0,
            event_type: column(row, "event_type")?,
            delivered_at: column(row, "delivered_at")?,
        })
    };
    rows.iter().map(read).collect()
}
