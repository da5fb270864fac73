//! Named statements on a server.

use std::error::Error;
use std::time::Duration;

use ambient::Timestamp;
use local_servers::{Postgres, PostgresOptions};
use pg::parameter::{self, Parameter};
use pg::{Dsn, PgPool, PoolSettings, Session, SessionSettings, Statement, check_plan, explain_analyze, row};

async fn server() -> Postgres {
    Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts")
}

async fn session(server: &Postgres) -> Session {
    let dsn = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let session = SessionSettings { application_name: "mine", parameters: &[("enable_seqscan", "off")] };
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(10), session };
    let pool = PgPool::new(&Dsn::parse(&dsn).expect("a connection string"), settings).expect("a pool");
    pool.session("test").await.expect("connects")
}

/// The elements in the server's text format, `NULL` as `None`.
async fn elements(session: &Session, sql_type: &str, array: Parameter) -> Vec<Option<String>> {
    let text = format!("SELECT unnest($1::{sql_type})::text AS element");
    let rows = session.query(Statement::composed("test.elements", &[], text).bind([array])).await;
    rows.expect("an array").iter().map(|found| row::get(found, "element").expect("a text")).collect()
}

fn some<const N: usize>(texts: [&str; N]) -> Vec<Option<String>> {
    texts.map(|text| Some(text.to_owned())).to_vec()
}

#[tokio::test]
async fn the_elements_of_an_array_arrive_unchanged() {
    let server = server().await;
    let session = session(&server).await;
    let texts = ["", "NULL", "a,b", r#"{"x":"\""}"#, "ü€😀", " \n\t"];
    assert_eq!(elements(&session, "text[]", parameter::texts(texts)).await, some(texts));
    assert_eq!(elements(&session, "text[]", parameter::texts::<&str>([])).await, []);
    let gap = parameter::optional_texts([None, Some("x")]);
    assert_eq!(elements(&session, "text[]", gap).await, [None, Some("x".to_owned())]);

    let numbers = parameter::bigints([i64::MIN, 0, i64::MAX]);
    let expected = some(["-9223372036854775808", "0", "9223372036854775807"]);
    assert_eq!(elements(&session, "bigint[]", numbers).await, expected);

    let last = Timestamp::UNIX_EPOCH + Duration::from_micros(253_402_300_799_999_999);
    let gap = parameter::optional_instants([None, Some(last)]);
    let expected = [None, Some("9999-12-31 23:59:59.999999+00".to_owned())];
    assert_eq!(elements(&session, "timestamptz[]", gap).await, expected);

    let json = parameter::texts([r#"{"b":1,"a":[ ]}"#]);
    assert_eq!(elements(&session, "text[]::jsonb[]", json).await, some([r#"{"a": [], "b": 1}"#]));
}

#[tokio::test]
async fn a_parameter_of_another_type_than_the_one_in_the_statement_is_an_error() {
    let server = server().await;
    let statement = Statement::new("test.type", &[], "SELECT $1::bigint");
    let error = session(&server).await.query(statement.bind([parameter::text("1")])).await;
    let error = format!("{:?}", error.expect_err("a text is not a number"));
    assert!(error.contains("the statement has a int8 where a text is bound"), "{error}");
}

#[tokio::test]
async fn the_error_of_a_statement_contains_its_name() {
    let server = server().await;
    let statement = Statement::new("test.divide", &[], "SELECT 1 / $1::bigint");
    let error = session(&server).await.query(statement.bind([parameter::bigint(0)])).await;
    let cause = error.expect_err("division by zero").source().expect("the server's error").to_string();
    assert_eq!(cause, "(SQLSTATE 22012, statement test.divide)");
}

#[tokio::test]
async fn a_plan_is_compared_with_the_claim_of_its_statement() {
    let server = server().await;
    let table = "CREATE TABLE jobs (id bigint PRIMARY KEY, name text)";
    server.execute("postgres", table).await.expect("a table");
    let session = session(&server).await;
    let by_key = "SELECT name FROM jobs WHERE id = $1::bigint";
    let by_name = "SELECT id FROM jobs WHERE name = $1::text";
    for (plan, text, start) in [
        (&["jobs_pkey"] as &[&str], by_key, None),
        (&["Seq Scan on jobs"], by_name, None),
        (&["jobs_name_idx"], by_key, Some("the plan of jobs.find lacks jobs_name_idx:\n")),
        (&[], by_name, Some("jobs.find reads a whole table:\nSeq Scan")),
        (&[], "SELECT nothing FROM jobs", Some("jobs.find cannot be explained: column \"nothing\"")),
    ] {
        let result = check_plan(&session, &Statement::new("jobs.find", plan, text)).await;
        match (start, result) {
            (None, result) => assert_eq!(result, Ok(())),
            (Some(start), Err(error)) => assert!(error.starts_with(start), "{error}"),
            (Some(start), Ok(())) => panic!("no error: {start}"),
        }
    }
}

#[tokio::test]
async fn an_analyzed_plan_is_the_generic_one_with_the_rows_of_a_run() {
    let server = server().await;
    let session = session(&server).await;
    let rows = Statement::new("test.rows", &[], "SELECT unnest($1::text[]) LIMIT $2::bigint");
    let bound = rows.bind([parameter::texts(["it's", "b"]), parameter::rows(2)]);
    let plan = explain_analyze(&session, &bound).await.expect("it runs");
    assert!(plan.contains("$1") && plan.contains("\"Actual Rows\": 2"), "{plan}");
}
