//! The plans of all statements, compared with their claims.

use std::collections::HashSet;
use std::time::Duration;

use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings, SessionSettings, check_plan};

use super::*;
use crate::routes::tests::rows;
use crate::{QUERY_SESSION, SESSION};

/// The differences between the plans and the claims of statements.
async fn differences_of(statements: &[Statement], session: SessionSettings) -> Vec<String> {
    let database = TestDatabase::new().await;
    // On empty tables, the planner may choose any index whose condition has a column of the key.
    let filled = format!(
        "{} INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
         SELECT now() - n * interval '1 s', 'ops', 'a', '{{}}', n, 'r' FROM generate_series(1, 1000) n;
         ANALYZE records; ANALYZE routes; ANALYZE operator_actions",
        rows(1, 1000, "published", "NULL")
    );
    database.client().await.batch_execute(&filled).await.expect("rows");
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
    let mut differences = differences_of(&of_store(), SESSION).await;
    differences.extend(differences_of(&of_queries(), QUERY_SESSION).await);
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn every_statement_has_a_name_of_its_own() {
    let mut names = HashSet::new();
    for statement in of_store().into_iter().chain(of_queries()) {
        assert!(names.insert(statement.name()), "two statements have the name {}", statement.name());
    }
}
