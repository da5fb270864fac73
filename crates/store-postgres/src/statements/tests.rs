//! The plans of all statements, compared with their claims.

use std::collections::HashSet;
use std::time::Duration;

use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings, SessionSettings, check_plan};

use super::*;
use crate::SESSION;

/// The differences between the plans and the claims of statements.
async fn differences(statements: &[Statement], session: SessionSettings) -> Vec<String> {
    let database = TestDatabase::new().await;
    let dsn = Dsn::parse(&database.dsn()).expect("a connection string");
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(60), session };
    let session = PgPool::new(&dsn, settings).expect("a pool").session("explain").await.expect("connects");
    let mut differences = Vec::new();
    for statement in statements {
        differences.extend(check_plan(&session, statement).await.err());
    }
    differences
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_claims() {
    let differences = differences(&of_store(), SESSION).await;
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn every_statement_has_a_name_of_its_own() {
    let mut names = HashSet::new();
    for statement in of_store() {
        assert!(names.insert(statement.name()), "two statements have the name {}", statement.name());
    }
}
