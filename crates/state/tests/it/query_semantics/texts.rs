//! Texts that would harm a statement, and filters at every limit at once.

use ambient::Timestamp;
use state::StateError;
use state::query::Query;
use state::query::expressions::IndexType;

use super::{TYPES, found, query, quoted, stored};
use crate::query_support::{Database, document};

/// Texts that would have an effect if they were ever part of a statement.
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
        // In a cursor, as key and as sort value.
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
        (0..64).map(|n| format!("{{\"f{n}\": {{\"$in\": [{}]}}}}", elements[..15].join(","))).collect();
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
