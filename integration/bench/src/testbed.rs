//! The testbed: PostgreSQL, Redis and a stand-in user directory, and a fresh database for each scenario.

use std::time::Duration;

use anyhow::Context;
use harness::{Postgres, PostgresOptions, Redis, RedisOptions, Service, ServiceBuilder, StandInDirectory};
use redis::aio::MultiplexedConnection;

use crate::measure::{Cpu, peak_memory_mb};

pub(crate) const INTENTS: &str = "notification:intents";
pub(crate) const PUSH: &str = "gateway:client-events";
pub(crate) const MAIL: &str = "mail:delivery_commands";
pub(crate) const ROLE: &str = "notificationservice";
const SCHEMA: &str = "notification";

/// Settings that differ from PostgreSQL's defaults, in addition to those of every private server.
const POSTGRES_SETTINGS: [(&str, &str); 6] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
    ("autovacuum_naptime", "15s"),
    // Has a cost only in scenarios that enable it.
    ("shared_preload_libraries", "pg_stat_statements"),
    ("pg_stat_statements.track", "none"),
];
/// The time limit for the service to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Testbed {
    pub(crate) postgres: Postgres,
    pub(crate) redis: Redis,
    pub(crate) directory: StandInDirectory,
    databases: u32,
    peak_memory_mb: f64,
}

impl Testbed {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let settings = POSTGRES_SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let arguments = ["--appendfsync", "everysec"].map(str::to_owned).to_vec();
        let redis = RedisOptions { appendonly: true, arguments, ..RedisOptions::default() };
        Ok(Self {
            postgres: Postgres::start(PostgresOptions {
                durable: true,
                settings,
                ..PostgresOptions::default()
            })
            .await?,
            redis: Redis::start(redis).await?,
            directory: StandInDirectory::start().await?,
            databases: 0,
            peak_memory_mb: 0.0,
        })
    }

    /// Empties Redis and creates a migrated database. Returns its connection string. The previous database is
    /// dropped, so that autovacuum does not process it during the next measurement.
    pub(crate) async fn fresh(&mut self) -> anyhow::Result<String> {
        redis::cmd("FLUSHALL").query_async::<()>(&mut self.redis().await?).await?;
        if self.databases > 0 {
            let drop = format!("DROP DATABASE \"bench_{}\" WITH (FORCE)", self.databases);
            self.postgres.execute("postgres", &drop).await.context("could not drop a database")?;
        }
        self.databases += 1;
        let name = format!("bench_{}", self.databases);
        self.postgres.create_role_and_schema(&name, ROLE, SCHEMA).await?;
        let port = self.postgres.port();
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{port}/{name}?search_path={SCHEMA}");
        app::migrations::migrate(&pg::Dsn::parse(&dsn)?).await?;
        self.checkpoint().await?;
        Ok(dsn)
    }

    /// The name of a scenario's database.
    pub(crate) fn database_of(dsn: &str) -> &str {
        let path = dsn.split('?').next().unwrap_or(dsn);
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Runs a checkpoint of PostgreSQL, so that earlier writes do not cost the next measurement.
    pub(crate) async fn checkpoint(&self) -> anyhow::Result<()> {
        self.postgres.execute("postgres", "CHECKPOINT").await.context("could not make a checkpoint")
    }

    /// The service with its defaults, configured for this testbed.
    pub(crate) fn service(&self, dsn: &str) -> ServiceBuilder {
        ServiceBuilder::default()
            .env("NOTIFICATION_REDIS_MASTER_ADDR", self.redis.addr())
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn)
            .env("NOTIFICATION_USER_SERVICE_BASE_URL", self.directory.base_url())
            .env("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0")
    }

    /// Stops the service gracefully. The connections of a killed one would stay open on the servers for a
    /// while.
    pub(crate) async fn stop(&mut self, mut service: Service) {
        self.peak_memory_mb = self.peak_memory_mb.max(peak_memory_mb(service.pid()));
        service.signal("TERM");
        service.wait_exit(STOP_TIMEOUT).await;
    }

    /// The peak memory of all service processes of the run, in megabytes; 0 if there was none.
    pub(crate) fn peak_memory_mb(&self) -> f64 {
        self.peak_memory_mb
    }

    /// Processor time so far of the servers and of the process under test.
    pub(crate) fn cpu(&self, own: u32) -> Cpu {
        Cpu::now(self.postgres.pid(), self.redis.pid(), own)
    }

    pub(crate) async fn redis(&self) -> anyhow::Result<MultiplexedConnection> {
        connect_redis(&self.redis.addr()).await
    }

    /// Opens a client of a scenario's database, in the service's schema.
    pub(crate) async fn postgres(&self, dsn: &str) -> anyhow::Result<tokio_postgres::Client> {
        connect_postgres(dsn).await
    }

    /// A superuser's client of the same database.
    pub(crate) async fn superuser(&self, dsn: &str) -> anyhow::Result<tokio_postgres::Client> {
        connect_postgres(&self.postgres.superuser_dsn(Self::database_of(dsn))).await
    }

    /// The versions of the servers, and their settings that differ from the defaults, without paths and
    /// ports.
    pub(crate) async fn servers(&self) -> anyhow::Result<String> {
        let client = connect_postgres(&self.postgres.superuser_dsn("postgres")).await?;
        let sql = "SELECT current_setting('server_version'), string_agg(name || '=' || current_setting(name), ', ' ORDER BY name)
            FROM pg_settings WHERE source IN ('configuration file', 'command line')
            AND name !~ '^(lc_|port$|log_)|director|listen|timezone|datestyle|text_search'";
        let row = client.query_one(sql, &[]).await.context("could not read the settings")?;
        let (postgres, settings): (String, String) = (row.get(0), row.get(1));
        let mut redis = self.redis().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg("append*").arg("save");
        let mut config: Vec<(String, String)> = get.query_async(&mut redis).await?;
        config.retain(|(name, _)| ["appendonly", "appendfsync", "save"].contains(&name.as_str()));
        config.sort();
        let config: Vec<String> = config.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        Ok(format!(
            "PostgreSQL {postgres}: defaults and {settings}. Redis {}: defaults and {}.",
            version.trim(),
            config.join(", ")
        ))
    }
}

pub(crate) async fn connect_redis(addr: &str) -> anyhow::Result<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://{addr}"))?;
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.context("could not connect to Redis")
}

pub(crate) async fn connect_postgres(dsn: &str) -> anyhow::Result<tokio_postgres::Client> {
    // Parameters such as `search_path` are for the service's own parser.
    let plain = dsn.split('?').next().unwrap_or(dsn);
    let (client, connection) = tokio_postgres::connect(plain, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {SCHEMA}, public; SET jit = off")).await?;
    Ok(client)
}

/// The addresses of the servers that a contender uses.
pub(crate) struct Servers {
    /// `host:port`.
    pub(crate) redis: String,
    /// The connection string of the database.
    pub(crate) postgres: String,
}
