//! The state store while its database is unavailable, read-only or locked, and after a column was changed.

use std::time::Duration;

use harness::{Postgres, PostgresOptions, Stopwatch, TestDatabase, wait_for};
use serde_json::json;

use crate::state::{State, stops};
use crate::world::BOUND;

#[tokio::test]
async fn a_database_that_became_read_only_is_named_once_and_served() {
    let state = State::new().await;
    let first = state.process().start().await;
    assert_eq!(state.ask("PUT", "/keys/a", "1").await.status, 204);
    first.kill().await;
    let client = state.database.client().await;
    let row = client.query_one("SELECT current_database()::text", &[]).await.expect("a name");
    let read_only =
        |how: &str| format!("ALTER DATABASE {} {how} default_transaction_read_only", row.get::<_, String>(0));
    client.batch_execute(&format!("{} = on", read_only("SET"))).await.expect("set");
    let service = state.process().start().await;
    for _ in 0..5 {
        let put = state.ask("PUT", "/keys/a", "2").await;
        assert_eq!(put.status, 503);
        assert!(put.body.contains("read-only; nothing was changed"), "{}", put.body);
        assert_eq!(state.ask("GET", "/keys/a", "").await.status, 200);
    }
    let ready = state.ask("GET", "/readyz", "").await;
    assert!(ready.status == 503 && ready.body.contains("read-only"), "{}", ready.body);
    let output = service.output().join("\n");
    assert_eq!(output.matches("PostgreSQL is read-only").count(), 1, "{output}");
    assert!(!output.contains("unavailable"), "{output}");
}

#[tokio::test]
async fn while_postgresql_is_unavailable_a_response_comes_in_time_and_afterwards_all_is_well() {
    let mut server = Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL");
    let state = State::on(TestDatabase::empty_on(&server).await);
    let mut service = state.process().env("STATE_PROXY_STATEMENT_TIMEOUT", "1s").start().await;
    assert_eq!(state.ask("PUT", "/keys/a", "1").await.status, 204);
    for is_hung in [true, false] {
        if is_hung {
            server.pause();
        } else {
            server.stop().await;
        }
        for (method, path, body) in [
            ("GET", "/keys/a", ""),
            ("PUT", "/keys/a", "2"),
            ("GET", "/keys/", ""),
            ("POST", "/query", "{}"),
            ("GET", "/readyz", ""),
        ] {
            let begun = Stopwatch::start();
            let answer = state.ask(method, path, body).await;
            let took = begun.elapsed();
            assert!([503, 504].contains(&answer.status), "{method} {path}: {answer:?}");
            assert!(took < Duration::from_millis(2_000), "{method} {path} took {took:?}");
            assert_eq!(answer.status == 503, answer.header("retry-after").is_some(), "{answer:?}");
        }
        assert_eq!(state.ask("GET", "/healthz", "").await.body, "ok");
        if is_hung {
            server.resume();
        } else {
            server.start_again().await.expect("it starts again");
        }
        wait_for("the store answers again", BOUND, async || {
            (state.ask("GET", "/keys/a", "").await.status == 200).then_some(())
        })
        .await;
    }
    assert!(service.logged("PostgreSQL recovered").is_some(), "{}", service.output().join("\n"));
    stops(&mut service).await;
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_504_and_a_locked_document_503() {
    let state = State::new().await;
    let mut service = state.process().env("STATE_PROXY_STATEMENT_TIMEOUT", "1s").start().await;
    assert_eq!(state.ask("PUT", "/keys/a", r#"{"status":"new"}"#).await.status, 204);
    let blocker = state.database.client().await;
    blocker.batch_execute("BEGIN; SELECT * FROM notification.kv FOR UPDATE").await.expect("is locked");
    let locked = state.ask("PUT", "/keys/a", "2").await;
    assert_eq!((locked.status, &locked.json()["error"]), (503, &json!("unavailable")));
    blocker.batch_execute("COMMIT; BEGIN; LOCK TABLE notification.kv").await.expect("is locked");
    let begun = Stopwatch::start();
    let late = state.ask("POST", "/query", "{}").await;
    assert!([503, 504].contains(&late.status) && begun.elapsed() < Duration::from_secs(2), "{late:?}");
    blocker.batch_execute("COMMIT").await.expect("is open");
    assert_eq!(state.ask("GET", "/keys/a", "").await.json()["value"], json!({"status": "new"}));
    stops(&mut service).await;
}

#[tokio::test]
async fn every_request_is_answered_again_after_the_type_of_a_column_was_changed() {
    let state = State::new().await;
    let _service = state.process().start().await;
    assert_eq!(state.ask("PUT", "/keys/a", r#"{"n":1}"#).await.status, 204);
    let requests =
        [("GET", "/keys/a", ""), ("POST", "/query", r#"{"filter":{"n":1}}"#), ("GET", "/readyz", "")];
    // Several connections of each pool have the plans.
    let ask_all = async || {
        let each = requests.iter().cycle().take(30);
        let answers = each.map(|(method, path, body)| state.ask(method, path, body));
        futures_util::future::join_all(answers).await.iter().all(|answer| answer.status == 200)
    };
    assert!(ask_all().await);
    let sql = "ALTER TABLE kv ALTER COLUMN updated_at TYPE timestamptz(3), ALTER COLUMN created_at TYPE timestamptz(3)";
    state.database.client().await.batch_execute(sql).await.expect("it is changed");
    wait_for("all are answered", BOUND, async || ask_all().await.then_some(())).await;
    for _ in 0..3 {
        assert!(ask_all().await, "they stay so");
    }
}
