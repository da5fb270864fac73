//! The same language on other tables: columns, members of a column, and rows of a related table.

use pg::Statement;
use pg::parameter::Parameters;
use state::query::compile::{FilterTarget, Source};
use state::query::expressions::{Member, Path};
use state::query::{Filter, NameKind, Names};

use crate::query_support::Database;

const TABLES: &str = "
    CREATE TABLE orders (id text PRIMARY KEY, customer text, placed_at timestamptz, details jsonb NOT NULL);
    CREATE TABLE items (id text, place integer, status text, attempts integer);
    INSERT INTO orders VALUES
        ('1', 'Ann', '2024-01-01T00:00:00Z', '{\"colour\": \"red\", \"size\": 5}'),
        ('2', 'bob', '2024-01-02T00:00:00Z', '{\"size\": 1e400}'),
        ('3', NULL, NULL, '[]');
    INSERT INTO items VALUES ('1', 1, 'sent', 1), ('1', 2, 'failed', 3), ('2', 1, 'sent', 3), ('2', 2, NULL, NULL);";

/// Orders, their details, and their items.
struct Orders {
    colour: Member,
    size: Member,
}

impl Names for Orders {
    fn kind(&self, name: &str) -> Option<NameKind> {
        match name {
            "placed_at" => Some(NameKind::Time),
            _ => self.source(name).map(|_| NameKind::Json),
        }
    }

    fn describe(&self) -> &str {
        "one of an order"
    }
}

impl FilterTarget for Orders {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let member = |member| {
            let path = Path { document: "\"orders\".\"details\"", member, helper: "kv_rfc3339" };
            Source::Member { path, indexed: Vec::new(), in_order: false }
        };
        let text = |column: &str| Source::Text { column: column.to_owned(), helper: "kv_rfc3339" };
        Some(match name {
            "customer" => text("orders.customer"),
            "placed_at" => Source::Time("orders.placed_at".to_owned()),
            "details.colour" => member(&self.colour),
            "details.size" => member(&self.size),
            "item.status" => text("items.status"),
            "item.attempts" => Source::Integer("items.attempts".to_owned()),
            _ => return None,
        })
    }

    fn relation(&self, name: &str) -> Option<&'static str> {
        name.starts_with("item.").then_some("items")
    }

    fn some_row(&self, relation: &'static str, condition: String) -> String {
        format!("EXISTS (SELECT 1 FROM {relation} WHERE {relation}.id = orders.id AND {condition})")
    }
}

#[tokio::test]
async fn conditions_of_one_object_speak_of_one_row_of_the_other_table() {
    let database = Database::new().await;
    database.execute(TABLES).await;
    let name = |name: &str| Member::new(name).expect("an identifier");
    let orders = Orders { colour: name("colour"), size: name("size") };
    let session = database.pool.session("search").await.expect("PostgreSQL is there");
    for (filter, expected) in [
        (r#"{"item.status": "sent"}"#, vec!["1", "2"]),
        (r#"{"item.status": "sent", "item.attempts": 3}"#, vec!["2"]),
        (r#"{"$and": [{"item.status": "sent"}, {"item.attempts": 3}]}"#, vec!["1", "2"]),
        (r#"{"$not": {"item.status": "failed"}}"#, vec!["2", "3"]),
        (r#"{"$not": {"item.status": "sent", "item.attempts": 3}}"#, vec!["1", "3"]),
        (r#"{"item.status": {"$ne": "sent"}}"#, vec!["1"]),
        (r#"{"item.status": {"$exists": false}}"#, vec!["2"]),
        (r#"{"item.status": {"$in": ["failed", 1, null]}}"#, vec!["1"]),
        (r#"{"item.status": {"$nin": ["failed", 1]}}"#, vec!["1", "2"]),
        (r#"{"item.attempts": {"$gt": 1.5, "$lt": 1e400}}"#, vec!["1", "2"]),
        (r#"{"item.attempts": {"$in": [1.0, "3", 1.5]}}"#, vec!["1"]),
        (r#"{"item.attempts": {"$nin": [1, 3]}}"#, vec![]),
        (r#"{"item.attempts": {"$ne": 99999999999999999999}}"#, vec!["1", "2"]),
        (r#"{"item.attempts": {"$gt": "1"}}"#, vec![]),
        (r#"{"customer": "Ann"}"#, vec!["1"]),
        (r#"{"customer": 1}"#, vec![]),
        (r#"{"customer": {"$ne": 1}}"#, vec!["1", "2"]),
        (r#"{"customer": {"$gt": "Z"}}"#, vec!["2"]),
        (r#"{"customer": {"$gt": 1}}"#, vec![]),
        (r#"{"customer": {"$nin": []}}"#, vec!["1", "2"]),
        (r#"{"customer": {"$contains": "bob"}}"#, vec!["2"]),
        (r#"{"customer": {"$exists": false}}"#, vec!["3"]),
        (r#"{"placed_at": {"$after": "2024-01-01T01:00:00+01:00"}}"#, vec!["2"]),
        (r#"{"$not": {"placed_at": {"$before": "2024-01-02T00:00:00Z"}}}"#, vec!["2", "3"]),
        (r#"{"details.colour": "red", "details.size": {"$lt": 6}}"#, vec!["1"]),
        (r#"{"details.size": {"$gt": 6}}"#, vec!["2"]),
        ("{}", vec!["1", "2", "3"]),
    ] {
        let parsed =
            Filter::parse(filter.as_bytes(), &orders).unwrap_or_else(|error| panic!("{filter}: {error}"));
        let mut parameters = Parameters::default();
        let condition = parsed.to_sql(&orders, &mut parameters);
        let text = format!("SELECT id FROM orders WHERE {condition} AND orders.id < '9' ORDER BY id");
        let select = Statement::composed("test", &[], text).bind(parameters);
        let rows = session.query_once(select).await.unwrap_or_else(|error| panic!("{filter}: {error:?}"));
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(found, expected, "{filter}");
    }
}
