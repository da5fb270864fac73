//! The replicas as they reported themselves, and the sessions that hold the rows of deferred completions.

use std::collections::BTreeMap;

use ambient::Timestamp;
use domain::explanation::Obstacles;
use domain::ports::{BlockedReport, StoreError, WorkerReport};
use domain::query::ReplicaStatus;
use domain::replica::{AttemptsReport, DeferredReport, LockHolder, ReplicaReport};
use domain::route::RouteKey;
use pg::parameter;
use pg::{BoundStatement, Session};
use sea_query::{Order, Query};
use serde_json::Value;
use tokio_postgres::Row;

use crate::codec::{column, corrupt, instant, optional_instant, route_key};
use crate::error::store_error;
use crate::schema::Replicas as R;

/// The maximum number of replicas that are shown.
const MAX_REPLICAS: u64 = 1_000;
/// The most rows whose holders are looked up.
const MAX_HELD_ROWS: usize = 16;

pg::statements! {
    /// The time of the server.
    TIME = "replicas.time", plan [], "SELECT clock_timestamp() AS at";

    /// The sessions that have locked rows. A row names the transaction that locked it last, and each
    /// transaction that runs holds a lock on its own id. A lock that several transactions share is not found.
    HOLDERS = "routes.lock_holders", plan ["routes_pkey"], "
        SELECT route.notification_id, route.route_id, session.pid, coalesce(session.application_name, '') AS application_name,
            session.xact_start
        FROM unnest($1::text[], $2::text[]) AS wanted (notification_id, route_id)
        JOIN routes AS route USING (notification_id, route_id)
        JOIN pg_locks AS held ON held.locktype = 'transactionid' AND held.transactionid = route.xmax AND held.granted
        JOIN pg_stat_activity AS session ON session.pid = held.pid
        LIMIT $3::bigint";
}

/// The replicas of the last hour. Deferred completions name the session that holds the row of the first.
pub(super) async fn list_with_holders(session: &Session) -> Result<Vec<ReplicaStatus>, StoreError> {
    let mut replicas = list(session).await?;
    let workers = || replicas.iter().flat_map(|replica| &replica.workers);
    let held: Vec<RouteKey> =
        workers().filter_map(|worker| Some(worker.deferred.as_ref()?.first.clone())).collect();
    if held.is_empty() {
        return Ok(replicas);
    }
    let mut holders = BTreeMap::new();
    for row in session.query(lock_holders(&held)).await.map_err(store_error)? {
        let key = route_key(&row)?;
        let id = key.notification_id.as_str().to_owned();
        let holder = LockHolder {
            pid: column(&row, "pid", &id)?,
            application: column(&row, "application_name", &id)?,
            since: optional_instant(&row, "xact_start", &id)?,
        };
        holders.insert(key, holder);
    }
    for worker in replicas.iter_mut().flat_map(|replica| &mut replica.workers) {
        if let Some(deferred) = &mut worker.deferred {
            deferred.held_by = holders.get(&deferred.first).cloned();
        }
    }
    Ok(replicas)
}

/// The obstacles of live routes.
pub(super) async fn obstacles(session: &Session) -> Result<Obstacles, StoreError> {
    let rows = session.query(TIME.bind([])).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(Obstacles::default()) };
    Ok(Obstacles::new(&list_with_holders(session).await?, instant(row, "at", "")?))
}

fn lock_holders(held: &[RouteKey]) -> BoundStatement {
    let held = &held[..held.len().min(MAX_HELD_ROWS)];
    let ids: Vec<&str> = held.iter().map(|key| key.notification_id.as_str()).collect();
    let routes: Vec<&str> = held.iter().map(|key| &*key.route_id).collect();
    HOLDERS.bind([parameter::texts(&ids), parameter::texts(&routes), parameter::rows(MAX_HELD_ROWS)])
}

async fn list(session: &Session) -> Result<Vec<ReplicaStatus>, StoreError> {
    let rows = session.query(replicas()).await.map_err(store_error)?;
    rows.iter().map(replica).collect()
}

/// The replicas, by the primary key; the table has those of the last hour.
pub(super) fn replicas() -> BoundStatement {
    let select = Query::select()
        .columns([R::Replica, R::Version, R::StartedAt, R::SeenAt, R::LeaderOf, R::Workers, R::StoppedAt])
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
    let seen_at = instant(row, "replicas.seen_at", &name)?;
    // A former release that runs under the name again reports itself without this column.
    let stopped = optional_instant(row, "replicas.stopped_at", &name)? == Some(seen_at);
    let report = ReplicaReport {
        version: column(row, "replicas.version", &name)?,
        started_at: instant(row, "replicas.started_at", &name)?,
        leader_of: column(row, "replicas.leader_of", &name)?,
        workers: workers.ok_or_else(is_wrong)?,
        stopped,
        replica: name,
    };
    Ok(ReplicaStatus::new(report, seen_at))
}

/// Parses the JSON that [`crate::replicas`] writes, and that former releases wrote.
fn worker(json: &Value) -> Option<WorkerReport> {
    let text = |name: &str| json[name].as_str();
    let completions = json["deferred_completions"].as_u64()?;
    Some(WorkerReport {
        worker: text("worker")?.to_owned(),
        last_pass_at: text("last_pass_at")?.parse().ok()?,
        blocked: parsed(&json["blocked"], blocked)?,
        position: text("position").map(str::parse).transpose().ok()?,
        deferred: parsed(&json["deferred"], deferred)?
            .map(|deferred| DeferredReport { completions, ..deferred }),
        attempts: parsed(&json["attempts"], attempts)?,
    })
}

/// Parses a member that may be `null` or absent.
fn parsed<T>(json: &Value, parse: fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if json.is_null() { Some(None) } else { parse(json).map(Some) }
}

fn blocked(json: &Value) -> Option<BlockedReport> {
    Some(BlockedReport {
        entry_id: json["entry_id"].as_str().map(str::parse).transpose().ok()?,
        cause: json["cause"].as_str()?.to_owned(),
        since: json["since"].as_str()?.parse().ok()?,
    })
}

fn deferred(json: &Value) -> Option<DeferredReport> {
    Some(DeferredReport {
        completions: 0,
        since: json["since"].as_str()?.parse().ok()?,
        first: RouteKey {
            notification_id: json["notification_id"].as_str()?.to_owned().into(),
            route_id: json["route_id"].as_str()?.to_owned(),
        },
        is_published: json["is_published"].as_bool()?,
        cause: json["cause"].as_str()?.to_owned(),
        held_by: None,
    })
}

fn attempts(json: &Value) -> Option<AttemptsReport> {
    Some(AttemptsReport {
        succeeded: json["succeeded"].as_u64()?,
        failed: json["failed"].as_u64()?,
        failing_since: json["failing_since"].as_str().map(str::parse::<Timestamp>).transpose().ok()?,
        cause: json["cause"].as_str()?.to_owned(),
    })
}
