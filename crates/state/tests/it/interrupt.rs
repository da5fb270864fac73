//! A query ends when its time limit passes, whatever it compares.

use std::time::Duration;

use state::query::Query;
use state::{StateError, Store};

use crate::support::{BOUND, Db, until_within};

/// The number of elements of the document's array.
const ELEMENTS: u32 = 1_000_000;

/// Each element of an operand costs as many comparisons as the document has elements.
#[tokio::test]
async fn a_query_that_compares_many_elements_with_many_is_ended_by_the_statement_timeout() {
    let db = Db::with_table().await;
    // All searched elements are present, at the end of the array.
    db.execute(&format!(
        "INSERT INTO test.kv (key, value)
         SELECT 'big', jsonb_build_object('a', jsonb_agg(-x ORDER BY x DESC), 'b', 1) FROM generate_series(0, {ELEMENTS}) x"
    ))
    .await;
    let store = db.store_within(Duration::from_millis(500));
    let last: Vec<String> = (1..=999).map(|n| format!("-{n}")).collect();
    let last = last.join(",");
    for filter in [
        format!(r#"{{"a": {{"$contains": [{last}]}}}}"#),
        format!(r#"{{"b": 1, "a": {{"$contains": [{last}]}}}}"#),
        format!(r#"{{"$not": {{"a": {{"$contains": [{last}]}}}}}}"#),
        format!(r#"{{"$or": [{{"a": {{"$contains": [{last}]}}}}, {{"b": 2}}]}}"#),
    ] {
        let query =
            Query::parse(format!(r#"{{"filter": {filter}, "limit": 1}}"#).as_bytes()).expect("a query");
        let outcome = store.query(&query).await;
        assert!(
            matches!(outcome, Err(StateError::TimedOut { .. })),
            "{filter:.60}: {:?}",
            outcome.map(|_| ())
        );
        let busy =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
                    AND pid <> pg_backend_pid()";
        until_within(BOUND / 4, &format!("the end of {filter:.60}"), async || {
            db.value::<i64>(busy).await == 0
        })
        .await;
    }
    // Equality finishes in time, even on a busy machine.
    let store = db.store_within(BOUND);
    for filter in [format!(r#"{{"a": [{last}]}}"#), format!(r#"{{"a": {{"$in": [[{last}]]}}}}"#)] {
        let query =
            Query::parse(format!(r#"{{"filter": {filter}, "limit": 1}}"#).as_bytes()).expect("a query");
        let page = store.query(&query).await.unwrap_or_else(|error| panic!("{filter:.60}: {error}"));
        assert!(page.rows.is_empty());
    }
}
