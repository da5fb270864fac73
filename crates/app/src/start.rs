//! The start sequence: the checks before the HTTP listener opens.
//!
//! The checks in order: Redis responds and is not too old; PostgreSQL responds, is not too old, has every
//! migration and grants the permissions that the service needs; the schema and the intents stream belong to
//! each other; the tables of the locks can be used. Any failure ends the start with an error within 30
//! seconds, or within [`MIGRATION_TIMEOUT`] more if migrations run. After the start, no failure of a
//! dependency ends the process.

mod dependency;

use std::time::Duration;

use ambient::RandomTokens;
use anyhow::Context;
use lock::{LockManager, TableNames};
use pg::{Dsn, DsnError, PgError, PgPool, PoolSettings, SessionSettings};
use store_postgres::{PgQueries, PgStore, ReadReplicas};
use store_redis::{KeyUse, RedisClient};
use tokio::time::Instant;

use crate::config::{Config, Postgres, Redis, RelayConfig, RelayMode, UserDirectory};
use crate::{installation, migrations, topology, versions, wiring};
pub(crate) use dependency::{DependencyStart, repeat_if_late};

/// The time for Redis to respond at the start.
const REDIS_START_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for PostgreSQL to respond at the start. It allows an attempt for every host of the connection
/// string, see [`pg::OPEN_TIMEOUT`].
const POSTGRES_START_TIMEOUT: Duration = Duration::from_secs(16);
const _: () =
    assert!(POSTGRES_START_TIMEOUT.as_secs() > pg::OPEN_TIMEOUT.as_secs(), "every host gets its attempt");
/// The time at which the last attempt of a check ends, counted from the beginning of the start, without the
/// migrations.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(28);
/// The maximum duration of migrations at the start of a replica. Longer ones must be run with
/// `notification migrate`.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(25);
/// The largest value that intake can read safely, in bytes. Redis accepts 512 MB by default.
const MAX_SAFE_VALUE_BYTES: u64 = 16 << 20;
/// Connections reserved for locks, so that a lease is renewed even if all other connections are busy. One of
/// them is the session of the leader.
const LOCK_CONNECTIONS: usize = 3;
/// The maximum number of connections reserved for the API's queries, so that slow queries take none from
/// intake and publishing.
const MAX_QUERY_CONNECTIONS: usize = 4;
/// Connections reserved for the plans of operators' changes. A replica computes one plan at a time.
const PLAN_CONNECTIONS: usize = 1;
/// Connections reserved for the API's reads by primary key, such as the notification of a repeated intent, so
/// that searches do not delay them.
const LOOKUP_CONNECTIONS: usize = 1;
/// The maximum duration of one operation on a lock, well within the time of a renewal, which is a third of a
/// term.
const LOCK_OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// PostgreSQL and Redis, checked and ready for use.
pub(crate) struct Backends {
    pub(crate) redis: RedisClient,
    pub(crate) pool: PgPool,
    pub(crate) postgres: PgStore,
    pub(crate) locks: LockManager,
    /// The time left for further checks of the start.
    pub(crate) checks: DependencyStart,
}

/// Runs the start sequence.
pub(crate) async fn connect(config: &Config) -> anyhow::Result<Backends> {
    let mut checks = DependencyStart::begin("PostgreSQL", START_TIMEOUT);
    let mut streams = vec![
        (KeyUse::Intents, config.intents.stream.as_str()),
        (KeyUse::Outbound, config.outbound.gateway.key.as_str()),
        (KeyUse::Outbound, config.outbound.mail.key.as_str()),
    ];
    streams.extend(config.relay.iter().flat_map(relayed_streams));
    let redis = connect_redis(&config.redis, &streams).await?;
    check_permissions(&redis, &config.redis, KeyUse::Own, &streams).await?;
    for (_, stream) in redis.by_node(&streams) {
        check_value_limit(&redis.for_key(stream)).await;
        check_eviction(&redis.for_key(stream)).await;
    }
    let pool = open_pool(&config.postgres.dsn, pool_settings(config)).await?;
    let migrating = Instant::now();
    migrate(&config.postgres.dsn).await?;
    // Migrations do not count against the time of the checks.
    checks.extend(migrating.elapsed());
    let mut postgres = PgStore::new(pool.clone()).with_endpoint(api::INTENTS_ENDPOINT);
    if config.api.is_some() {
        let for_plans = query_settings(PLAN_CONNECTIONS, config.postgres.operation_timeout);
        postgres = postgres.with_plans(query_pool(&config.postgres, for_plans)?);
    }
    let dsn = &config.postgres.dsn;
    let with_users = matches!(config.user_directory, UserDirectory::State);
    let needs = checks.until_in_time(|| postgres.check_needs(with_users)).await;
    needs.with_context(|| format!("PostgreSQL at {dsn} lacks something that the service needs"))?;
    claim_stream(config, &postgres, &redis, &checks).await?;
    let locks = open_locks(config)?;
    let tables = checks.until_in_time(|| locks.check_schema()).await;
    tables.with_context(|| format!("the tables of the locks at {dsn} could not be checked"))?;
    Ok(Backends { redis, pool, postgres, locks, checks })
}

/// Assigns the intents stream and the schema to each other.
async fn claim_stream(
    config: &Config,
    postgres: &PgStore,
    redis: &RedisClient,
    checks: &DependencyStart,
) -> anyhow::Result<()> {
    let stream = &config.intents.stream;
    let of_schema = || installation::of_schema(postgres, &RandomTokens, stream);
    let ours = checks.until_in_time(of_schema).await?;
    let checks = checks.of("Redis");
    let serving = checks.until_answered(|| store_redis::claim_stream(redis, stream, &ours.id)).await;
    installation::check_claim(&ours, &serving.context("the stream cannot be claimed")?)
}

/// Creates a Redis client, and waits until Redis responds: in a Cluster, the node of each of these streams.
pub(crate) async fn connect_redis(config: &Redis, streams: &[(KeyUse, &str)]) -> anyhow::Result<RedisClient> {
    let redis =
        RedisClient::new(wiring::redis_settings(config)).context("Redis cannot be used as configured")?;
    let start = DependencyStart::begin("Redis", REDIS_START_TIMEOUT);
    let does_not_serve = || format!("Redis at {} does not serve", config.topology);
    let cannot_be_used = || format!("Redis at {} cannot be used", config.topology);
    redis.check_streams(streams).with_context(cannot_be_used)?;
    for (_, stream) in redis.by_node(streams) {
        let node = redis.for_key(stream);
        start.until_answered(|| node.ping()).await.with_context(does_not_serve)?;
        let version = start.until_answered(|| node.server_version()).await;
        let version = version.with_context(does_not_serve)?;
        topology::check_mode(&config.topology, version.as_ref()).with_context(cannot_be_used)?;
        versions::check_redis(version.as_ref()).with_context(cannot_be_used)?;
    }
    topology::compare_replicas(&redis, &config.replicas).await;
    for (name, node) in redis.primaries().await {
        match node.server_version().await {
            Ok(version) => versions::check_redis(version.as_ref())
                .with_context(|| format!("the node {name} of the Cluster cannot be used"))?,
            Err(error) => tracing::warn!(
                node = name,
                error = domain::ports::error_chain(&error),
                "a node of the Cluster does not respond; its version is not checked"
            ),
        }
    }
    Ok(redis)
}

/// The streams to which a relay appends.
pub(crate) fn relayed_streams(relay: &RelayConfig) -> Vec<(KeyUse, &str)> {
    let streams = match &relay.mode {
        RelayMode::Intents { stream, .. } => std::slice::from_ref(stream),
        RelayMode::Streams(streams) => streams,
    };
    streams.iter().map(|stream| (KeyUse::Relayed, stream.as_str())).collect()
}

/// Fails if Redis does not permit a command or a key that the process needs. `own` names the process's own
/// keys.
pub(crate) async fn check_permissions(
    redis: &RedisClient,
    config: &Redis,
    own: KeyUse,
    streams: &[(KeyUse, &str)],
) -> anyhow::Result<()> {
    let start = DependencyStart::begin("Redis", REDIS_START_TIMEOUT);
    let missing = start.until_answered(|| redis.missing_permissions(own, streams)).await;
    let missing = missing.with_context(|| format!("Redis at {} does not serve", config.topology))?;
    anyhow::ensure!(
        missing.is_empty(),
        "the user at Redis {} lacks permissions: {}; docs/operations.md has a complete ACL line",
        config.topology,
        missing.join(", ")
    );
    Ok(())
}

/// Warns if Redis may evict keys on which the service relies, such as markers and streams.
async fn check_eviction(redis: &RedisClient) {
    match redis.eviction_policy().await {
        Ok(policy) if policy != "noeviction" => tracing::warn!(
            policy,
            "Redis evicts keys when its memory is full, and with them streams and markers: \
             CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        ),
        Ok(_) => {}
        Err(error) => {
            let error = domain::ports::error_chain(&error);
            tracing::debug!(error, "Redis does not disclose what it evicts");
        }
    }
}

/// Warns if a producer could send a value so large that it fills the memory of the replica that reads it. A
/// Redis that does not disclose its configuration, as many managed ones do not, is accepted unchecked.
async fn check_value_limit(redis: &RedisClient) {
    match redis.largest_value().await {
        Ok(bytes) if bytes > MAX_SAFE_VALUE_BYTES => tracing::warn!(
            largest_value_bytes = bytes,
            "Redis takes values of more than 16 MiB, and a replica that reads one needs a multiple of that in memory: \
             CONFIG SET proto-max-bulk-len 16mb, and the same in redis.conf"
        ),
        Ok(_) => {}
        Err(error) => {
            let error = domain::ports::error_chain(&error);
            tracing::debug!(error, "Redis does not disclose how large a value may be");
        }
    }
}

fn pool_settings(config: &Config) -> PoolSettings {
    PoolSettings {
        max_connections: config.postgres.max_open_conns - LOCK_CONNECTIONS - api_connections(config),
        operation_timeout: config.postgres.operation_timeout,
        session: store_postgres::SESSION,
    }
}

async fn migrate(dsn: &Dsn) -> anyhow::Result<()> {
    let migrating = repeat_if_late(START_TIMEOUT, || migrations::migrate(dsn));
    let applied = tokio::time::timeout(MIGRATION_TIMEOUT, migrating)
        .await
        .with_context(|| {
            format!(
                "the migrations were not done within {MIGRATION_TIMEOUT:?}: run `notification migrate` first"
            )
        })?
        .with_context(|| format!("PostgreSQL at {dsn} could not be migrated"))?;
    tracing::info!(applied, "the database has every migration");
    Ok(())
}

/// Creates a pool, and waits until its database responds.
pub(crate) async fn open_pool(dsn: &Dsn, settings: PoolSettings) -> anyhow::Result<PgPool> {
    let pool = PgPool::new(dsn, settings).context("PostgreSQL cannot be used as configured")?;
    let does_not_serve = || format!("PostgreSQL at {dsn} does not serve");
    let start = DependencyStart::begin("PostgreSQL", POSTGRES_START_TIMEOUT);
    let version = start.until_answered(|| pg::server_version(dsn)).await;
    versions::check_postgres(version.with_context(does_not_serve)?)
        .with_context(|| format!("PostgreSQL at {dsn} cannot be used"))?;
    let behind_pooler =
        start.until_answered(|| is_behind_pooler(&pool)).await.with_context(does_not_serve)?;
    if behind_pooler {
        tracing::info!("PostgreSQL is behind a pooler in session mode; each statement is sent with its text");
    }
    Ok(pool)
}

/// Runs a statement to check that the database responds, and returns true if it is behind a pooler.
async fn is_behind_pooler(pool: &PgPool) -> Result<bool, PgError> {
    let session = pool.session("reach PostgreSQL").await?;
    session.execute_batch("SELECT 1").await?;
    Ok(session.is_behind_pooler())
}

/// The number of connections reserved for the API.
fn api_connections(config: &Config) -> usize {
    let reserved = query_connections(config) + PLAN_CONNECTIONS + LOOKUP_CONNECTIONS;
    config.api.as_ref().map_or(0, |_| reserved)
}

/// The number of connections for the API's searches and lists: a quarter of the configured ones, within
/// bounds.
fn query_connections(config: &Config) -> usize {
    ((config.postgres.max_open_conns - LOCK_CONNECTIONS) / 4).clamp(1, MAX_QUERY_CONNECTIONS)
}

/// The API's queries.
pub(crate) struct ApiQueries {
    /// The queries that read the primary.
    pub(crate) current: PgQueries,
    /// The same queries, whose lists, searches and counts read from replicas if there are any.
    pub(crate) lists: PgQueries,
}

/// Creates the API's pools for searches and lists, and for reads by primary key.
pub(crate) fn open_queries(config: &Config, query_timeout: Duration) -> anyhow::Result<ApiQueries> {
    let postgres = &config.postgres;
    let for_searches = query_settings(query_connections(config), query_timeout);
    let searches = query_pool(postgres, for_searches)?;
    let lookups = query_pool(postgres, query_settings(LOOKUP_CONNECTIONS, postgres.operation_timeout))?;
    let current = PgQueries::new(searches).with_lookups(lookups.clone());
    let lists = reading_replicas(&current, lookups, postgres, for_searches)?;
    Ok(ApiQueries { current, lists })
}

fn query_settings(max_connections: usize, operation_timeout: Duration) -> PoolSettings {
    PoolSettings { max_connections, operation_timeout, session: store_postgres::QUERY_SESSION }
}

fn query_pool(postgres: &Postgres, settings: PoolSettings) -> anyhow::Result<PgPool> {
    PgPool::new(&postgres.dsn, settings).context("PostgreSQL cannot be used as configured")
}

/// The queries with the configured read replicas, each with a pool of its own. `primary` measures their age.
pub(crate) fn reading_replicas(
    queries: &PgQueries,
    primary: PgPool,
    postgres: &Postgres,
    settings: PoolSettings,
) -> anyhow::Result<PgQueries> {
    if postgres.replicas.is_empty() {
        return Ok(queries.clone());
    }
    let open = |dsn: &Dsn| Ok((dsn.clone(), PgPool::new(dsn, settings)?));
    let replicas: Result<Vec<_>, DsnError> = postgres.replicas.iter().map(open).collect();
    let replicas =
        replicas.context("a replica in NOTIFICATION_POSTGRES_REPLICA_DSNS cannot be used as configured")?;
    Ok(queries.clone().with_replicas(ReadReplicas::new(primary, replicas, postgres.replica_max_lag)))
}

fn open_locks(config: &Config) -> anyhow::Result<LockManager> {
    let settings = PoolSettings {
        max_connections: LOCK_CONNECTIONS,
        operation_timeout: LOCK_OPERATION_TIMEOUT.min(config.postgres.operation_timeout),
        session: SessionSettings { parameters: lock::PLANNER_PARAMETERS, ..store_postgres::SESSION },
    };
    let pool =
        PgPool::new(&config.postgres.dsn, settings).context("PostgreSQL cannot be used as configured")?;
    Ok(LockManager::new(pool, TableNames::default()))
}
