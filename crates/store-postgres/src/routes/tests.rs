//! The plans of the statements that run during a backlog: none of them may read or sort the whole of it.

use harness::contract::acknowledged;
use std::time::Duration;

use domain::ports::DueOrder::{NewestFirst, OldestFirst};
use domain::ports::{Cutoff, Expired, MalformedKey};
use domain::record::NotificationId;
use domain::route::Version;
use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings, Session, Statement, explain_analyze};
use serde_json::Value;

use super::complete::*;
use super::due::*;
use super::failures::{failing, open_dead_letters};
use super::*;
use crate::codec::route_keys;
use crate::malformed_intents::retention as malformed_retention;
use crate::{PgStore, SESSION, dead_letters, receipts, retention};

/// The size of a page, a batch or a chunk in these tests.
const LIMIT: usize = 512;
/// The maximum number of blocks of tables and indexes that a statement may touch for each row of a batch: an
/// update touches a few of each index. Reading the index of due routes once for every row would take
/// hundreds.
const BLOCKS: u64 = 20;

/// Records `first` to `last`, with two routes each.
pub(crate) fn rows(first: u32, last: u32, status: &str, next_attempt_at: &str) -> String {
    format!(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
            request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', '{{}}', n::text, 'v1:', now(), now(), now(), now() FROM generate_series({first}, {last}) n;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
            created_at, updated_at)
         SELECT n || '-0', c || ':user:u', c, 'user:u', '{status}', 3, {next_attempt_at}, '2026-01-01', '2026-01-01'
         FROM generate_series({first}, {last}) n, unnest(ARRAY['push', 'email']) c;"
    )
}

/// The time at which each of the routes was changed last, and at which the due ones became due.
fn since() -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000).expect("in range")
}

/// 20,000 routes with their receipts and as many malformed intents that became due after the planner's
/// statistics were taken: while the tables were empty, or while they held many routes of which none was due,
/// which is the usual case.
fn backlog(published: u32) -> String {
    let mut sql = String::new();
    for table in ["records", "routes", "dead_letters", "malformed_intents", "receipts"] {
        sql.push_str(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false);"));
    }
    sql.push_str(&rows(100_001, 100_000 + published, "published", "NULL"));
    sql.push_str(
        "ANALYZE records; ANALYZE routes; ANALYZE dead_letters; ANALYZE malformed_intents; ANALYZE receipts;",
    );
    sql.push_str(&rows(1, 10_000, "pending", "'2026-01-01'"));
    sql.push_str(
        "INSERT INTO receipts (key, value) SELECT notification_id || '/' || route_id, '{\"status\": \"opened\"}' FROM routes;
         INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, failure_code, failure_message, raw_fields, recorded_at)
         SELECT 's', n || '-0', 'f', 'c', 'm', '[]', '2026-01-01' FROM generate_series(1, 20000) n;",
    );
    sql
}

/// The result of `EXPLAIN ANALYZE` for the plan that the service runs: the generic one, on a connection with
/// the service's own settings.
pub(crate) async fn plan(session: &Session, statement: impl Into<BoundStatement>) -> Value {
    let plan = explain_analyze(session, &statement.into()).await.expect("it runs");
    assert!(plan.contains('$'), "this plan was made for its parameters:\n{plan}");
    serde_json::from_str::<Value>(&plan).expect("JSON")[0]["Plan"].take()
}

pub(crate) fn number(node: &Value, property: &str) -> u64 {
    node[property].as_f64().unwrap_or(0.0).ceil() as u64
}

fn children(node: &Value) -> &[Value] {
    node["Plans"].as_array().map_or(&[], Vec::as_slice)
}

/// The node and all its descendants.
pub(crate) fn nodes(node: &Value) -> Vec<&Value> {
    let mut all = vec![node];
    all.extend(children(node).iter().flat_map(nodes));
    all
}

/// The maximum number of rows that any node of the plan read: those that it returned and those that it
/// removed.
pub(crate) fn most_rows(plan: &Value) -> u64 {
    let looked_at = |node: &&Value| {
        let properties = [
            "Actual Rows",
            "Rows Removed by Filter",
            "Rows Removed by Join Filter",
            "Rows Removed by Index Recheck",
        ];
        properties.map(|property| number(node, property)).iter().sum::<u64>() * number(node, "Actual Loops")
    };
    nodes(plan).iter().map(looked_at).max().unwrap_or(0)
}

/// True if rows of a table leave the node without passing a limit.
fn is_unlimited(node: &Value) -> bool {
    node["Node Type"] != "Limit"
        && (node["Relation Name"].is_string() || children(node).iter().any(is_unlimited))
}

/// The sorts whose input comes from a table without a limit: the given arrays may be sorted.
pub(crate) fn sorts_a_table(plan: &Value) -> bool {
    let sorts = |node: &&Value| node["Node Type"].as_str().is_some_and(|name| name.ends_with("Sort"));
    nodes(plan).iter().filter(|node| sorts(node)).any(|node| children(node).iter().any(is_unlimited))
}

#[tokio::test]
async fn no_statement_reads_or_sorts_a_whole_backlog_on_statistics_of_empty_tables() {
    look_at_plans(0).await;
}

#[tokio::test]
async fn no_statement_reads_or_sorts_a_whole_backlog_on_statistics_without_a_due_route() {
    look_at_plans(10_000).await;
}

/// A plan is made once and kept, and it is made while nothing is due: then the index of due routes looks like
/// the cheapest access path for everything. The benchmark found this as a sevenfold growth.
#[tokio::test]
async fn a_plan_that_was_made_while_nothing_was_due_reaches_routes_by_their_key() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    let published = rows(1, 10_000, "published", "NULL");
    client.batch_execute(&format!("{published} ANALYZE records; ANALYZE routes;")).await.expect("rows");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let key = key(1);
    let done = [Published { key: key.clone(), version: Version::read(since()), entry: acknowledged("1-0") }];
    let failed = [failed(&key)];
    let ids = [key.notification_id.as_str()];
    for (what, plan) in [
        ("reading again", plan(&session, live_routes(&[&key])).await),
        ("completing", plan(&session, published_at(&PUBLISH_IF_UNCHANGED, &done, Timestamp::MAX)).await),
        (
            "completing unlocked",
            plan(&session, published_at(&PUBLISH_IF_UNLOCKED, &done, Timestamp::MAX)).await,
        ),
        ("what was published", plan(&session, publications(&done)).await),
        ("failing", plan(&session, failed_at(&FAIL_IF_UNCHANGED, &failed, Timestamp::MAX)).await),
        ("failing unlocked", plan(&session, failed_at(&FAIL_IF_UNLOCKED, &failed, Timestamp::MAX)).await),
        (
            "what is unchanged",
            plan(&session, unchanged_routes([(&key, Version::read(since()))].into_iter())).await,
        ),
        ("what has failed", plan(&session, failures(&failed)).await),
        ("locking expired routes", plan(&session, retention::lock_routes(&ids)).await),
        ("counting expired routes", plan(&session, retention::count_routes(&ids, EVERYTHING)).await),
    ] {
        let text = plan.to_string();
        assert!(text.contains("routes_pkey") && !text.contains("routes_due"), "{what}:\n{plan:#}");
    }
    for (what, plan) in [
        ("the next due", plan(&session, first_due()).await),
        ("the count", plan(&session, count_due(Timestamp::MAX, LIMIT)).await),
    ] {
        let text = plan.to_string();
        assert!(text.contains("routes_due_idx") && !text.contains("routes_pkey"), "{what}:\n{plan:#}");
    }
    for order in [DueOrder::OldestFirst, DueOrder::NewestFirst] {
        let list = plan(&session, due_routes(Channel::Push, order, Timestamp::MAX, None, LIMIT)).await;
        let text = list.to_string();
        assert!(text.contains("routes_due_idx") && !text.contains("Sort"), "{list:#}");
    }
}

pub(crate) fn store(database: &TestDatabase) -> PgStore {
    let dsn = Dsn::parse(&database.dsn()).expect("a connection string");
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(30), session: SESSION };
    PgStore::new(PgPool::new(&dsn, settings).expect("a pool"))
}

/// A cutoff for all rows older than now.
const EVERYTHING: Cutoff = Cutoff { at: Timestamp::MAX, age: Duration::ZERO };

fn malformed_key(id: &str) -> MalformedKey {
    MalformedKey { stream: "s".into(), entry_id: id.into(), fields_fingerprint: "f".into() }
}

fn key(n: usize) -> RouteKey {
    RouteKey { notification_id: NotificationId::from(format!("{n}-0")), route_id: "push:user:u".into() }
}

fn failed(key: &RouteKey) -> Failed {
    Failed {
        key: key.clone(),
        version: Version::read(since()),
        channel: Channel::Push,
        attempt_count: 3,
        retry_at: None,
        classification: "gateway_stream_publish_failed",
        message: "it's broken".into(),
    }
}

async fn look_at_plans(published: u32) {
    let database = TestDatabase::new().await;
    database.client().await.batch_execute(&backlog(published)).await.expect("a backlog");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");

    let cursor = DueCursor { next_attempt_at: since().to_string(), key: key(5000) };
    let keys: Vec<RouteKey> = (1..=LIMIT).map(key).collect();
    let done: Vec<Published> = keys
        .iter()
        .map(|key| Published {
            key: key.clone(),
            version: Version::read(since()),
            entry: acknowledged("1-0"),
        })
        .collect();
    let failed: Vec<Failed> = keys.iter().map(failed).collect();
    let dead: Vec<&Failed> = failed.iter().collect();
    let ids: Vec<&str> = keys.iter().map(|key| key.notification_id.as_str()).collect();
    let record = Expired { key: key(5000).notification_id, at: since(), rows: 3, bytes: 0, live: false };
    let malformed: Vec<MalformedKey> = ids.iter().map(|id| malformed_key(id)).collect();
    let malformed: Vec<&MalformedKey> = malformed.iter().collect();
    let row = Expired { key: malformed_key("5000-0"), at: since(), rows: 1, bytes: 0, live: false };
    let now = Timestamp::MAX;
    let expected = done.iter().map(|route| (&route.key, route.version));
    session.begin().await.expect("is there");
    let plans = [
        ("the first page", plan(&session, due_routes(Channel::Push, OldestFirst, now, None, LIMIT)).await),
        (
            "a later page",
            plan(&session, due_routes(Channel::Push, OldestFirst, now, Some(&cursor), LIMIT)).await,
        ),
        ("the newest page", plan(&session, due_routes(Channel::Push, NewestFirst, now, None, LIMIT)).await),
        (
            "a newer page",
            plan(&session, due_routes(Channel::Push, NewestFirst, now, Some(&cursor), LIMIT)).await,
        ),
        ("the next due", plan(&session, first_due()).await),
        ("the count", plan(&session, count_due(now, LIMIT)).await),
        ("failing routes", plan(&session, failing(LIMIT)).await),
        ("open dead letters", plan(&session, open_dead_letters(LIMIT)).await),
        ("reading again", plan(&session, live_routes(&keys.iter().collect::<Vec<_>>())).await),
        ("expired records", plan(&session, retention::expired_records(EVERYTHING, None, LIMIT)).await),
        (
            "expired records of a later page",
            plan(&session, retention::expired_records(EVERYTHING, Some(&record), LIMIT)).await,
        ),
        ("locking expired records", plan(&session, retention::lock_records(&ids, EVERYTHING)).await),
        ("expired records' routes", plan(&session, retention::lock_routes(&ids)).await),
        ("expired records' counts", plan(&session, retention::count_routes(&ids, EVERYTHING)).await),
        ("expired records' receipts", plan(&session, retention::delete_receipts(&ids)).await),
        ("routes of reports", plan(&session, receipts::lock_routes(&keys.iter().collect())).await),
        ("deleting records", plan(&session, retention::delete_records(&ids)).await),
        (
            "malformed intents",
            plan(&session, malformed_retention::expired_malformed(EVERYTHING, None, LIMIT)).await,
        ),
        (
            "malformed intents of a later page",
            plan(&session, malformed_retention::expired_malformed(EVERYTHING, Some(&row), LIMIT)).await,
        ),
        (
            "counting malformed",
            plan(&session, malformed_retention::count_malformed(&malformed, EVERYTHING)).await,
        ),
        (
            "deleting malformed",
            plan(&session, malformed_retention::delete_malformed(&malformed, EVERYTHING)).await,
        ),
        ("what was published", plan(&session, publications(&done)).await),
        ("what is unchanged", plan(&session, unchanged_routes(expected)).await),
        ("failing unlocked", plan(&session, failed_at(&FAIL_IF_UNLOCKED, &failed, now)).await),
        ("failing", plan(&session, failed_at(&FAIL_IF_UNCHANGED, &failed, now)).await),
        ("what has failed", plan(&session, failures(&failed)).await),
        ("dead letters", plan(&session, dead_letters::insert(&dead)).await),
    ];
    session.rollback().await.expect("is there");
    session.begin().await.expect("is there");
    let unlocked =
        ("completing unlocked", plan(&session, published_at(&PUBLISH_IF_UNLOCKED, &done, now)).await);
    session.rollback().await.expect("is there");
    let completing = ("completing", plan(&session, published_at(&PUBLISH_IF_UNCHANGED, &done, now)).await);
    for (what, plan) in plans.iter().chain([&unlocked, &completing]) {
        // Both routes of an expired record are counted.
        let each = if what.starts_with("expired") { 2 } else { 1 };
        assert!(most_rows(plan) <= each * LIMIT as u64, "{what} reads the backlog:\n{plan:#}");
        let blocks = number(plan, "Shared Hit Blocks") + number(plan, "Shared Read Blocks");
        assert!(blocks <= BLOCKS * LIMIT as u64, "{what} reads {blocks} blocks:\n{plan:#}");
        assert!(!sorts_a_table(plan), "{what} sorts the backlog:\n{plan:#}");
        for node in nodes(plan) {
            let name = node["Node Type"].as_str().unwrap_or_default();
            assert!(name != "Seq Scan" && !name.starts_with("Bitmap"), "{what}:\n{plan:#}");
        }
    }
}

#[tokio::test]
async fn a_key_that_comes_back_twice_is_corrupt_and_its_error_shows_no_address() {
    let database = TestDatabase::new().await;
    let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(5), session: SESSION };
    let session = PgPool::new(&dsn, settings).expect("a pool").session("test").await.expect("connects");
    let one = "SELECT '1-0' AS notification_id, 'email:email:ops@example.com' AS route_id";
    let two = format!("{one} UNION ALL {one}");
    let rows = async |text: &str| {
        let statement = Statement::composed("test.keys", &[], text.to_owned());
        session.query(statement.bind([])).await.expect("it runs")
    };
    assert_eq!(route_keys(&rows(one).await).expect("one row").len(), 1);
    let twice = rows(&two).await;
    let error = route_keys(&twice).expect_err("a primary key cannot").to_string();
    assert_eq!(error, "routes of 1-0/email:email:**** is corrupt: a primary key matched two rows");
}
