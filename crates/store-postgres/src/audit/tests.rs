//! The plans of the statements of an audit: each reads a page by an index and everything else by primary
//! keys.

use ambient::Timestamp;
use domain::audit::EntryTrace;
use domain::entry::{EntryId, RawFields};
use domain::ports::ChildTable;
use domain::record::{IdempotencyKey, NotificationId, RecordCursor};
use domain::route::RouteKey;
use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings};
use serde_json::Value;

use super::{entries, orphans, records};
use crate::records::requests_of;
use crate::routes::tests::{most_rows, nodes, plan, rows, sorts_a_table};
use crate::{PgQueries, QUERY_SESSION};

/// The rows of the largest page: two routes for each of 256 records, or one page of a primary key.
const MOST_ROWS: u64 = 4_096;

fn key(number: usize) -> RouteKey {
    let notification_id = NotificationId::from(format!("{number}-0"));
    RouteKey { notification_id, route_id: "push:user:u".into() }
}

fn trace(number: usize) -> EntryTrace {
    let key = IdempotencyKey { producer: "p".into(), key: number.to_string() };
    let catalog = domain::catalog::Catalog::built_in();
    let trace = EntryTrace::new(EntryId::new(number as u64, 0), Ok(&RawFields::default()), &catalog);
    EntryTrace { key: Some(key), ..trace }
}

async fn look_at_plans(statistics: bool) {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    for table in ["records", "routes", "dead_letters", "malformed_intents"] {
        let off = format!("ALTER TABLE {table} SET (autovacuum_enabled = false); ANALYZE {table}");
        client.batch_execute(&off).await.expect("it is ours");
    }
    client.batch_execute(&rows(1, 10_000, "published", "NULL")).await.expect("rows");
    if statistics {
        client.batch_execute("ANALYZE records; ANALYZE routes").await.expect("it is ours");
    }
    let dsn = Dsn::parse(&database.dsn()).expect("a connection string");
    let operation_timeout = std::time::Duration::from_secs(60);
    let settings = PoolSettings { max_connections: 1, operation_timeout, session: QUERY_SESSION };
    let queries = PgQueries::new(PgPool::new(&dsn, settings).expect("a pool"));
    let session = queries.session("explain").await.expect("is there");
    let ids: Vec<NotificationId> = (1..=256).map(|number| key(number).notification_id).collect();
    let ids: Vec<&NotificationId> = ids.iter().collect();
    let keys: Vec<RouteKey> = (1..=256).map(key).collect();
    let keys: Vec<&RouteKey> = keys.iter().collect();
    let traces: Vec<EntryTrace> = (1..=256).map(trace).collect();
    let request_keys = traces.iter().filter_map(|trace| trace.key.as_ref());
    let begin = RecordCursor::before(Timestamp::MIN);
    for (what, plan, index) in [
        ("sizes", plan(&session, records::sizes(&begin, Timestamp::MAX)).await, "records_listing_idx"),
        ("records", plan(&session, records::records_of(&ids)).await, "records_pkey"),
        ("routes", plan(&session, records::routes_of(&ids)).await, "routes_pkey"),
        ("keys", plan(&session, requests_of(request_keys)).await, "records_idempotency_unique"),
        ("malformed", plan(&session, entries::malformed_of("s", &traces)).await, "malformed_intents_pkey"),
        ("states", plan(&session, entries::states_of(&keys)).await, "routes_pkey"),
        (
            "routes without a record",
            plan(&session, orphans::orphans(ChildTable::Routes, None)).await,
            "records_pkey",
        ),
        (
            "later routes without a record",
            plan(&session, orphans::orphans(ChildTable::Routes, Some(&key(5)))).await,
            "routes_pkey",
        ),
        (
            "dead letters without a route",
            plan(&session, orphans::orphans(ChildTable::DeadLetters, None)).await,
            "dead_letters_pkey",
        ),
    ] {
        check(what, &plan, index);
    }
}

fn check(what: &str, plan: &Value, index: &str) {
    assert!(nodes(plan).iter().all(|node| node["Node Type"] != "Seq Scan"), "{what}: {plan:#}");
    assert!(plan.to_string().contains(index), "{what}: {plan:#}");
    // A window function reads one row more than it returns.
    assert!(most_rows(plan) <= MOST_ROWS + 1, "{what}: {plan:#}");
    assert!(!sorts_a_table(plan), "{what}: {plan:#}");
}

#[tokio::test]
async fn every_statement_of_an_audit_reads_a_page_of_its_index_on_statistics_of_empty_tables() {
    look_at_plans(false).await;
}

#[tokio::test]
async fn every_statement_of_an_audit_reads_a_page_of_its_index_on_true_statistics() {
    look_at_plans(true).await;
}
