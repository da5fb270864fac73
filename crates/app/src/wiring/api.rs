//! The wiring of the HTTP API: its parts, and the tasks beside it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ::api::{Api, ApiSettings, Ports, is_undecided};
use ambient::{RandomTokens, SystemClock};
use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::response::Parts;
use domain::query::Leaderless;
use http_server::tokens::{AccessTokens, TokenGuard};
use http_server::{Answered, ListenerSettings, Tls, problem};
use idempotency::{
    Claim, Guarded, Idempotency, KeyEvent, KeyObserver, KeyOperation, LockTtl, ObservedOutcome,
    ObservedStore, PostgresStore, RetentionTtl, is_final,
};
use store_postgres::{PgQueries, PgStore};
use store_redis::{RedisIntentStream, RedisLeases};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use workers::{LeaseTimes, LeasedChanges, Metrics, SubmissionQueue};

use super::console::ConsoleParts;
use super::erase::{ErasureConfig, ServiceEraser, eraser};
use super::leader::LockLookup;
use super::leased_changes;
use crate::config::{self, ApiLimits, Config, known_producers};
use crate::start::{self, Backends};
use crate::supervisor::{Stage, Supervisor};

/// The time for requests in progress after the drain delay, and then once more for work that continues for
/// disconnected clients.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The part of the request timeout reserved for writing the response to a batch.
const BATCH_ANSWER_TIME: Duration = Duration::from_millis(500);
/// The timeout for claiming or completing the key of a batch or of an operator's change.
const KEY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a stored response to such a request, in bytes: a thousand elements with a problem
/// each.
const MAX_STORED_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The ports of the API.
struct ApiPorts;

impl Ports for ApiPorts {
    type Submissions = SubmissionQueue;
    type Queries = PgQueries;
    type Operations = LeasedChanges<PgStore, RedisLeases>;
    type Holds = PgStore;
    type Erasures = ServiceEraser;
    type Receipts = PgStore;
    type Stream = RedisIntentStream;
    type Leader = LockLookup;
    type Finder = super::Search;
    type Resubmitter = super::Resubmission;
    type Keys = ObservedStore<PostgresStore>;
    type Clock = SystemClock;
}

/// Counts the outcomes of the keys of batches and of operators' changes.
struct KeyMetrics(Metrics);

impl KeyObserver for KeyMetrics {
    fn observe(&self, event: &KeyEvent<'_>) {
        match (event.operation, &event.outcome) {
            (KeyOperation::Claim, ObservedOutcome::Claim(claim)) => {
                self.0.claimed(claim_name(claim), event.keys)
            }
            (KeyOperation::Claim, ObservedOutcome::Failed(_)) => self.0.claimed("failed", event.keys),
            (KeyOperation::Complete, ObservedOutcome::Guarded(Guarded::Fenced)) => self.0.fenced(event.keys),
            _ => {}
        }
    }
}

/// The label `outcome` of a claim.
fn claim_name(claim: &Claim) -> &'static str {
    match claim {
        Claim::New => "new",
        Claim::Pending { .. } | Claim::Busy => "pending",
        Claim::Completed(_) => "completed",
        Claim::Conflict => "conflict",
    }
}

/// An API whose listener is open, and that does not serve requests yet.
pub(super) struct ApiParts {
    listener: TcpListener,
    tokens: AccessTokens,
    tls: Option<Tls>,
    keys: Idempotency<ObservedStore<PostgresStore>>,
    queries: PgQueries,
    operations: LeasedChanges<PgStore, RedisLeases>,
    erasures: ServiceEraser,
    stream: RedisIntentStream,
    leader: LockLookup,
    search: super::Search,
    resubmission: super::Resubmission,
    settings: ApiSettings,
    console: Option<ConsoleParts>,
    limits: ApiLimits,
    known_producers: BTreeSet<String>,
    metrics: Metrics,
}

/// Reads tokens and certificates, checks the table of keys and opens the listener.
pub(super) async fn prepare(
    config: &Config,
    api: &config::Api,
    stores: &Backends,
    metrics: Metrics,
) -> anyhow::Result<ApiParts> {
    let tokens = AccessTokens::load(&api.tokens_file).context("the tokens of the API cannot be used")?;
    let tls = api.tls.as_ref().map(|(certificates, key)| Tls::load(certificates, key)).transpose();
    let tls = tls.context("the certificate of the API cannot be used")?;
    let keys = PostgresStore::new(stores.pool.clone());
    let checked = stores.checks.until_in_time(|| keys.check_schema()).await;
    checked.context("the table of idempotency keys cannot be used")?;
    let keys = ObservedStore::new(keys, Arc::new(KeyMetrics(metrics.clone())));
    let addr = &api.addr;
    let cannot_listen = || format!("could not listen on {addr} (NOTIFICATION_API_HTTP_ADDR)");
    let listener = http_server::bind(addr.host.as_deref(), addr.port).await.with_context(cannot_listen)?;
    let api_addr = listener.local_addr().with_context(cannot_listen)?;
    tracing::info!(api_addr = %api_addr, tls = tls.is_some(), "the API is listening");
    let times = LeaseTimes { lease_ttl: config.routes.lease_ttl, dedupe_ttl: config.publish.dedupe_ttl };
    let console = api.console.then(|| ConsoleParts::new(stores, &tokens, api));
    let queries = start::open_queries(config, api.limits.query_timeout)?;
    let erasure = ErasureConfig {
        intents_stream: &config.intents.stream,
        outbound: &config.outbound,
        user_directory: &config.user_directory,
        dedupe_ttl: config.publish.dedupe_ttl,
        time_limit: Some(api.limits.timeouts.request / 2),
    };
    let keyspace = super::keyspace(&config.intents.stream, &config.outbound, config.publish.dedupe_ttl);
    let leader = LockLookup::new(stores.locks.clone(), &config.intents.stream);
    let search = super::search(
        queries.current.clone(),
        &stores.redis,
        &config.intents.stream,
        &config.outbound,
        leader.clone(),
        Arc::clone(&config.audience.catalog),
    );
    let resubmission = super::resubmission(stores.postgres.clone(), &stores.redis, &config.intents.stream);
    Ok(ApiParts {
        listener,
        tokens,
        tls,
        keys: guarded(config, &api.limits, keys)?,
        erasures: eraser(&erasure, stores.postgres.clone(), queries.current.clone(), &stores.redis),
        queries: queries.lists,
        operations: leased_changes(&stores.postgres, &stores.redis, &keyspace, times),
        stream: RedisIntentStream::new(&stores.redis, config.intents.stream.clone()),
        leader,
        search,
        resubmission,
        settings: settings(config, &api.limits),
        console,
        limits: api.limits,
        known_producers: known_producers(&config.audience.catalog),
        metrics,
    })
}

fn settings(config: &Config, limits: &ApiLimits) -> ApiSettings {
    let routes = &config.routes;
    ApiSettings {
        catalog: Arc::clone(&config.audience.catalog),
        stream: config.intents.stream.clone(),
        budgets: routes.budgets,
        max_body_bytes: limits.max_body_bytes,
        max_batch_body_bytes: limits.max_batch_body_bytes,
        batch_timeout: limits.timeouts.request.saturating_sub(BATCH_ANSWER_TIME),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Creates the guard that runs batches and operators' changes once for each key.
fn guarded(
    config: &Config,
    limits: &ApiLimits,
    keys: ObservedStore<PostgresStore>,
) -> anyhow::Result<Idempotency<ObservedStore<PostgresStore>>> {
    let settings = idempotency::IdempotencySettings {
        lock_ttl: LockTtl::new(limits.idempotency_lock_ttl)?,
        retention_ttl: RetentionTtl::new(config.intents.idempotency_ttl)?,
        handler_timeout: handler_timeout(limits),
        store_timeout: KEY_TIMEOUT,
        max_response_bytes: MAX_STORED_ANSWER_BYTES,
        max_concurrent: limits.max_connections,
    };
    let store_if = |parts: &Parts, _: &Bytes| is_final(parts.status) && !is_undecided(parts);
    Ok(Idempotency::build(Arc::new(keys), settings, store_if, Arc::new(RandomTokens))?)
}

/// The timeout of an operator's change, which continues after its request got a response. It is the lock TTL
/// minus two key timeouts; configuration requires it to be at least the request timeout. A batch has an
/// earlier deadline of its own.
fn handler_timeout(limits: &ApiLimits) -> Duration {
    limits.idempotency_lock_ttl.saturating_sub(KEY_TIMEOUT * 2)
}

impl ApiParts {
    /// The maximum time for which a key is claimed.
    pub(super) fn lock_ttl(&self) -> Duration {
        self.limits.idempotency_lock_ttl
    }

    /// Serves requests. Submitted intents go to `submissions`.
    pub(super) fn spawn(self, supervisor: &mut Supervisor, submissions: SubmissionQueue) {
        let guard = TokenGuard::new(self.tokens.clone(), self.limits.rate_limit);
        let known_clients = self.tokens.clone();
        let (tokens, known_producers) = (self.tokens, self.known_producers);
        supervisor.spawn(Stage::Background, "api tokens", |stop| async move {
            tokens.follow(known_producers, stop).await;
        });
        if let Some(tls) = self.tls.clone() {
            let follow = |stop| async move { tls.follow(stop).await };
            supervisor.spawn(Stage::Background, "api certificate", follow);
        }
        let receipts = self.metrics.clone();
        let api = Api::<ApiPorts> {
            submissions,
            queries: self.queries,
            receipts: self.operations.store.clone(),
            holds: self.operations.store.clone(),
            operations: self.operations,
            erasures: self.erasures,
            count_receipts: Arc::new(move |outcome, count| receipts.receipts(outcome, count)),
            stream: self.stream,
            leader: self.leader,
            leaderless: Leaderless::new(),
            finder: self.search,
            resubmitter: self.resubmission,
            keys: self.keys.clone(),
            clock: SystemClock,
            settings: self.settings,
        };
        let metrics = self.metrics;
        let console = self.console.map(|console| console.router(&api));
        let settings = ListenerSettings {
            max_connections: self.limits.max_connections,
            max_body_bytes: self.limits.max_body_bytes,
            max_buffered_bytes: self.limits.max_buffered_bytes,
            probes: &[],
            timeouts: self.limits.timeouts,
            drain_delay: self.limits.drain_delay,
            drain_timeout: DRAIN_TIMEOUT,
            refuse: problem::refuse,
            observe: Some(Arc::new(move |answered: Answered<'_>| {
                metrics.answered(answered.route, answered.status.as_u16(), answered.duration);
            })),
            tls: self.tls,
            tokens: Some(known_clients),
        };
        let router = ::api::router(api, &guard).merge(console.unwrap_or_default());
        let (listener, keys) = (self.listener, self.keys);
        supervisor.spawn(Stage::Api, "api", |stop| answer(listener, router, settings, keys, stop));
    }
}

/// Serves requests until `stop`, then waits for work that continues for disconnected clients.
async fn answer(
    listener: TcpListener,
    router: Router,
    settings: ListenerSettings,
    keys: Idempotency<ObservedStore<PostgresStore>>,
    stop: CancellationToken,
) {
    http_server::serve(listener, router, settings, stop).await;
    keys.tasks().close();
    if timeout(DRAIN_TIMEOUT, keys.tasks().wait()).await.is_err() {
        tracing::warn!(
            tasks = keys.tasks().len(),
            "requests of clients that have gone are still processed; their keys stay claimed until the lock TTL ends"
        );
    }
}
