//! A pool of connections with a deadline on everything.
//!
//! Three guards stand behind each other: the client stops waiting, the server stops the statement, and both ends'
//! kernels give up on a peer that acknowledges nothing. So neither a black-holed socket nor a transaction that was
//! abandoned in it can hold a key for longer than the operation's time-out.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use sea_query::QueryStatementWriter;
use sea_query_postgres::{PostgresBinder, PostgresValues};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{Client, Config, NoTls, Row, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{TimedOut, leaves_connection_usable};
use crate::{Dsn, DsnError, PgError};

/// How much longer than the server the client waits, so that the server's own word comes first.
const GRACE: Duration = Duration::from_millis(500);

/// After how long without a word from the other end a connection is asked whether it is still there, how often, and after
/// how many questions without an answer it is given up: 15 s in all, which is less than another process waits for a
/// migration ([`crate::migrate::LOCK_WAIT`]).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 2;
/// Where statements may take as long as they need: how long the server waits for an acknowledgement, and for the next
/// statement of a transaction.
const SILENCE: Duration = Duration::from_secs(10);

/// What a pool is told by configuration.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// The most connections it opens.
    pub max_connections: usize,
    /// The longest that one operation may take, waiting for a connection included.
    pub operation_timeout: Duration,
}

/// Connections to one database, opened when needed.
#[derive(Clone, Debug)]
pub struct PgPool {
    pool: Pool,
    operation_timeout: Duration,
}

impl PgPool {
    /// A pool; opens nothing yet.
    pub fn new(dsn: &Dsn, settings: PoolSettings) -> Result<Self, DsnError> {
        let config = session_config(dsn, Some(settings.operation_timeout));
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match dsn.tls()? {
            None => Manager::from_config(config, NoTls, manager_config),
            Some(tls) => Manager::from_config(config, MakeRustlsConnect::new(tls), manager_config),
        };
        let pool = Pool::builder(manager)
            .max_size(settings.max_connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(settings.operation_timeout))
            .create_timeout(Some(settings.operation_timeout))
            .recycle_timeout(Some(settings.operation_timeout))
            .build()
            .map_err(|error| DsnError::Parameter(format!("no pool can be made: {error}")))?;
        Ok(Self { pool, operation_timeout: settings.operation_timeout })
    }

    /// Borrows a connection for one operation, whose deadline begins now.
    pub async fn session(&self, operation: &'static str) -> Result<Session, PgError> {
        let deadline = Instant::now() + self.operation_timeout + GRACE;
        // The pool's own time-outs, for the wait, the opening and the check of a connection, begin one after the other.
        let object = timeout_at(deadline, self.pool.get())
            .await
            .map_err(|_| PgError::unavailable(operation, TimedOut(self.operation_timeout)))?
            .map_err(|error| PgError::unavailable(operation, error))?;
        Ok(Session {
            object: Some(object),
            operation,
            deadline,
            allowed: self.operation_timeout,
            in_flight: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        })
    }

    /// Asks the database for nothing, to see that it is there.
    pub async fn ping(&self) -> Result<(), PgError> {
        self.session("reach PostgreSQL").await?.execute_batch("SELECT 1").await
    }

    /// Open connections, and those of them that nobody uses.
    pub fn usage(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    /// Closes every connection that nobody uses, and the others when they are given back.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// A connection, borrowed for one operation.
///
/// It goes back to the pool only if its state is known: not after a broken connection or a time-out, nor when it is
/// dropped while a statement is on its way or a transaction is open.
#[derive(Debug)]
pub struct Session {
    object: Option<Object>,
    operation: &'static str,
    deadline: Instant,
    allowed: Duration,
    in_flight: AtomicUsize,
    broken: AtomicBool,
}

/// A statement that the server has prepared, with its parameters.
#[derive(Debug)]
pub struct Prepared {
    statement: Statement,
    values: PostgresValues,
}

impl Session {
    /// Prepares `query` (once for each connection and text) and keeps its parameters with it.
    ///
    /// The text must not vary with the data: each text stays prepared for as long as the connection lives.
    pub async fn prepare(&self, query: &impl PostgresBinderRef) -> Result<Prepared, PgError> {
        let (sql, values) = query.build_ref();
        let statement = self.guard(async |client| client.prepare_cached(&sql).await).await?;
        Ok(Prepared { statement, values })
    }

    /// Runs a prepared statement. Several at once are sent one behind the other, in the order of their first poll.
    pub async fn run(&self, prepared: &Prepared) -> Result<Vec<Row>, PgError> {
        let params = prepared.values.as_params();
        self.guard(async |client| client.query(&prepared.statement, &params).await).await
    }

    /// Prepares and runs.
    pub async fn query(&self, query: &impl PostgresBinderRef) -> Result<Vec<Row>, PgError> {
        self.run(&self.prepare(query).await?).await
    }

    /// Runs a prepared statement for the number of rows that it changed. Several at once go like those of [`Session::run`].
    pub async fn change(&self, prepared: &Prepared) -> Result<u64, PgError> {
        let params = prepared.values.as_params();
        self.guard(async |client| client.execute(&prepared.statement, &params).await).await
    }

    /// Prepares and runs, for the number of rows that were changed.
    pub async fn execute(&self, query: &impl PostgresBinderRef) -> Result<u64, PgError> {
        self.change(&self.prepare(query).await?).await
    }

    /// Runs a text without parameters or rows.
    pub async fn execute_batch(&self, sql: &str) -> Result<(), PgError> {
        self.guard(async |client| client.batch_execute(sql).await).await
    }

    /// Runs a text without parameters and gives the first column of its rows, as text. For tools, not for data.
    pub async fn raw(&self, sql: &str) -> Result<Vec<String>, PgError> {
        let messages = self.guard(async |client| client.simple_query(sql).await).await?;
        let first = |message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(first).collect())
    }

    /// Opens a transaction. If the session is dropped before [`Session::commit`] or [`Session::rollback`], the
    /// connection is closed, and the server rolls back.
    pub async fn begin(&self) -> Result<(), PgError> {
        self.broken.store(true, Ordering::SeqCst);
        self.execute_batch("BEGIN").await
    }

    /// Commits. An error leaves it unknown whether the transaction was committed.
    pub async fn commit(&self) -> Result<(), PgError> {
        self.execute_batch("COMMIT").await?;
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Takes everything back since [`Session::begin`].
    pub async fn rollback(&self) -> Result<(), PgError> {
        self.execute_batch("ROLLBACK").await?;
        self.broken.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn guard<T>(
        &self,
        call: impl AsyncFnOnce(&deadpool_postgres::ClientWrapper) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, PgError> {
        let Some(client) = self.object.as_deref() else {
            return Err(PgError::unavailable(self.operation, "the connection was given back"));
        };
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let answer = timeout_at(self.deadline, call(client)).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if !leaves_connection_usable(&error) {
                    self.broken.store(true, Ordering::SeqCst);
                }
                Err(PgError::from_driver(self.operation, error))
            }
            Err(_) => {
                self.broken.store(true, Ordering::SeqCst);
                Err(PgError::unavailable(self.operation, TimedOut(self.allowed)))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let unknown = self.broken.load(Ordering::SeqCst) || self.in_flight.load(Ordering::SeqCst) > 0;
        if let Some(object) = self.object.take().filter(|_| unknown) {
            drop(Object::take(object));
        }
    }
}

/// A statement of the query builder.
pub trait PostgresBinderRef: Sync {
    /// Its text and its parameters.
    fn build_ref(&self) -> (String, PostgresValues);
}

impl<T: QueryStatementWriter + PostgresBinder + Sync> PostgresBinderRef for T {
    fn build_ref(&self) -> (String, PostgresValues) {
        self.build_postgres(sea_query::PostgresQueryBuilder)
    }
}

/// Opens one connection outside any pool. Its statements may take as long as they need, its silence may not.
pub(crate) async fn connect(
    dsn: &Dsn,
    operation: &'static str,
) -> Result<(Client, tokio::task::JoinHandle<()>), PgError> {
    let config = session_config(dsn, None);
    let tls = dsn.tls().map_err(|error| PgError::unavailable(operation, error))?;
    let failed = |error| PgError::unavailable(operation, error);
    Ok(match tls {
        None => {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        }
        Some(tls) => {
            let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await.map_err(failed)?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        }
    })
}

/// What every connection is opened with.
///
/// The planner's choices are pinned: every statement of ours reaches its rows through an index, in the index's order.
/// Left to itself the planner believes statistics that lie: a table was empty when they were taken, a queue is empty most
/// of the time, and a sudden backlog would then be read and sorted whole for every batch (ADR 0005).
fn session_config(dsn: &Dsn, operation_timeout: Option<Duration>) -> Config {
    let mut config = dsn.config().clone();
    let mut options = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
    options.push_str(
        "-c timezone=UTC -c jit=off -c plan_cache_mode=force_generic_plan -c enable_bitmapscan=off \
         -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_sort=off \
         -c enable_incremental_sort=off -c max_parallel_workers_per_gather=0",
    );
    if let Some(limit) = operation_timeout {
        let millis = limit.as_millis();
        options.push_str(&format!(" -c statement_timeout={millis} -c lock_timeout={millis}"));
    }
    let silence = operation_timeout.unwrap_or(SILENCE);
    options.push_str(&format!(
        " -c idle_in_transaction_session_timeout={millis} -c tcp_user_timeout={millis} \
         -c tcp_keepalives_idle={} -c tcp_keepalives_interval={} -c tcp_keepalives_count={KEEPALIVE_COUNT}",
        KEEPALIVE_IDLE.as_secs(),
        KEEPALIVE_INTERVAL.as_secs(),
        millis = silence.as_millis(),
    ));
    config.tcp_user_timeout(silence);
    config.options(options);
    if config.get_application_name().is_none() {
        config.application_name("notification");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(silence);
    }
    config
        .keepalives(true)
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_COUNT);
    config
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::advance;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(4);

    #[test]
    fn every_session_has_the_guards_against_a_peer_that_is_gone() {
        let dsn = Dsn::parse("postgres://me@db/x").expect("a connection string");
        for operation_timeout in [None, Some(TIMEOUT)] {
            let config = session_config(&dsn, operation_timeout);
            let options = config.get_options().unwrap_or_default();
            for guard in [
                "idle_in_transaction_session_timeout",
                "tcp_user_timeout",
                "tcp_keepalives_idle",
                "tcp_keepalives_interval",
                "tcp_keepalives_count",
            ] {
                assert!(options.contains(&format!("-c {guard}=")), "{guard}: {options}");
            }
            assert_eq!(options.contains("statement_timeout"), operation_timeout.is_some(), "{options}");
            assert!(config.get_tcp_user_timeout().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_connection_and_its_opening_share_one_deadline() {
        // It accepts, by its backlog, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("bound");
        let dsn = Dsn::parse(&format!("postgres://me@{address}/x")).expect("a connection string");
        let settings = PoolSettings { max_connections: 1, operation_timeout: TIMEOUT };
        let pool = PgPool::new(&dsn, settings).expect("a pool");
        let opener = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.session("open").await.is_err() })
        };
        tokio::task::yield_now().await;
        assert_eq!(pool.pool.status().waiting, 1, "the first one is opening the only connection");
        advance(TIMEOUT / 2).await;
        let begun = Instant::now();
        assert!(pool.session("wait and open").await.is_err());
        assert!(begun.elapsed() <= TIMEOUT + GRACE, "{:?}", begun.elapsed());
        assert!(opener.await.expect("it does not panic"));
    }
}
