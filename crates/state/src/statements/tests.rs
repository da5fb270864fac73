//! The plans of the statements on a large table: each uses an index, whatever the planner's statistics are.

use std::time::Duration;

use local_servers::{Postgres, PostgresOptions};
use pg::{BoundStatement, Dsn, PgPool, PoolSettings, Session, SessionSettings, check_plan};
use serde_json::Value as Json;

use super::*;
use crate::{PostgresStore, StatusCondition, schema_sql};

/// Every row but the last has a key that begins with `b/`.
const ROWS: u32 = 1_000_000;
/// A table of the original, whose key has a linguistic sort order.
const ORIGINAL: &str = r#"CREATE TABLE kv (key text COLLATE "en-US-x-icu" PRIMARY KEY, value jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());"#;

/// The time at which the planner's statistics are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Statistics {
    WhileEmpty,
    Now,
}

async fn table(server: &Postgres, name: &str, create: &str, rows: u32, statistics: Statistics) -> PgPool {
    server.execute("postgres", &format!("CREATE DATABASE {name}")).await.expect("a database");
    let analyze = |when| if statistics == when { "ANALYZE kv;" } else { "" };
    // The index on values is not needed here, and building it takes most of the time.
    let sql = format!(
        "{create} DROP INDEX IF EXISTS kv_value_gin; ALTER TABLE kv SET (autovacuum_enabled = false); {}
         INSERT INTO kv (key, value) SELECT 'b/' || n, '{{\"status\":\"a\"}}' FROM generate_series(1, {rows}) AS n;
         INSERT INTO kv (key, value) VALUES ('a', '1'); {}",
        analyze(Statistics::WhileEmpty),
        analyze(Statistics::Now),
    );
    server.execute(name, &sql).await.expect("rows");
    let dsn = Dsn::parse(&server.superuser_dsn(name)).expect("a connection string");
    PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &[])
        .await
        .expect("it is ready");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(60), session };
    PgPool::new(&dsn, settings).expect("a pool")
}

/// Runs `EXPLAIN ANALYZE` of the plan that a store runs: the generic one. Its changes are rolled back.
async fn plan(session: &Session, statement: &BoundStatement, literals: &str) -> Json {
    let sql = statement.statement().text();
    session.begin().await.expect("begun");
    session.execute_batch(&format!("PREPARE s AS {sql}")).await.expect("it is right");
    let explain = format!("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE s ({literals})");
    let plan = session.raw(&explain).await.expect("it runs").remove(0);
    session.execute_batch("DEALLOCATE s").await.expect("it was prepared");
    session.rollback().await.expect("taken back");
    serde_json::from_str::<Json>(&plan).expect("JSON")[0]["Plan"].take()
}

/// The node and all nodes below it.
fn nodes(node: &Json) -> Vec<&Json> {
    let below = node["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(node).chain(below.iter().flat_map(nodes)).collect()
}

/// Asserts that no node of the plan scans the whole table, reads more rows than `most`, or sorts what it
/// reads.
fn check(what: &str, plan: &Json, most: f64) {
    for node in nodes(plan) {
        let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
        let read = number("Actual Rows")
            + number("Rows Removed by Filter")
            + number("Rows Removed by Index Recheck");
        assert!(read * number("Actual Loops").max(1.0) <= most, "{what} reads {read} rows:\n{plan:#}");
        assert_ne!(node["Node Type"], "Seq Scan", "{what}:\n{plan:#}");
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

async fn look_at_plans(session: &Session) {
    let (table, value) = (TableName::default(), Value::parse("1").expect("a value"));
    let one = key("b/7");
    check("get", &plan(session, &get(&table, &one, 10), "'b/7', 10").await, 1.0);
    let keys = [&one];
    let three = "ARRAY['b/7', 'b/8', 'none']";
    check("probe", &plan(session, &probe(&table, &one), "'b/7'").await, 1.0);
    check("get_version", &plan(session, &get_version(&table, &one), "'b/7'").await, 1.0);
    let many = get_many(&table, &keys, 10);
    check("get_many", &plan(session, &many, &format!("{three}, 10")).await, 3.0);
    let members = get_members(&table, &keys.map(Key::clone), &["a"], 10);
    let literals = format!("{three}, ARRAY['a', 'b'], 10");
    check("get_members", &plan(session, &members, &literals).await, 6.0);
    check("lock_many", &plan(session, &lock_many(&table, &keys), three).await, 3.0);
    check("delete_many", &plan(session, &delete_many(&table, &keys), three).await, 3.0);
    check("upsert", &plan(session, &upsert(&table, &one, &value), "'b/7', '1'").await, 1.0);
    check("insert", &plan(session, &insert(&table, &one, &value), "'b/7', '1'").await, 1.0);
    check("replace", &plan(session, &replace(&table, &one, &value), "'b/7', '1'").await, 1.0);
    check("lock", &plan(session, &lock(&table, &one), "'b/7'").await, 1.0);
    check("lock_value", &plan(session, &lock_value(&table, &one, 10), "'b/7', 10").await, 1.0);
    let many = upsert_many(&table, &[(&one, &value)]);
    check("upsert_many", &plan(session, &many, "ARRAY['b/7', 'new'], ARRAY['1', '2']").await, 2.0);
    let many = insert_many(&table, &[(&one, &value)]);
    check("insert_many", &plan(session, &many, "ARRAY['b/7', 'new'], ARRAY['1', '2']").await, 2.0);
    for version in [VersionCondition::Exists, VersionCondition::Is(Some(Version(7)))] {
        for status in [None, Some(StatusCondition("a".into()))] {
            let mut literals = "'b/7', '1'".to_owned();
            if version != VersionCondition::Exists {
                literals.push_str(", 7");
            }
            if status.is_some() {
                literals.push_str(", 'a'");
            }
            let statement = update(&table, &one, &value, &WriteConditions { version, status });
            check("update", &plan(session, &statement, &literals).await, 1.0);
        }
    }
    check("delete", &plan(session, &delete(&table, &one, None), "'b/7'").await, 1.0);
    check("delete", &plan(session, &delete(&table, &one, Some(Version(7))), "'b/7', 7").await, 1.0);
    look_at_lists(session).await;
}

async fn look_at_lists(session: &Session) {
    let table = TableName::default();
    let prefix = |text: &str| Prefix::new(text).expect("a prefix");
    for (statement, literals) in [
        (list(&table, &prefix(""), None, 100), "100, ''"),
        (list(&table, &prefix("b/"), None, 100), "100, 'b/', 'b0'"),
        (list(&table, &prefix("b/5"), None, 100), "100, 'b/5', 'b/6'"),
        (list(&table, &prefix("b/"), Some(&key("b/777")), 100), "100, 'b/777', 'b0'"),
        (list(&table, &prefix("none"), None, 100), "100, 'none', 'nonf'"),
    ] {
        let plan = plan(session, &statement, literals).await;
        check("list", &plan, 100.0);
        let names: Vec<&Json> = nodes(&plan).into_iter().map(|node| &node["Node Type"]).collect();
        assert!(!names.iter().any(|name| *name == "Sort"), "{plan:#}");
        assert!(nodes(&plan).iter().any(|node| node["Index Cond"].is_string()), "{plan:#}");
    }
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_claims() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let name = TableName::default();
    let pool = table(&server, "claims", &schema_sql(&name), 1_000, Statistics::WhileEmpty).await;
    let session = pool.session("explain").await.expect("is there");
    let mut differences = Vec::new();
    for statement in registry(&name).expect("valid keys") {
        differences.extend(check_plan(&session, &statement).await.err());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn a_value_becomes_a_text_when_its_page_is_known() {
    let query =
        Query::parse(br#"{"filter": {"a": {"$gt": 1}}, "sort": ["a"], "limit": 50}"#).expect("a query");
    let target = compile::Table::new("kv", Vec::new());
    let page = page(&query, &target, (compile::ReadPlan::Planned, 10)).expect("no cursor");
    let text = page.statement().text();
    let [_, documents, matching] = text.splitn(3, " FROM (").collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    assert!(documents.contains("value::text"), "{text}");
    assert!(matching.contains("LIMIT $") && !matching.contains("value::text"), "{text}");
}

// K-16
#[tokio::test]
async fn every_statement_goes_down_an_index_of_a_million_documents() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let ours = schema_sql(&TableName::default());
    let pool = table(&server, "ours", &ours, ROWS, Statistics::WhileEmpty).await;
    look_at_plans(&pool.session("explain").await.expect("is there")).await;
}

// K-16
#[tokio::test]
async fn every_statement_goes_down_an_index_of_a_table_of_the_original() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    for (name, statistics) in [("empty", Statistics::WhileEmpty), ("now", Statistics::Now)] {
        let pool = table(&server, name, ORIGINAL, ROWS / 10, statistics).await;
        look_at_plans(&pool.session("explain").await.expect("is there")).await;
    }
}
