//! Both stores: one server for all tests, one database for each.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use local_servers::{Postgres, PostgresOptions};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use state::json::Json;
use state::{
    Document, IndexSpec, Key, PLANNER_PARAMETERS, PostgresStore, Prefix, QUERY_PARAMETERS, StateError, Store,
    TableName, Value, Version, Write, WriteConditions,
};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};

/// The longest wait in a test.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// The owner of the schema, which is not a superuser.
pub(crate) const ROLE: &str = "svc";
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The database of one test, with a schema and without a table.
pub(crate) struct Db {
    dsn: String,
    admin: Client,
}

impl Db {
    pub(crate) async fn new() -> Self {
        let server = server().await;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        server.create_role_and_schema(&name, ROLE, "test").await.expect("a database");
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/{name}", server.port());
        Self { dsn, admin: connect(&server.superuser_dsn(&name)).await }
    }

    /// A database with the table `kv`.
    pub(crate) async fn with_table() -> Self {
        let db = Self::new().await;
        db.setup("").await.expect("the table is made");
        db
    }

    pub(crate) fn dsn(&self) -> Dsn {
        Dsn::parse(&format!("{}?search_path=test", self.dsn)).expect("a connection string")
    }

    pub(crate) fn dsn_in(&self, schema: &str) -> Dsn {
        Dsn::parse(&format!("{}?search_path={schema}", self.dsn)).expect("a connection string")
    }

    /// Opens a connection as the owner.
    pub(crate) async fn connect(&self) -> Client {
        connect(&self.dsn).await
    }

    /// The DSN for another role.
    pub(crate) fn dsn_of(&self, role: &str) -> Dsn {
        let dsn = self.dsn.replacen(ROLE, role, 1);
        Dsn::parse(&format!("{dsn}?search_path=test")).expect("a connection string")
    }

    /// Sets up the table `kv`, with declared indexes.
    pub(crate) async fn setup(&self, indexes: &str) -> Result<(), StateError> {
        self.setup_table("kv", indexes).await
    }

    pub(crate) async fn setup_table(&self, table: &str, indexes: &str) -> Result<(), StateError> {
        let indexes = IndexSpec::parse_list(indexes).expect("a list of indexes");
        PostgresStore::setup(&self.dsn(), SessionSettings::default(), &named(table), &indexes).await
    }

    pub(crate) fn store(&self) -> PostgresStore {
        self.store_within(Duration::from_secs(10))
    }

    /// A store with this limit for its statements.
    pub(crate) fn store_within(&self, timeout: Duration) -> PostgresStore {
        let dsn = self.dsn();
        let store = PostgresStore::new(pool(&dsn, timeout), TableName::default());
        store.with_pools(pool(&dsn, timeout), pool_with(&dsn, timeout, QUERY_PARAMETERS))
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The single value of a query, as the superuser.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        self.admin.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Holds the locks of `sql` until the returned connection commits or is dropped.
    pub(crate) async fn block(&self, sql: &str) -> Client {
        let blocker = connect(&self.dsn).await;
        blocker.batch_execute(&format!("BEGIN; {sql}")).await.expect("it is held");
        blocker
    }
}

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

pub(crate) async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    client.batch_execute("SET search_path TO test").await.expect("set");
    client
}

pub(crate) fn pool(dsn: &Dsn, operation_timeout: Duration) -> PgPool {
    pool_with(dsn, operation_timeout, PLANNER_PARAMETERS)
}

fn pool_with(
    dsn: &Dsn,
    operation_timeout: Duration,
    parameters: &'static [(&'static str, &'static str)],
) -> PgPool {
    let session = SessionSettings { application_name: "", parameters };
    PgPool::new(dsn, PoolSettings { max_connections: 8, operation_timeout, session }).expect("a pool")
}

pub(crate) fn named(table: &str) -> TableName {
    TableName::parse(table).expect("a name of a table")
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

pub(crate) fn prefix(text: &str) -> Prefix {
    Prefix::new(text).expect("a prefix")
}

pub(crate) fn value(text: &str) -> Value {
    Value::parse(text).expect("a value")
}

/// A value as a tree: two are equal if `jsonb` treats them as equal.
pub(crate) fn tree(value: &Value) -> Json {
    value.to_json().expect("JSON")
}

/// Stores a value without conditions.
pub(crate) async fn put(store: &impl Store, name: &str, text: &str) -> Version {
    let done = store.put(&key(name), &value(text), &WriteConditions::default()).await;
    match done.expect("no failure") {
        Write::Applied(version) => version,
        other => panic!("{name}: {other:?}"),
    }
}

/// The document, which must exist.
pub(crate) async fn get(store: &impl Store, name: &str) -> Document {
    store.get(&key(name)).await.expect("no failure").unwrap_or_else(|| panic!("{name} is not there"))
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    until_within(BOUND, what, condition).await;
}

/// Waits until `condition` holds, for at most `bound`.
pub(crate) async fn until_within(bound: Duration, what: &str, condition: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < bound, "it never came to {what}");
        tokio::task::yield_now().await;
    }
}
