//! The matches of each operator, in full; the order of types; prefixes.

use state::query::expressions::IndexType;

use super::{TYPES, found, query, quoted, stored};
use crate::query_support::Database;

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
