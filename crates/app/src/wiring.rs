//! The wiring of the processes, one file for each mode, and their common parts: the probes, and running until
//! a stop.

mod api;
mod console;
mod directory;
mod election;
pub(crate) mod erase;
pub mod leader;
pub mod relay;
pub mod serve;
pub mod state;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::catalog::Catalog;
use store_postgres::{PgQueries, PgStore};
use store_redis::{
    Keyspace, RedisClient, RedisIntentProducer, RedisIntentStream, RedisLeases, RedisSettings,
};
use tokio_util::sync::CancellationToken;
use workers::{LeaseTimes, LeasedChanges, NamedStream};

use self::leader::LockLookup;
use crate::config::knob::Knob;
use crate::config::{Http, Outbound, Redis};
use crate::probes::{self, Phase, ReadyState};
use crate::shutdown::{Parts, Watchdog};
use crate::supervisor::{Stage, Supervisor, TaskFailure};

/// A process that has stopped.
#[derive(Debug)]
pub struct StoppedProcess {
    /// The watchdog, still running. The caller keeps it until the last step before the process ends.
    pub watchdog: Watchdog,
    /// True if a task failed; the log has the cause.
    pub failed: bool,
}

/// The settings of a client for the configured Redis.
pub(crate) fn redis_settings(config: &Redis) -> RedisSettings {
    RedisSettings {
        topology: config.topology.clone(),
        password: config.client_password(),
        db: config.db.into(),
        operation_timeout: config.operation_timeout,
    }
}

/// The keys of the service that reads `intents_stream` and publishes to these streams, for a process that
/// starts now.
pub(crate) fn keyspace(intents_stream: &str, outbound: &Outbound, dedupe_ttl: Duration) -> Keyspace {
    Keyspace::new(intents_stream, &outbound.gateway.key, &outbound.mail.key).with_old_names(dedupe_ttl)
}

/// The changes of operators, under the leases of the service that has these keys.
pub(crate) fn leased_changes(
    store: &PgStore,
    redis: &RedisClient,
    keyspace: &Keyspace,
    times: LeaseTimes,
) -> LeasedChanges<PgStore, RedisLeases> {
    LeasedChanges { store: store.clone(), leases: RedisLeases::new(redis, keyspace), times }
}

/// The search by any id.
pub(crate) type Search = workers::Search<PgQueries, RedisIntentStream, LockLookup>;

/// Creates the search in these tables and streams.
pub(crate) fn search(
    queries: PgQueries,
    redis: &RedisClient,
    intents: &str,
    outbound: &Outbound,
    leader: LockLookup,
    catalog: Arc<Catalog>,
) -> Search {
    let stream = |name: &str| NamedStream {
        name: name.to_owned(),
        stream: RedisIntentStream::new(redis, name.to_owned()),
    };
    let outbound = [&outbound.gateway, &outbound.mail].map(|outbound| stream(&outbound.key));
    Search { queries, intents: stream(intents), outbound: outbound.into(), leader, catalog }
}

/// The resubmission of malformed intents.
pub(crate) type Resubmission =
    workers::Resubmission<PgStore, PgStore, RedisIntentStream, RedisIntentProducer>;

/// Creates the resubmission from these tables to the stream that the service reads.
pub(crate) fn resubmission(store: PgStore, redis: &RedisClient, intents: &str) -> Resubmission {
    let stream = RedisIntentStream::new(redis, intents.to_owned());
    Resubmission {
        checkpoints: store.clone(),
        store,
        intents: NamedStream { name: intents.to_owned(), stream },
        producer: RedisIntentProducer::new(redis, intents.to_owned()),
    }
}

/// Opens the listener of the probes, whose address `knob` sets.
async fn spawn_probes(
    supervisor: &mut Supervisor,
    http: &Http,
    knob: &'static Knob,
    ready: &ReadyState,
) -> anyhow::Result<()> {
    let addr = &http.addr;
    let cannot_listen = || format!("could not listen on {addr} ({})", knob.name);
    let listener = http_server::bind(addr.host.as_deref(), addr.port).await.with_context(cannot_listen)?;
    let http_addr = listener.local_addr().with_context(cannot_listen)?;
    let (ready, timeouts) = (ready.clone(), http.timeouts);
    supervisor.spawn(Stage::Probes, "probes", |stop| probes::serve(listener, ready, timeouts, stop));
    tracing::info!(http_addr = %http_addr, "http listener is ready");
    Ok(())
}

/// Runs until `stop` or until a task fails, then stops the tasks in order.
async fn run_until_stopped(
    mut supervisor: Supervisor,
    parts: Parts,
    ready: &ReadyState,
    shutdown_timeout: Duration,
    stop: CancellationToken,
) -> StoppedProcess {
    let failure = tokio::select! {
        () = stop.cancelled() => None,
        failure = supervisor.failed() => Some(failure),
    };
    ready.set(Phase::Stopping);
    if let Some(failure) = &failure {
        report(failure);
    }
    let watchdog = Watchdog::start(shutdown_timeout, parts);
    let stopping = supervisor.stop().await;
    if let Err(failure) = &stopping {
        report(failure);
    }
    StoppedProcess { watchdog, failed: failure.is_some() || stopping.is_err() }
}

fn report(failure: &TaskFailure) {
    tracing::error!(worker = failure.task, error = %failure, "a worker failed; the process stops and ends with 1");
}
