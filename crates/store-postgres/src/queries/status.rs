//! The state of the service, as the tables record it. Nothing is counted further than [`COUNT_CAP`].

use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{BlockedReport, StoreError, WorkerReport};
use domain::query::{COUNT_CAP, CauseCounts, ChannelStatus, Counted, ReplicaStatus, StoreStatus};
use domain::route::{Channel, RouteStatus};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, Iden, Order, Query, SelectStatement};
use serde_json::Value;
use tokio_postgres::Row;

use super::candidates::is_unpublished;
use crate::codec::{column, corrupt, count, instant};
use crate::error::store_error;
use crate::schema::{DeadLetters, Input, MalformedIntents, Replicas as R, Routes};
use crate::{checkpoint, routes};

/// The period for which causes are counted.
const CAUSES_OF_LAST: Duration = Duration::from_secs(24 * 3_600);
/// The maximum number of replicas that are shown.
const MAX_REPLICAS: u64 = 1_000;

pub(super) async fn read(session: &Session, stream: &str, now: Timestamp) -> Result<StoreStatus, StoreError> {
    let rows = session.query(&time()).await.map_err(store_error)?;
    let at = rows.first().map_or(Ok(now), |row| instant(row, "at", ""))?;
    let oldest = routes::first_due_of_each(session).await?;
    let failing = counts_of(session, &failing()).await?;
    let mut channels = Vec::new();
    for channel in Channel::ALL {
        let due = session.query(&due(channel, now)).await.map_err(store_error)?;
        let due = due.first().map_or(Ok(0), |row| count(row, "routes", channel.as_str()))?;
        let failed = failing.counts.iter().find(|(name, _)| name == channel.as_str()).map_or(0, |(_, n)| *n);
        channels.push(ChannelStatus {
            channel,
            due: Counted::up_to_cap(due),
            oldest_due: oldest.get(&channel).copied().filter(|due| *due <= now),
            failing: Counted { count: failed, capped: failing.capped },
        });
    }
    Ok(StoreStatus {
        at,
        checkpoint: checkpoint::load(session, stream).await?,
        channels,
        dead_letters: counts_of(session, &recent_dead_letters(at)).await?,
        malformed_intents: counts_of(session, &recent_malformed(at)).await?,
        replicas: replica_list(session).await?,
    })
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&time()).await?;
    session.prepare(&due(Channel::Push, Timestamp::MIN)).await?;
    session.prepare(&failing()).await?;
    session.prepare(&recent_dead_letters(Timestamp::UNIX_EPOCH)).await?;
    session.prepare(&recent_malformed(Timestamp::UNIX_EPOCH)).await?;
    session.prepare(&replicas()).await?;
    Ok(())
}

fn time() -> SelectStatement {
    Query::select().expr_as(Expr::cust("clock_timestamp()"), Input::At).take()
}

async fn counts_of(session: &Session, statement: &SelectStatement) -> Result<CauseCounts, StoreError> {
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

/// A part of `routes_due_idx`, cut before it is counted.
pub(super) fn due(channel: Channel, now: Timestamp) -> SelectStatement {
    let some = Query::select()
        .column(Routes::NextAttemptAt)
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(bind::text(channel.as_str())))
        .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(now)))
        .limit(COUNT_CAP)
        .take();
    Query::select()
        .expr_as(Func::count(Expr::col(sea_query::Asterisk)), Input::Routes)
        .from_subquery(some, Input::Table)
        .take()
}

/// The number of rows of `some` with each value of `cause`.
fn by_cause(cause: impl Iden + Copy + 'static, mut some: SelectStatement) -> SelectStatement {
    let some = some.expr_as(Expr::col(cause), Input::Classification).limit(COUNT_CAP).take();
    Query::select()
        .column(Input::Classification)
        .expr_as(Func::count(Expr::col(sea_query::Asterisk)), Input::Rows)
        .from_subquery(some, Input::Table)
        .group_by_col(Input::Classification)
        .take()
}

/// A part of `routes_unpublished_idx`, by channel.
pub(super) fn failing() -> SelectStatement {
    let some = Query::select()
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Status).eq(bind::text(RouteStatus::Failed.as_str())))
        .and_where(is_unpublished())
        .take();
    by_cause(Routes::Channel, some)
}

/// A part of `dead_letters_open_idx`, the newest first.
pub(super) fn recent_dead_letters(now: Timestamp) -> SelectStatement {
    use DeadLetters as D;
    let some = Query::select()
        .from(D::Table)
        .and_where(Expr::col(D::DiscardedAt).is_null())
        .and_where(Expr::col(D::CreatedAt).gte(bind::instant(now - CAUSES_OF_LAST)))
        .order_by(D::CreatedAt, Order::Desc)
        .take();
    by_cause(D::FailureClassification, some)
}

/// A part of `malformed_intents_recorded_idx`, the newest first.
pub(super) fn recent_malformed(now: Timestamp) -> SelectStatement {
    use MalformedIntents as M;
    let some = Query::select()
        .from(M::Table)
        .and_where(Expr::col(M::RecordedAt).gte(bind::instant(now - CAUSES_OF_LAST)))
        .order_by(M::RecordedAt, Order::Desc)
        .take();
    by_cause(M::FailureCode, some)
}

async fn replica_list(session: &Session) -> Result<Vec<ReplicaStatus>, StoreError> {
    let rows = session.query(&replicas()).await.map_err(store_error)?;
    rows.iter().map(replica).collect()
}

/// The replicas, by the primary key; the table has those of the last hour.
pub(super) fn replicas() -> SelectStatement {
    Query::select()
        .columns([R::Replica, R::Version, R::StartedAt, R::SeenAt, R::LeaderOf, R::Workers])
        .from(R::Table)
        .order_by(R::Replica, Order::Asc)
        .limit(MAX_REPLICAS)
        .take()
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
