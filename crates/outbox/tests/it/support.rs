//! Both storages with a clock that the tests set: one server for all tests, one database for each test.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ambient::Timestamp;
use local_servers::{Postgres, PostgresOptions};
use outbox::{
    Administration, BatchClaim, ClaimToken, ClaimedRows, EventTypes, FailedEvent, FailureKind, Marked,
    MemoryStorage, NewEvent, PLANNER_PARAMETERS, PostgresStorage, ReapRequest, RelayId, RetryPolicy, Storage,
    StoredEvent, TableName,
};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// The longest wait in a test.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
pub(crate) const LEASE: Duration = Duration::from_secs(60);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// A step past the end of a lease, which is still valid at its very end.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// A storage and its clock.
pub(crate) trait World: Sync {
    type S: Storage + Clone;

    fn storage(&self) -> &Self::S;

    /// Advances the clock of the storage.
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;

    fn now(&self) -> impl Future<Output = Timestamp>;

    /// Adds an event whose transaction began at `created_at`.
    fn insert(&self, event: NewEvent, created_at: Timestamp) -> impl Future<Output = ()>;

    fn get(&self, event_id: Uuid) -> impl Future<Output = Option<StoredEvent>>;

    /// Adds an event of the key, created now.
    async fn add(&self, number: u64, key: &str) -> Uuid {
        self.insert(event(number, key), self.now().await).await;
        id(number)
    }

    async fn claim_with(&self, request: &BatchClaim) -> ClaimedRows {
        self.storage().claim_batch(request).await.expect("no failure")
    }

    /// Claims from the beginning; returns the token and the ids of the events.
    async fn claim(&self, limit: u32) -> (ClaimToken, Vec<Uuid>) {
        let request = request(limit);
        let claim = self.claim_with(&request).await;
        (request.token, claim.events.iter().map(|event| event.event_id).collect())
    }

    async fn deliver(&self, token: &ClaimToken, ids: &[Uuid]) -> Vec<Marked> {
        self.storage().mark_delivered_batch(token, ids).await.expect("no failure")
    }

    async fn fail(&self, token: &ClaimToken, ids: &[Uuid], kind: FailureKind) -> Vec<Marked> {
        let failure = |event_id: &Uuid| FailedEvent {
            event_id: *event_id,
            attempts: 1,
            error: "it broke".to_owned(),
            kind,
        };
        let failures: Vec<FailedEvent> = ids.iter().map(failure).collect();
        self.storage().mark_failed_batch(token, &failures).await.expect("no failure")
    }

    async fn release(&self, token: &ClaimToken, ids: &[Uuid]) -> Vec<Marked> {
        self.storage().release_batch(token, ids).await.expect("no failure")
    }

    /// Reaps with the default policy, without jitter.
    async fn reap(&self) -> u64 {
        let request =
            ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1000, except: Vec::new() };
        self.storage().reap_expired_leases(&request, &kind).await.expect("no failure").count
    }

    async fn status(&self, event_id: Uuid) -> String {
        self.get(event_id).await.expect("it exists").status
    }
}

/// Returns the consequence by the default policy, without jitter.
pub(crate) fn kind(attempts: u32) -> FailureKind {
    RetryPolicy::default().delay_after(attempts, 0.0).map_or(FailureKind::Dead, FailureKind::Retry)
}

pub(crate) fn id(number: u64) -> Uuid {
    Uuid::from_u64_pair(0, number)
}

pub(crate) fn ids(numbers: impl IntoIterator<Item = u64>) -> Vec<Uuid> {
    numbers.into_iter().map(id).collect()
}

pub(crate) fn event(number: u64, key: &str) -> NewEvent {
    NewEvent {
        event_id: id(number),
        partition_key: key.to_owned(),
        ..NewEvent::new("t", format!("payload {number}"))
    }
}

pub(crate) fn next_token() -> ClaimToken {
    static NONCES: AtomicU64 = AtomicU64::new(0);
    let nonce = NONCES.fetch_add(1, Ordering::SeqCst).to_string();
    ClaimToken::new(&RelayId::parse("relay").expect("a name"), &nonce)
}

pub(crate) fn request(limit: u32) -> BatchClaim {
    BatchClaim {
        token: next_token(),
        types: EventTypes::All,
        after: None,
        limit,
        max_bytes: 16 * 1024 * 1024,
        max_event_bytes: 512 * 1024,
        max_attempts: 25,
        passes_reaped: false,
        set_aside: Vec::new(),
        hurries: false,
    }
}

/// A storage in memory; needs a runtime whose time is paused.
pub(crate) struct Memory(pub(crate) MemoryStorage);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(MemoryStorage::new(start()))
    }
}

fn start() -> Timestamp {
    Timestamp::from_millis(START_MS).expect("in range")
}

impl World for Memory {
    type S = MemoryStorage;

    fn storage(&self) -> &MemoryStorage {
        &self.0
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn insert(&self, event: NewEvent, created_at: Timestamp) {
        self.0.insert(event, created_at);
    }

    async fn get(&self, event_id: Uuid) -> Option<StoredEvent> {
        self.0.get(event_id)
    }
}

const START_MS: i64 = 1_000_000_000_000;
const ROLE: &str = "svc";
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The database of one test. Its clock stays in the year 2001 until the test advances it.
pub(crate) struct Db {
    storage: PostgresStorage,
    administration: Administration,
    dsn: String,
    admin: Client,
}

impl World for Db {
    type S = PostgresStorage;

    fn storage(&self) -> &PostgresStorage {
        &self.storage
    }

    async fn pass(&self, time: Duration) {
        self.execute(&format!(
            "UPDATE fake_clock SET now = now + {} * interval '1 microsecond'",
            time.as_micros()
        ))
        .await;
    }

    async fn now(&self) -> Timestamp {
        let micros = "SELECT (extract(epoch FROM now) * 1000000)::bigint FROM fake_clock";
        Timestamp::from_micros(self.value(micros).await).expect("in range")
    }

    async fn insert(&self, event: NewEvent, created_at: Timestamp) {
        let (event_id, available_at) = (event.event_id, event.available_at.unwrap_or(created_at));
        outbox::enqueue_on(&self.admin, &TableName::default(), &event).await.expect("inserted");
        self.execute(&format!(
            "UPDATE openoutbox_events SET created_at = '{created_at}', available_at = '{available_at}'
             WHERE event_id = '{event_id}'"
        ))
        .await;
    }

    async fn get(&self, event_id: Uuid) -> Option<StoredEvent> {
        self.administration.get_event(event_id).await.expect("no failure").map(|detail| detail.event)
    }
}

impl Db {
    pub(crate) async fn new() -> Self {
        let db = Self::without_table().await;
        db.administration.migrate(None).await.expect("the table is made");
        db
    }

    /// Creates a database whose table has none of the indexes that make a relay fast, like an original table.
    pub(crate) async fn without_indexes() -> Self {
        let db = Self::new().await;
        let drop = "DO $$ DECLARE n text; BEGIN FOR n IN SELECT indexrelid::regclass::text FROM pg_index
                    WHERE indrelid = 'openoutbox_events'::regclass AND NOT indisprimary
                    LOOP EXECUTE 'DROP INDEX ' || n; END LOOP; END $$";
        db.execute(drop).await;
        db.execute(
            "CREATE INDEX idx_openoutbox_processing_queue ON openoutbox_events (available_at, created_at)
                    WHERE status = 'PENDING'",
        )
        .await;
        db
    }

    pub(crate) async fn without_table() -> Self {
        let server = server().await;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        server.create_role_and_schema(&name, ROLE, "test").await.expect("a database");
        let admin = connect(&server.superuser_dsn(&name)).await;
        admin.batch_execute(CLOCK).await.expect("the clock is made");
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/{name}", server.port());
        let storage = PostgresStorage::new(pool(&dsn), TableName::default());
        let administration = Administration::new(pool(&dsn), TableName::default());
        Self { storage, administration, dsn, admin }
    }

    pub(crate) fn dsn(&self) -> &str {
        &self.dsn
    }

    pub(crate) fn administration(&self) -> &Administration {
        &self.administration
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.expect("the SQL runs");
    }

    /// Returns the single value of a query, as the superuser.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        self.admin.query_one(sql, &[]).await.expect("one row").get(0)
    }

    /// Adds an event that was created an hour ago, in one statement, so that no transaction locks its row
    /// once it is committed.
    pub(crate) async fn insert_before(&self, number: u64, key: &str) {
        self.execute(&format!(
            "INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key, created_at)
             VALUES ('{}', 't', '', '{key}', now() - interval '1 hour')",
            id(number)
        ))
        .await;
    }

    /// Keeps the locks that `sql` takes until the returned connection commits or is dropped.
    pub(crate) async fn block(&self, sql: &str) -> Client {
        let blocker = connect(&self.dsn).await;
        blocker.batch_execute(&format!("BEGIN; {sql}")).await.expect("the rows are held");
        blocker
    }
}

/// The clock of the tests. It hides the server's own, because `search_path` lists its schema first.
const CLOCK: &str = "
    CREATE TABLE test.fake_clock (now timestamptz NOT NULL);
    INSERT INTO test.fake_clock VALUES (to_timestamp(1000000000));
    GRANT SELECT ON test.fake_clock TO svc;
    CREATE FUNCTION test.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT now FROM test.fake_clock $$;";

pub(crate) async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || {
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

/// Creates a pool whose sessions see the clock of the test.
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
