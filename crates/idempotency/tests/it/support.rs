//! Both stores with a clock that the tests set: one server for all tests, one database for each test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ambient::RandomTokens;
use bytes::Bytes;
use idempotency::{
    Answer, Claim, ClaimId, ClaimRequest, CompletionRequest, Fingerprint, FreeCompletion, Guarded, Key,
    KeyLookup, LockTtl, MemoryStore, Owner, PLANNER_PARAMETERS, PostgresStore, RetentionTtl, Store, Token,
};
use local_servers::{Postgres, PostgresOptions};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};

/// The longest wait in a test.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
pub(crate) const LOCK: Duration = Duration::from_secs(60);
pub(crate) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// A step past the end of a time to live, which is still valid at its very end.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// A store and its clock.
pub(crate) trait World {
    type S: Store;

    fn store(&self) -> &Arc<Self::S>;

    /// Advances the clock of the store.
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;

    async fn claim(&self, request: &ClaimRequest) -> Claim {
        let claims = self.store().claim(std::slice::from_ref(request)).await.expect("no failure");
        claims.into_iter().next().expect("one outcome")
    }

    async fn complete(&self, completion: &CompletionRequest) -> Guarded {
        self.store().complete(std::slice::from_ref(completion)).await.expect("no failure")[0]
    }

    async fn abandon(&self, id: &ClaimId) -> Guarded {
        self.store().abandon(std::slice::from_ref(id)).await.expect("no failure")[0]
    }

    async fn extend(&self, id: &ClaimId, ttl: Duration) -> Guarded {
        let ttl = LockTtl::new(ttl).expect("valid");
        self.store().extend(std::slice::from_ref(id), ttl).await.expect("no failure")[0]
    }

    /// Claims the key.
    async fn claimed(&self, key: &str) -> ClaimRequest {
        let request = request(key, "f");
        assert_eq!(self.claim(&request).await, Claim::New);
        request
    }

    /// Claims the key and completes it.
    async fn completed(&self, key: &str) -> CompletionRequest {
        let completion = completion(&self.claimed(key).await.id, 200, key.as_bytes());
        assert_eq!(self.complete(&completion).await, Guarded::Applied);
        completion
    }
}

/// Returns the owner of all requests unless a test uses another.
pub(crate) fn owner() -> Owner {
    Owner::new("orders:client").expect("an owner")
}

/// Returns a request with a new token.
pub(crate) fn request(key: &str, fingerprint: &str) -> ClaimRequest {
    let token = Token::next(&RandomTokens);
    ClaimRequest {
        id: ClaimId { owner: owner(), key: Key::new(key).expect("a key"), token },
        fingerprint: Fingerprint::new(fingerprint).expect("a fingerprint"),
        lock_ttl: LockTtl::new(LOCK).expect("valid"),
    }
}

pub(crate) fn lookup(key: &str, fingerprint: &str) -> KeyLookup {
    let ClaimRequest { id: ClaimId { owner, key, .. }, fingerprint, .. } = request(key, fingerprint);
    KeyLookup { owner, key, fingerprint }
}

/// Returns a response to a request with the fingerprint `f` whose key was not claimed.
pub(crate) fn free_completion(key: &str, body: &[u8]) -> FreeCompletion {
    let request = request(key, "f");
    FreeCompletion { completion: completion(&request.id, 202, body), fingerprint: request.fingerprint }
}

pub(crate) fn completion(id: &ClaimId, status: u16, body: &[u8]) -> CompletionRequest {
    let answer =
        Answer { status, headers: Bytes::from_static(b"x: y\n"), body: Bytes::copy_from_slice(body) };
    CompletionRequest { id: id.clone(), answer, retention_ttl: RetentionTtl::new(RETENTION).expect("valid") }
}

/// Returns true for both outcomes of a contended claim: on a slow machine, a short wait may exceed the pool's
/// timeout.
pub(crate) fn waits_or_pends(claim: &Claim) -> bool {
    is_pending(claim) || *claim == Claim::Busy
}

pub(crate) fn is_pending(claim: &Claim) -> bool {
    matches!(claim, Claim::Pending { .. })
}

/// A store in memory; needs a runtime whose time is paused.
pub(crate) struct Memory(Arc<MemoryStore>);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(Arc::new(MemoryStore::new(10_000)))
    }
}

impl World for Memory {
    type S = MemoryStore;

    fn store(&self) -> &Arc<MemoryStore> {
        &self.0
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

const ROLE: &str = "svc";
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The database of one test. Its clock stays in the year 2001 until the test advances it.
pub(crate) struct Db {
    store: Arc<PostgresStore>,
    dsn: String,
    admin: Client,
}

impl World for Db {
    type S = PostgresStore;

    fn store(&self) -> &Arc<PostgresStore> {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.execute(&format!("UPDATE fake_clock SET now_ms = now_ms + {}", time.as_millis())).await;
    }
}

impl Db {
    pub(crate) async fn new() -> Self {
        let db = Self::without_table().await;
        db.store.setup_schema().await.expect("the table is made");
        db
    }

    pub(crate) async fn without_table() -> Self {
        let server = server().await;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        server.create_role_and_schema(&name, ROLE, "test").await.expect("a database");
        let admin = connect(&server.superuser_dsn(&name)).await;
        admin.batch_execute(CLOCK).await.expect("the clock is made");
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/{name}", server.port());
        let store = Arc::new(PostgresStore::new(pool(&dsn)));
        Self { store, dsn, admin }
    }

    pub(crate) fn dsn(&self) -> &str {
        &self.dsn
    }

    pub(crate) fn pool(&self) -> PgPool {
        pool(&self.dsn)
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.expect("the SQL runs");
    }

    /// Returns the single value of a query, as the superuser.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        self.admin.query_one(sql, &[]).await.expect("one row").get(0)
    }

    /// Returns a whole row as text.
    pub(crate) async fn row(&self, key: &str) -> String {
        self.value(&format!("SELECT idempotency_keys::text FROM idempotency_keys WHERE key = '{key}'")).await
    }

    /// Keeps the locks that `sql` takes until the returned connection commits or is dropped.
    pub(crate) async fn block(&self, sql: &str) -> Client {
        let blocker = connect(&self.dsn).await;
        blocker.batch_execute(&format!("BEGIN; {sql}")).await.expect("the rows are held");
        blocker
    }

    /// Waits until a session of this database waits for another one.
    pub(crate) async fn until_blocked(&self) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("a wait", async || self.value::<i64>(waiting).await > 0).await;
    }
}

/// The clock of the tests. It hides the server's own, because `search_path` lists its schema first.
const CLOCK: &str = "
    CREATE TABLE test.fake_clock (now_ms bigint NOT NULL);
    INSERT INTO test.fake_clock VALUES (1000000000000);
    GRANT SELECT ON test.fake_clock TO svc;
    CREATE FUNCTION test.now() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT to_timestamp(0) + now_ms * interval '1 millisecond' FROM test.fake_clock $$;";

async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || {
            // A deadlock is detected before the lock timeout of the pool ends.
            let settings = [("max_connections", "500"), ("deadlock_timeout", "50ms")];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            Postgres::start(PostgresOptions { settings, ..PostgresOptions::default() })
                .await
                .expect("PostgreSQL starts")
        })
        .await
}

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    client.batch_execute("SET search_path TO test, pg_catalog").await.expect("set");
    client
}

/// Creates a pool whose sessions use the clock of the test.
pub(crate) fn pool(dsn: &str) -> PgPool {
    let dsn = Dsn::parse(&format!("{dsn}?search_path=test,pg_catalog")).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let settings = PoolSettings { max_connections: 8, operation_timeout: Duration::from_secs(10), session };
    PgPool::new(&dsn, settings).expect("a pool")
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < BOUND, "it never came to {what}");
        tokio::task::yield_now().await;
    }
}
