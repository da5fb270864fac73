//! The contract of every store: each test runs on both.

use state::query::Query;
use state::{Page, StatusCondition, Store, VersionCondition, WriteConditions};

/// Defines each function as a test on the store in memory and as one on PostgreSQL.
macro_rules! on_both_stores {
    ($($name:ident)+) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(state::MemoryStore::default()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::support::Db::with_table().await.store()).await;
            })+
        }
    };
}

mod documents;
mod keys;
mod patches;
mod queries;
mod versions;
mod writes;

fn expecting_status(status: &str) -> WriteConditions {
    WriteConditions { status: Some(StatusCondition(status.into())), ..WriteConditions::default() }
}

fn expecting(version: VersionCondition) -> WriteConditions {
    WriteConditions { version, status: None }
}

async fn queried(store: &impl Store, text: &str) -> Page {
    store.query(&Query::parse(text.as_bytes()).expect("a query")).await.expect("no failure")
}
