//! PostgreSQL behind a real PgBouncer, in each of its modes.

mod comparison;
mod left_behind;

use std::time::{Duration, Instant};

use local_servers::{PgBouncer, PgBouncerOptions, Postgres, PostgresOptions};
use pg::{
    Dsn, PgError, PgPool, PoolSettings, Session, SessionSettings, Statement, is_unusable_pooler, parameter,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const SUM: Statement = Statement::new("test.sum", &[], "SELECT $1::bigint + $2::bigint AS sum");
/// The setting that PgBouncer's first error message suggests to an operator.
const IGNORED: (&str, &str) = ("ignore_startup_parameters", "options,extra_float_digits");

async fn postgres() -> Postgres {
    Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts")
}

async fn pooler(
    server: &Postgres,
    pool_mode: &'static str,
    pool_size: usize,
    settings: &[(&'static str, &'static str)],
) -> PgBouncer {
    let options = PgBouncerOptions { pool_mode, pool_size, settings: settings.to_vec(), roles: Vec::new() };
    PgBouncer::start(server.port(), options).await.expect("PgBouncer starts")
}

fn dsn(port: u16) -> Dsn {
    let text = format!("postgres://postgres@127.0.0.1:{port}/postgres?search_path=other,%20public");
    Dsn::parse(&text).expect("a connection string")
}

fn pool(port: u16) -> PgPool {
    let session = SessionSettings { application_name: "mine", parameters: &[("enable_seqscan", "off")] };
    let settings = PoolSettings { max_connections: 3, operation_timeout: TIMEOUT, session };
    PgPool::new(&dsn(port), settings).expect("a pool")
}

fn settings(max_connections: usize) -> PoolSettings {
    PoolSettings { max_connections, operation_timeout: TIMEOUT, session: SessionSettings::default() }
}

async fn session(pool: &PgPool) -> Session {
    pool.session("test").await.expect("a connection")
}

/// The error of a pool that cannot be used.
async fn refusal(port: u16) -> PgError {
    match pool(port).session("test").await {
        Ok(_) => panic!("the pooler was not noticed"),
        Err(error) => error,
    }
}

/// The cause of an error, which names the host and what to change.
fn cause(error: &PgError) -> String {
    std::error::Error::source(error).expect("it has a cause").to_string()
}

/// A client of the pooler that is not this service.
async fn client(port: u16, database: &str) -> tokio_postgres::Client {
    let addr = format!("postgres://postgres@127.0.0.1:{port}/{database}");
    let (client, connection) = tokio_postgres::connect(&addr, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

async fn shown(session: &Session, name: &str) -> String {
    session.raw(&format!("SHOW {name}")).await.expect("shown").remove(0)
}

/// The number of statements that the session has prepared after running one twice.
async fn prepared(session: &Session) -> usize {
    for number in [1, 2] {
        let statement = SUM.bind([parameter::bigint(number), parameter::bigint(1)]);
        let rows = session.query(statement).await.expect("it runs");
        assert_eq!(pg::row::get::<i64>(&rows[0], "sum").expect("a number"), number + 1);
    }
    session.raw("SELECT name FROM pg_prepared_statements").await.expect("listed").len()
}

#[tokio::test]
async fn without_a_pooler_statements_are_prepared() {
    let server = postgres().await;
    assert_eq!(prepared(&session(&pool(server.port())).await).await, 1);
}

#[tokio::test]
async fn behind_a_pooler_in_session_mode_every_setting_is_in_force_and_no_statement_has_a_name() {
    let server = postgres().await;
    for settings in [&[][..], &[IGNORED], &[("server_round_robin", "1"), IGNORED]] {
        let pooler = pooler(&server, "session", 10, settings).await;
        let pool = pool(pooler.port());
        let (one, other) = (session(&pool).await, session(&pool).await);
        for session in [one, other] {
            for (name, value) in [
                ("search_path", "other, public"),
                ("enable_seqscan", "off"),
                ("statement_timeout", "10s"),
                ("lock_timeout", "500ms"),
                ("idle_in_transaction_session_timeout", "10s"),
                ("timezone", "UTC"),
                ("application_name", "mine"),
            ] {
                assert_eq!(shown(&session, name).await, value, "{name} with {settings:?}");
            }
            assert_eq!(prepared(&session).await, 0);
        }
        // The connection was borrowed again.
        assert_eq!(prepared(&session(&pool).await).await, 0);
        assert!(pg::server_version(&dsn(pooler.port())).await.expect("it has a version") > 130_000);
    }
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_is_refused_and_the_refusal_names_what_to_change() {
    let server = postgres().await;
    for pool_mode in ["transaction", "statement"] {
        for pool_size in [1, 2, 3, 20] {
            for settings in [
                &[][..],
                &[IGNORED],
                &[IGNORED, ("server_round_robin", "1")],
                &[IGNORED, ("min_pool_size", "3")],
                &[IGNORED, ("server_reset_query_always", "1")],
            ] {
                let pooler = pooler(&server, pool_mode, pool_size, settings).await;
                let error = refusal(pooler.port()).await;
                let case = format!("{pool_mode}, {pool_size} connections, {settings:?}: {error:?}");
                assert!(is_unusable_pooler(&error), "{case}");
                let error = std::error::Error::source(&error).expect("it has a cause").to_string();
                assert!(error.contains("pool_mode = session"), "{case}");
                // A single query needs no session of its own, so a start first detects a server that is too
                // old.
                let version = pg::server_version(&dsn(pooler.port())).await;
                assert!(version.is_ok_and(|version| version > 130_000), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_keeps_nothing_of_the_settings_of_a_client_that_it_refused() {
    let server = postgres().await;
    let pooler = pooler(&server, "transaction", 1, &[IGNORED]).await;
    refusal(pooler.port()).await;
    let addr = format!("postgres://postgres@127.0.0.1:{}/postgres", pooler.port());
    let (client, connection) = tokio_postgres::connect(&addr, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    for (name, value) in
        [("search_path", "\"$user\", public"), ("statement_timeout", "0"), ("enable_seqscan", "on")]
    {
        let row = client.simple_query(&format!("SHOW {name}")).await.expect("shown");
        let shown = row.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(shown, Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_pooler_that_is_busy_with_others_is_noticed_too() {
    let server = postgres().await;
    for settings in [&[IGNORED][..], &[IGNORED, ("server_round_robin", "1")]] {
        let pooler = pooler(&server, "transaction", 4, settings).await;
        let addr = format!("postgres://postgres@127.0.0.1:{}/postgres", pooler.port());
        let others = (0..6).map(|_| {
            let addr = addr.clone();
            tokio::spawn(async move {
                let (client, connection) =
                    tokio_postgres::connect(&addr, tokio_postgres::NoTls).await.expect("connects");
                tokio::spawn(connection);
                loop {
                    client.batch_execute("BEGIN; SELECT pg_sleep(0.002); COMMIT").await.expect("it runs");
                }
            })
        });
        let others: Vec<_> = others.collect();
        for _ in 0..20 {
            let error = refusal(pooler.port()).await;
            assert!(is_unusable_pooler(&error), "{error:?}");
        }
        for other in others {
            assert!(!other.is_finished());
            other.abort();
        }
    }
}

#[tokio::test]
async fn a_pooler_that_is_changed_to_share_sessions_serves_no_borrowed_connection_any_more() {
    let server = postgres().await;
    let mut pooler = pooler(&server, "session", 10, &[IGNORED]).await;
    let pool = pool(pooler.port());
    let (one, other) = (session(&pool).await, session(&pool).await);
    drop((one, other));
    pooler.set_pool("transaction", 10).expect("it is reloaded");
    let refused = async {
        loop {
            let (one, other) = tokio::join!(pool.session("one"), pool.session("other"));
            if let (Err(error), _) | (_, Err(error)) = (&one, &other)
                && is_unusable_pooler(error)
            {
                break;
            }
            // The second one gets the session that the first has left.
            if let (Ok(one), Ok(other)) = (one, other) {
                let done = tokio::join!(one.execute_batch("SELECT 1"), other.execute_batch("SELECT 1"));
                drop(done);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(3 * TIMEOUT, refused).await.expect("it is noticed");
}

#[tokio::test]
async fn a_pooler_whose_server_is_hung_costs_a_borrower_one_late_check_and_not_one_for_each_idle_connection()
{
    let server = postgres().await;
    let pooler = pooler(&server, "session", 20, &[IGNORED]).await;
    let pool = PgPool::new(&dsn(pooler.port()), settings(8)).expect("a pool");
    let sessions = futures_util::future::join_all((0..8).map(|_| session(&pool))).await;
    drop(sessions);
    assert_eq!(pool.usage(), (8, 8));
    server.pause();
    let begun = Instant::now();
    pool.session("late").await.expect_err("the server does not respond");
    let took = begun.elapsed();
    server.resume();
    // A check and an attempt to open another connection take 2 s each.
    assert!(took < Duration::from_secs(10), "{took:?}");
    session(&pool).await;
}
