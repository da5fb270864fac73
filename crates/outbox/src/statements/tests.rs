//! Plans of the statements that run on a backlog: none may read or sort all of it, whatever statistics the
//! planner has.

use std::time::Duration;

use local_servers::{Postgres, PostgresOptions};
use pg::RawTimestamp;
use pg::{BoundStatement, Dsn, PgPool, PoolSettings, Session, SessionSettings, check_plan, explain_analyze};
use serde_json::Value;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::*;
use crate::{
    BatchClaim, ClaimToken, FailedEvent, FailureKind, PLANNER_PARAMETERS, ReapRequest, RelayId, TableName,
    schema_sql,
};

/// The size of a claim in these tests.
const LIMIT: u32 = 500;
/// The largest number of blocks that a statement may touch for each event: it descends each index a few
/// times.
const BLOCKS: u64 = 30;

/// The time at which the planner's statistics are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Statistics {
    Never,
    WhileEmpty,
    Now,
}

async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts"))
        .await
}

/// Creates a database with 100,000 pending events whose keys are `key`, and as many finished ones.
async fn backlog(key: &str, statistics: Statistics) -> (PgPool, TableName) {
    static DATABASES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = format!("plans_{}", DATABASES.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
    let server = server().await;
    server.execute("postgres", &format!("CREATE DATABASE {name}")).await.expect("a database");
    let table = TableName::default();
    let analyze = |when| if statistics == when { "ANALYZE openoutbox_events;" } else { "" };
    let sql = format!(
        "{} ALTER TABLE openoutbox_events SET (autovacuum_enabled = false); {}
         INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, available_at, created_at)
         SELECT gen_random_uuid(), 't', {key}, 'x', now() - n * interval '1 second', now() - n * interval '1 second'
         FROM generate_series(1, 100000) n;
         INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, status, delivered_at)
         SELECT gen_random_uuid(), 't', {key}, 'x', (ARRAY['DELIVERED', 'DEAD'])[n % 2 + 1], now() - n * interval '1 second'
         FROM generate_series(1, 100000) n; {}",
        schema_sql(&table),
        analyze(Statistics::WhileEmpty),
        analyze(Statistics::Now),
    );
    server.execute(&name, &sql).await.expect("a backlog");
    let dsn = Dsn::parse(&server.superuser_dsn(&name)).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(60), session };
    (PgPool::new(&dsn, settings).expect("a pool"), table)
}

/// Returns `EXPLAIN ANALYZE` of the plan that a relay runs: the generic one. Changes are rolled back.
async fn plan(session: &Session, statement: BoundStatement) -> Value {
    session.begin().await.expect("begun");
    let plan = explain_analyze(session, &statement).await.expect("it runs");
    session.rollback().await.expect("taken back");
    serde_json::from_str::<Value>(&plan).expect("JSON")[0]["Plan"].take()
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_claims() {
    let (pool, table) = backlog(MANY_KEYS, Statistics::WhileEmpty).await;
    let session = pool.session("explain").await.expect("is there");
    let mut differences = Vec::new();
    for statement in &registry(&table) {
        differences.extend(check_plan(&session, statement).await.err());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

fn number(node: &Value, property: &str) -> u64 {
    node[property].as_f64().unwrap_or(0.0).ceil() as u64
}

/// Returns the node and all nodes below it.
fn nodes(node: &Value) -> Vec<&Value> {
    let below = node["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(node).chain(below.iter().flat_map(nodes)).collect()
}

/// Returns the largest number of rows that a node of the plan read: those that it returned and those that it
/// removed.
fn most_rows(plan: &Value) -> u64 {
    let read = |node: &&Value| {
        let properties = ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter"];
        properties.map(|property| number(node, property)).iter().sum::<u64>() * number(node, "Actual Loops")
    };
    nodes(plan).iter().map(read).max().unwrap_or(0)
}

fn check(what: &str, plan: &Value, events: u64) {
    // The tolerance covers the few rows of the statement itself.
    assert!(most_rows(plan) <= events + 10, "{what} reads {} rows:\n{plan:#}", most_rows(plan));
    let blocks = number(plan, "Shared Hit Blocks") + number(plan, "Shared Read Blocks");
    assert!(blocks <= BLOCKS * events, "{what} reads {blocks} blocks:\n{plan:#}");
}

fn token() -> ClaimToken {
    ClaimToken::new(&RelayId::parse("relay").expect("a name"), "1")
}

fn request(types: EventTypes) -> BatchClaim {
    BatchClaim {
        token: token(),
        types,
        after: None,
        limit: LIMIT,
        max_bytes: 1 << 24,
        max_event_bytes: 1 << 19,
        max_attempts: 25,
        passes_reaped: false,
        set_aside: Vec::new(),
        hurries: false,
    }
}

/// Claims events and returns their ids, with one id that does not exist.
async fn claimed(session: &Session, table: &TableName) -> Vec<Uuid> {
    let claim = claim(table, Claiming::ByKeyIndex, Purpose::Take, &request(EventTypes::All));
    let rows = session.query(claim).await.expect("claimed");
    let ids = rows.iter().filter_map(|row| {
        let claimed: Option<Vec<crate::row_id::RowId>> = row.get("claimed");
        claimed.map(|ids| ids.into_iter().map(|id| id.0).collect::<Vec<_>>())
    });
    ids.flatten().chain([Uuid::nil()]).collect()
}

async fn look_at_plans(key: &str, statistics: Statistics) {
    let (pool, table) = backlog(key, statistics).await;
    let session = pool.session("explain").await.expect("is there");
    let only = EventTypes::Only(vec!["t".to_owned()]);
    for types in [EventTypes::All, only] {
        check("due_in", &plan(&session, due_in(&table, &types, None)).await, LIMIT.into());
        let first = claim(&table, Claiming::ByKeyIndex, Purpose::Take, &request(types.clone()));
        check("the claim", &plan(&session, first).await, LIMIT.into());
        check("the counts", &plan(&session, stats_capped(&table, &types, 1_000, true)).await, 4_000);
    }
    let ids = claimed(&session, &table).await;
    let count = ids.len() as u64;
    assert_eq!(count, u64::from(LIMIT) + 1);
    let further = claim(&table, Claiming::ByKeyIndex, Purpose::Take, &request(EventTypes::All));
    check("a claim beside another", &plan(&session, further).await, LIMIT.into());
    for locks in [LockedRows::Wait, LockedRows::Skip] {
        check("delivering", &plan(&session, deliver(&table, &token(), &ids, locks)).await, count);
        check("releasing", &plan(&session, release(&table, &token(), &ids, locks)).await, count);
    }
    check("what is held", &plan(&session, still_held(&table, &token(), &ids)).await, count);
    let failure = |event_id: &Uuid| FailedEvent {
        event_id: *event_id,
        attempts: 1,
        error: "it's broken".to_owned(),
        kind: FailureKind::Retry(Duration::from_secs(1)),
    };
    let failures: Vec<FailedEvent> = ids.iter().map(failure).collect();
    for locks in [LockedRows::Wait, LockedRows::Skip] {
        check("failing", &plan(&session, fail(&table, &token(), &failures, locks)).await, count);
    }
    let reaping = ReapRequest {
        types: EventTypes::All,
        lease_timeout: Duration::ZERO,
        limit: LIMIT,
        except: Vec::new(),
    };
    check("expired leases", &plan(&session, expired_leases(&table, &reaping)).await, count);
    let expired: Vec<_> = ids.iter().map(|id| (*id, 1, FailureKind::Dead)).collect();
    check("reaping", &plan(&session, reap(&table, &reaping, &expired)).await, count);
    check("requeueing", &plan(&session, requeue(&table, &ids)).await, count);
    let (from, cutoff) = (RawTimestamp::NEG_INFINITY, RawTimestamp::INFINITY);
    let all = from..=cutoff;
    check(
        "listing",
        &plan(&session, list_done(&table, Prunable::Dead, None, &all, LIMIT)).await,
        LIMIT.into(),
    );
    let chunk = Chunk { from, cutoff, limit: LIMIT };
    let listing = list_requeueable(&table, Prunable::Dead, None, &all, &[Uuid::nil()], LIMIT);
    check("listing what to requeue", &plan(&session, listing).await, LIMIT.into());
    let dead: Vec<(Uuid, RawTimestamp)> = ids.iter().map(|id| (*id, cutoff)).collect();
    for statement in
        [requeue_as_read(&table, Prunable::Dead, &dead), still_as_read(&table, Prunable::Dead, &dead)]
    {
        check("requeueing the dead", &plan(&session, statement).await, count);
    }
    let after = Some((from, Uuid::nil()));
    for types in [EventTypes::All, EventTypes::Only(vec!["another".to_owned()])] {
        let listing = list_delivered(&table, &types, from, after, LIMIT);
        check("listing what is delivered", &plan(&session, listing).await, u64::from(LIMIT) + 100);
        let newest = newest_delivered(&table, &types, Some(cutoff), LIMIT);
        check("the newest that is delivered", &plan(&session, newest).await, LIMIT.into());
    }
    for which in [Prunable::Delivered, Prunable::Dead] {
        check("pruning", &plan(&session, prune(&table, which, chunk)).await, LIMIT.into());
    }
}

const NO_KEY: &str = "NULL";
const ONE_KEY: &str = "'k'";
const MANY_KEYS: &str = "'k' || n";

macro_rules! plans {
    ($($name:ident: $key:ident, $statistics:ident;)+) => {
        $(#[tokio::test]
        async fn $name() {
            look_at_plans($key, Statistics::$statistics).await;
        })+
    };
}

plans! {
    nothing_reads_a_backlog_of_many_keys_without_statistics: MANY_KEYS, Never;
    nothing_reads_a_backlog_of_many_keys_on_statistics_of_an_empty_table: MANY_KEYS, WhileEmpty;
    nothing_reads_a_backlog_of_many_keys_on_statistics_of_the_backlog: MANY_KEYS, Now;
    nothing_reads_a_backlog_of_one_key_without_statistics: ONE_KEY, Never;
    nothing_reads_a_backlog_of_one_key_on_statistics_of_an_empty_table: ONE_KEY, WhileEmpty;
    nothing_reads_a_backlog_of_one_key_on_statistics_of_the_backlog: ONE_KEY, Now;
    nothing_reads_a_backlog_without_keys_without_statistics: NO_KEY, Never;
    nothing_reads_a_backlog_without_keys_on_statistics_of_an_empty_table: NO_KEY, WhileEmpty;
    nothing_reads_a_backlog_without_keys_on_statistics_of_the_backlog: NO_KEY, Now;
}
