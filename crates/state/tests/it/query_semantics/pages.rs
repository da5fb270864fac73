//! Pages and cursors.

use state::StateError;
use state::query::Query;

use super::{query, quoted, stored};
use crate::query_support::Database;

// K-09
#[tokio::test]
async fn pages_of_a_thousand_equal_values_have_each_document_once() {
    let database = Database::new().await;
    database
        .execute("INSERT INTO kv SELECT 'k' || n, '{\"s\": \"same\", \"n\": 1}', n, now(), now() FROM generate_series(1, 1000) n")
        .await;
    for sort in ["[\"s\"]", "[\"-s\", \"n\"]", "[\"created_at\"]", "[]", "[\"-key\"]", "[\"nowhere\"]"] {
        let mut cursor = "null".to_owned();
        let mut seen = Vec::new();
        while seen.len() <= 1_000 {
            let page = query(&format!("{{\"sort\": {sort}, \"limit\": 77, \"cursor\": {cursor}}}"));
            let page = database.query(&page).await.expect("a page");
            seen.extend(page.rows.into_iter().map(|row| row.key));
            match page.next_cursor {
                Some(next) => cursor = format!("{next:?}"),
                None => break,
            }
        }
        let mut once = seen.clone();
        once.sort();
        once.dedup();
        assert_eq!((seen.len(), once.len()), (1_000, 1_000), "{sort}");
        let by_key =
            |descends: bool| seen.is_sorted_by(|one, other| if descends { one > other } else { one < other });
        assert!(by_key(sort.contains("-key")), "{sort}: keys break ties");
    }
}

#[tokio::test]
async fn a_cursor_belongs_to_its_query_and_no_byte_of_it_may_change() {
    let database = Database::new().await;
    let documents =
        [("a", r#"{"f": "x", "n": 1.50}"#), ("b", r#"{"f": "y", "n": 2}"#), ("c", r#"{"f": "z"}"#)];
    stored(&database, &documents).await;
    let with = |rest: &str, cursor: &str| format!("{{{rest}, \"cursor\": {cursor:?}}}");
    let of = r#""filter": {"f": {"$gte": "a"}}, "sort": ["-n", "f"], "prefix": """#;
    let page = database.query(&query(&format!("{{{of}, \"limit\": 1}}"))).await.expect("a page");
    let cursor = page.next_cursor.expect("there are more");
    for same in [
        r#""filter": {"f": {"$gte": "a"}}, "sort": ["-n", "f"], "limit": 2"#,
        r#""sort": ["-n", "f"], "filter": {"f": {"$gte": "a"}}, "matched": true, "prefix": null"#,
    ] {
        assert!(Query::parse(with(same, &cursor).as_bytes()).is_ok(), "{same}");
    }
    let refused = |text: &str| {
        let error = Query::parse(text.as_bytes()).expect_err(text);
        assert!(error.to_string().starts_with("the cursor is none of this query's"), "{text}: {error}");
    };
    for other in [
        r#""filter": {"f": {"$gte": "b"}}, "sort": ["-n", "f"]"#,
        r#""filter": {"f": {"$gt": "a"}}, "sort": ["-n", "f"]"#,
        r#""filter": {"f": {"$gte": "a"}}, "sort": ["n", "f"]"#,
        r#""filter": {"f": {"$gte": "a"}}, "sort": ["-n"]"#,
        r#""filter": {"f": {"$gte": "a"}}, "sort": ["-n", "f"], "prefix": "b""#,
        r#""sort": ["-n", "f"]"#,
    ] {
        refused(&with(other, &cursor));
    }
    for at in 0..cursor.len() {
        for with_byte in ["A", "z", "_", "'", "="] {
            let mut changed = cursor.clone();
            changed.replace_range(at..=at, with_byte);
            if changed != cursor {
                refused(&with(of, &changed));
            }
        }
        refused(&with(of, &cursor[..at]));
    }
}

#[tokio::test]
async fn a_cursor_stays_short_and_a_changed_document_is_told_from_the_same_one() {
    let database = Database::new().await;
    let long = |last: &str| format!("{{\"f\": \"{}{last}\"}}", "x".repeat(5_000_000));
    for (key, last) in [("a", "3"), ("b", "2"), ("c", "1")] {
        database.put(key, &long(last)).await;
    }
    let first = database.query(&query(r#"{"sort": ["f"], "limit": 1}"#)).await.expect("a page");
    assert_eq!(first.rows[0].key.as_str(), "c");
    let cursor = first.next_cursor.expect("there are more");
    assert!(cursor.len() < 4_096, "{}", cursor.len());
    let second = query(&format!("{{\"sort\": [\"f\"], \"limit\": 1, \"cursor\": {cursor:?}}}"));
    let page = database.query(&second).await.expect("a page");
    assert_eq!(page.rows[0].key.as_str(), "b");
    for change in ["UPDATE kv SET version = 2 WHERE key = 'c'", "DELETE FROM kv WHERE key = 'c'"] {
        database.execute(change).await;
        match database.query(&second).await {
            Err(StateError::InvalidQuery(reason)) => assert!(reason.contains("begin again"), "{reason}"),
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn times_that_no_clock_shows_are_paged_like_others() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO kv VALUES ('a', '1', 1, 'infinity', now()), ('b', '2', 1, 'infinity', now()), ('c', '3', 1, '-infinity', now()),
                ('d', '4', 1, '20000-01-01', now()), ('e', '5', 1, '-infinity', now()), ('f', '6', 1, 'epoch', now())",
        )
        .await;
    for (sort, expected) in
        [("created_at", ["c", "e", "f", "d", "a", "b"]), ("-created_at", ["a", "b", "d", "f", "c", "e"])]
    {
        let mut cursor = "null".to_owned();
        let mut seen = Vec::new();
        while seen.len() <= expected.len() {
            let text = format!("{{\"sort\": [\"{sort}\"], \"limit\": 1, \"cursor\": {cursor}}}");
            let page =
                database.query(&query(&text)).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
            seen.extend(page.rows.into_iter().map(|row| row.key.as_str().to_owned()));
            match page.next_cursor {
                Some(next) => cursor = quoted(&next),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{sort}");
    }
}
