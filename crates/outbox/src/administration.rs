//! Operators' actions on an outbox in PostgreSQL.

mod requeue;

pub use requeue::{RequeuePlan, RequeueReport, RequeueRequest, SHOWN_BY_DRY_RUN};

use std::ops::Range;

use ambient::Timestamp;
use bytes::Bytes;
use pg::{BoundStatement, PgPool, RawTimestamp, Session};
use tokio_postgres::Row;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::age::Age;
use crate::check::{self, Checked};
use crate::postgres::{ids, read_attempts, read_stats};
use crate::row_id::{RowId, column};
use crate::statements::{self, Chunk, Prunable};
use crate::{ChannelName, OutboxError, REAPED, Stats, TableName, notify_sql, schema_sql};

/// The largest number of events that one transaction prunes or requeues.
const MAX_CHUNK: u32 = 1_000;
/// The largest number of DEAD events that are listed.
pub const MAX_LISTED: u32 = 1_000;
/// The largest payload that is shown.
const MAX_SHOWN_BYTES: i64 = 1024 * 1024;
/// The advisory lock of [`Administration::migrate`]: "outboxmg" in ASCII.
const MIGRATION_LOCK: i64 = 0x6f_75_74_62_6f_78_6d_67;

/// The operators' interface to an outbox.
///
/// Its pool should have [`crate::PLANNER_PARAMETERS`] as session parameters, and a statement timeout long
/// enough to count everything.
#[derive(Clone, Debug)]
pub struct Administration {
    pool: PgPool,
    table: TableName,
}

/// The events to prune.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PruneRequest {
    /// The minimum age since delivery of DELIVERED events to prune; `None` keeps them all.
    pub delivered_age: Option<Age>,
    /// The minimum age since the last change of DEAD events to prune; `None` keeps them all.
    pub dead_age: Option<Age>,
    /// True for a dry run, which only counts.
    pub dry_run: bool,
}

/// The number of events pruned, or that a dry run would prune.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pruned {
    /// DELIVERED events.
    pub delivered: u64,
    /// DEAD events.
    pub dead: u64,
    /// True if it was stopped before the end.
    pub stopped: bool,
}

/// An event as it is shown. Names are clipped at 255 characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredEvent {
    /// Its primary key.
    pub event_id: Uuid,
    /// Its type.
    pub event_type: String,
    /// Its partition key; empty for none.
    pub partition_key: String,
    /// PENDING, DELIVERING, DELIVERED or DEAD, or a value written by hand.
    pub status: String,
    /// The number of its failed attempts.
    pub attempts: u32,
    /// The error of its last failed attempt; empty if none failed.
    pub last_error: String,
    /// The time at which it is or was due; `None` if outside the years 1 to 9999.
    pub available_at: Option<Timestamp>,
    /// The time of its creation; `None` likewise.
    pub created_at: Option<Timestamp>,
    /// The time of its last change; `None` likewise.
    pub updated_at: Option<Timestamp>,
    /// The length of its payload.
    pub payload_bytes: u64,
}

/// An event with its payload and headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventDetail {
    /// The event.
    pub event: StoredEvent,
    /// Its payload; `None` if larger than 1 MiB.
    pub payload: Option<Bytes>,
    /// Its headers as JSON text; `None` if larger than 1 MiB.
    pub headers: Option<String>,
}

/// The outcome of requeueing an event.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requeued {
    /// It is PENDING, as if never tried.
    Done,
    /// It is not DEAD.
    NotDead,
    /// There is no such event.
    Unknown,
}

impl StoredEvent {
    /// True if its lease had expired. Such an event may have been published although it is DEAD, because no
    /// relay marked it.
    pub fn was_reaped(&self) -> bool {
        self.last_error.starts_with(REAPED)
    }
}

impl Administration {
    /// Creates the operators' interface to the outbox in this table.
    pub fn new(pool: PgPool, table: TableName) -> Self {
        Self { pool, table }
    }

    /// Checks that the database responds.
    pub async fn ping(&self) -> Result<(), OutboxError> {
        Ok(self.pool.ping().await?)
    }

    /// Checks the table like [`crate::PostgresStorage::check`].
    pub async fn check(&self) -> Result<Checked, OutboxError> {
        let session = self.pool.session("check the outbox table").await?.checking();
        check::check(&session, &self.table).await
    }

    /// Checks that the role may read the identity of the outbox. A relay that compares delivered events reads
    /// it.
    pub async fn check_identity(&self) -> Result<(), OutboxError> {
        let session = self.pool.session("check the identity of the outbox").await?;
        check::check_identity(&session).await
    }

    /// Creates the table and its indexes if they are missing, and the trigger that announces inserts if a
    /// channel is given. Several processes may do so at once.
    pub async fn migrate(&self, channel: Option<&ChannelName>) -> Result<(), OutboxError> {
        let session = self.pool.session("create the outbox table").await?;
        session.begin_with(&format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")).await?;
        session.execute_batch(&schema_sql(&self.table)).await?;
        if let Some(channel) = channel {
            session.execute_batch(&notify_sql(&self.table, channel)).await?;
        }
        Ok(session.commit().await?)
    }

    /// Counts all events of all types, without a cap.
    pub async fn stats(&self) -> Result<Stats, OutboxError> {
        let session = self.pool.session("count events of the outbox").await?;
        let rows = session.query(statements::stats(&self.table)).await?;
        read_stats(&session, &rows)
    }

    /// Deletes events strictly older than the given age by the clock of the database, but never PENDING or
    /// DELIVERING events. Each chunk is its own transaction: after an error some events are deleted.
    pub async fn prune(
        &self,
        request: &PruneRequest,
        stop: &CancellationToken,
    ) -> Result<Pruned, OutboxError> {
        let PruneRequest { delivered_age, dead_age, dry_run } = *request;
        let delivered = self.prune_some(Prunable::Delivered, delivered_age, dry_run, stop).await?;
        let dead = self.prune_some(Prunable::Dead, dead_age, dry_run, stop).await?;
        Ok(Pruned { delivered, dead, stopped: stop.is_cancelled() })
    }

    async fn prune_some(
        &self,
        which: Prunable,
        age: Option<Age>,
        dry_run: bool,
        stop: &CancellationToken,
    ) -> Result<u64, OutboxError> {
        let Some(age) = age else { return Ok(0) };
        let session = self.pool.session("prune the outbox").await?;
        let cutoff = cutoff(&session, age.as_duration()).await?;
        if dry_run {
            return count(&session.query(statements::count_prunable(&self.table, which, cutoff)).await?);
        }
        drop(session);
        let times = RawTimestamp::NEG_INFINITY..cutoff;
        let prune = |chunk| statements::prune(&self.table, which, chunk);
        self.in_chunks("prune the outbox", times, prune, stop).await
    }

    /// Runs the statement that `build` makes until a chunk is not full, or until `stop`. Each chunk has the
    /// deadline of one operation and begins where the previous chunk ended, because the index entries of
    /// changed rows remain while a transaction is open.
    async fn in_chunks(
        &self,
        operation: &'static str,
        times: Range<RawTimestamp>,
        build: impl Fn(Chunk) -> BoundStatement,
        stop: &CancellationToken,
    ) -> Result<u64, OutboxError> {
        let mut chunk = Chunk { from: times.start, cutoff: times.end, limit: MAX_CHUNK };
        let mut total = 0;
        while !stop.is_cancelled() {
            let session = self.pool.session(operation).await?;
            let rows = session.query(build(chunk)).await?;
            let changed = count(&rows)?;
            total += changed;
            let last = rows.first().map(|row| column::<Option<RawTimestamp>>(row, "last")).transpose()?;
            match last.flatten() {
                Some(last) if changed >= u64::from(MAX_CHUNK) => chunk.from = last,
                _ => break,
            }
        }
        Ok(total)
    }

    /// Lists DEAD events, most recently dead first, at most [`MAX_LISTED`].
    pub async fn list_dead(
        &self,
        event_type: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, OutboxError> {
        let session = self.pool.session("list dead events of the outbox").await?;
        let all = RawTimestamp::NEG_INFINITY..=RawTimestamp::INFINITY;
        let limit = limit.min(MAX_LISTED);
        let statement = statements::list_done(&self.table, Prunable::Dead, event_type, &all, limit);
        session.query(statement).await?.iter().map(read).collect()
    }

    /// Returns the event, whatever its status.
    pub async fn get_event(&self, event_id: Uuid) -> Result<Option<EventDetail>, OutboxError> {
        let session = self.pool.session("read an event of the outbox").await?;
        let rows = session.query(statements::get(&self.table, event_id, MAX_SHOWN_BYTES)).await?;
        let detail = |row| {
            let payload: Option<&[u8]> = column(row, "payload")?;
            Ok(EventDetail {
                event: read(row)?,
                payload: payload.map(Bytes::copy_from_slice),
                headers: column(row, "headers")?,
            })
        };
        rows.first().map(detail).transpose()
    }

    /// Returns the time by the clock of the database.
    pub async fn now(&self) -> Result<Timestamp, OutboxError> {
        let session = self.pool.session("read the clock of the outbox").await?;
        let now = cutoff(&session, std::time::Duration::ZERO).await?.timestamp();
        Ok(now.ok_or_else(|| pg::PgError::unavailable(session.operation(), "a time after the year 9999"))?)
    }

    /// Makes DEAD events PENDING so that they are tried again; one outcome for each id, in their order.
    pub async fn requeue(&self, event_ids: &[Uuid]) -> Result<Vec<Requeued>, OutboxError> {
        let mut outcomes = Vec::with_capacity(event_ids.len());
        for chunk in event_ids.chunks(MAX_CHUNK as usize) {
            let session = self.pool.session("requeue events of the outbox").await?;
            let changed = ids(&session.query(statements::requeue(&self.table, chunk)).await?)?;
            let existing = ids(&session.query(statements::existing(&self.table, chunk)).await?)?;
            outcomes.extend(chunk.iter().map(|id| match (changed.contains(id), existing.contains(id)) {
                (true, _) => Requeued::Done,
                (false, true) => Requeued::NotDead,
                (false, false) => Requeued::Unknown,
            }));
        }
        Ok(outcomes)
    }
}

async fn cutoff(session: &Session, age: std::time::Duration) -> Result<RawTimestamp, OutboxError> {
    let rows = session.query(statements::cutoff(age)).await?;
    let row = rows.first().ok_or_else(|| pg::PgError::unavailable(session.operation(), "no row"))?;
    column(row, "cutoff")
}

fn count(rows: &[Row]) -> Result<u64, OutboxError> {
    rows.first().map_or(Ok(0), |row| column::<i64>(row, "events").map(|count| count.max(0).unsigned_abs()))
}

fn read(row: &Row) -> Result<StoredEvent, OutboxError> {
    let time = |name| column::<RawTimestamp>(row, name).map(RawTimestamp::timestamp);
    let text = |name| column::<Option<String>>(row, name).map(Option::unwrap_or_default);
    Ok(StoredEvent {
        event_id: column::<RowId>(row, "event_id")?.0,
        event_type: text("event_type")?,
        partition_key: text("partition_key")?,
        status: text("status")?,
        attempts: read_attempts(row)?,
        last_error: text("last_error")?,
        available_at: time("available_at")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        payload_bytes: column::<i64>(row, "payload_bytes")?.max(0).unsigned_abs(),
    })
}
