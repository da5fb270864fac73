//! One suite for each port, run on the real store, and on the store in memory if there is one that keeps all
//! of it.
//!
//! A suite is a set of cases that are generic over a fixture: the store, and the actions and observations of
//! a test that no port offers. A macro beside the cases makes each of them a test of the crate that contains
//! the store; a test in `tests/contract/main.rs` checks that it names them all.

use domain::ports::{Acknowledged, ServerId};

#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod accept;
mod accepted;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod backlog;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod checkpoints;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod directory;
mod drafts;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod election;
mod evaluator;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod holds;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod idempotency;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod inspection;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod intent_trace;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod keys;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod leader;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod operations;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod permits;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod publishing;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod queries;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod receipts;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod replicas;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod republish;
pub mod resubmit;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod retention;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod routes;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod search;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod sessions;
#[expect(missing_docs, reason = "the name of a case is what it checks")]
pub mod streams;

/// Makes each case of a suite a test, each on a fixture of its own.
#[macro_export]
macro_rules! contract_cases {
    ($suite:ident, $fixture:expr; $($case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                $crate::contract::$suite::$case($fixture).await;
            }
        )*
    };
}

/// An entry that a server acknowledged.
pub fn acknowledged(entry_id: &str) -> Acknowledged {
    let server = ServerId { run_id: "0".into(), replication_id: "0".into() };
    Acknowledged { entry_id: entry_id.to_owned(), server }
}
