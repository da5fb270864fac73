//! The wiring: what the service is made of, in the order in which it starts, and stops in reverse.
//!
//! Redis, PostgreSQL and its migrations must be there before the listener opens; after that no dependency ends the
//! process. On a stop, intake ends first, then the publishers empty what it had handed over, then the rest.

use std::sync::Arc;
use std::time::Duration;

use ambient::{RandomJitter, RandomTokens, SystemClock};
use anyhow::Context;
use directory::{DirectorySettings, HttpDirectory};
use domain::accept::Policy;
use domain::route::Channel;
use lock::{LockManager, TableNames};
use pg::{PgPool, PoolSettings};
use store_postgres::PgStore;
use store_redis::{
    RedisClient, RedisHints, RedisIntentStream, RedisLeases, RedisOffsets, RedisOutbound, RedisSettings,
    StreamTarget,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use workers::{
    Gauges, Inbox, IntakeSettings, IntentConsumer, Metrics, PublishSettings, RetentionSettings,
    RoutePublisher, SqlRetention, handover,
};

use crate::config::Config;
use crate::election::LockElection;
use crate::probes::{self, Phase, ReadyState};
use crate::shutdown::{Parts, Watchdog};

/// How long a dependency may take to be there at start. A failure is known well within 30 seconds.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks for it.
const START_RETRY: Duration = Duration::from_millis(500);
/// The longest that migrations may take when a replica starts; longer ones are run by `notification migrate`.
const MIGRATION_BOUND: Duration = Duration::from_secs(25);
/// Connections that locks have for themselves, so that a lease is renewed however busy the others are.
const LOCK_CONNECTIONS: usize = 2;
/// The longest that one operation on a lock may take: well within the third of a term that a renewal has.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How many users are looked up at once, and how many answers are kept for how long.
const DIRECTORY_CONCURRENCY: usize = 32;
const DIRECTORY_CACHE: usize = 10_000;
const DIRECTORY_CACHE_TTL: Duration = Duration::from_secs(5);

/// Runs the service until `stop`, which also ends a start. `Err` if it could not start.
///
/// The watchdog of the stop runs on: whoever has something left to do before the process ends keeps it until then.
pub async fn serve(config: Config, stop: CancellationToken) -> anyhow::Result<Watchdog> {
    let directory = user_directory(&config)?;
    let Some(stores) = stop.run_until_cancelled(connect(&config)).await else {
        tracing::info!("the service was stopped before it was ready");
        return Ok(Watchdog::start(config.shutdown_timeout, Parts::default()));
    };
    let stores = stores?;
    let addr = &config.http.addr;
    let cannot_listen = || format!("could not listen on {addr} (NOTIFICATION_INTERNAL_HTTP_ADDR)");
    let listener = probes::bind(addr).await.with_context(cannot_listen)?;
    let http_addr = listener.local_addr().with_context(cannot_listen)?;
    let ready = ReadyState::default();
    let parts = Parts::default();
    let probes_stop = CancellationToken::new();
    let serving = probes::serve(listener, ready.clone(), config.http.timeouts, probes_stop.clone());
    let probes = spawn(&parts, "probes", serving);
    tracing::info!(http_addr = %http_addr, "http listener is ready");

    let service = Service::start(&config, &stores, directory, &ready, &parts);
    ready.set(Phase::Ready);
    tracing::info!("the service is ready");

    stop.cancelled().await;
    ready.set(Phase::Stopping);
    let watchdog = Watchdog::start(config.shutdown_timeout, parts);
    service.stop().await;
    probes_stop.cancel();
    // It ended, or it panicked and has said so.
    drop(probes.await);
    stores.pool.close();
    tracing::info!("the service has stopped");
    Ok(watchdog)
}

/// The two databases, known to be there.
struct Stores {
    redis: RedisClient,
    pool: PgPool,
    postgres: PgStore,
    locks: LockManager,
}

async fn connect(config: &Config) -> anyhow::Result<Stores> {
    let redis =
        RedisClient::new(redis_settings(&config.redis)).context("Redis cannot be used as configured")?;
    patiently("Redis", || redis.ping())
        .await
        .with_context(|| format!("Redis at {} does not serve", config.redis.addr))?;

    let settings = PoolSettings {
        max_connections: config.postgres.max_open_conns - LOCK_CONNECTIONS,
        operation_timeout: config.postgres.operation_timeout,
    };
    let dsn = &config.postgres.dsn;
    let pool = PgPool::new(dsn, settings).context("PostgreSQL cannot be used as configured")?;
    patiently("PostgreSQL", || pool.ping())
        .await
        .with_context(|| format!("PostgreSQL at {dsn} does not serve"))?;
    let applied = tokio::time::timeout(MIGRATION_BOUND, store_postgres::migrate(dsn))
        .await
        .with_context(|| {
            format!(
                "the migrations were not done within {MIGRATION_BOUND:?}: run `notification migrate` first"
            )
        })?
        .with_context(|| format!("PostgreSQL at {dsn} could not be migrated"))?;
    tracing::info!(applied, "the database has every migration");
    let postgres = PgStore::new(pool.clone());
    postgres
        .check_needs()
        .await
        .with_context(|| format!("PostgreSQL at {dsn} lacks something that the service needs"))?;
    let settings = PoolSettings {
        max_connections: LOCK_CONNECTIONS,
        operation_timeout: LOCK_TIMEOUT.min(config.postgres.operation_timeout),
    };
    let lock_pool = PgPool::new(dsn, settings).context("PostgreSQL cannot be used as configured")?;
    let locks = LockManager::new(lock_pool, TableNames::default());
    locks
        .check_schema()
        .await
        .with_context(|| format!("the tables of the locks at {dsn} could not be checked"))?;
    Ok(Stores { redis, pool, postgres, locks })
}

/// Asks until the dependency answers, or for as long as a start may wait for it, however long one answer may take.
async fn patiently<E, F>(name: &'static str, mut ask: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let deadline = Instant::now() + START_PATIENCE;
    let mut said = false;
    loop {
        let error = match timeout_at(deadline, ask()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => anyhow::bail!("no answer within {START_PATIENCE:?}"),
        };
        if Instant::now() + START_RETRY >= deadline {
            return Err(error.into());
        }
        if !said {
            said = true;
            tracing::warn!(
                dependency = name,
                error = domain::ports::error_chain(&error),
                "waiting for a dependency"
            );
        }
        tokio::time::sleep(START_RETRY).await;
    }
}

/// The loops of one replica.
struct Service {
    intake_stop: CancellationToken,
    intake: JoinHandle<()>,
    publish_stop: CancellationToken,
    publishers: Vec<JoinHandle<()>>,
    others_stop: CancellationToken,
    others: Vec<JoinHandle<()>>,
}

impl Service {
    fn start(
        config: &Config,
        stores: &Stores,
        directory: HttpDirectory,
        ready: &ReadyState,
        parts: &Parts,
    ) -> Self {
        let metrics = Metrics::new(&opentelemetry::global::meter("notification"));
        let (handover, [push_inbox, email_inbox]) = handover(Channel::ALL);
        let (intake_stop, publish_stop, others_stop) =
            <(CancellationToken, CancellationToken, CancellationToken)>::default();
        let intents = RedisIntentStream::new(&stores.redis, config.intents.stream.clone());

        let status = ready.add_status("intake");
        ready.add_leader(&status);
        let office = format!("intake:{}", config.intents.stream);
        let hints = RedisHints::new(&stores.redis, &office);
        let consumer = IntentConsumer {
            election: LockElection::new(stores.locks.clone(), office, Some(hints)),
            intents: intents.clone(),
            store: stores.postgres.clone(),
            offsets: RedisOffsets::new(&stores.redis),
            directory,
            clock: SystemClock,
            policy: Arc::new(policy(config)),
            handover,
            settings: IntakeSettings {
                stream: config.intents.stream.clone(),
                batch_size: config.intents.batch_size,
                block: config.intents.read_block_timeout,
            },
            metrics: metrics.clone(),
            status,
        };
        let intake = spawn(parts, "intake", consumer.run(intake_stop.clone()));

        let publisher = |channel: Channel, inbox: Inbox| {
            let publisher = RoutePublisher {
                channel,
                routes: stores.postgres.clone(),
                leases: RedisLeases::new(&stores.redis),
                outbound: outbound(config, &stores.redis),
                clock: SystemClock,
                jitter: RandomJitter,
                tokens: RandomTokens,
                settings: publish_settings(config),
                metrics: metrics.clone(),
                status: ready.add_status(channel.as_str()),
            };
            spawn(parts, channel.as_str(), publisher.run(inbox, publish_stop.clone()))
        };
        let publishers = vec![publisher(Channel::Push, push_inbox), publisher(Channel::Email, email_inbox)];

        let retention = SqlRetention {
            election: LockElection::new(stores.locks.clone(), "retention".to_owned(), None),
            store: stores.postgres.clone(),
            clock: SystemClock,
            settings: RetentionSettings {
                records: config.retention.record,
                malformed_intents: config.retention.malformed_intent,
                interval: config.retention.cleanup_interval,
            },
            metrics: metrics.clone(),
            status: ready.add_status("retention"),
        };
        let mut others = vec![spawn(parts, "retention", retention.run(others_stop.clone()))];
        if config.telemetry.metrics.is_some() {
            let gauges = Gauges {
                store: stores.postgres.clone(),
                intents,
                offsets: RedisOffsets::new(&stores.redis),
                clock: SystemClock,
                stream: config.intents.stream.clone(),
                metrics,
            };
            let pool = stores.pool.clone();
            others.push(spawn(parts, "gauges", gauges.run(move || pool.usage(), others_stop.clone())));
        }
        Self { intake_stop, intake, publish_stop, publishers, others_stop, others }
    }

    /// A loop that ended by a panic has said so; the others are stopped all the same.
    async fn stop(self) {
        self.others_stop.cancel();
        self.intake_stop.cancel();
        drop(self.intake.await);
        self.publish_stop.cancel();
        for task in self.publishers.into_iter().chain(self.others) {
            drop(task.await);
        }
    }
}

fn spawn(
    parts: &Parts,
    name: &'static str,
    future: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let part = parts.enter(name);
    tokio::spawn(async move {
        future.await;
        drop(part);
    })
}

pub(crate) fn redis_settings(config: &crate::config::Redis) -> RedisSettings {
    RedisSettings {
        addr: config.addr.to_string(),
        password: config.password.expose().map(str::to_owned),
        db: config.db.into(),
        operation_timeout: config.operation_timeout,
    }
}

fn user_directory(config: &Config) -> anyhow::Result<HttpDirectory> {
    let directory = HttpDirectory::new(DirectorySettings {
        base_url: config.directory.base_url.clone(),
        timeout: config.directory.timeout,
        concurrency: DIRECTORY_CONCURRENCY,
        cache_ttl: DIRECTORY_CACHE_TTL,
        cache_entries: DIRECTORY_CACHE,
    });
    directory.context("the user directory cannot be used as configured")
}

fn policy(config: &Config) -> Policy {
    Policy {
        catalog: Arc::clone(&config.audience.catalog),
        admin_emails: config.audience.admin_emails.clone(),
        locales: config.audience.locales.clone(),
        push_max_attempts: config.routes.push_max_attempts,
        email_max_attempts: config.routes.email_max_attempts,
        idempotency_ttl: config.intents.idempotency_ttl,
        head_start: config.routes.lease_ttl,
    }
}

fn publish_settings(config: &Config) -> PublishSettings {
    PublishSettings {
        batch_size: config.publish.batch_size,
        poll_interval: config.publish.poll_interval,
        lease_ttl: config.routes.lease_ttl,
        dedupe_ttl: config.publish.dedupe_ttl,
        backoff: config.routes.backoff,
    }
}

fn outbound(config: &Config, redis: &RedisClient) -> RedisOutbound {
    let target = |stream: &crate::config::OutboundStream| StreamTarget {
        key: stream.key.clone(),
        max_len: stream.max_len,
    };
    RedisOutbound::new(redis, target(&config.outbound.gateway), target(&config.outbound.mail))
}
