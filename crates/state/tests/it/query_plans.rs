//! The plans of queries on 100,000 documents, with statistics of an empty table and with current ones.

use pg::Session;
use serde_json::Value;
use state::query::Query;
use state::query::compile::{self, ReadPlan, Table};
use state::query::expressions::IndexType;

use crate::query_support::{Composed, Database, TABLE};

const DOCUMENTS: u64 = 100_000;

/// `EXPLAIN ANALYZE` of a statement with its parameters.
async fn explain(session: &Session, statement: Composed) -> Value {
    let explained = statement.bind("EXPLAIN (ANALYZE, VERBOSE, TIMING OFF, FORMAT JSON) ");
    let rows = session.query_once(explained).await.expect("it runs");
    rows[0].get::<_, Value>(0)[0]["Plan"].take()
}

fn nodes(node: &Value) -> Vec<&Value> {
    let children = node["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(node).chain(children.iter().flat_map(nodes)).collect()
}

/// The highest number of rows that a node read.
fn most_rows(plan: &Value) -> u64 {
    let number = |node: &Value, property: &str| node[property].as_f64().unwrap_or(0.0).ceil() as u64;
    let looked_at = |node: &&Value| {
        let properties = ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"];
        properties.iter().map(|property| number(node, property)).sum::<u64>() * number(node, "Actual Loops")
    };
    nodes(plan).iter().map(looked_at).max().unwrap_or(0)
}

/// 100,000 documents: `n` is their number and `s` one of 1,000 texts, both indexed, as are `t`, a time, and
/// `b`, which is true in one of 1,000. `u`, one of 10,000 texts, `half`, 0 or 1, and `tags` have no declared
/// index.
async fn full(statistics: bool) -> Database {
    full_of_texts(200, statistics).await
}

/// The same documents with so many more characters in each.
async fn full_of_texts(characters: u32, statistics: bool) -> Database {
    let mut database = Database::new().await;
    database.execute("ALTER TABLE kv SET (autovacuum_enabled = false); ANALYZE kv").await;
    for (name, index_type) in [
        ("n", IndexType::Numeric),
        ("s", IndexType::Text),
        ("t", IndexType::Timestamptz),
        ("b", IndexType::Boolean),
    ] {
        database.index(name, index_type).await;
    }
    database
        .execute(&format!(
            "INSERT INTO kv SELECT 'k/' || to_char(n, 'FM000000'), jsonb_build_object('n', n, 's', 's' || n % 1000,
                't', to_char(timestamptz '2024-01-01' + n * interval '1 s', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), 'b', n % 1000 = 0,
                'u', 'u' || n % 10000, 'half', n % 2, 'tags', jsonb_build_array('tag' || n % 10000, n), 'text', repeat('x', {characters})),
                n, now(), now() FROM generate_series(1, {DOCUMENTS}) n"
        ))
        .await;
    // A GIN index is as slow as its list of pending entries is long.
    database.value::<i64>("SELECT gin_clean_pending_list('kv_value_idx')").await;
    if statistics {
        database.execute("ANALYZE kv").await;
    }
    database
}

/// The query, the expected index, and the most rows that may be read. A page in key order, of documents with
/// a rare value, may be read from the index on the value or from the index on keys; statistics decide, and
/// without them it may be the latter.
const PAGES: [(&str, &str, u64); 20] = [
    (r#"{"filter": {"u": "u5"}, "limit": 50}"#, "kv_value_idx", 20),
    (r#"{"filter": {"u": "u5"}, "sort": ["-n"]}"#, "kv_value_idx", 20),
    (r#"{"filter": {"u": {"$in": ["u5", "u6", "u7"]}}, "limit": 50}"#, "kv_value_idx", 60),
    (r#"{"filter": {"tags": {"$contains": "tag5"}}, "limit": 50}"#, "kv_value_idx", 20),
    (r#"{"filter": {"tags": {"$contains": ["tag5"]}}, "limit": 50}"#, "kv_value_idx", 20),
    (r#"{"filter": {"tags": ["tag5", 5]}, "limit": 50}"#, "kv_value_idx", 20),
    (r#"{"filter": {"$or": [{"u": "u5"}, {"u": "u6"}]}, "limit": 50}"#, "kv_value_idx", 40),
    (r#"{"filter": {"n": 5}}"#, "kv_", 20),
    (r#"{"filter": {"b": true}, "count": true}"#, "kv_", 120),
    (r#"{"filter": {"n": {"$gt": 99990}}, "limit": 50}"#, "kv_n_numeric", 20),
    (r#"{"filter": {"n": {"$gte": 10, "$lt": 20}}, "limit": 50}"#, "kv_n_numeric", 20),
    (r#"{"filter": {"n": {"$in": [5, 6, 7e0, 123456789]}}, "limit": 50}"#, "kv_n_numeric", 20),
    (r#"{"filter": {"s": {"$gt": "s99", "$lt": "s991"}}, "limit": 50}"#, "kv_s_text", 300),
    (r#"{"filter": {"t": {"$before": "2024-01-01T00:00:10Z"}}, "limit": 50}"#, "kv_t_timestamptz", 20),
    (r#"{"filter": {"t": {"$after": "2024-01-02T03:46:30Z"}}, "limit": 50}"#, "kv_t_timestamptz", 20),
    (r#"{"filter": {"n": {"$gte": 0}}, "sort": ["n"], "limit": 50}"#, "kv_n_numeric", 100),
    (r#"{"filter": {"n": {"$lt": 1e6}}, "sort": ["-n"], "limit": 50}"#, "kv_n_numeric", 100),
    (r#"{"filter": {"s": {"$gte": ""}}, "sort": ["s"], "limit": 50}"#, "kv_s_text", 300),
    (r#"{"prefix": "k/05", "limit": 50}"#, "kv_pkey", 60),
    (r#"{"prefix": "k/05", "sort": ["-key"], "limit": 50}"#, "kv_pkey", 60),
];

fn check(problems: &mut Vec<String>, what: &str, plan: &Value, index: &str, rows: u64) {
    let scans = nodes(plan).iter().any(|node| node["Node Type"] == "Seq Scan");
    let read = most_rows(plan);
    if scans || read > rows || !plan.to_string().contains(index) {
        problems.push(format!("{what} reads {read} rows:\n{plan:#}"));
    }
}

async fn look_at_plans(statistics: bool) {
    let database = full(statistics).await;
    let table = database.table();
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    let mut problems = Vec::new();
    for (text, index, rows) in PAGES {
        let query = Query::parse(text.as_bytes()).expect(text);
        if !statistics && !query.count && query.sort.is_empty() && query.prefix.as_str().is_empty() {
            continue;
        }
        if query.count {
            let statement = Composed::new(|parameters| Ok(compile::count(&query, &table, parameters)));
            let statement = statement.expect("no cursor");
            check(&mut problems, text, &explain(&session, statement).await, index, rows);
            continue;
        }
        let statement = database.statement(&query).expect("no cursor");
        check(&mut problems, text, &explain(&session, statement).await, index, rows);
        let Some(cursor) = middle(&database, &query, text).await else { continue };
        let next = format!("{}, \"cursor\": {cursor:?}}}", text.trim_end_matches('}'));
        let closing = "}".repeat(text.len() - text.trim_end_matches('}').len() - 1);
        let next = next.replacen(", \"cursor\"", &format!("{closing}, \"cursor\""), 1);
        let query = Query::parse(next.as_bytes()).expect("a cursor of it");
        let statement = database.statement(&query).expect("the cursor is enough");
        check(&mut problems, &next, &explain(&session, statement).await, index, rows);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A cursor far from the beginning.
async fn middle(database: &Database, query: &Query, text: &str) -> Option<String> {
    let mut far = query.clone();
    far.offset = 5_000;
    let page = database.query(&far).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    page.next_cursor
}

// K-16
#[tokio::test]
async fn queries_read_what_they_find_from_the_index_that_has_it_on_true_statistics() {
    look_at_plans(true).await;
}

// K-16
#[tokio::test]
async fn pages_in_the_order_of_an_index_are_read_from_it_on_statistics_of_an_empty_table() {
    look_at_plans(false).await;
}

/// Reads pages of the documents with a rare value of `u`, in each way that finds them only with the GIN
/// index.
async fn look_for_rare(database: &Database, rare: &str) {
    let tag = rare.replace('u', "tag");
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    let mut problems = Vec::new();
    for query in [
        format!(r#"{{"filter": {{"u": "{rare}"}}, "limit": 1}}"#),
        format!(r#"{{"filter": {{"u": "{rare}"}}, "limit": 50}}"#),
        format!(r#"{{"filter": {{"u": "{rare}"}}, "sort": ["u"], "limit": 50}}"#),
        format!(r#"{{"filter": {{"u": "{rare}"}}, "sort": ["-key"], "limit": 50}}"#),
        format!(r#"{{"filter": {{"u": "{rare}", "n": {{"$gte": 0}}}}, "sort": ["n"], "limit": 50}}"#),
        format!(r#"{{"filter": {{"u": {{"$in": ["{rare}", "u-"]}}}}, "limit": 50}}"#),
        format!(r#"{{"filter": {{"$or": [{{"u": "{rare}"}}, {{"u": "u-"}}]}}, "limit": 50}}"#),
        format!(r#"{{"filter": {{"tags": {{"$contains": "{tag}"}}}}, "limit": 50}}"#),
        format!(r#"{{"filter": {{"tags": {{"$contains": ["{tag}"]}}}}, "limit": 50}}"#),
    ] {
        let statement =
            database.statement(&Query::parse(query.as_bytes()).expect("a query")).expect("no cursor");
        check(&mut problems, &query, &explain(&session, statement).await, "kv_value_idx", 20);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Statistics that contain a document with a rare value suggest that every hundredth document has it.
#[tokio::test]
async fn a_rare_value_that_the_statistics_have_by_chance_is_read_from_the_index_that_has_it() {
    let database = full(true).await;
    let rare: String = database
        .value(
            "SELECT max(document ->> 'u') FROM (SELECT unnest(histogram_bounds::text::text[])::jsonb AS document
             FROM pg_stats WHERE tablename = 'kv' AND attname = 'value') AS histogram",
        )
        .await;
    look_for_rare(&database, &rare).await;
}

/// PostgreSQL keeps no statistics of documents of more than 1 KiB.
#[tokio::test]
async fn a_rare_value_of_large_documents_is_read_from_the_index_that_has_it() {
    let database = full_of_texts(1100, true).await;
    let known = "SELECT count(histogram_bounds) FROM pg_stats WHERE tablename = 'kv' AND attname = 'value'";
    assert_eq!(database.value::<i64>(known).await, 0);
    look_for_rare(&database, "u9999").await;
}

/// The rule for rare values costs nothing if a value is known to be frequent.
#[tokio::test]
async fn a_page_of_a_frequent_value_is_read_in_the_order_of_its_index() {
    let of_half = [
        (r#"{"filter": {"half": 1}, "limit": 50}"#, "kv_pkey"),
        (r#"{"filter": {"half": {"$in": [0, 1]}}, "limit": 50}"#, "kv_pkey"),
        (r#"{"filter": {"half": 1, "n": {"$gte": 0}}, "sort": ["n"], "limit": 50}"#, "kv_n_numeric"),
    ];
    let of_declared = [(r#"{"filter": {"b": false}, "limit": 50}"#, "kv_pkey")];
    let mut problems = Vec::new();
    for (characters, pages) in [(200, &[&of_half[..], &of_declared].concat()[..]), (1100, &of_declared)] {
        let database = full_of_texts(characters, true).await;
        let session = database.pool.session("explain").await.expect("PostgreSQL is there");
        for (query, index) in pages {
            let parsed = Query::parse(query.as_bytes()).expect("a query");
            let statement = database.statement(&parsed).expect("no cursor");
            check(&mut problems, query, &explain(&session, statement).await, index, 120);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test]
async fn a_table_without_declared_indexes_is_told_so_and_equality_still_has_its_index() {
    let database = full(true).await;
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    let query = Query::parse(br#"{"filter": {"n": 5}}"#).expect("a query");
    let table = Table::new(TABLE, Vec::new());
    let statement =
        Composed::new(|parameters| compile::page(&query, &table, ReadPlan::Planned, "key", parameters));
    let plan = explain(&session, statement.expect("no cursor")).await;
    assert!(plan.to_string().contains("kv_value_idx") && most_rows(&plan) < 20, "{plan:#}");
}

/// The background query of the original's clients: few documents are neither done nor without a deadline.
/// Without the index on the status PostgreSQL expects nearly all of them to match, and reads all keys in
/// order.
#[tokio::test]
async fn what_few_documents_lack_is_found_by_ranges_of_a_declared_index() {
    let mut database = full(true).await;
    database
        .execute(
            "UPDATE kv SET value = value || jsonb_build_object('status', CASE (value ->> 'n')::int % 500 WHEN 0 THEN 'running' ELSE 'done' END)",
        )
        .await;
    let query = r#"{"prefix": "k/", "filter": {"status": {"$nin": ["done", "failed", "canceled"]}, "t": {"$exists": true}}, "limit": 1000}"#;
    let parsed = Query::parse(query.as_bytes()).expect("a query");
    database.index("status", IndexType::Text).await;
    database.execute("VACUUM ANALYZE kv").await;
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    let mut problems = Vec::new();
    for query in [query, &query.replace(r#"{"$nin": ["done", "failed", "canceled"]}"#, r#"{"$ne": "done"}"#)]
    {
        let parsed = Query::parse(query.as_bytes()).expect("a query");
        let statement = database.statement(&parsed).expect("no cursor");
        check(&mut problems, query, &explain(&session, statement).await, "kv_status_text", 300);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(database.query(&parsed).await.expect("a page").rows.len(), 200);
}

/// A query without an index reads some thousand keys, and then the whole table, but never all keys in order.
#[tokio::test]
async fn what_no_index_serves_is_not_looked_for_key_by_key() {
    let database = full(true).await;
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    for filter in [
        r#"{"nosuch": {"$gt": "x"}}"#,
        r#"{"nosuch": {"$exists": true}}"#,
        r#"{"half": {"$nin": [0, 1]}}"#,
        r#"{"u": {"$gt": "u9999"}, "text": {"$exists": true}}"#,
        r#"{"$or": [{"u": "u5"}, {"half": {"$gt": 7}}]}"#,
    ] {
        let query =
            Query::parse(format!(r#"{{"filter": {filter}, "limit": 50}}"#).as_bytes()).expect("a query");
        let (first, second) = compile::readings(&query, &database.table());
        assert!(matches!(first, ReadPlan::Walk(_)), "{filter}: {first:?}");
        let walk = explain(&session, database.statement_by(&query, first).expect("no cursor")).await;
        assert!(most_rows(&walk) <= 5_001, "{filter}:\n{walk:#}");
        let whole = second.expect("the first may not be enough");
        let whole = explain(&session, database.statement_by(&query, whole).expect("no cursor")).await;
        assert!(nodes(&whole).iter().all(|node| node["Node Type"] != "Index Scan"), "{filter}:\n{whole:#}");
    }
    // A query with an index, or one whose page fills soon, needs one reading.
    for filter in [r#"{"u": "u5"}"#, r#"{"n": {"$gt": 99990}, "nosuch": {"$exists": false}}"#, "{}"] {
        let query =
            Query::parse(format!(r#"{{"filter": {filter}, "limit": 50}}"#).as_bytes()).expect("a query");
        assert_eq!(compile::readings(&query, &database.table()), (ReadPlan::Planned, None), "{filter}");
    }
}

/// The sort order of the lists of the original's clients, with an index that an operator creates.
#[tokio::test]
async fn pages_by_the_times_of_documents_are_read_from_an_index_on_the_column() {
    let database = full(true).await;
    database
        .execute(
            "UPDATE kv SET created_at = timestamptz '2024-01-01Z' + (value ->> 'n')::int * interval '1 s';
             CREATE INDEX kv_created ON kv (created_at)",
        )
        .await;
    database.execute("VACUUM ANALYZE kv").await;
    let session = database.pool.session("explain").await.expect("PostgreSQL is there");
    let mut problems = Vec::new();
    for text in [
        r#"{"sort": ["-created_at"], "limit": 50}"#,
        r#"{"sort": ["created_at"], "prefix": "k/", "limit": 50}"#,
    ] {
        let query = Query::parse(text.as_bytes()).expect("a query");
        let statement = database.statement(&query).expect("no cursor");
        check(&mut problems, text, &explain(&session, statement).await, "kv_created", 60);
        let cursor = middle(&database, &query, text).await.expect("there are more");
        let next = text.replacen('}', &format!(", \"cursor\": {cursor:?}}}"), 1);
        let query = Query::parse(next.as_bytes()).expect("a cursor of it");
        let statement = database.statement(&query).expect("the cursor is enough");
        check(&mut problems, &next, &explain(&session, statement).await, "kv_created", 60);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
