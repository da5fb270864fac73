//! The plans of all statements, compared with their claims.

use std::collections::HashSet;
use std::time::Duration;

use harness::TestDatabase;
use pg::rights::grant_sql;
use pg::{Dsn, PgPool, PoolSettings, Session, SessionSettings, check_plan};

use super::*;
use crate::routes::tests::rows;
use crate::{QUERY_SESSION, SESSION, required_grants, users_grants};

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

/// The statements that the session's role may not run. The server checks the rights when it explains.
async fn denied(session: &Session, statements: &[Statement]) -> Vec<&'static str> {
    let mut denied = Vec::new();
    for statement in statements {
        if let Err(problem) = check_plan(session, statement).await
            && problem.contains("permission denied")
        {
            denied.push(statement.name());
            // The explanation left its prepared statement.
            session.execute_batch("DEALLOCATE pg_client_explain").await.expect("it is there");
        }
    }
    denied
}

#[tokio::test]
async fn the_grants_suffice_for_every_statement_and_each_right_on_a_table_is_needed_by_one() {
    let database = TestDatabase::new().await;
    let role = format!("served_{}", database.name());
    let client = database.client().await;
    client.batch_execute(&format!("CREATE ROLE {role}")).await.expect("a role");
    let grants = [required_grants(), users_grants()].concat();
    client.batch_execute(&grant_sql(&grants, "notification", &role)).await.expect("granted");
    let dsn = format!(
        "postgres://postgres@127.0.0.1:{}/{}?search_path=notification",
        database.port(),
        database.name()
    );
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(60), session: SESSION };
    let pool = PgPool::new(&Dsn::parse(&dsn).expect("a connection string"), settings).expect("a pool");
    let session = pool.session("explain").await.expect("connects");
    session.execute_batch(&format!("SET ROLE {role}")).await.expect("a superuser may");
    let statements = [of_store(), of_queries()].concat();
    assert_eq!(denied(&session, &statements).await, [""; 0]);
    let mut idle = Vec::new();
    for grant in grants.iter().map(ToString::to_string) {
        let Some((rights, table)) = grant.split_once(" on ").filter(|(_, name)| !name.contains(' ')) else {
            continue;
        };
        for right in rights.split(", ") {
            client.batch_execute(&format!("REVOKE {right} ON {table} FROM {role}")).await.expect("revoked");
            let of_table: Vec<Statement> =
                statements.iter().filter(|statement| statement.text().contains(table)).cloned().collect();
            if denied(&session, &of_table).await.is_empty() {
                idle.push(format!("{right} on {table}"));
            }
            client.batch_execute(&format!("GRANT {right} ON {table} TO {role}")).await.expect("granted");
        }
    }
    // The first is read before migrating, the others are for importing users.
    assert_eq!(idle, ["SELECT on refinery_schema_history", "INSERT on kv", "UPDATE on kv"]);
}
