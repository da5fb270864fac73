//! The results of queries, on PostgreSQL and in memory.

mod operators;
mod pages;
mod texts;

use ambient::Timestamp;
use state::Document;
use state::query::Query;

use crate::query_support::{Database, document};

fn query(text: &str) -> Query {
    Query::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

/// The keys that both return, in order.
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

/// `f` has each type, or is missing, or the document is not an object.
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
