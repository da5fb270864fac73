//! The running replicas and their activity: the tables `replicas` and `activity`.
//!
//! Each replica writes its own rows and deletes all old rows; a row that another replica is deleting is
//! skipped. Times are the server's. No transaction spans the two tables: after a crash in between the replica
//! has reported itself without its counts.

use std::time::Duration;

use domain::ports::StoreError;
use domain::ports::{Activity, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};
use pg::sql::insert_rows;
use pg::{PgError, Session, bind};
use sea_query::{
    DeleteStatement, Expr, ExprTrait, InsertStatement, IntoColumnRef, LockBehavior, LockType, OnConflict,
    Order, Query,
};
use serde_json::{Value, json};

use crate::PgStore;
use crate::error::store_error;
use crate::schema::{Activity as A, Replicas as R};

impl ReplicaStore for PgStore {
    async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
        let session = self.session("save the row of this replica").await?;
        session.execute(&save(report)).await.map_err(store_error).map(drop)
    }

    async fn add_activity(&self, replica: &str, activity: &Activity) -> Result<(), StoreError> {
        let session = self.session("add to the activity of this replica").await?;
        session.execute(&add(replica, activity)).await.map_err(store_error).map(drop)
    }

    async fn delete_replicas(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete the rows of former replicas").await?;
        session.execute(&delete_replicas(age, limit)).await.map_err(store_error)
    }

    async fn delete_activity(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete old activity").await?;
        session.execute(&delete_activity(age, limit)).await.map_err(store_error)
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let report = ReplicaReport {
        replica: String::new(),
        version: String::new(),
        started_at: ambient::Timestamp::UNIX_EPOCH,
        leader_of: Vec::new(),
        workers: Vec::new(),
    };
    session.prepare(&save(&report)).await?;
    session.prepare(&add("", &Activity::default())).await?;
    session.prepare(&delete_replicas(Duration::ZERO, 1)).await?;
    session.prepare(&delete_activity(Duration::ZERO, 1)).await?;
    Ok(())
}

/// Saves a replica's report. `step_down_at` is unchanged: it belongs to the operators.
fn save(report: &ReplicaReport) -> InsertStatement {
    let workers: Value = report.workers.iter().map(worker).collect();
    let mut insert = insert_rows(
        R::Table,
        [
            (R::Replica, bind::text(&report.replica)),
            (R::Version, bind::text(&report.version)),
            (R::StartedAt, bind::instant(report.started_at)),
            (R::SeenAt, Expr::cust("clock_timestamp()")),
            (R::LeaderOf, bind::texts(&report.leader_of)),
            (R::Workers, bind::text(workers.to_string()).cast_as("jsonb")),
        ],
    );
    insert.on_conflict(
        OnConflict::column(R::Replica)
            .update_columns([R::Version, R::StartedAt, R::SeenAt, R::LeaderOf, R::Workers])
            .to_owned(),
    );
    insert
}

fn worker(report: &WorkerReport) -> Value {
    json!({
        "worker": report.worker,
        "last_pass_at": report.last_pass_at.to_string(),
        "blocked": report.blocked.as_ref().map(blocked),
        "position": report.position.map(|position| position.to_string()),
        "deferred_completions": report.deferred,
    })
}

fn blocked(report: &BlockedReport) -> Value {
    json!({
        "entry_id": report.entry_id.map(|id| id.to_string()),
        // The only character that jsonb cannot store.
        "cause": report.cause.replace('\0', "\u{fffd}"),
        "since": report.since.to_string(),
    })
}

fn add(replica: &str, activity: &Activity) -> InsertStatement {
    let count = |count: u64| bind::bigint(i64::try_from(count).unwrap_or(i64::MAX));
    let counts = [
        (A::Accepted, count(activity.accepted)),
        (A::Duplicates, count(activity.duplicates)),
        (A::Conflicts, count(activity.conflicts)),
        (A::Malformed, count(activity.malformed)),
        (A::Published, count(activity.published)),
        (A::Failed, count(activity.failed)),
        (A::DeadLettered, count(activity.dead_lettered)),
    ];
    let added = counts.each_ref().map(|(column, _)| {
        let sum = Expr::col((A::Table, *column)).add(Expr::col((A::Excluded, *column)));
        (*column, sum)
    });
    let [accepted, duplicates, conflicts, malformed, published, failed, dead_lettered] = counts;
    let mut insert = insert_rows(
        A::Table,
        [
            (A::Minute, Expr::cust("date_trunc('minute', clock_timestamp())")),
            (A::Replica, bind::text(replica)),
            accepted,
            duplicates,
            conflicts,
            malformed,
            published,
            failed,
            dead_lettered,
        ],
    );
    insert.on_conflict(OnConflict::columns([A::Minute, A::Replica]).values(added).to_owned());
    insert
}

/// Deletes old replicas. The table has a row for each replica of the last hour, so it needs no index.
fn delete_replicas(age: Duration, limit: usize) -> DeleteStatement {
    let old = Query::select()
        .column(R::Replica)
        .from(R::Table)
        .and_where(older_than(R::SeenAt, age))
        .order_by(R::SeenAt, Order::Asc)
        .limit(limit as u64)
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
        .take();
    Query::delete().from_table(R::Table).and_where(Expr::col(R::Replica).in_subquery(old)).take()
}

/// Deletes old activity, from the first rows of the primary key.
fn delete_activity(age: Duration, limit: usize) -> DeleteStatement {
    let key = [A::Minute, A::Replica];
    let mut old = Query::select();
    old.columns(key)
        .from(A::Table)
        .and_where(older_than(A::Minute, age))
        .limit(limit as u64)
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked);
    for column in key {
        old.order_by(column, Order::Asc);
    }
    Query::delete().from_table(A::Table).and_where(Expr::tuple(key.map(Expr::col)).in_subquery(old)).take()
}

/// True for times older than `age`. It uses `now()` instead of `clock_timestamp()`, which is constant during
/// the statement, so that an index serves the condition.
fn older_than(column: impl IntoColumnRef, age: Duration) -> Expr {
    let age = bind::bigint(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    Expr::col(column).lt(Expr::cust("now()").sub(age.mul(Expr::cust("interval '1 second'"))))
}
