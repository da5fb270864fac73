//! Cursors: the text of one, or the JSON inside it, which is encoded here with the checksum that it needs.

use ambient::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::query::{ActionPlace, DeadLetterPlace, MalformedPlace, Place, SearchPlace};
use domain::record::RecordCursor;
use pg::parameter::Parameters;
use sha2::{Digest, Sha256};
use state::query::Query;
use state::query::compile::{ReadPlan, Table, page};
use state::{Document, Key, Value, Version};

use super::queries::query_text;
use crate::Target;

pub(super) const TARGET: Target = Target { name: "cursors", max_bytes: 2 * 1024, check };

/// The bytes of the checksum of a cursor of the state store.
const CHECKSUM_BYTES: usize = 16;
/// Queries of the state store whose cursors have no value, one of a document, and one of each kind.
const QUERIES: [&str; 3] = [
    r#"{"prefix":"mine/"}"#,
    r#"{"sort":["a"],"filter":{"b":1}}"#,
    r#"{"sort":["-a","created_at","b","-key"]}"#,
];

fn check(input: &[u8]) {
    let encoded = URL_SAFE_NO_PAD.encode(input);
    for cursor in [str::from_utf8(input).unwrap_or_default(), &encoded] {
        check_place::<RecordCursor>(cursor);
        check_place::<DeadLetterPlace>(cursor);
        check_place::<MalformedPlace>(cursor);
        check_place::<SearchPlace>(cursor);
        check_place::<ActionPlace>(cursor);
    }
    for text in QUERIES {
        check_position(text, input);
    }
}

/// Checks a cursor of the API. The corpus has those of the default filters.
fn check_place<P: Place<Filter: Default> + PartialEq + std::fmt::Debug>(cursor: &str) {
    let filter = P::Filter::default();
    if let Ok(place) = P::from_cursor(cursor, &filter) {
        let again = P::from_cursor(&place.to_cursor(&filter), &filter);
        assert_eq!(again.as_ref(), Ok(&place), "a place is another one after its cursor");
    }
}

/// Checks a cursor of the state store: as it is, and as the content of one with the right checksum.
fn check_position(text: &str, input: &[u8]) {
    let query = Query::parse(text.as_bytes()).expect("a query");
    let with = |cursor: &str| Query::parse(query_text(&query, 2, Some(cursor)).as_bytes());
    assert_eq!(checksum_of_own(&query), None, "the checksum is not computed as here");
    let documents: Vec<Document> = ["a", "mine/1", "mine/2", "z"].into_iter().map(document).collect();
    for cursor in [str::from_utf8(input).unwrap_or_default(), &forged(&query, input)] {
        let Ok(continued) = with(cursor) else { continue };
        assert!(continued.position().is_some());
        assert!(continued.row_needed().is_none_or(|(key, _)| query.prefix.is_of(key)));
        let sql = page(
            &continued,
            &Table::new("kv", Vec::new()),
            ReadPlan::Planned,
            "*",
            &mut Parameters::default(),
        );
        assert!(sql.is_err() || continued.row_needed().is_none());
        if let Ok(page) = continued.run(documents.iter()) {
            assert!(page.rows.len() <= 2 && page.rows.iter().all(|row| query.prefix.is_of(&row.key)));
        }
    }
}

fn document(key: &str) -> Document {
    Document {
        key: Key::new(key).expect("a key"),
        value: Value::parse(r#"{"a":"x","b":1}"#).expect("JSON"),
        version: Version(1),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    }
}

/// A cursor of the query with this content.
fn forged(query: &Query, content: &[u8]) -> String {
    let mut bytes = checksum(query, content);
    bytes.extend_from_slice(content);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The checksum as the crate `state` computes it.
fn checksum(query: &Query, content: &[u8]) -> Vec<u8> {
    let text = format!("{:?}{:?}{:?}", query.prefix.as_str(), query.filter, query.sort);
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(text));
    hash.update(content);
    hash.finalize()[..CHECKSUM_BYTES].to_vec()
}

/// A cursor of the query whose checksum is not that of [`checksum`]; `None` if it is.
fn checksum_of_own(query: &Query) -> Option<String> {
    let mut one = query.clone();
    one.limit = 1;
    let page = one.run([document("mine/1"), document("mine/2")].iter()).expect("it runs");
    // A filter that matches no document has no cursor.
    let bytes = URL_SAFE_NO_PAD.decode(page.next_cursor.as_deref()?).expect("base64");
    (checksum(query, &bytes[CHECKSUM_BYTES..]) != bytes[..CHECKSUM_BYTES]).then(|| hex::encode(bytes))
}
