//! One server for the tests of queries, whose databases compare text linguistically and not by bytes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ambient::Timestamp;
use local_servers::{Postgres, PostgresOptions};
use pg::parameter::Parameters;
use pg::{BoundStatement, Dsn, PgPool, PoolSettings, RawTimestamp, SessionSettings, Statement};
use state::query::Query;
use state::query::compile::{self, ReadPlan, Table};
use state::query::expressions::{IndexType, Member, helper_functions_sql, index_sql};
use state::{Document, Key, Page, QUERY_PARAMETERS, StateError, Value, Version};
use tokio::sync::OnceCell;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};

pub(crate) const TABLE: &str = "kv";
const SCHEMA: &str = "
    CREATE TABLE kv (key text COLLATE \"C\" PRIMARY KEY, value jsonb NOT NULL, version bigint NOT NULL,
        created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
    CREATE INDEX kv_value_idx ON kv USING gin (value jsonb_path_ops);";
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts"))
        .await
}

/// The text of a statement with its parameters.
#[derive(Debug)]
pub(crate) struct Composed {
    text: String,
    parameters: Parameters,
}

impl Composed {
    pub(crate) fn new(
        compose: impl FnOnce(&mut Parameters) -> Result<String, StateError>,
    ) -> Result<Self, StateError> {
        let mut parameters = Parameters::default();
        Ok(Self { text: compose(&mut parameters)?, parameters })
    }

    /// The statement after a prefix, such as `EXPLAIN`.
    pub(crate) fn bind(&self, prefix: &str) -> BoundStatement {
        let text = format!("{prefix}{}", self.text);
        Statement::composed("test", &[], text).bind(self.parameters.clone())
    }
}

/// The database of one test with the table of documents.
pub(crate) struct Database {
    pub(crate) client: Client,
    pub(crate) pool: PgPool,
    indexes: Vec<(Member, IndexType)>,
}

impl Database {
    pub(crate) async fn new() -> Self {
        static DATABASES: AtomicU32 = AtomicU32::new(0);
        let server = server().await;
        let name = format!("query_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        let create =
            format!("CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'");
        server.execute("postgres", &create).await.expect("a database");
        let dsn = server.superuser_dsn(&name);
        let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.expect("connects");
        tokio::spawn(async move { drop(connection.await) });
        let session = SessionSettings { application_name: "", parameters: QUERY_PARAMETERS };
        let settings = PoolSettings { max_connections: 4, operation_timeout: OPERATION_TIMEOUT, session };
        let pool = PgPool::new(&Dsn::parse(&dsn).expect("a DSN"), settings).expect("a pool");
        let database = Self { client, pool, indexes: Vec::new() };
        database.execute(SCHEMA).await;
        database.execute(&helper_functions_sql(TABLE)).await;
        database
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The single value of a query.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Declares an index.
    pub(crate) async fn index(&mut self, name: &str, index_type: IndexType) {
        let expression = index_sql(TABLE, &member(name), index_type);
        let index = format!("kv_{name}_{}", index_type.as_str());
        self.execute(&format!("CREATE INDEX {index} ON kv (({expression}))")).await;
        self.indexes.push((member(name), index_type));
    }

    /// Stores a document.
    pub(crate) async fn put(&self, key: &str, json: &str) {
        let document = document(key, json, 1, Timestamp::UNIX_EPOCH);
        self.put_document(&document).await;
    }

    /// Stores a document, replacing one with its key.
    pub(crate) async fn put_document(&self, document: &Document) {
        let upsert = "INSERT INTO kv VALUES ($1, $2::text::jsonb, $3, $4, $4)
                      ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version,
                      created_at = excluded.created_at, updated_at = excluded.updated_at";
        let created_at = std::time::UNIX_EPOCH + document.created_at.saturating_since(Timestamp::UNIX_EPOCH);
        let (key, value, version) = (document.key.as_str(), document.value.as_str(), document.version.0);
        let done = self.client.execute(upsert, &[&key, &value, &version, &created_at]).await;
        done.unwrap_or_else(|error| panic!("{key} {value:.200}: {error:?}"));
    }

    pub(crate) fn table(&self) -> Table {
        Table::new(TABLE, self.indexes.clone())
    }

    /// The statement of a page in its first reading.
    pub(crate) fn statement(&self, query: &Query) -> Result<Composed, StateError> {
        self.statement_by(query, compile::readings(query, &self.table()).0)
    }

    pub(crate) fn statement_by(&self, query: &Query, reading: ReadPlan) -> Result<Composed, StateError> {
        let columns = "key, version, created_at, value::text AS value";
        Composed::new(|parameters| compile::page(query, &self.table(), reading, columns, parameters))
    }

    /// Runs a query as a store does.
    pub(crate) async fn query(&self, query: &Query) -> Result<Page, StateError> {
        let row = match query.row_needed() {
            Some((key, _)) => {
                let by_key =
                    Query::parse(serde_json::json!({ "prefix": key.as_str() }).to_string().as_bytes())?;
                let rows = self.rows(&self.statement(&by_key)?).await?;
                rows.into_iter().find(|row| row.key == *key)
            }
            None => None,
        };
        let query = query.clone().with_row(row.as_ref())?;
        let session = self.pool.session("query").await?;
        let mut matched = None;
        if query.count || query.matched {
            let count = Composed::new(|parameters| Ok(compile::count(&query, &self.table(), parameters)))?;
            let rows = session.query_once(count.bind("")).await?;
            matched = Some(rows[0].get::<_, i64>(0).unsigned_abs());
        }
        if query.count {
            return Ok(Page { rows: Vec::new(), matched, next_cursor: None });
        }
        let (first, second) = compile::readings(&query, &self.table());
        // So few keys that the second reading is needed, too.
        let first = if matches!(first, ReadPlan::Walk(_)) { ReadPlan::Walk(7) } else { first };
        let mut rows = self.rows(&self.statement_by(&query, first)?).await?;
        if let Some(second) = second.filter(|_| rows.len() < query.rows_to_read()) {
            rows = self.rows(&self.statement_by(&query, second)?).await?;
        }
        query.page(rows, matched)
    }

    async fn rows(&self, select: &Composed) -> Result<Vec<Document>, StateError> {
        let rows = self.pool.session("query").await?.query_once(select.bind("")).await?;
        let read = |row: tokio_postgres::Row| {
            let created_at: RawTimestamp = row.get("created_at");
            let nearest = if created_at < Timestamp::MIN.into() { Timestamp::MIN } else { Timestamp::MAX };
            let created_at = created_at.timestamp().unwrap_or(nearest);
            document(row.get("key"), row.get("value"), row.get("version"), created_at)
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

pub(crate) fn document(key: &str, json: &str, version: i64, created_at: Timestamp) -> Document {
    Document {
        key: Key::new(key).expect("a key"),
        value: Value::parse(json).unwrap_or_else(|error| panic!("{json:.200}: {error}")),
        version: Version(version),
        created_at,
        updated_at: created_at,
    }
}

pub(crate) fn member(name: &str) -> Member {
    Member::new(name).expect("an identifier")
}
