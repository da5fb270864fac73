//! The outbox in a table of PostgreSQL.
//!
//! A claim is one transaction that is sent as a whole, so a relay that stops in the middle holds no lock.
//! Claims of one table run one after the other, a few milliseconds each, so that no two claims hold events of
//! one partition key. Marks hardly wait for other transactions: a row that is locked for longer than a moment
//! is reported as busy, and all others are marked.

mod dead;
mod delivered;
mod reap;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pg::{BoundStatement, PgError, PgPool, RawTimestamp, Session};
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use self::dead::DeadCount;
use self::delivered::one;
pub(crate) use self::delivered::requeue_as_read;
use crate::check::{self, Checked, Indexes};
use crate::row_id::{RowId, column};
use crate::statements::{self, Claiming, LockedRows, Purpose};
use crate::{
    BatchClaim, ClaimToken, ClaimedRows, DeliveredCursor, DeliveredEvent, DeliveredPage, Event, EventContent,
    EventTypes, FailedEvent, FailureKind, Marked, NewestCursor, NewestPage, OutboxError, Position,
    ReapRequest, Reaped, RequeuedDelivered, Stats, Storage, TableName,
};

/// The time for which the list of existing indexes is cached.
const INDEX_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The time that a mark waits for a row locked by another transaction, before it skips locked rows.
const MARK_LOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// The outbox in one table.
///
/// Its pool should have [`crate::PLANNER_PARAMETERS`] as session parameters. Every wait has the deadlines of
/// the pool.
#[derive(Clone, Debug)]
pub struct PostgresStorage {
    pool: PgPool,
    table: TableName,
    /// The existing indexes, with the time of the check.
    indexes: Arc<Mutex<Option<(Instant, Indexes)>>>,
    /// The count of DEAD events, for a table without an index of them.
    dead: Arc<Mutex<DeadCount>>,
}

impl PostgresStorage {
    /// Creates the storage for a table that [`crate::schema_sql`] has created, or that has the same columns.
    pub fn new(pool: PgPool, table: TableName) -> Self {
        Self { pool, table, indexes: Arc::default(), dead: Arc::default() }
    }

    /// Checks that a relay can work with the table: its columns and the rights of the role. Returns the
    /// statements that create missing indexes.
    pub async fn check(&self) -> Result<Checked, OutboxError> {
        let session = self.pool.session("check the outbox table").await?.checking();
        let checked = check::check(&session, &self.table).await?;
        self.remember(checked.indexes);
        Ok(checked)
    }

    fn remember(&self, indexes: Indexes) {
        *self.indexes.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), indexes));
    }

    /// Returns the existing indexes, cached briefly so that a new index is used without a restart.
    async fn indexes(&self) -> Result<Indexes, OutboxError> {
        let known = *self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, indexes)) = known.filter(|(at, _)| at.elapsed() < INDEX_CHECK_INTERVAL) {
            return Ok(indexes);
        }
        let session = self.pool.session("look at the indexes of the outbox table").await?;
        let indexes = check::indexes(&session, &self.table).await?;
        self.remember(indexes);
        Ok(indexes)
    }

    /// Runs a claim's statement in a transaction that is sent as a whole.
    async fn run_claim(
        &self,
        purpose: Purpose,
        request: &BatchClaim,
    ) -> Result<(Session, Vec<Row>), OutboxError> {
        let claiming = if self.indexes().await?.key_order { Claiming::ByKeyIndex } else { Claiming::ByScan };
        let session = self.pool.session("claim events of the outbox").await?;
        let claim = session.prepare(statements::claim(&self.table, claiming, purpose, request)).await?;
        let begin = statements::claim_begin(&self.table, claiming, request.hurries);
        let (begun, rows, committed) =
            tokio::join!(biased; session.begin_with(&begin), session.run(&claim), session.commit());
        begun?;
        // The lock of the claims is held now, so what is locked is needed for a row.
        let of_rows = |error| match error {
            PgError::Locked { operation, source } => PgError::TimedOut { operation, source: source.into() },
            error => error,
        };
        let rows = rows.map_err(of_rows)?;
        committed.map_err(of_rows)?;
        Ok((session, rows))
    }

    /// Runs the statement that `build` makes, which returns the ids that it changed, and reads the state of
    /// the others. If some rows are locked for longer than [`MARK_LOCK_TIMEOUT`], the others are marked
    /// without them.
    async fn mark(
        &self,
        operation: &'static str,
        token: &ClaimToken,
        event_ids: &[Uuid],
        build: impl Fn(LockedRows) -> BoundStatement,
    ) -> Result<Vec<Marked>, OutboxError> {
        if event_ids.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.pool.session(operation).await?;
        let rows = match wait_and_mark(&session, build(LockedRows::Wait)).await {
            Err(PgError::Locked { .. }) => session.query(build(LockedRows::Skip)).await,
            done => done,
        };
        let applied = ids(&rows?)?;
        let missing: Vec<Uuid> = event_ids.iter().filter(|id| !applied.contains(*id)).copied().collect();
        let busy = if missing.is_empty() {
            HashSet::new()
        } else {
            ids(&session.query(statements::still_held(&self.table, token, &missing)).await?)?
        };
        let outcome = |id: &Uuid| match (applied.contains(id), busy.contains(id)) {
            (true, _) => Marked::Applied,
            (false, true) => Marked::Busy,
            (false, false) => Marked::Lost,
        };
        Ok(event_ids.iter().map(outcome).collect())
    }
}

/// Marks events in a transaction that is sent as a whole.
async fn wait_and_mark(session: &Session, statement: BoundStatement) -> Result<Vec<Row>, PgError> {
    let prepared = session.prepare(statement).await?;
    let begin = statements::mark_begin(MARK_LOCK_TIMEOUT);
    let (begun, rows, committed) =
        tokio::join!(biased; session.begin_with(&begin), session.run(&prepared), session.commit());
    begun?;
    let rows = rows?;
    committed?;
    Ok(rows)
}

impl Storage for PostgresStorage {
    async fn due_in(
        &self,
        types: &EventTypes,
        after: Option<&Position>,
    ) -> Result<Option<Duration>, OutboxError> {
        let session = self.pool.session("look for due events of the outbox").await?;
        let rows = session.query(statements::due_in(&self.table, types, after)).await?;
        let millis = rows.first().map(|row| column::<i64>(row, "due_in_ms")).transpose()?;
        Ok(millis.map(|millis| Duration::from_millis(millis.max(0).unsigned_abs())))
    }

    async fn claim_batch(&self, request: &BatchClaim) -> Result<ClaimedRows, OutboxError> {
        let (session, rows) = self.run_claim(Purpose::Take, request).await?;
        drop(session);
        read_claim(&rows)
    }

    async fn first_claimable(&self, request: &BatchClaim) -> Result<Option<Uuid>, OutboxError> {
        let (session, rows) = self.run_claim(Purpose::Look, request).await?;
        drop(session);
        Ok(read_claim(&rows)?.events.first().map(|event| event.event_id))
    }

    async fn mark_delivered_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        let statement = |locks| statements::deliver(&self.table, token, event_ids, locks);
        self.mark("mark events of the outbox as delivered", token, event_ids, statement).await
    }

    async fn mark_failed_batch(
        &self,
        token: &ClaimToken,
        failures: &[FailedEvent],
    ) -> Result<Vec<Marked>, OutboxError> {
        let statement = |locks| statements::fail(&self.table, token, failures, locks);
        let event_ids: Vec<Uuid> = failures.iter().map(|failure| failure.event_id).collect();
        self.mark("mark events of the outbox as failed", token, &event_ids, statement).await
    }

    async fn release_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        let statement = |locks| statements::release(&self.table, token, event_ids, locks);
        self.mark("release events of the outbox", token, event_ids, statement).await
    }

    async fn reap_expired_leases(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> Result<Reaped, OutboxError> {
        self.reap(request, kind).await
    }

    async fn identity(&self) -> Result<String, OutboxError> {
        self.name_of_table().await
    }

    async fn now(&self) -> Result<RawTimestamp, OutboxError> {
        let session = self.pool.session("read the clock of the outbox").await?;
        let rows = session.query(statements::cutoff(Duration::ZERO)).await?;
        column(one(&session, &rows)?, "cutoff")
    }

    async fn newest_delivered(
        &self,
        types: &EventTypes,
        cursor: Option<NewestCursor>,
    ) -> Result<NewestPage, OutboxError> {
        self.page_of_newest(types, cursor).await
    }

    async fn list_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> Result<DeliveredPage, OutboxError> {
        self.page_of_delivered(types, since, cursor, limit).await
    }

    async fn requeue_delivered(&self, events: &[DeliveredEvent]) -> Result<RequeuedDelivered, OutboxError> {
        self.requeue_as_read(events).await
    }

    async fn oldest_claim_until(&self, time: RawTimestamp) -> Result<Option<RawTimestamp>, OutboxError> {
        let session = self.pool.session("look for earlier claims of the outbox").await?;
        let rows = session.query(statements::oldest_claim_until(&self.table, time)).await?;
        rows.first().map(|row| column(row, "locked_at")).transpose()
    }

    async fn stats(&self, types: &EventTypes, limit: u64) -> Result<Stats, OutboxError> {
        let with_dead = self.indexes().await?.dead;
        let session = self.pool.session("count events of the outbox").await?;
        let rows = session.query(statements::stats_capped(&self.table, types, limit, with_dead)).await?;
        let mut stats = read_stats(&session, &rows)?;
        if !with_dead {
            stats.dead = self.count_dead_by_blocks(&session, types).await?.min(limit);
        }
        Ok(stats)
    }
}

/// Reads the row of a counting statement.
pub(crate) fn read_stats(session: &Session, rows: &[Row]) -> Result<Stats, OutboxError> {
    let row = rows.first().ok_or_else(|| PgError::unavailable(session.operation(), "no row"))?;
    let count = |name| column::<i64>(row, name).map(|count| count.max(0).unsigned_abs());
    Ok(Stats {
        pending: count("pending")?,
        retrying: count("retrying")?,
        scheduled: count("scheduled")?,
        delivering: count("delivering")?,
        dead: count("dead")?,
        oldest_age: Duration::from_micros(count("oldest_age_us")?),
    })
}

/// Reads the rows of [`statements::claim`].
fn read_claim(rows: &[Row]) -> Result<ClaimedRows, OutboxError> {
    let Some((head, rows)) = rows.split_first() else {
        return Ok(ClaimedRows { events: Vec::new(), unchanged: Vec::new(), next: None, of_reaped: false });
    };
    let reached: Option<RowId> = column(head, "event_id")?;
    let next = match reached {
        None => None,
        Some(RowId(event_id)) => Some(Position {
            available_at: column::<RawTimestamp>(head, "available_at")?,
            created_at: column::<RawTimestamp>(head, "created_at")?,
            event_id,
        }),
    };
    let order: Vec<RowId> = column(head, "claimed")?;
    let mut events = rows
        .iter()
        .map(|row| read_event(row).map(|event| (event.event_id, event)))
        .collect::<Result<HashMap<Uuid, Event>, OutboxError>>()?;
    let of_reaped = column::<Option<bool>>(head, "of_reaped")?.unwrap_or(false);
    let mut claimed =
        ClaimedRows { events: Vec::with_capacity(order.len()), unchanged: Vec::new(), next, of_reaped };
    // The rows were locked, so only a trigger or a rule can have kept one from being changed.
    for RowId(event_id) in order {
        match events.remove(&event_id) {
            Some(event) => claimed.events.push(event),
            None => claimed.unchanged.push(event_id),
        }
    }
    Ok(claimed)
}

fn read_event(row: &Row) -> Result<Event, OutboxError> {
    let payload: Option<&[u8]> = column(row, "payload")?;
    let content = match payload {
        Some(payload) => EventContent::Whole {
            payload: Bytes::copy_from_slice(payload),
            headers: column::<Option<String>>(row, "headers")?.unwrap_or_default(),
        },
        None => EventContent::TooLarge { bytes: column::<i64>(row, "bytes")?.max(0).unsigned_abs() },
    };
    Ok(Event {
        event_id: column::<RowId>(row, "event_id")?.0,
        event_type: column(row, "event_type")?,
        partition_key: column::<Option<String>>(row, "partition_key")?.unwrap_or_default(),
        content,
        attempts: read_attempts(row)?,
        created_at: column::<RawTimestamp>(row, "created_at")?.timestamp(),
    })
}

/// Reads the attempts. A negative value, which only a manual edit can leave, counts as none.
pub(crate) fn read_attempts(row: &Row) -> Result<u32, OutboxError> {
    Ok(column::<i32>(row, "attempts")?.max(0).unsigned_abs())
}

pub(crate) fn ids(rows: &[Row]) -> Result<HashSet<Uuid>, OutboxError> {
    rows.iter().map(|row| column::<RowId>(row, "event_id").map(|RowId(id)| id)).collect()
}
