use local_servers::{Postgres, PostgresOptions};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::{MAX_GIVEN_UP, Statement};

const TIMEOUT: Duration = Duration::from_secs(4);

fn settings(max_connections: usize, operation_timeout: Duration) -> PoolSettings {
    PoolSettings { max_connections, operation_timeout, session: SessionSettings::default() }
}

fn pool(hosts: &str, operation_timeout: Duration) -> PgPool {
    let dsn = Dsn::parse(&format!("postgres://postgres@{hosts}/postgres")).expect("a connection string");
    PgPool::new(&dsn, settings(1, operation_timeout)).expect("a pool")
}

#[tokio::test(start_paused = true)]
async fn opening_may_take_longer_than_an_operation_and_a_wait_for_a_connection_may_not() {
    // Its backlog accepts connections, and the server never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let pool = pool(&silent.local_addr().expect("bound").to_string(), Duration::from_millis(100));
    let opener = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.session("open").await.map(drop) })
    };
    let begun = Instant::now();
    tokio::task::yield_now().await;
    let waited = pool.session("wait").await.expect_err("no connection is free");
    assert_eq!(begun.elapsed().as_millis() / 10, 10, "{waited}");
    let opened = opener.await.expect("it does not panic").expect_err("nothing answers");
    assert_eq!(begun.elapsed().as_secs(), 2, "{opened}");
}

#[tokio::test]
async fn a_connection_whose_plan_is_dead_takes_those_in_use_with_it_when_they_are_returned() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let pool = PgPool::new(&dsn, settings(2, TIMEOUT)).expect("a pool");
    let read = || Statement::new("test.read", &[], "SELECT * FROM t").bind([]);
    let [one, two] = [pool.session("one").await.expect("opens"), pool.session("two").await.expect("opens")];
    one.execute_batch("CREATE TABLE t (at timestamptz)").await.expect("is created");
    for session in [&one, &two] {
        session.query(read()).await.expect("the plan is kept");
    }
    one.execute_batch("ALTER TABLE t ALTER COLUMN at TYPE timestamptz(3)").await.expect("is altered");
    one.query(read()).await.expect_err("the plan is dead");
    two.execute_batch("SELECT 1").await.expect("another statement runs");
    drop((one, two));
    let [one, two] = [pool.session("one").await.expect("opens"), pool.session("two").await.expect("opens")];
    for session in [one, two] {
        session.query(read()).await.expect("no connection has the dead plan");
    }
}

#[tokio::test]
async fn an_error_of_a_trigger_refuses_the_row_whatever_its_code_and_closes_no_connection() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let pool = PgPool::new(&dsn, settings(3, TIMEOUT)).expect("a pool");
    let (one, two) = tokio::join!(pool.session("one"), pool.session("two"));
    let (one, two) = (one.expect("opens"), two.expect("opens"));
    // The first is the code of a plan that is out of date.
    for code in ["feature_not_supported", "undefined_table", "cardinality_violation", "data_corrupted"] {
        let raise = format!("DO $$ BEGIN RAISE 'no' USING ERRCODE = '{code}'; END $$");
        let error = one.execute_batch(&raise).await.expect_err("it is raised");
        assert!(matches!(error, PgError::Refused { .. }), "{error:?}");
    }
    // The codes of a server that cannot serve at present, which it did not choose here.
    for code in ["lock_not_available", "serialization_failure", "too_many_connections", "disk_full"] {
        let raise = format!("DO $$ BEGIN RAISE 'no' USING ERRCODE = '{code}'; END $$");
        let error = one.execute_batch(&raise).await.expect_err("it is raised");
        assert!(matches!(error, PgError::TimedOut { .. }), "{error:?}");
    }
    for body in ["PERFORM lastval()", "PERFORM FROM missing_table", "PERFORM pg_read_file('missing')"] {
        let error = one.execute_batch(&format!("DO $$ BEGIN {body}; END $$")).await.expect_err("it fails");
        assert!(matches!(error, PgError::TimedOut { .. }), "{error:?}");
    }
    one.execute_batch(
        "CREATE FUNCTION two() RETURNS int LANGUAGE sql AS 'SELECT (SELECT generate_series(1, 2))'",
    )
    .await
    .expect("a function of the language SQL");
    let in_sql = one.query(Statement::new("test.two", &[], "SELECT two()").bind([])).await;
    assert!(matches!(in_sql, Err(PgError::TimedOut { .. })), "{in_sql:?}");
    let read_only = "BEGIN READ ONLY; CREATE TABLE t (); COMMIT";
    let read_only = one.execute_batch(read_only).await.expect_err("the server refuses");
    assert!(matches!(read_only, PgError::Unavailable { .. }), "{read_only:?}");
    let ended = "DO $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); END $$";
    let own = pool.session("ended").await.expect("opens");
    let ended = own.execute_batch(ended).await.expect_err("the session ends");
    assert!(matches!(ended, PgError::Unavailable { .. }), "{ended:?}");
    drop(own);
    drop(one);
    let one = pool.session("one").await.expect("opens");
    let missing = two.execute_batch("SELECT FROM missing_table").await.expect_err("there is no such table");
    assert!(matches!(missing, PgError::Unavailable { .. }), "{missing:?}");
    drop((one, two));
    assert_eq!(pool.usage(), (2, 2), "both are idle");
}

#[tokio::test]
async fn a_connection_that_fails_takes_the_idle_ones_with_it() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let pool = PgPool::new(&dsn, settings(3, TIMEOUT)).expect("a pool");
    let three = tokio::join!(pool.session("one"), pool.session("two"), pool.session("three"));
    assert_eq!(pool.usage(), (3, 0));
    let failing = three.0.expect("PostgreSQL is there");
    drop((three.1, three.2));
    assert_eq!(pool.usage(), (3, 2));
    failing.execute_batch("SELECT pg_terminate_backend(pg_backend_pid())").await.expect_err("it is gone");
    drop(failing);
    assert_eq!(pool.usage(), (0, 0));
    pool.ping().await.expect("another is opened");
}

/// The number of sessions in which the server runs the statement `text`.
async fn running(watcher: &PgPool, text: &str) -> usize {
    let session = watcher.session("look").await.expect("a connection");
    let sql = format!("SELECT pid FROM pg_stat_activity WHERE query = '{text}' AND state = 'active'");
    session.raw(&sql).await.expect("they are shown").len()
}

async fn until_running(watcher: &PgPool, text: &str, count: usize) {
    let come = async {
        while running(watcher, text).await != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(10 * TIMEOUT, come).await.expect("it comes to that");
}

#[tokio::test]
async fn a_statement_that_nobody_waits_for_is_cancelled_unless_it_may_take_as_long_as_it_needs() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let watcher = PgPool::new(&dsn, settings(1, TIMEOUT)).expect("a pool");
    let limited = PgPool::new(&dsn, settings(1, 100 * TIMEOUT)).expect("a pool");
    let unlimited = PgPool::without_deadlines(&dsn, SessionSettings::default()).expect("a pool");
    for (pool, text) in [(unlimited, "SELECT pg_sleep(301)"), (limited, "SELECT pg_sleep(302)")] {
        let asking = tokio::spawn(async move {
            let session = pool.session("sleep").await.expect("a connection");
            session.execute_batch(text).await
        });
        until_running(&watcher, text, 1).await;
        asking.abort();
    }
    until_running(&watcher, "SELECT pg_sleep(302)", 0).await;
    assert_eq!(running(&watcher, "SELECT pg_sleep(301)").await, 1);
}

#[tokio::test]
async fn a_statement_that_was_given_up_counts_against_its_pool_until_the_server_has_ended_it() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let pool = PgPool::new(&dsn, settings(1, Duration::from_millis(500))).expect("a pool");
    let signal = |name: &str, pid: &str| {
        let status = std::process::Command::new("kill").args([name, pid]).status();
        assert!(status.expect("kill runs").success());
    };
    // Given up by its caller, and by its deadline.
    for by_caller in [true, false] {
        let session = pool.session("stop").await.expect("a connection");
        let pid = session.raw("SELECT pg_backend_pid()").await.expect("its process").remove(0);
        // A stopped process can neither continue nor be cancelled.
        signal("-STOP", &pid);
        let asking = tokio::spawn(async move { session.execute_batch("SELECT 1").await });
        if by_caller {
            tokio::task::yield_now().await;
            asking.abort();
            drop(asking.await);
        } else {
            asking.await.expect("it does not panic").expect_err("it is late");
        }
        pool.session("wait").await.expect_err("its place is taken");
        assert_eq!(pool.usage(), (1, 0));
        signal("-CONT", &pid);
        let freed = async { while pool.session("go on").await.is_err() {} };
        tokio::time::timeout(MAX_GIVEN_UP / 2, freed).await.expect("before the longest time");
    }
}

#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_not_cancelled_because_it_would_be_visible_without_being_safe() {
    let setting = ("synchronous_standby_names".to_owned(), "absent".to_owned());
    let server =
        Postgres::start(PostgresOptions { settings: vec![setting], ..PostgresOptions::default() }).await;
    let server = server.expect("PostgreSQL starts");
    let create = "SET synchronous_commit = local; CREATE TABLE t ()";
    server.execute("postgres", create).await.expect("created");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let watcher = PgPool::new(&dsn, settings(1, TIMEOUT)).expect("a pool").session("look").await;
    let watcher = watcher.expect("a connection");
    let pool = PgPool::new(&dsn, settings(1, 100 * TIMEOUT)).expect("a pool");
    let committing = tokio::spawn(async move {
        let session = pool.session("insert").await?;
        session.begin().await?;
        session.execute_batch("INSERT INTO t DEFAULT VALUES").await?;
        session.commit().await
    });
    let waiting = "SELECT pid FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'SyncRep'";
    let begun = async { while watcher.raw(waiting).await.expect("listed").is_empty() {} };
    tokio::time::timeout(TIMEOUT, begun).await.expect("it waits");
    committing.abort();
    drop(committing.await);
    for _ in 0..200 {
        assert_eq!(watcher.raw(waiting).await.expect("listed").len(), 1);
        assert_eq!(watcher.raw("SELECT count(*) FROM t").await.expect("counted"), ["0"]);
    }
}

#[tokio::test]
async fn a_pool_without_deadlines_lets_a_statement_take_as_long_as_it_needs_and_notices_a_peer_that_is_gone()
{
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    let pool = PgPool::without_deadlines(&dsn, SessionSettings::default()).expect("a pool");
    assert_eq!(pool.operation_timeout(), None);
    let session = pool.session("build").await.expect("a connection");
    for (name, value) in [("statement_timeout", "0"), ("lock_timeout", "0"), ("tcp_user_timeout", "10000")] {
        assert_eq!(session.raw(&format!("SHOW {name}")).await.expect("shown"), [value], "{name}");
    }
    assert!(session.deadline.is_none());
}

#[tokio::test]
async fn a_connection_whose_caller_stopped_waiting_is_used_by_the_next_one() {
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let pool = pool(&format!("127.0.0.1:{}", server.port()), TIMEOUT);
    {
        let mut impatient = Box::pin(pool.session("open"));
        let first = poll_fn(|context| Poll::Ready(impatient.as_mut().poll(context))).await;
        assert!(first.is_pending(), "a connection takes some time to open");
    }
    let kept = async {
        while pool.usage() != (1, 1) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, kept).await.expect("it comes into the pool");
}
