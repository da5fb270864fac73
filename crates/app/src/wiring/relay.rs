//! The wiring of the relay of an outbox: as a process of its own, and inside the service.
//!
//! As a process, the relay needs Redis and a usable table at its start, like the service. Inside the service,
//! no failure of the producer's database ends anything: the relay waits, `/readyz` shows the reason, and the
//! rest of the service continues.

mod metrics;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Episode, RandomTokens, Recovery, error_chain};
use anyhow::Context;
use domain::replica::OUTBOX_RELAY;
use outbox::{
    Administration, EventTypes, OutboxError, PostgresStorage, Publisher, Relay, RelayId, RelayObserver,
    RelaySettings, RelayState, RelayStatus, Stats, TableName,
};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use serde_json::{Value, json};
use store_redis::{KeyUse, RedisClient, RedisOutboxStreams};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use workers::{Health, ReplicaHealth};

use self::metrics::RelayMetrics;
use super::{StoppedProcess, redis_settings, run_until_stopped, spawn_probes};
use crate::config::knobs::NOTIFICATION_INTERNAL_HTTP_ADDR;
use crate::config::{Redis, RelayConfig, RelayMode, RelayProcessConfig};
use crate::probes::{Phase, ReadyState, STATS_TIMEOUT};
use crate::relay::{IntentMapping, StreamMapping, StreamPublisher};
use crate::shutdown::{Parts, Watchdog};
use crate::supervisor::{Stage, Supervisor};
use crate::telemetry::Exposition;
use crate::{start, versions};

/// The number of connections of a relay: for a claim, its marks, and the reaper beside them.
const RELAY_CONNECTIONS: usize = 4;
/// The maximum duration of the start, including all waits.
const START_TIMEOUT: Duration = Duration::from_secs(28);
/// The first pause before an unusable table is checked again. It doubles with each further check.
const CHECK_RETRY_MIN: Duration = Duration::from_millis(500);
/// The maximum pause before the table is checked again.
const CHECK_RETRY_MAX: Duration = Duration::from_secs(10);
/// The interval at which the state of a relay inside the service is reported.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum size of all payloads of one claim, in bytes.
const MAX_CLAIM_BYTES: u64 = 16 << 20;
/// The maximum size of a payload that can be an intent, in bytes: twice the limit of an entry, because
/// normalisation can shorten the payload.
const MAX_INTENT_PAYLOAD_BYTES: u64 = 512 << 10;
/// The maximum size of a payload that is appended to a stream unchanged, in bytes.
const MAX_STREAM_PAYLOAD_BYTES: u64 = 16 << 20;

/// Runs a relay as a process until `stop`, which also ends a start, or until one of its tasks fails. Returns
/// an error if it could not start.
pub async fn run(
    config: RelayProcessConfig,
    relay_id: RelayId,
    exposition: Option<Exposition>,
    stop: CancellationToken,
) -> anyhow::Result<StoppedProcess> {
    tracing::info!(relay = relay_id.as_str(), outbox_table = %config.relay.outbox.table, "the relay is starting");
    let start = timeout(START_TIMEOUT, connect(&config, relay_id));
    let Some(started) = stop.run_until_cancelled(start).await else {
        tracing::info!("the relay was stopped before it was ready");
        let watchdog = Watchdog::start(config.shutdown_timeout, Parts::default());
        return Ok(StoppedProcess { watchdog, failed: false });
    };
    let relay = started.with_context(|| format!("the start took longer than {START_TIMEOUT:?}"))??;
    let ready = ReadyState::default();
    relay.show_process(&ready);
    ready.set_exposition(exposition);
    let parts = Parts::default();
    let mut supervisor = Supervisor::new(parts.clone());
    spawn_probes(&mut supervisor, &config.http, &NOTIFICATION_INTERNAL_HTTP_ADDR, &ready).await?;
    supervisor.spawn(Stage::Background, "outbox relay", relay.run);
    ready.set(Phase::Ready);
    tracing::info!("the relay is ready");
    let stopped = run_until_stopped(supervisor, parts, &ready, config.shutdown_timeout, stop).await;
    tracing::info!("the relay has stopped");
    Ok(stopped)
}

/// Runs the start sequence: Redis responds, the database responds, the table can be used.
async fn connect(config: &RelayProcessConfig, relay_id: RelayId) -> anyhow::Result<WiredRelay> {
    let streams = start::relayed_streams(&config.relay);
    let redis = start::connect_redis(&config.redis, &streams).await?;
    start::check_permissions(&redis, &config.redis, KeyUse::OwnOfRelay, &streams).await?;
    let pool = start::open_pool(&config.relay.outbox.dsn, pool_settings(&config.relay)).await?;
    let relay = WiredRelay::new(&config.relay, relay_id, &redis, &pool)?;
    let dsn = &config.relay.outbox.dsn;
    start::repeat_if_late(START_TIMEOUT, || relay.check())
        .await
        .with_context(|| format!("the outbox at {dsn} cannot be used"))?;
    Ok(relay)
}

/// A relay inside the service.
pub(super) struct ServiceRelay(WiredRelay);

impl ServiceRelay {
    /// Creates the relay without contacting a server. It has its own connections to Redis and to the
    /// database.
    pub(super) fn prepare(config: &RelayConfig, redis: &Redis) -> anyhow::Result<Self> {
        let redis = RedisClient::new(redis_settings(redis)).context("Redis cannot be used as configured")?;
        let pool = PgPool::new(&config.outbox.dsn, pool_settings(config))
            .context("the outbox cannot be used as configured")?;
        Ok(Self(WiredRelay::new(config, config.relay_id(&RandomTokens), &redis, &pool)?))
    }

    /// Runs the relay beside the service, shows it as the member `outbox_relay` of `/readyz`, and reports it
    /// as a worker of the replica.
    pub(super) fn spawn(self, supervisor: &mut Supervisor, ready: &ReadyState, workers: &ReplicaHealth) {
        let Self(relay) = self;
        relay.show_member(ready);
        let (status, health) = (relay.status.clone(), workers.add_worker(OUTBOX_RELAY));
        supervisor.spawn(Stage::Background, "outbox relay", |stop| async move {
            let run = async {
                if stop.run_until_cancelled(relay.until_usable()).await.is_some() {
                    (relay.run)(stop).await;
                }
            };
            tokio::select! {
                () = run => {}
                never = report_state(&status, &health) => match never {},
            }
        });
    }
}

/// Reports the state of a relay as that of a worker, for as long as it is polled.
async fn report_state(status: &RelayStatus, health: &Health) -> Infallible {
    loop {
        match status.state() {
            RelayState::Running => health.set_blocked(None),
            RelayState::Paused { waiting_for } => health.set_blocked(Some(&waiting_for)),
        }
        tokio::time::sleep(STATE_INTERVAL).await;
    }
}

/// Runs a relay of either mode until it is stopped.
type RunRelay = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A relay that is wired and does not run yet.
struct WiredRelay {
    relay_id: RelayId,
    dsn: Dsn,
    table: TableName,
    administration: Administration,
    /// True if the relay compares delivered events with the content of Redis.
    compares: bool,
    /// The same for `/stats`, with a pool of its own, so that requests take no connection from the relay.
    stats: Arc<Administration>,
    metrics: RelayMetrics,
    status: RelayStatus,
    run: RunRelay,
}

impl WiredRelay {
    fn new(
        config: &RelayConfig,
        relay_id: RelayId,
        redis: &RedisClient,
        pool: &PgPool,
    ) -> anyhow::Result<Self> {
        let table = config.outbox.table.clone();
        let settings =
            PoolSettings { max_connections: 1, operation_timeout: STATS_TIMEOUT, ..pool_settings(config) };
        let stats =
            PgPool::new(&config.outbox.dsn, settings).context("the outbox cannot be used as configured")?;
        let metrics = RelayMetrics::new(&opentelemetry::global::meter("notification"));
        let wiring =
            RelayWiring { config, relay_id: relay_id.clone(), pool: pool.clone(), metrics: metrics.clone() };
        let (status, run) = match config.mode.clone() {
            RelayMode::Intents { producer, stream, catalog, types } => {
                let streams = streams(config, redis);
                let mapping = IntentMapping { stream, producer, catalog };
                wiring.relay(StreamPublisher::new(streams, mapping), types, MAX_INTENT_PAYLOAD_BYTES)
            }
            RelayMode::Streams(allowed) => {
                let mapping = StreamMapping { allowed: allowed.into_iter().collect() };
                let streams = streams(config, redis);
                let publisher = StreamPublisher::new(streams, mapping);
                wiring.relay(publisher, EventTypes::All, MAX_STREAM_PAYLOAD_BYTES)
            }
        };
        Ok(Self {
            relay_id,
            dsn: config.outbox.dsn.clone(),
            administration: Administration::new(pool.clone(), table.clone()),
            stats: Arc::new(Administration::new(stats, table.clone())),
            compares: !config.republish_window.is_zero(),
            table,
            metrics,
            status,
            run,
        })
    }

    /// Checks that the table exists, is complete and may be used. Logs statements that would make the relay
    /// faster.
    async fn check(&self) -> Result<(), OutboxError> {
        let checked = self.administration.check().await?;
        for statement in &checked.missing_indexes {
            tracing::warn!(
                outbox_table = %self.table,
                statement = statement.as_str(),
                "the outbox table lacks an index; the relay works without it, but slower: run this statement"
            );
        }
        if self.compares { self.administration.check_identity().await } else { Ok(()) }
    }

    /// Checks the version of the server, then the table. The server may have been replaced between two
    /// checks. Logs the version warning only once, when the table can be used.
    async fn check_all(&self) -> anyhow::Result<()> {
        let version = pg::server_version(&self.dsn).await?;
        versions::require_postgres(version)?;
        self.check().await?;
        Ok(versions::check_postgres(version)?)
    }

    /// Checks the database until it can be used. The relay is paused meanwhile.
    async fn until_usable(&self) {
        let (mut pause, failures) = (CHECK_RETRY_MIN, Episode::default());
        while let Err(error) = self.check_all().await {
            let waiting_for = error_chain(error.as_ref());
            let failure = failures.failed(Instant::now().into_std(), waiting_for.clone());
            if failure.is_logged {
                tracing::warn!(
                    outbox_table = %self.table,
                    error = waiting_for,
                    times = failure.times,
                    "the outbox cannot be used; retrying"
                );
            }
            let paused = RelayState::Paused { waiting_for };
            self.metrics.state(&paused);
            self.status.set(paused);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CHECK_RETRY_MAX);
        }
        if let Some(Recovery { times, lasted_ms }) = failures.recovered(Instant::now().into_std()) {
            tracing::info!(outbox_table = %self.table, times, lasted_ms, "outbox recovered");
            self.status.set(RelayState::Running);
        }
    }

    /// Shows the relay of a process that runs only a relay.
    fn show_process(&self, ready: &ReadyState) {
        let relay_id = self.relay_id.clone();
        ready.add_detail("relay", move || json!(relay_id.as_str()));
        for member in ["state", "waiting_for"] {
            let status = self.status.clone();
            ready.add_detail(member, move || show(&status.state())[member].take());
        }
        self.show_stats(ready);
    }

    /// Shows a relay inside the service.
    fn show_member(&self, ready: &ReadyState) {
        let (status, relay_id) = (self.status.clone(), self.relay_id.clone());
        ready.add_detail("outbox_relay", move || {
            let mut shown = show(&status.state());
            shown["relay"] = json!(relay_id.as_str());
            shown
        });
        self.show_stats(ready);
    }

    fn show_stats(&self, ready: &ReadyState) {
        let stats = Arc::clone(&self.stats);
        ready.set_stats(move || {
            let stats = Arc::clone(&stats);
            async move {
                let stats = stats.stats().await;
                stats.map(|stats| stats_json(&stats)).map_err(|error| error_chain(&error))
            }
        });
    }
}

/// The streams to which a relay appends. If events are compared, the client watches which server
/// acknowledges, and markers live for the whole window of the comparison.
fn streams(config: &RelayConfig, redis: &RedisClient) -> RedisOutboxStreams {
    let named = start::relayed_streams(config).into_iter().map(|(_, stream)| stream);
    let first = named.min().unwrap_or_default();
    match config.republish_window.is_zero() {
        true => RedisOutboxStreams::new(redis, first, config.dedupe_ttl),
        false => {
            RedisOutboxStreams::new(redis, first, config.republish_window + config.dedupe_ttl).watching()
        }
    }
}

/// The parts of a relay of either mode.
struct RelayWiring<'a> {
    config: &'a RelayConfig,
    relay_id: RelayId,
    pool: PgPool,
    metrics: RelayMetrics,
}

impl RelayWiring<'_> {
    fn relay<P: Publisher>(
        self,
        publisher: P,
        types: EventTypes,
        max_event_bytes: u64,
    ) -> (RelayStatus, RunRelay) {
        let config = self.config;
        let settings = RelaySettings {
            relay_id: self.relay_id,
            types,
            batch_size: config.batch_size,
            poll_interval: config.poll_interval,
            lease_timeout: config.lease_timeout,
            max_claim_bytes: MAX_CLAIM_BYTES,
            max_event_bytes,
            retry: config.retry,
            republish_window: config.republish_window,
        };
        let storage = PostgresStorage::new(self.pool, config.outbox.table.clone());
        let relay = Relay::new(storage, publisher, self.metrics, settings);
        let relay = match &config.listen_channel {
            Some(channel) => relay.listening(config.outbox.dsn.clone(), channel.clone()),
            None => relay,
        };
        (relay.status(), Box::new(move |stop| Box::pin(async move { relay.run(stop).await })))
    }
}

fn pool_settings(config: &RelayConfig) -> PoolSettings {
    PoolSettings {
        max_connections: RELAY_CONNECTIONS,
        operation_timeout: config.operation_timeout,
        session: SessionSettings {
            application_name: "notification-relay",
            parameters: outbox::PLANNER_PARAMETERS,
        },
    }
}

/// The state of a relay as `/readyz` shows it.
fn show(state: &RelayState) -> Value {
    match state {
        RelayState::Running => json!({ "state": "running" }),
        RelayState::Paused { waiting_for } => json!({ "state": "paused", "waiting_for": waiting_for }),
    }
}

/// The figures of an outbox as `/stats` and `notification outbox stats` show them.
pub(crate) fn stats_json(stats: &Stats) -> Value {
    json!({
        "pending_count": stats.pending,
        "retrying_count": stats.retrying,
        "scheduled_count": stats.scheduled,
        "delivering_count": stats.delivering,
        "dead_count": stats.dead,
        "oldest_age_sec": stats.oldest_age.as_secs_f64(),
    })
}
