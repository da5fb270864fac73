//! Listing of DELIVERED events: by their index, or by the primary key of a table that lacks it.

use pg::{PgError, RawTimestamp, Session};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{PostgresStorage, column, ids};
use crate::row_id::RowId;
use crate::statements::{self, Prunable};
use crate::{
    DeliveredCursor, DeliveredEvent, DeliveredPage, EventTypes, NewestCursor, NewestPage, OutboxError,
    RequeuedDelivered, TableName,
};

/// The number of events that one statement searches for the newest, in a table that also has types of other
/// relays.
const NEWEST_PAGE_EVENTS: u32 = 10_000;
/// The number of rows read in the order of the primary key for each event of a page, since most rows may not
/// be listed.
const ROWS_PER_EVENT: u32 = 10;
/// The number of blocks that one statement reads.
pub(super) const BLOCKS_PER_STATEMENT: u32 = 512;

impl PostgresStorage {
    pub(super) async fn name_of_table(&self) -> Result<String, OutboxError> {
        let session = self.pool.session("ask which outbox this is").await?;
        let rows = session.query(statements::identity(&self.table)).await?;
        column(one(&session, &rows)?, "identity")
    }

    pub(super) async fn page_of_newest(
        &self,
        types: &EventTypes,
        cursor: Option<NewestCursor>,
    ) -> Result<NewestPage, OutboxError> {
        let has_index = match cursor {
            Some(NewestCursor::Before(_)) => true,
            Some(NewestCursor::Key(..)) => false,
            None => self.indexes().await?.delivered,
        };
        let session = self.pool.session("look for the newest delivered event of the outbox").await?;
        if has_index {
            let before = match cursor {
                Some(NewestCursor::Before(at)) => Some(at),
                _ => None,
            };
            let limit = if *types == EventTypes::All { 1 } else { NEWEST_PAGE_EVENTS };
            let statement = statements::newest_delivered(&self.table, types, before, limit);
            let rows = session.query(statement).await?;
            let row = one(&session, &rows)?;
            let newest: Option<RawTimestamp> = column(row, "newest")?;
            let is_full = column::<i64>(row, "events")? >= i64::from(limit);
            let next = match newest.is_none() && is_full {
                true => Some(NewestCursor::Before(column(row, "last")?)),
                false => None,
            };
            return Ok(NewestPage { newest, next });
        }
        let (after, newest) = match cursor {
            Some(NewestCursor::Key(after, newest)) => (Some(after), newest),
            _ => (None, None),
        };
        let statement = statements::newest_delivered_by_key(&self.table, types, after, NEWEST_PAGE_EVENTS);
        let rows = session.query(statement).await?;
        let row = one(&session, &rows)?;
        let newest = newest.max(column::<Option<RawTimestamp>>(row, "newest")?);
        let next = match column::<i64>(row, "events")? >= i64::from(NEWEST_PAGE_EVENTS) {
            true => Some(NewestCursor::Key(column::<RowId>(row, "last")?.0, newest)),
            false => None,
        };
        Ok(NewestPage { newest, next })
    }

    pub(super) async fn requeue_as_read(
        &self,
        events: &[DeliveredEvent],
    ) -> Result<RequeuedDelivered, OutboxError> {
        let read: Vec<(Uuid, RawTimestamp)> =
            events.iter().map(|event| (event.event_id, event.delivered_at)).collect();
        let session = self.pool.session("send events of the outbox again").await?;
        requeue_as_read(&session, &self.table, Prunable::Delivered, &read).await
    }

    pub(super) async fn blocks(&self, session: &Session) -> Result<u32, OutboxError> {
        let rows = session.query(statements::blocks(&self.table)).await?;
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
            Some(DeliveredCursor::Key(_)) => false,
            None => self.indexes().await?.delivered,
        };
        let session = self.pool.session("list delivered events of the outbox").await?;
        if by_index {
            let after = match cursor {
                Some(DeliveredCursor::After(at, id)) => Some((at, id)),
                _ => None,
            };
            let statement = statements::list_delivered(&self.table, types, since, after, limit);
            let rows = session.query(statement).await?;
            let last = rows.last().filter(|_| rows.len() >= limit as usize);
            let next = last.map(|last| {
                let id = column::<RowId>(last, "event_id")?.0;
                Ok::<_, OutboxError>(DeliveredCursor::After(column(last, "delivered_at")?, id))
            });
            let (events, next) = (read(&rows)?, next.transpose()?);
            return Ok(DeliveredPage { events, next });
        }
        let after = match cursor {
            Some(DeliveredCursor::Key(id)) => Some(id),
            _ => None,
        };
        let limit = limit.saturating_mul(ROWS_PER_EVENT);
        let statement = statements::list_delivered_by_key(&self.table, types, since, after, limit);
        let rows = session.query(statement).await?;
        let last = rows.last().filter(|_| rows.len() >= limit as usize);
        let next = last.map(|last| column::<RowId>(last, "event_id").map(|id| DeliveredCursor::Key(id.0)));
        let (events, next) = (read(&rows)?, next.transpose()?);
        Ok(DeliveredPage { events, next })
    }
}

/// Makes events PENDING that are still as they were read, and finds out which of the others are locked.
pub(crate) async fn requeue_as_read(
    session: &Session,
    table: &TableName,
    which: Prunable,
    events: &[(Uuid, RawTimestamp)],
) -> Result<RequeuedDelivered, OutboxError> {
    let requeued = ids(&session.query(statements::requeue_as_read(table, which, events)).await?)?;
    let left: Vec<(Uuid, RawTimestamp)> =
        events.iter().filter(|(id, _)| !requeued.contains(id)).copied().collect();
    let locked = match left.is_empty() {
        true => Vec::new(),
        false => {
            ids(&session.query(statements::still_as_read(table, which, &left)).await?)?.into_iter().collect()
        }
    };
    Ok(RequeuedDelivered { requeued: requeued.into_iter().collect(), locked })
}

pub(super) fn one<'a>(session: &Session, rows: &'a [Row]) -> Result<&'a Row, OutboxError> {
    Ok(rows.first().ok_or_else(|| PgError::unavailable(session.operation(), "no row"))?)
}

fn read(rows: &[Row]) -> Result<Vec<DeliveredEvent>, OutboxError> {
    let read = |row| {
        // An event of another relay has no type here.
        let Some(event_type) = column(row, "event_type")? else { return Ok(None) };
        let event_id = column::<RowId>(row, "event_id")?.0;
        Ok(Some(DeliveredEvent { event_id, event_type, delivered_at: column(row, "delivered_at")? }))
    };
    rows.iter().filter_map(|row| read(row).transpose()).collect()
}
