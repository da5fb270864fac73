//! The plans of the statements that meet a backlog: none of them may read or sort the whole of it.

use std::time::Duration;

use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings, PostgresBinderRef, PostgresValues};

use super::*;
use crate::PgStore;

/// Records `first` to `last`, with two routes each.
fn rows(first: u32, last: u32, status: &str, next_attempt_at: &str) -> String {
    format!(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
            request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', '{{}}', n::text, 'v1:', now(), now(), now(), now() FROM generate_series({first}, {last}) n;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
            created_at, updated_at)
         SELECT n || '-0', c || ':user:u', c, 'user:u', '{status}', 3, {next_attempt_at}, now(), now()
         FROM generate_series({first}, {last}) n, unnest(ARRAY['push', 'email']) c;"
    )
}

/// 20,000 routes that are due since the planner's statistics were taken: when the tables were empty, or when they held
/// many routes of which none was due. The second is what they say nearly always.
fn backlog(published: u32) -> String {
    let mut sql = "ALTER TABLE records SET (autovacuum_enabled = false); ALTER TABLE routes SET (autovacuum_enabled = false);".to_owned();
    sql.push_str(&rows(100_001, 100_000 + published, "published", "NULL"));
    sql.push_str("ANALYZE records; ANALYZE routes;");
    sql.push_str(&rows(1, 10_000, "pending", "'2026-01-01'"));
    sql
}

/// A statement with its parameters, to be explained and not run for its own sake.
struct Explained<'a, S>(&'a S);

impl<S: PostgresBinderRef> PostgresBinderRef for Explained<'_, S> {
    fn build_ref(&self) -> (String, PostgresValues) {
        let (text, values) = self.0.build_ref();
        (format!("EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) {text}"), values)
    }
}

/// `EXPLAIN ANALYZE` on a connection with the service's own settings: the plan, and the rows that each node gave.
async fn plan(session: &Session, statement: &impl PostgresBinderRef) -> String {
    let rows = session.query(&Explained(statement)).await.expect("it runs");
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

/// The most rows that any node of the plan gave.
fn most_rows(plan: &str) -> u64 {
    let actual = plan.split("(actual rows=").skip(1);
    actual.filter_map(|rest| rest.split(' ').next()?.parse().ok()).max().unwrap_or(0)
}

#[tokio::test]
async fn no_statement_reads_or_sorts_a_whole_backlog_on_statistics_of_empty_tables() {
    look_at_plans(0).await;
}

#[tokio::test]
async fn no_statement_reads_or_sorts_a_whole_backlog_on_statistics_without_a_due_route() {
    look_at_plans(10_000).await;
}

/// A plan is made once and kept, and it is made while nothing is due: then the index of due routes looks like the
/// cheapest way to everything. Found as a growth of sevenfold in the benchmark.
#[tokio::test]
async fn a_plan_that_was_made_while_nothing_was_due_reaches_routes_by_their_key() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    let published = rows(1, 10_000, "published", "NULL");
    client.batch_execute(&format!("{published} ANALYZE records; ANALYZE routes;")).await.expect("rows");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let key =
        RouteKey { notification_id: NotificationId::from("1-0".to_owned()), route_id: "push:user:u".into() };
    let done = Published { key: &key, version: Version::read(Timestamp::MIN), entry_id: "1-0".into() };
    let ids = [key.notification_id.clone()];
    for (what, plan) in [
        ("reading again", plan(&session, &live_routes(&[&key])).await),
        (
            "completing",
            plan(&session, &publish_if_unchanged(std::slice::from_ref(&done), Timestamp::MAX)).await,
        ),
        ("what was published", plan(&session, &publications(std::slice::from_ref(&done))).await),
        ("retention", plan(&session, &crate::retention::delete_records(&ids, Timestamp::MIN)).await),
    ] {
        assert!(plan.contains("routes_pkey") && !plan.contains("routes_due"), "{what}:\n{plan}");
    }
    let list = plan(&session, &due_routes(Channel::Push, Timestamp::MAX, None, 512)).await;
    assert!(list.contains("routes_due_by_channel_idx") && !list.contains("Sort"), "{list}");
}

fn store(database: &TestDatabase) -> PgStore {
    let dsn = Dsn::parse(&database.dsn()).expect("a connection string");
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(30) };
    PgStore::new(PgPool::new(&dsn, settings).expect("a pool"))
}

async fn look_at_plans(published: u32) {
    let database = TestDatabase::new().await;
    database.client().await.batch_execute(&backlog(published)).await.expect("a backlog");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");

    let limit = 512;
    let cursor = DueCursor {
        next_attempt_at: Timestamp::from_millis(1_767_225_600_000).expect("in range"),
        key: RouteKey {
            notification_id: NotificationId::from("5000-0".to_owned()),
            route_id: "push:user:u".into(),
        },
    };
    let keys: Vec<RouteKey> = (1..=limit)
        .map(|n| RouteKey {
            notification_id: NotificationId::from(format!("{n}-0")),
            route_id: "push:user:u".into(),
        })
        .collect();
    let done: Vec<Published> = keys
        .iter()
        .map(|key| Published { key, version: Version::read(Timestamp::MIN), entry_id: "1-0".into() })
        .collect();
    let now = Timestamp::MAX;
    let plans = [
        ("the first page", plan(&session, &due_routes(Channel::Push, now, None, limit)).await),
        ("a later page", plan(&session, &due_routes(Channel::Push, now, Some(&cursor), limit)).await),
        ("the next due", plan(&session, &first_due()).await),
        ("the count", plan(&session, &count_due(now, limit)).await),
        ("reading again", plan(&session, &live_routes(&keys.iter().collect::<Vec<_>>())).await),
        ("what was published", plan(&session, &publications(&done)).await),
        ("completing", plan(&session, &publish_if_unchanged(&done, now)).await),
    ];
    for (what, plan) in plans {
        assert!(most_rows(&plan) <= limit as u64, "{what} reads the backlog:\n{plan}");
        assert!(!plan.contains("Seq Scan") && !plan.contains("Bitmap"), "{what}:\n{plan}");
        assert!(
            !plan.contains("Sort") || most_rows(&plan) <= limit as u64,
            "{what} sorts the backlog:\n{plan}"
        );
    }
}

#[tokio::test]
async fn a_key_that_comes_back_twice_is_corrupt_and_its_error_shows_no_address() {
    let database = TestDatabase::new().await;
    let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(5) };
    let session = PgPool::new(&dsn, settings).expect("a pool").session("test").await.expect("connects");
    let row = || {
        Query::select()
            .expr(bind::text("1-0"))
            .expr(bind::text("email:email:ops@example.com"))
            .expr(bind::text("2-0"))
            .take()
    };
    let once = session.query(&row()).await.expect("it runs");
    assert_eq!(keys(&once).expect("one row").len(), 1);
    let twice = session.query(row().union(sea_query::UnionType::All, row())).await.expect("it runs");
    let error = keys(&twice).expect_err("a primary key cannot").to_string();
    assert_eq!(error, "routes of 1-0/email:email:**** is corrupt: a primary key matched two rows");
}
