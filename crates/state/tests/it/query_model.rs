//! Random documents and queries: PostgreSQL and the evaluator agree on members, order and pages.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use ambient::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use state::query::expressions::IndexType;
use state::{Document, Page, StateError};

use crate::query_drawn::{Change, Drawn, any_change, any_document, any_query, key};
use crate::query_support::{Database, document};

/// The same documents in both places.
struct Both<'a> {
    database: &'a Database,
    memory: BTreeMap<String, Document>,
    writes: i64,
}

impl Both<'_> {
    async fn change(&mut self, (number, json): &Change) {
        let key = key(*number);
        self.writes += 1;
        match json {
            Some(json) => {
                // Few distinct times, so that some are equal.
                let created_at = Timestamp::from_millis(self.writes % 3).expect("in range");
                let document = document(&key, json, self.writes, created_at);
                self.database.put_document(&document).await;
                self.memory.insert(key, document);
            }
            None => {
                self.database
                    .client
                    .execute("DELETE FROM kv WHERE key = $1", &[&key])
                    .await
                    .expect("deleted");
                self.memory.remove(&key);
            }
        }
    }

    /// The page that both return; nothing if the cursor's document was deleted in both.
    async fn page(&self, drawn: &Drawn, cursor: Option<&str>) -> Option<Page> {
        let query = drawn.query(cursor);
        let expected = query.run(self.memory.values());
        let found = self.database.query(&query).await;
        let statement = || self.database.statement(&query);
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                let keys = |page: &Page| page.rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>();
                assert_eq!(keys(&expected), keys(&found), "{}\n{:?}", drawn.text(cursor), statement());
                assert_eq!(expected.matched, found.matched, "{}\n{:?}", drawn.text(cursor), statement());
                assert_eq!(expected.next_cursor, found.next_cursor);
                Some(found)
            }
            (Err(StateError::InvalidQuery(one)), Err(StateError::InvalidQuery(other))) if one == other => {
                None
            }
            (expected, found) => panic!("{}: {expected:?}, but {found:?}", drawn.text(cursor)),
        }
    }

    /// Reads all pages, with changes between them. An unchanged document is on exactly one of them, or with
    /// an offset on at most one.
    async fn pages(&mut self, drawn: &Drawn, changes: &[Change]) {
        let whole = Drawn { limit: 1_000, offset: 0, ..drawn.clone() };
        let before = self.page(&whole, None).await.expect("it has no cursor");
        let mut changes = changes.iter();
        let mut touched = BTreeSet::new();
        let mut seen = Vec::new();
        let mut cursor = None;
        // Every page but the last has a document, and there are at most 40 at any time.
        for pages in 0.. {
            assert!(pages < 100, "the pages never end: {}", drawn.text(None));
            let Some(page) = self.page(drawn, cursor.as_deref()).await else { return };
            seen.extend(page.rows.iter().map(|row| row.key.as_str().to_owned()));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
            if let Some(change) = changes.next() {
                self.change(change).await;
                touched.insert(key(change.0));
            }
        }
        let stays = |key: &String| !touched.contains(key);
        let expected: Vec<String> =
            before.rows.iter().map(|row| row.key.as_str().to_owned()).filter(stays).collect();
        let found: Vec<String> = seen.into_iter().filter(stays).collect();
        if drawn.offset == 0 {
            assert_eq!(found, expected, "{}", drawn.text(None));
        } else {
            assert!(expected.ends_with(&found), "{found:?} of {expected:?}: {}", drawn.text(None));
        }
    }
}

fn agree(cases: u32, database: impl AsyncFn() -> Database) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let database = runtime.block_on(database());
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    });
    let documents = prop::collection::vec((0..40_u8, any_document().prop_map(Some)), 1..40);
    let queries = prop::collection::vec((any_query(), prop::collection::vec(any_change(), 0..4)), 1..12);
    let run = RefCell::new(async |documents: &[Change], queries: &[(Drawn, Vec<Change>)]| {
        database.execute("TRUNCATE kv").await;
        let mut both = Both { database: &database, memory: BTreeMap::new(), writes: 0 };
        for change in documents {
            both.change(change).await;
        }
        for (query, changes) in queries {
            both.pages(query, changes).await;
        }
    });
    let outcome = runner.run(&(documents, queries), |(documents, queries)| {
        runtime.block_on((run.borrow())(&documents, &queries));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

// K-06
// K-09
#[test]
fn postgresql_and_the_evaluator_agree_on_drawn_queries_without_indexes() {
    agree(80, Database::new);
}

// K-06
// K-09
#[test]
fn postgresql_and_the_evaluator_agree_on_drawn_queries_with_every_index_in_use() {
    agree(80, async || {
        let mut database = Database::new().await;
        for index_type in [IndexType::Text, IndexType::Numeric, IndexType::Boolean, IndexType::Timestamptz] {
            database.index("a", index_type).await;
            database.index("b", index_type).await;
        }
        // With so few rows the planner would scan the table.
        database.execute("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET enable_seqscan = off'; END $$").await;
        database
    });
}
