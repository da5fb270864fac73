//! The two servers of a run, with the settings of a real one, and a fresh database for each scenario.

use anyhow::Context;
use harness::{Postgres, PostgresOptions, Redis, RedisOptions, ServiceBuilder, StandInDirectory};
use redis::aio::MultiplexedConnection;

use crate::measure::peak_memory_mb;

pub(crate) const INTENTS: &str = "notification:intents";
pub(crate) const PUSH: &str = "gateway:client-events";
pub(crate) const MAIL: &str = "mail:delivery_commands";
pub(crate) const ROLE: &str = "notificationservice";
const SCHEMA: &str = "notification";

/// What the report says about PostgreSQL beside its defaults.
pub(crate) const POSTGRES_SETTINGS: [(&str, &str); 6] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
    ("autovacuum_naptime", "15s"),
    // Counts only where the profile turns it on.
    ("shared_preload_libraries", "pg_stat_statements"),
    ("pg_stat_statements.track", "none"),
];

pub(crate) struct World {
    pub(crate) postgres: Postgres,
    pub(crate) redis: Redis,
    pub(crate) directory: StandInDirectory,
    databases: u32,
    peak_memory_mb: f64,
}

impl World {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let settings = POSTGRES_SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let arguments = ["--appendfsync", "everysec"].map(str::to_owned).to_vec();
        let redis = RedisOptions { appendonly: true, arguments, ..RedisOptions::default() };
        Ok(Self {
            postgres: Postgres::start(PostgresOptions { durable: true, settings }).await?,
            redis: Redis::start(redis).await?,
            directory: StandInDirectory::start().await?,
            databases: 0,
            peak_memory_mb: 0.0,
        })
    }

    /// An empty Redis and a new, migrated database, whose connection string this is.
    pub(crate) async fn fresh(&mut self) -> anyhow::Result<String> {
        redis::cmd("FLUSHALL").query_async::<()>(&mut self.redis().await?).await?;
        self.databases += 1;
        let name = format!("bench_{}", self.databases);
        self.postgres.create_role_and_schema(&name, ROLE, SCHEMA).await?;
        let port = self.postgres.port();
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{port}/{name}?search_path={SCHEMA}");
        store_postgres::migrate(&pg::Dsn::parse(&dsn)?).await?;
        self.postgres.execute(&name, "CHECKPOINT").await?;
        Ok(dsn)
    }

    /// The name of a scenario's database.
    pub(crate) fn database_of(dsn: &str) -> &str {
        let path = dsn.split('?').next().unwrap_or(dsn);
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Takes note of the most memory that a service process had.
    pub(crate) fn saw_memory(&mut self, pid: u32) {
        self.peak_memory_mb = self.peak_memory_mb.max(peak_memory_mb(pid));
    }

    /// The most memory that any service process of the run had.
    pub(crate) fn peak_memory_mb(&self) -> f64 {
        self.peak_memory_mb
    }

    pub(crate) async fn redis(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(format!("redis://{}", self.redis.addr()))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await.context("Redis is not there")
    }

    /// A client of a scenario's database, in the service's schema.
    pub(crate) async fn postgres(&self, dsn: &str) -> anyhow::Result<tokio_postgres::Client> {
        let plain = dsn.split('?').next().unwrap_or(dsn);
        let (client, connection) = tokio_postgres::connect(plain, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&format!("SET search_path = {SCHEMA}; SET jit = off")).await?;
        Ok(client)
    }

    /// The service with its defaults, on this world.
    pub(crate) fn service(&self, dsn: &str) -> ServiceBuilder {
        ServiceBuilder::default()
            .env("NOTIFICATION_REDIS_MASTER_ADDR", self.redis.addr())
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn)
            .env("NOTIFICATION_USER_SERVICE_BASE_URL", self.directory.base_url())
            .env("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0")
    }
}
