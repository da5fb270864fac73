//! The state of the service, as the tables record it. Nothing is counted further than [`COUNT_CAP`].

use std::time::Duration;

use ambient::Timestamp;
use domain::document::Age;
use domain::ports::{BlockedReport, StoreError, WorkerReport};
use domain::query::{COUNT_CAP, CauseCounts, ChannelStatus, Counted, ReplicaStatus, StoreStatus};
use domain::route::{Channel, RouteStatus};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session, Statement};
use sea_query::{Order, Query};
use serde_json::Value;
use tokio_postgres::Row;

use crate::codec::{column, corrupt, count, instant};
use crate::error::store_error;
use crate::schema::Replicas as R;
use crate::{checkpoint, holds, routes};

/// The period for which causes are counted.
const CAUSES_OF_LAST: Duration = Duration::from_secs(24 * 3_600);
/// The maximum number of replicas that are shown.
const MAX_REPLICAS: u64 = 1_000;

pub(super) async fn read(session: &Session, stream: &str, now: Timestamp) -> Result<StoreStatus, StoreError> {
    let rows = session.query(TIME.bind([])).await.map_err(store_error)?;
    let at = rows.first().map_or(Ok(now), |row| instant(row, "at", ""))?;
    let oldest = routes::first_due_of_each(session).await?;
    let failing = counts_of(session, failing()).await?;
    let mut channels = Vec::new();
    for channel in Channel::ALL {
        let due = session.query(due(channel, now)).await.map_err(store_error)?;
        let due = due.first().map_or(Ok(0), |row| count(row, "routes", channel.as_str()))?;
        let failed = failing.counts.iter().find(|(name, _)| name == channel.as_str()).map_or(0, |(_, n)| *n);
        channels.push(ChannelStatus {
            channel,
            due: Counted::up_to_cap(due),
            oldest_due: oldest.get(&channel).filter(|due| **due <= now).map(|due| Age::between(*due, at)),
            failing: Counted { count: failed, capped: failing.capped },
            waiting: None,
        });
    }
    Ok(StoreStatus {
        at,
        stream: stream.to_owned(),
        checkpoint: checkpoint::load(session, stream).await?,
        channels,
        dead_letters: counts_of(session, recent(&RECENT_DEAD_LETTERS, at)).await?,
        malformed_intents: counts_of(session, recent(&RECENT_MALFORMED, at)).await?,
        holds: holds::list(session).await?,
        replicas: replica_list(session).await?,
    })
}

async fn counts_of(session: &Session, statement: BoundStatement) -> Result<CauseCounts, StoreError> {
    let mut counts = Vec::new();
    for row in session.query(statement).await.map_err(store_error)? {
        let cause: String = column(&row, "classification", "")?;
        let rows = count(&row, "rows", &cause)?;
        counts.push((cause, rows));
    }
    counts.sort_by(|(one, rows), (other, more)| (more, one).cmp(&(rows, other)));
    let capped = counts.iter().map(|(_, rows)| rows).sum::<u64>() >= COUNT_CAP;
    Ok(CauseCounts { counts, capped })
}

pg::statements! {
    /// The time of the server.
    TIME = "status.time", plan [], "SELECT clock_timestamp() AS at";

    /// The number of due routes of a channel, cut before it is counted.
    DUE = "status.due", plan ["routes_due_idx"], "
        SELECT count(*) AS routes
        FROM (
            SELECT next_attempt_at FROM routes
            WHERE channel = $1::text AND next_attempt_at <= $2::timestamptz
            LIMIT $3::bigint
        ) AS due";

    /// The failing routes of each channel.
    FAILING = "status.failing", plan ["routes_unpublished_idx"], "
        SELECT channel AS classification, count(*) AS rows
        FROM (
            SELECT channel FROM routes
            WHERE status = $1::text AND status IN ('failed', 'dead_letter', 'skipped')
            LIMIT $2::bigint
        ) AS failing
        GROUP BY channel";

    /// The open dead letters since a time, newest first, by classification.
    RECENT_DEAD_LETTERS = "status.recent_dead_letters", plan ["dead_letters_open_idx"], "
        SELECT failure_classification AS classification, count(*) AS rows
        FROM (
            SELECT failure_classification FROM dead_letters
            WHERE discarded_at IS NULL AND created_at >= $1::timestamptz
            ORDER BY created_at DESC
            LIMIT $2::bigint
        ) AS recent
        GROUP BY failure_classification";

    /// The malformed intents since a time, newest first, by code.
    RECENT_MALFORMED = "status.recent_malformed_intents", plan ["malformed_intents_recorded_idx"], "
        SELECT failure_code AS classification, count(*) AS rows
        FROM (
            SELECT failure_code FROM malformed_intents
            WHERE recorded_at >= $1::timestamptz
            ORDER BY recorded_at DESC
            LIMIT $2::bigint
        ) AS recent
        GROUP BY failure_code";
}

fn cap() -> Parameter {
    parameter::bigint(COUNT_CAP as i64)
}

pub(super) fn due(channel: Channel, now: Timestamp) -> BoundStatement {
    DUE.bind([parameter::text(channel.as_str()), parameter::instant(now), cap()])
}

pub(super) fn failing() -> BoundStatement {
    FAILING.bind([parameter::text(RouteStatus::Failed.as_str()), cap()])
}

/// [`RECENT_DEAD_LETTERS`] or [`RECENT_MALFORMED`].
pub(super) fn recent(statement: &Statement, now: Timestamp) -> BoundStatement {
    statement.bind([parameter::instant(now - CAUSES_OF_LAST), cap()])
}

async fn replica_list(session: &Session) -> Result<Vec<ReplicaStatus>, StoreError> {
    let rows = session.query(replicas()).await.map_err(store_error)?;
    rows.iter().map(replica).collect()
}

/// The replicas, by the primary key; the table has those of the last hour.
pub(super) fn replicas() -> BoundStatement {
    let select = Query::select()
        .columns([R::Replica, R::Version, R::StartedAt, R::SeenAt, R::LeaderOf, R::Workers])
        .from(R::Table)
        .order_by(R::Replica, Order::Asc)
        .limit(MAX_REPLICAS)
        .take();
    BoundStatement::built("replicas.list", &["replicas_pkey"], &select)
}

fn replica(row: &Row) -> Result<ReplicaStatus, StoreError> {
    let name: String = column(row, "replicas.replica", "")?;
    let workers: Value = column(row, "replicas.workers", &name)?;
    let is_wrong = || corrupt("replicas.workers", &name, "not what a replica reports".to_owned());
    let workers = workers.as_array().ok_or_else(is_wrong)?.iter().map(worker).collect::<Option<_>>();
    Ok(ReplicaStatus {
        version: column(row, "replicas.version", &name)?,
        started_at: instant(row, "replicas.started_at", &name)?,
        seen_at: instant(row, "replicas.seen_at", &name)?,
        leader_of: column(row, "replicas.leader_of", &name)?,
        workers: workers.ok_or_else(is_wrong)?,
        replica: name,
    })
}

/// Parses the JSON that [`crate::replicas`] writes.
fn worker(json: &Value) -> Option<WorkerReport> {
    let text = |name: &str| json[name].as_str();
    let blocked = match &json["blocked"] {
        Value::Null => None,
        blocked => Some(BlockedReport {
            entry_id: blocked["entry_id"].as_str().map(str::parse).transpose().ok()?,
            cause: blocked["cause"].as_str()?.to_owned(),
            since: blocked["since"].as_str()?.parse().ok()?,
        }),
    };
    Some(WorkerReport {
        worker: text("worker")?.to_owned(),
        last_pass_at: text("last_pass_at")?.parse().ok()?,
        blocked,
        position: text("position").map(str::parse).transpose().ok()?,
        deferred: usize::try_from(json["deferred_completions"].as_u64()?).ok()?,
    })
}
