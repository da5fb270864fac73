//! The plans of the queries: each reads a limited part of the index in its comment, with statistics of empty
//! tables and with accurate ones.

use domain::query::MAX_RECORDS;
use domain::receipt::ReceiptStatus;
use domain::route::{Channel, RouteKey, RouteStatus};
use harness::TestDatabase;
use pg::{Dsn, PoolSettings};
use serde_json::Value;

use super::candidates::*;
use super::search::tests::searched;
use super::*;
use crate::QUERY_SESSION;
use crate::routes::tests::{most_rows, nodes, number, plan};

/// The blocks that a lookup by key may touch: the levels of an index and the row.
const BLOCKS: u64 = 8;

async fn queries(database: &TestDatabase) -> PgQueries {
    let dsn = Dsn::parse(&database.dsn()).expect("a connection string");
    let operation_timeout = std::time::Duration::from_secs(60);
    let settings = PoolSettings { max_connections: 1, operation_timeout, session: QUERY_SESSION };
    PgQueries::new(PgPool::new(&dsn, settings).expect("a pool"))
}

/// A condition on a column, on a route, on a payload and on its times, so that every part is read.
const EVERY_KIND: &str = r#"{"producer": "p", "recipient": {"$exists": true}, "payload.x": {"$exists": false},
    "$not": {"payload.y": {"$after": "2026-01-01T00:00:00Z"}}}"#;
/// One of twenty notifications matches it.
const BOUNCED_PUSHES: &str = r#"{"receipt.status": "bounced", "route.channel": "push"}"#;
/// No notification matches it.
const RARE_OF_AN_HOUR: &str =
    r#"{"accepted_at": {"$after": "2026-01-01T04:33:20Z"}, "route.status": "none"}"#;

/// 20,000 notifications with two routes each: three of four are published; half of the others are live, half
/// dead letters. As many malformed intents. Each push route has a receipt; one of twenty is a bounce.
fn backlog(statistics: bool) -> String {
    let mut sql = String::new();
    for table in ["records", "routes", "receipts", "dead_letters", "malformed_intents"] {
        sql.push_str(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false); ANALYZE {table};"));
    }
    // Inserted with their final status: dead row versions would be read, too.
    sql.push_str(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', jsonb_build_array('u-' || n % 1000), '{}', n::text, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 s' AS t FROM generate_series(1, 20000) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at, created_at,
            updated_at)
         SELECT notification_id, c || ':user:u', c, 'user:u',
            CASE idempotency_key::int % 8 WHEN 0 THEN 'failed' WHEN 1 THEN 'dead_letter' ELSE 'published' END, 3,
            CASE idempotency_key::int % 8 WHEN 0 THEN accepted_at END, accepted_at, accepted_at
         FROM records, unnest(ARRAY['push', 'email']) c;
         INSERT INTO receipts (key, value)
         SELECT notification_id || '/push:user:u', jsonb_build_object('at', accepted_at,
            'status', CASE idempotency_key::int % 20 WHEN 0 THEN 'bounced' ELSE 'delivered' END)
         FROM records;
         INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', created_at FROM routes WHERE status = 'dead_letter';
         INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, producer, idempotency_key, failure_code, failure_message,
            raw_fields, recorded_at)
         SELECT 's', n || '-0', 'f', 'p', CASE n % 2 WHEN 0 THEN '8' ELSE n::text END, 'c', 'm', '[]', timestamptz '2026-01-01' + n * interval '1 s' FROM generate_series(1, 20000) n;",
    );
    if statistics {
        sql.push_str("ANALYZE records; ANALYZE routes; ANALYZE receipts; ANALYZE dead_letters; ANALYZE malformed_intents;");
    }
    sql
}

/// True if a node sorts more than the rows of one page of candidates.
fn sorts_much(plan: &Value) -> bool {
    let sorts = |node: &&&Value| node["Node Type"].as_str().is_some_and(|name| name.ends_with("Sort"));
    nodes(plan).iter().filter(sorts).any(|node| number(node, "Actual Rows") > 200)
}

async fn look_at_plans(statistics: bool) {
    let database = TestDatabase::new().await;
    database.client().await.batch_execute(&backlog(statistics)).await.expect("a backlog");
    let queries = queries(&database).await;
    let session = queries.session("explain").await.expect("is there");
    let filter = NotificationFilter::default();
    let delivered = NotificationFilter { receipt: Some(ReceiptStatus::Delivered), ..filter.clone() };
    let rare = NotificationFilter { notification_type: Some("rare".into()), ..filter.clone() };
    let range = Range::new(&filter, None);
    let hour = Range {
        since: Timestamp::from_millis(1_767_225_600_000 + 16_400_000).expect("in range"),
        ..range.clone()
    };
    let some: Vec<RecordCursor> = (1..=200)
        .map(|n| RecordCursor { notification_id: format!("{n}-0").into(), ..range.after.clone() })
        .collect();
    let ids: Vec<&str> = some.iter().map(|place| place.notification_id.as_str()).collect();
    let id = NotificationId::from("8-0".to_owned());
    let fifty: Vec<NotificationId> =
        some.iter().take(MAX_RECORDS).map(|place| place.notification_id.clone()).collect();
    let now = Timestamp::from_millis(1_767_312_000_000).expect("in range");
    let producers = ["p".to_owned(), "q".to_owned()];
    let letters = DeadLetterFilter::default();
    let letter = DeadLetterPlace {
        created_at: now,
        key: RouteKey { notification_id: id.clone(), route_id: "push:user:u".into() },
    };
    let rare_letters = DeadLetterFilter { classification: Some("rare".into()), ..letters.clone() };
    let discarded = DeadLetterFilter { discarded: true, ..letters.clone() };
    let malformed_filter = MalformedFilter::default();
    let rare_malformed = MalformedFilter { code: Some("rare".into()), ..malformed_filter.clone() };
    let key = IdempotencyKey { producer: "p".to_owned(), key: "8".to_owned() };
    let (few, page, examined, candidates) = (10, 50, MAX_EXAMINED as u64, MAX_CANDIDATES as u64);
    let (cap, bounced) = (domain::query::COUNT_CAP, 1_000);
    use notifications::listed as notifications;
    use {dead_letters::listed as dead_letters, malformed_intents::listed as malformed};
    // The name, the plan, the index, the maximum rows of a node, and the maximum blocks.
    let plans = [
        ("a record", plan(&session, detail::record_of(&id)).await, "records_pkey", few, BLOCKS),
        (
            "records",
            plan(&session, detail::records_of(&fifty)).await,
            "records_pkey",
            2 * MAX_RECORDS as u64,
            4 * BLOCKS * MAX_RECORDS as u64,
        ),
        ("its routes", plan(&session, detail::routes_of(&id)).await, "routes_pkey", few, 4 * BLOCKS),
        (
            "a page",
            plan(&session, notifications(&filter, &range, 50)).await,
            "records_listing_idx",
            page,
            2 * BLOCKS * page,
        ),
        (
            "a sparse page",
            plan(&session, notifications(&rare, &range, 50)).await,
            "records_listing_idx",
            examined,
            2 * examined,
        ),
        (
            "by ids",
            plan(&session, notifications::with_ids(&filter, &some)).await,
            "records_pkey",
            200,
            BLOCKS * 200,
        ),
        ("counts", plan(&session, notifications::route_counts(&ids)).await, "routes_pkey", 400, BLOCKS * 400),
        ("a producer", plan(&session, next_producer("")).await, "records_idempotency_unique", few, BLOCKS),
        (
            "a key",
            plan(&session, with_key(&producers, "8")).await,
            "records_idempotency_unique",
            few,
            2 * BLOCKS,
        ),
        ("a user", plan(&session, to_user("u-8")).await, "records_recipients_idx", 4 * few, 1_000),
        (
            "an administrator",
            plan(&session, to_administrator("u", &range)).await,
            "routes_admin_idx",
            few,
            BLOCKS,
        ),
        (
            "a status",
            plan(&session, unpublished(RouteStatus::Failed, &range)).await,
            "routes_unpublished_idx",
            candidates,
            2 * candidates,
        ),
        (
            "a receipt",
            plan(&session, with_receipt(ReceiptStatus::Bounced)).await,
            "receipts_value_gin",
            bounced,
            2 * BLOCKS * bounced,
        ),
        (
            "a page by receipt",
            plan(&session, notifications(&delivered, &range, 50)).await,
            "receipts_pkey",
            2 * page,
            4 * BLOCKS * page,
        ),
        (
            "a search for receipts",
            plan(&session, search::listed(&searched(BOUNCED_PUSHES), &range, 50)).await,
            "receipts_pkey",
            40 * page,
            8 * BLOCKS * 20 * page,
        ),
        (
            "searched by ids",
            plan(&session, search::with_ids(&searched(EVERY_KIND), &some)).await,
            "records_pkey",
            400,
            4 * BLOCKS * 200,
        ),
        (
            "a search",
            plan(&session, search::listed(&searched(r#"{"payload.x": {"$exists": false}}"#), &range, 50))
                .await,
            "records_listing_idx",
            page,
            2 * BLOCKS * page,
        ),
        (
            "a search for routes",
            plan(&session, search::listed(&searched(r#"{"route.channel": "push"}"#), &range, 50)).await,
            "routes_pkey",
            2 * page,
            2 * BLOCKS * page,
        ),
        (
            "a search within a time",
            plan(&session, search::listed(&searched(RARE_OF_AN_HOUR), &hour, 50)).await,
            "records_listing_idx",
            2 * 3_700,
            8 * 3_700,
        ),
        (
            "record ids",
            plan(&session, with_record_ids(&["8-0".to_owned()])).await,
            "records_pkey",
            few,
            BLOCKS,
        ),
        ("live routes", plan(&session, live()).await, "routes_due_idx", candidates, 2 * candidates),
        (
            "dead letters",
            plan(&session, dead_letters(&letters, None, 50)).await,
            "dead_letters_open_idx",
            page,
            4 * BLOCKS * page,
        ),
        (
            "more of them",
            plan(&session, dead_letters(&letters, Some(&letter), 50)).await,
            "dead_letters_open_idx",
            page,
            4 * BLOCKS * page,
        ),
        (
            "sparse ones",
            plan(&session, dead_letters(&rare_letters, None, 50)).await,
            "dead_letters_open_idx",
            examined,
            // Does not read record and route of those that do not match.
            2 * examined,
        ),
        (
            "discarded ones",
            plan(&session, dead_letters(&discarded, None, 50)).await,
            "dead_letters_discarded_idx",
            few,
            BLOCKS,
        ),
        (
            "malformed",
            plan(&session, malformed(&malformed_filter, None, 50)).await,
            "malformed_intents_recorded_idx",
            page,
            BLOCKS * page,
        ),
        (
            "sparse malformed",
            plan(&session, malformed(&rare_malformed, None, 50)).await,
            "malformed_intents_recorded_idx",
            examined,
            2 * examined,
        ),
        (
            "of an entry",
            plan(&session, malformed_intents::of_entry("s", "8-0")).await,
            "malformed_intents_pkey",
            few,
            BLOCKS,
        ),
        (
            "malformed by key",
            plan(&session, malformed_intents::with_key(&key)).await,
            "malformed_intents_key_idx",
            few,
            BLOCKS,
        ),
        ("due", plan(&session, status::due(Channel::Push, now)).await, "routes_due_idx", cap, 2 * cap),
        (
            "bad receipts",
            plan(&session, status::recent_receipts(ReceiptStatus::Bounced, now)).await,
            "receipts_value_gin",
            bounced,
            2 * bounced,
        ),
        ("failing", plan(&session, status::failing()).await, "routes_unpublished_idx", cap, 2 * cap),
        (
            "recent dead letters",
            plan(&session, status::recent(&status::RECENT_DEAD_LETTERS, now)).await,
            "dead_letters_open_idx",
            cap,
            2 * cap,
        ),
        (
            "recent malformed",
            plan(&session, status::recent(&status::RECENT_MALFORMED, now)).await,
            "malformed_intents_recorded_idx",
            cap,
            2 * cap,
        ),
        (
            "causes of dead letters",
            plan(&session, causes::newest(&causes::DEAD_LETTERS)).await,
            "dead_letters_open_idx",
            cap,
            2 * cap,
        ),
        (
            "causes of malformed intents",
            plan(&session, causes::newest(&causes::MALFORMED_INTENTS)).await,
            "malformed_intents_recorded_idx",
            cap,
            2 * cap,
        ),
    ];
    let mut problems = Vec::new();
    for (what, plan, index, rows, blocks) in &plans {
        let touched = number(plan, "Shared Hit Blocks") + number(plan, "Shared Read Blocks");
        // A window function reads one row more than it returns.
        let read = most_rows(plan);
        let is_bounded = read <= rows + 1 && touched <= *blocks && !sorts_much(plan);
        let scans = nodes(plan).iter().any(|node| node["Node Type"] == "Seq Scan");
        if !is_bounded || scans || !plan.to_string().contains(index) {
            problems.push(format!("{what} reads {read} rows and {touched} blocks:\n{plan:#}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test]
async fn every_query_reads_a_bounded_part_of_its_index_on_statistics_of_empty_tables() {
    look_at_plans(false).await;
}

#[tokio::test]
async fn every_query_reads_a_bounded_part_of_its_index_on_true_statistics() {
    look_at_plans(true).await;
}
