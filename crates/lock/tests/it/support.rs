//! One server for all tests, one database with its own clock for each test.

use std::fmt::Debug;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use local_servers::{Postgres, PostgresOptions};
use lock::{
    Acquisition, GrantedLock, LockEvent, LockManager, LockObserver, LockOperation, LockOutcome, TableNames,
};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};

/// The longest wait in a test.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const TTL_MS: i64 = 30_000;

const ROLE: &str = "svc";
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The database of one test. Its clock stays in the year 2001 until the test advances it.
pub(crate) struct Db {
    pub(crate) locks: LockManager,
    dsn: String,
    admin: Client,
}

impl Db {
    pub(crate) async fn new() -> Self {
        let db = Self::without_tables().await;
        db.locks.setup_schema().await.expect("the tables are made");
        db
    }

    pub(crate) async fn without_tables() -> Self {
        let server = server().await;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        server.create_role_and_schema(&name, ROLE, "test").await.expect("a database");
        let admin = connect(&server.superuser_dsn(&name)).await;
        admin.batch_execute(CLOCK).await.expect("the clock is made");
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/{name}", server.port());
        let locks = LockManager::new(open(&dsn, "", TEST_CLOCK), TableNames::default());
        Self { locks, dsn, admin }
    }

    /// Creates a pool whose sessions have more settings: `-c name=value`.
    pub(crate) fn pool(&self, settings: &str) -> PgPool {
        open(&self.dsn, settings, TEST_CLOCK)
    }

    /// Creates a pool that uses the server's own clock.
    pub(crate) fn pool_on_system_clock(&self) -> PgPool {
        open(&self.dsn, "", "pg_catalog,test")
    }

    /// Creates a pool of another user.
    pub(crate) fn pool_of(&self, user: &str) -> PgPool {
        open(&self.dsn.replacen(ROLE, user, 1), "", TEST_CLOCK)
    }

    /// Creates the same locks for another process, with an observer.
    pub(crate) fn observed(&self) -> (LockManager, Events) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let locks = LockManager::observed(self.pool(""), TableNames::default(), Arc::new(Recorder(sender)));
        (locks, Events(tokio::sync::Mutex::new(receiver)))
    }

    pub(crate) async fn acquire(&self, key: &str) -> GrantedLock {
        granted(self.locks.try_acquire(key, TTL).await)
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.expect("the SQL runs");
    }

    /// Returns the single value of a query, as the superuser.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        self.admin.query_one(sql, &[]).await.expect("one row").get(0)
    }

    /// Advances the server's clock.
    pub(crate) async fn pass(&self, millis: i64) {
        self.execute(&format!("UPDATE fake_clock SET now_ms = now_ms + {millis}")).await;
    }

    pub(crate) async fn now(&self) -> i64 {
        self.value("SELECT now_ms FROM fake_clock").await
    }

    /// Keeps the locks that `sql` takes until the returned connection commits or is dropped.
    pub(crate) async fn block(&self, sql: &str) -> Client {
        let blocker = connect(&self.dsn).await;
        blocker.batch_execute(&format!("BEGIN; {sql}")).await.expect("the rows are held");
        blocker
    }

    /// Waits until this many sessions of this database wait for a row.
    pub(crate) async fn until_blocked(&self, sessions: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let begin = Instant::now();
        while self.value::<i64>(waiting).await < sessions {
            assert!(begin.elapsed() < BOUND, "no client waits for a row");
        }
    }
}

/// The search path of sessions that use the clock of the test.
const TEST_CLOCK: &str = "test,pg_catalog";

/// The clock of the tests. It hides the server's own, because `search_path` lists its schema first.
const CLOCK: &str = "
    CREATE TABLE test.fake_clock (now_ms bigint NOT NULL);
    INSERT INTO test.fake_clock VALUES (1000000000000);
    GRANT SELECT ON test.fake_clock TO svc;
    CREATE FUNCTION test.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS $$ SELECT to_timestamp(0) + now_ms * interval '1 millisecond' FROM test.fake_clock $$;
    CREATE FUNCTION test.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT to_timestamp(0) + now_ms * interval '1 millisecond' FROM test.fake_clock $$;";

async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || {
            // Set before anything is logged: a call site without a subscriber may stay disabled.
            let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
            tracing::subscriber::set_global_default(subscriber).expect("there is no other subscriber");
            let settings = vec![("max_connections".to_owned(), "500".to_owned())];
            Postgres::start(PostgresOptions { settings, ..PostgresOptions::default() })
                .await
                .expect("PostgreSQL starts")
        })
        .await
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Returns everything that all tests have logged so far.
pub(crate) fn log() -> String {
    String::from_utf8_lossy(&LOG.lock().expect("not poisoned")).into_owned()
}

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().expect("not poisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    client.batch_execute("SET search_path TO test").await.expect("set");
    client
}

fn open(dsn: &str, settings: &str, search_path: &str) -> PgPool {
    let options = settings.replace(' ', "%20").replace('=', "%3D");
    let dsn = Dsn::parse(&format!("{dsn}?options={options}&search_path={search_path}")).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: lock::PLANNER_PARAMETERS };
    let settings = PoolSettings { max_connections: 8, operation_timeout: Duration::from_secs(10), session };
    PgPool::new(&dsn, settings).expect("a pool")
}

/// Creates a pool that cannot connect.
pub(crate) fn nowhere() -> PgPool {
    // Nothing listens on port 1 of this machine.
    open("postgres://nobody@127.0.0.1:1/none", "", TEST_CLOCK)
}

pub(crate) fn granted<E: Debug>(outcome: Result<Acquisition, E>) -> GrantedLock {
    match outcome.expect("no failure") {
        Acquisition::Acquired(grant) => grant,
        Acquisition::Locked => panic!("another client holds the lock"),
    }
}

pub(crate) fn is_locked<E: Debug>(outcome: &Result<Acquisition, E>) -> bool {
    matches!(outcome, Ok(Acquisition::Locked))
}

/// A short form of the observed operations: `Acquire Done`, `Extend Refused(Expired)`, …
pub(crate) struct Events(tokio::sync::Mutex<mpsc::UnboundedReceiver<(String, String)>>);

impl Events {
    /// Waits for this operation; skips those before it.
    pub(crate) async fn until(&self, wanted: &str) {
        let mut events = self.0.lock().await;
        let seen = async {
            while let Some((short, _)) = events.recv().await {
                if short == wanted {
                    return;
                }
            }
        };
        assert!(timeout(BOUND, seen).await.is_ok(), "it never came to {wanted}");
    }

    /// Returns all observed operations so far, in full.
    pub(crate) async fn drain(&self) -> Vec<(String, String)> {
        let mut events = self.0.lock().await;
        std::iter::from_fn(|| events.try_recv().ok()).collect()
    }
}

struct Recorder(mpsc::UnboundedSender<(String, String)>);

impl LockObserver for Recorder {
    fn observe(&self, event: &LockEvent<'_>) {
        let outcome = match &event.outcome {
            LockOutcome::Failed(error) => format!("Failed({:?})", error.code()),
            outcome => format!("{outcome:?}"),
        };
        let operation: LockOperation = event.operation;
        // The test may have ended while a release was still running.
        drop(self.0.send((format!("{operation:?} {outcome}"), format!("{event:?}"))));
    }
}
