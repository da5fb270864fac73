//! One server for the tests of queries, whose databases compare text as people do and not by bytes.

use std::sync::atomic::{AtomicU32, Ordering};

use local_servers::{Postgres, PostgresOptions};
use state::query::expressions::{IndexType, Member, helper_functions_sql, index_sql};
use tokio::sync::OnceCell;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};

pub(crate) const TABLE: &str = "kv";
const SCHEMA: &str = "
    CREATE TABLE kv (key text COLLATE \"C\" PRIMARY KEY, value jsonb NOT NULL, version bigint NOT NULL,
        created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
    CREATE INDEX kv_value_idx ON kv USING gin (value jsonb_path_ops);";

async fn server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts"))
        .await
}

/// A database of one test with the table of documents.
pub(crate) struct Database {
    pub(crate) dsn: String,
    pub(crate) client: Client,
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
        let database = Self { dsn, client };
        database.execute(SCHEMA).await;
        database.execute(&helper_functions_sql(TABLE)).await;
        database
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The one value of a query.
    pub(crate) async fn value<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Declares an index.
    pub(crate) async fn index(&self, name: &str, index_type: IndexType) {
        let expression = index_sql(TABLE, &member(name), index_type);
        let index = format!("kv_{name}_{}", index_type.as_str());
        self.execute(&format!("CREATE INDEX {index} ON kv (({expression}))")).await;
    }

    /// Stores a document.
    pub(crate) async fn put(&self, key: &str, json: &str) {
        let insert = "INSERT INTO kv VALUES ($1, $2::text::jsonb, 1, now(), now())";
        let done = self.client.execute(insert, &[&key, &json]).await;
        done.unwrap_or_else(|error| panic!("{key}: {error:?}"));
    }
}

pub(crate) fn member(name: &str) -> Member {
    Member::new(name).expect("an identifier")
}
