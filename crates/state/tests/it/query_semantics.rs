//! What each operator matches, told in full; pages and cursors; hostile texts. On PostgreSQL and in memory.

use ambient::Timestamp;
use state::query::Query;
use state::query::expressions::IndexType;
use state::{Document, StateError};

use crate::query_support::{Database, document};

fn query(text: &str) -> Query {
    Query::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

/// The keys that both find, in order.
async fn found(database: &Database, documents: &[Document], text: &str) -> Vec<String> {
    let query = query(text);
    let page = database.query(&query).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    let in_memory = query.run(documents.iter()).expect("it is in memory");
    assert_eq!(page.next_cursor, in_memory.next_cursor, "{text}");
    let keys = |rows: &[Document]| rows.iter().map(|row| row.key.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&page.rows), keys(&in_memory.rows), "{text}");
    keys(&page.rows)
}

async fn stored(database: &Database, documents: &[(&str, &str)]) -> Vec<Document> {
    let mut all = Vec::new();
    for (key, json) in documents {
        let document = document(key, json, 1, Timestamp::UNIX_EPOCH);
        database.put_document(&document).await;
        all.push(document);
    }
    all
}

/// `f` has each type, or is missing, or the document is no object.
const TYPES: [(&str, &str); 20] = [
    ("array", r#"{"f": ["a", 1]}"#),
    ("array 1", r#"{"f": [1]}"#),
    ("array empty", r#"{"f": []}"#),
    ("bare", r#""f""#),
    ("bare array", r#"["f"]"#),
    ("bare null", "null"),
    ("bare object", "{}"),
    ("false", r#"{"f": false}"#),
    ("huge", r#"{"f": 1e400}"#),
    ("missing", r#"{"g": 1}"#),
    ("null", r#"{"f": null}"#),
    ("number 1", r#"{"f": 1}"#),
    ("number 1.0", r#"{"f": 1.0}"#),
    ("number 10", r#"{"f": 10}"#),
    ("object", r#"{"f": {"x": 1, "y": "a"}}"#),
    ("object empty", r#"{"f": {}}"#),
    ("string 1", r#"{"f": "1"}"#),
    ("string B", r#"{"f": "B"}"#),
    ("string a", r#"{"f": "a"}"#),
    ("time", r#"{"f": "2024-01-01T01:00:00+01:00"}"#),
];

// K-06
#[tokio::test]
async fn each_operator_matches_what_its_type_says() {
    let mut database = Database::new().await;
    let documents = stored(&database, &TYPES).await;
    let there = TYPES.iter().map(|(key, _)| *key).filter(|key| !key.starts_with("bare") && *key != "missing");
    let there: Vec<&str> = there.collect();
    let all_but = |except: &[&str]| -> Vec<&'static str> {
        TYPES.iter().map(|(key, _)| *key).filter(|key| !except.contains(key)).collect()
    };
    let there_but =
        |except: &[&str]| there.iter().copied().filter(|key| !except.contains(key)).collect::<Vec<_>>();
    let ones = ["number 1", "number 1.0"];
    let table: Vec<(&str, Vec<&str>)> = vec![
        (r#"{"f": 1}"#, ones.to_vec()),
        (r#"{"f": {"$eq": 10e-1}}"#, ones.to_vec()),
        (r#"{"f": "1"}"#, vec!["string 1"]),
        (r#"{"f": null}"#, vec!["null"]),
        (r#"{"f": false}"#, vec!["false"]),
        (r#"{"f": true}"#, vec![]),
        (r#"{"f": []}"#, vec!["array empty"]),
        (r#"{"f": [1.0]}"#, vec!["array 1"]),
        (r#"{"f": ["a"]}"#, vec![]),
        (r#"{"f": {"$eq": {}}}"#, vec!["object empty"]),
        (r#"{"f": {"y": "a", "x": 1}}"#, vec!["object"]),
        (r#"{"f": {"x": 1}}"#, vec![]),
        (r#"{"f": 10e399}"#, vec!["huge"]),
        (r#"{"f": {"$ne": 1}}"#, there_but(&ones)),
        (r#"{"f": {"$ne": null}}"#, there_but(&["null"])),
        (r#"{"f": {"$ne": {}}}"#, there_but(&["object empty"])),
        (r#"{"f": {"$gt": 1}}"#, vec!["huge", "number 10"]),
        (r#"{"f": {"$gte": 1}}"#, vec!["huge", "number 1", "number 1.0", "number 10"]),
        (r#"{"f": {"$lt": 10}}"#, ones.to_vec()),
        (r#"{"f": {"$lte": 1e399}}"#, vec!["number 1", "number 1.0", "number 10"]),
        (r#"{"f": {"$lte": 1e400}}"#, vec!["huge", "number 1", "number 1.0", "number 10"]),
        (r#"{"f": {"$gt": "B"}}"#, vec!["string a"]),
        (r#"{"f": {"$lt": "B"}}"#, vec!["string 1", "time"]),
        (r#"{"f": {"$gte": "", "$lte": "B"}}"#, vec!["string 1", "string B", "time"]),
        (r#"{"f": {"$in": []}}"#, vec![]),
        (
            r#"{"f": {"$in": [1, null, [], {}]}}"#,
            vec!["array empty", "null", "number 1", "number 1.0", "object empty"],
        ),
        (r#"{"f": {"$in": ["a", false]}}"#, vec!["false", "string a"]),
        (r#"{"f": {"$nin": []}}"#, there.clone()),
        (r#"{"f": {"$nin": [1, null]}}"#, there_but(&["number 1", "number 1.0", "null"])),
        (r#"{"f": {"$exists": true}}"#, there.clone()),
        (r#"{"f": {"$exists": false}}"#, vec!["bare", "bare array", "bare null", "bare object", "missing"]),
        (r#"{"f": {"$contains": 1}}"#, vec!["array", "array 1", "number 1", "number 1.0"]),
        (r#"{"f": {"$contains": [1]}}"#, vec!["array", "array 1"]),
        (r#"{"f": {"$contains": []}}"#, vec!["array", "array 1", "array empty"]),
        (r#"{"f": {"$contains": {}}}"#, vec!["object", "object empty"]),
        (r#"{"f": {"$contains": {"x": 1.0}}}"#, vec!["object"]),
        (r#"{"f": {"$contains": "a"}}"#, vec!["array", "string a"]),
        (r#"{"f": {"$before": "2024-01-01T00:00:00.000001Z"}}"#, vec!["time"]),
        (r#"{"f": {"$before": "2024-01-01T00:00:00Z"}}"#, vec![]),
        (r#"{"f": {"$after": "2023-12-31T23:59:59.999999Z"}}"#, vec!["time"]),
        (r#"{"$not": {"f": 1}}"#, all_but(&ones)),
        (r#"{"$not": {"f": {"$gt": 1}}}"#, all_but(&["huge", "number 10"])),
        (r#"{"$not": {"f": {"$ne": 1}}}"#, all_but(&there_but(&ones))),
        (
            r#"{"$not": {"f": {"$exists": true}}}"#,
            vec!["bare", "bare array", "bare null", "bare object", "missing"],
        ),
        (r#"{"$or": [{"f": 1}, {"g": 1}]}"#, vec!["missing", "number 1", "number 1.0"]),
        (r#"{"$and": [{"f": {"$gt": 1}}, {"$not": {"f": 10}}]}"#, vec!["huge"]),
        (r#"{"g": 1, "$or": [{"f": 1}, {"f": {"$exists": false}}]}"#, vec!["missing"]),
    ];
    for _ in ["without indexes", "with indexes"] {
        for (filter, expected) in &table {
            let text = format!("{{\"filter\": {filter}}}");
            assert_eq!(&found(&database, &documents, &text).await, expected, "{filter}");
            let count = database
                .query(&query(&format!("{{\"filter\": {filter}, \"count\": true}}")))
                .await
                .expect("counts");
            assert_eq!((count.rows.len(), count.matched), (0, Some(expected.len() as u64)), "{filter}");
        }
        if database.table().indexes().is_empty() {
            for index_type in
                [IndexType::Text, IndexType::Numeric, IndexType::Boolean, IndexType::Timestamptz]
            {
                database.index("f", index_type).await;
            }
        }
    }
}

#[tokio::test]
async fn a_sort_orders_types_and_puts_what_is_missing_last() {
    let database = Database::new().await;
    let documents = stored(&database, &TYPES).await;
    let missing = ["bare", "bare array", "bare null", "bare object", "missing"];
    let up = [
        "null",
        "string 1",
        "time",
        "string B",
        "string a",
        "number 1",
        "number 1.0",
        "number 10",
        "huge",
        "false",
        "array",
        "array 1",
        "array empty",
        "object",
        "object empty",
    ];
    let down = [
        "object",
        "object empty",
        "array",
        "array 1",
        "array empty",
        "false",
        "huge",
        "number 10",
        "number 1",
        "number 1.0",
        "string a",
        "string B",
        "time",
        "string 1",
        "null",
    ];
    let expected = |order: &[&'static str]| [order, &missing[..]].concat();
    assert_eq!(found(&database, &documents, r#"{"sort": ["f"]}"#).await, expected(&up));
    assert_eq!(found(&database, &documents, r#"{"sort": ["-f"]}"#).await, expected(&down));
    let mut by_key: Vec<&str> = TYPES.iter().map(|(key, _)| *key).collect();
    assert_eq!(found(&database, &documents, "{}").await, by_key);
    by_key.reverse();
    assert_eq!(found(&database, &documents, r#"{"sort": ["-key", "f"]}"#).await, by_key);
}

// K-05
#[tokio::test]
async fn a_prefix_is_taken_literally_and_by_bytes() {
    let database = Database::new().await;
    let keys = [
        "a%c/1",
        "aXb/1",
        "a_b/1",
        "A_b/1",
        "a\\/1",
        "é/1",
        "e\u{301}/1",
        "a\u{d7ff}1",
        "a\u{e000}1",
        "a\u{10ffff}1",
        "b",
    ];
    let keys: Vec<(&str, &str)> = keys.iter().map(|key| (*key, "{}")).collect();
    let documents = stored(&database, &keys).await;
    for (prefix, expected) in [
        ("a_", vec!["a_b/1"]),
        ("a%", vec!["a%c/1"]),
        ("a\\", vec!["a\\/1"]),
        ("A", vec!["A_b/1"]),
        ("é", vec!["é/1"]),
        ("a\u{d7ff}", vec!["a\u{d7ff}1"]),
        ("a\u{10ffff}", vec!["a\u{10ffff}1"]),
        ("\u{10ffff}", vec![]),
        ("a", vec!["a%c/1", "aXb/1", "a\\/1", "a_b/1", "a\u{d7ff}1", "a\u{e000}1", "a\u{10ffff}1"]),
    ] {
        let text = format!("{{\"prefix\": {}}}", quoted(prefix));
        assert_eq!(found(&database, &documents, &text).await, expected, "{prefix}");
    }
}

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
        [("created_at", ["c", "e", "f", "a", "b", "d"]), ("-created_at", ["a", "b", "d", "f", "c", "e"])]
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

/// Texts that would do something else if they were ever part of a statement.
const HOSTILE: [&str; 16] = [
    "'; DROP TABLE kv; --",
    "Robert'); DROP TABLE kv;--",
    "\" OR \"1\"=\"1",
    "' OR '1'='1",
    "\\'; DROP TABLE kv; --",
    "$1",
    "$$; DROP TABLE kv; $$",
    "%",
    "_%",
    "/* */",
    "a->>'b'",
    "{\"$gt\": \"\"}",
    "E'\\\\x00'",
    "[a]",
    "?",
    "\u{2019}; DROP TABLE kv; --",
];

// K-07
#[tokio::test]
async fn a_hostile_text_is_data_or_refused_wherever_it_stands() {
    let mut database = Database::new().await;
    database.index("f", IndexType::Text).await;
    let mut documents = Vec::new();
    for (at, text) in HOSTILE.iter().enumerate() {
        let document = document(
            &format!("{text}{at}"),
            &format!("{{\"f\": {0}, \"g\": [{0}]}}", quoted(text)),
            1,
            Timestamp::UNIX_EPOCH,
        );
        database.put_document(&document).await;
        documents.push(document);
    }
    for (at, text) in HOSTILE.iter().enumerate() {
        let own = vec![format!("{text}{at}")];
        let text = quoted(text);
        for name in [
            format!("{{\"filter\": {{{text}: 1}}}}"),
            format!("{{\"sort\": [{text}]}}"),
            format!("{{\"cursor\": {text}}}"),
        ] {
            assert!(matches!(Query::parse(name.as_bytes()), Err(StateError::InvalidQuery(_))), "{name}");
        }
        for operand in [
            "{\"f\": TEXT}",
            "{\"f\": {\"$in\": [TEXT, 1]}}",
            "{\"f\": {\"$gte\": TEXT, \"$lte\": TEXT}}",
            "{\"g\": [TEXT]}",
            "{\"g\": {\"$contains\": TEXT}}",
        ] {
            let filter = format!("{{\"filter\": {}}}", operand.replace("TEXT", &text));
            assert_eq!(found(&database, &documents, &filter).await, own, "{filter}");
        }
        let prefix = format!("{{\"prefix\": {text}}}");
        assert!(found(&database, &documents, &prefix).await.contains(&own[0]), "{prefix}");
        // In a cursor, as key and as the value that is sorted by.
        let mut cursor = "null".to_owned();
        loop {
            let page = format!(
                "{{\"sort\": [\"f\"], \"limit\": 1, \"filter\": {{\"g\": {{\"$ne\": {text}}}}}, \"cursor\": {cursor}}}"
            );
            found(&database, &documents, &page).await;
            match database.query(&query(&page)).await.expect("a page").next_cursor {
                Some(next) => cursor = quoted(&next),
                None => break,
            }
        }
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM kv").await, HOSTILE.len() as i64);
    let names = (1..=63).map(|length| "n".repeat(length)).chain([
        "_".to_owned(),
        "select".to_owned(),
        "value".to_owned(),
    ]);
    for name in names {
        let text = format!("{{\"filter\": {{\"{name}\": {{\"$gt\": 1}}}}, \"sort\": [\"{name}\"]}}");
        assert!(found(&database, &documents, &text).await.is_empty(), "{name}");
    }
    for name in ["é", "ｆ", "f\u{301}", "а"] {
        assert!(Query::parse(format!("{{\"filter\": {{\"{name}\": 1}}}}").as_bytes()).is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_filter_of_every_limit_at_once_is_planned_and_run() {
    let database = Database::new().await;
    let documents = stored(&database, &TYPES).await;
    let elements: Vec<String> = (0..999).map(|n| format!("\"e{n}\"")).collect();
    let many = format!("{{\"filter\": {{\"f\": {{\"$in\": [{}, 10]}}}}}}", elements.join(","));
    assert_eq!(found(&database, &documents, &many).await, ["number 10"]);
    let lists: Vec<String> =
        (0..64).map(|n| format!("{{\"f{n}\": {{\"$in\": [{}]}}}}", elements.join(","))).collect();
    let filter = format!("{{\"$or\": [{}]}}", lists.join(","));
    let logic = format!("{}{filter}{}", "{\"$and\": [".repeat(7), "]}".repeat(7));
    let names = "\"a\",\"-b\",\"c\",\"-d\",\"e\",\"-g\",\"h\",\"-f\"";
    assert_eq!(found(&database, &documents, &format!("{{\"filter\": {logic}}}")).await, Vec::<String>::new());
    let mut cursor = "null".to_owned();
    for _ in 0..TYPES.len() - 1 {
        let page = query(&format!("{{\"sort\": [{names}], \"limit\": 1, \"cursor\": {cursor}}}"));
        cursor = quoted(&database.query(&page).await.expect("a page").next_cursor.expect("there are more"));
    }
}
