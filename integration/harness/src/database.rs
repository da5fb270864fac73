//! One PostgreSQL for each test process, one database for each test.
//!
//! The server starts with the first test that needs it and ends with the process. Databases are clones of one
//! that already has the role's schema, migrated by the service's own migrations.

use std::sync::atomic::{AtomicU32, Ordering};

use local_servers::{Postgres, PostgresOptions};
use memory_stores::RecordedAction;
use pg::Dsn;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

const ROLE: &str = "notificationservice";
const SCHEMA: &str = "notification";
const TEMPLATE: &str = "template_migrated";

static SERVER: OnceCell<Postgres> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

async fn server() -> &'static Postgres {
    SERVER
        .get_or_init(async || {
            let server =
                Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL starts");
            server
                .create_role_and_schema(TEMPLATE, ROLE, SCHEMA)
                .await
                .expect("the template can be prepared");
            let dsn = Dsn::parse(&dsn(server.port(), TEMPLATE)).expect("our own connection string");
            app::migrations::migrate(&dsn).await.expect("the migrations apply");
            server
        })
        .await
}

fn dsn(port: u16, database: &str) -> String {
    dsn_of_hosts(&[port], database)
}

fn dsn_of_hosts(ports: &[u16], database: &str) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://{ROLE}@{}/{database}?search_path={SCHEMA}", hosts.join(","))
}

/// A database of one test.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    port: u16,
}

impl TestDatabase {
    /// Creates a migrated database on the server that all tests of the process share.
    pub async fn new() -> Self {
        let database = Self::unborn(server().await);
        server()
            .await
            .execute("postgres", &format!("CREATE DATABASE {} TEMPLATE {TEMPLATE}", database.name))
            .await
            .expect("it can be cloned");
        database
    }

    /// Creates a database with the role's schema and nothing in it.
    pub async fn empty() -> Self {
        Self::empty_on(server().await).await
    }

    /// As [`TestDatabase::empty`], on a server of the test's own.
    pub async fn empty_on(server: &Postgres) -> Self {
        let database = Self::unborn(server);
        server.create_role_and_schema(&database.name, ROLE, SCHEMA).await.expect("it can be made");
        database
    }

    /// Creates a migrated database on a server of the test's own, which the test may stop and kill.
    pub async fn on(server: &Postgres) -> Self {
        let database = Self::unborn(server);
        server.create_role_and_schema(&database.name, ROLE, SCHEMA).await.expect("it can be made");
        let dsn = Dsn::parse(&database.dsn()).expect("our own connection string");
        app::migrations::migrate(&dsn).await.expect("the migrations apply");
        database
    }

    fn unborn(server: &Postgres) -> Self {
        Self { name: format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed)), port: server.port() }
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The connection string of the service's role.
    pub fn dsn(&self) -> String {
        dsn(self.port, &self.name)
    }

    /// As [`TestDatabase::dsn`], through a proxy.
    pub fn dsn_via(&self, port: u16) -> String {
        dsn(port, &self.name)
    }

    /// As [`TestDatabase::dsn`], with a host for each of these ports, in this order.
    pub fn dsn_of_hosts(&self, ports: &[u16]) -> String {
        dsn_of_hosts(ports, &self.name)
    }

    /// The same database on another port, such as that of a standby.
    #[must_use]
    pub fn on_port(&self, port: u16) -> Self {
        Self { name: self.name.clone(), port }
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The rows of `operator_actions`, in order.
    pub async fn actions(&self) -> Vec<RecordedAction> {
        let sql =
            "SELECT actor, action, arguments::text, affected, request_id FROM operator_actions ORDER BY id";
        let rows = self.client().await.query(sql, &[]).await.expect("the query is right");
        let action = |row: tokio_postgres::Row| RecordedAction {
            actor: row.get(0),
            action: row.get(1),
            arguments: serde_json::from_str(row.get(2)).expect("JSON"),
            affected: row.get::<_, i64>(3).unsigned_abs(),
            request_id: row.get(4),
        };
        rows.into_iter().map(action).collect()
    }

    /// Opens a superuser's connection to the database, with the service's schema in the search path.
    pub async fn client(&self) -> Client {
        let dsn = format!("postgres://postgres@127.0.0.1:{}/{}", self.port, self.name);
        let (client, connection) =
            tokio_postgres::connect(&dsn, NoTls).await.expect("the superuser can connect");
        // The task ends with the client.
        tokio::spawn(async { drop(connection.await) });
        client
            .batch_execute(&format!("SET search_path = {SCHEMA}; SET timezone = 'UTC'"))
            .await
            .expect("settings");
        client
    }
}
