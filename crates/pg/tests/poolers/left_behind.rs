//! State that the clients of a pooler leave behind in its sessions, and find there.

use pg::{Dsn, PgError, SessionSettings};

use super::*;

/// The settings of a pooler that does not reset its sessions: they keep the state of the previous client.
const NOT_RESET: [(&str, &str); 2] = [IGNORED, ("server_reset_query", "")];

/// Leaves all kinds of state in each of `count` sessions.
async fn leave_behind(port: u16, count: usize) {
    let mut clients = Vec::new();
    for _ in 0..count {
        let client = client(port, "postgres").await;
        let left = "PREPARE s0 AS SELECT 0; PREPARE s1 AS SELECT 1; PREPARE s2 AS SELECT 2; \
                    SET default_transaction_read_only = on; SET statement_timeout = 300; SET search_path = nowhere; \
                    SET role pg_monitor; SELECT pg_advisory_lock_shared(7)";
        client.batch_execute(left).await.expect("left behind");
        clients.push(client);
    }
}

#[tokio::test]
async fn what_another_client_left_in_a_session_of_a_pooler_that_does_not_reset_it_is_gone() {
    let server = postgres().await;
    let pooler = pooler(&server, "session", 3, &NOT_RESET).await;
    leave_behind(pooler.port(), 3).await;
    let session = session(&pool(pooler.port())).await;
    for (name, value) in [
        ("default_transaction_read_only", "off"),
        ("statement_timeout", "10s"),
        ("search_path", "other, public"),
        ("client_encoding", "UTF8"),
        ("application_name", "mine"),
        ("role", "none"),
    ] {
        assert_eq!(shown(&session, name).await, value, "{name}");
    }
    assert_eq!(prepared(&session).await, 0);
    let held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(session.raw(held).await.expect("listed").len(), 0);
}

const LOCK_KEY: i64 = 0x7a_6e_6f_74_69_66_00;

async fn migrate(port: u16, sql: &'static str) -> Result<usize, PgError> {
    let dsn =
        Dsn::parse(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).expect("a connection string");
    let migrations = [pg::Migration { version: 1, name: "one", sql: sql.into() }];
    let settings =
        pg::MigrationSettings { lock_key: LOCK_KEY, session: SessionSettings::default(), command: "migrate" };
    pg::migrate(&dsn, &migrations, settings).await
}

/// The number of sessions that hold an exclusive advisory lock.
async fn locks(server: &Postgres) -> usize {
    let held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    client(server.port(), "postgres").await.query(held, &[]).await.expect("listed").len()
}

#[tokio::test]
async fn migrations_behind_a_pooler_that_resets_no_session_work_and_leave_no_lock_behind() {
    let server = postgres().await;
    let pooler = pooler(&server, "session", 3, &NOT_RESET).await;
    leave_behind(pooler.port(), 3).await;
    migrate(pooler.port(), "CREATE TABLE one (); SELECT 1 / 0").await.expect_err("it divides by zero");
    assert_eq!(locks(&server).await, 0);
    let slow = "CREATE TABLE one (); SELECT pg_sleep(1)";
    assert_eq!(migrate(pooler.port(), slow).await.expect("it works"), 1);
    assert_eq!(locks(&server).await, 0);
    assert_eq!(migrate(pooler.port(), slow).await.expect("it works"), 0);
}

#[tokio::test]
async fn no_migration_runs_behind_a_pooler_that_cannot_be_shown_to_keep_sessions() {
    let server = postgres().await;
    let pooler = pooler(&server, "transaction", 10, &[IGNORED, ("max_client_conn", "1")]).await;
    let error = migrate(pooler.port(), "CREATE TABLE one ()").await.expect_err("it is refused");
    assert!(cause(&error).contains("could not be shown"), "{error:?}");
    assert_eq!(locks(&server).await, 0);
    let tables = "SELECT FROM pg_tables WHERE schemaname = 'public'";
    let tables = client(server.port(), "postgres").await.query(tables, &[]).await.expect("listed");
    assert_eq!(tables.len(), 0);
}

#[tokio::test]
async fn a_listener_whose_session_a_pooler_exchanged_finds_out_when_it_is_checked() {
    let server = postgres().await;
    let mut pooler = pooler(&server, "session", 10, &[IGNORED]).await;
    let listener =
        pg::listen(&dsn(pooler.port()), "news", SessionSettings::default()).await.expect("it listens");
    listener.check().await.expect("it listens");
    pooler.set_pool("transaction", 10).expect("it is reloaded");
    let administrator = client(pooler.port(), "pgbouncer").await;
    administrator.simple_query("RECONNECT").await.expect("its sessions are closed once they are free");
    let exchanged = async {
        while listener.check().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, exchanged).await.expect("it is noticed");
}
