//! The wiring of the state store as a process: its table, its listeners, its start and its stop.
//!
//! The socket appears last, when requests can be served, because clients may wait for its file.

mod metrics;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use http_server::tokens::AccessTokens;
use http_server::{Answered, ConnectionSource, ListenerSettings, Timeouts, bind_unix};
use pg::{PgPool, PoolSettings, SessionSettings};
use state::PostgresStore;
use state::http::{AllowedClients, StateService, refuse, router};
use tokio_util::sync::CancellationToken;

use self::metrics::StateMetrics;
use super::{StoppedProcess, run_until_stopped, spawn_probes};
use crate::config::knobs::STATE_PROXY_METRICS_ADDR;
use crate::config::{Http, StateConfig, StateHttp, StateSocket};
use crate::probes::{Phase, ReadyState};
use crate::shutdown::{Parts, Watchdog};
use crate::start;
use crate::supervisor::{Stage, Supervisor};
use crate::telemetry::Exposition;

/// The number of connections for single documents.
const DOCUMENT_CONNECTIONS: usize = 16;
/// The number of connections for lists and batches, so that slow ones take none from the others.
const LIST_CONNECTIONS: usize = 8;
/// The number of connections for queries, for the same reason. Their plans need other settings.
const QUERY_CONNECTIONS: usize = 8;
/// The maximum number of client connections of each listener.
const MAX_CONNECTIONS: usize = 1_024;
/// The maximum memory for bodies and responses of all listeners together, in bytes, unless two of the largest
/// bodies for each listener need more.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// The timeout for the head of a request.
const READ_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for receiving a request. Its statement has a timeout of its own.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which a connection is kept open between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for requests in progress after the stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum duration of a stop. The process ends after it in any case.
const STOP_TIMEOUT: Duration = Duration::from_secs(13);

/// Runs the state store until `stop`, which also ends a start, or until one of its tasks fails. Returns an
/// error if it could not start.
pub async fn run(
    config: StateConfig,
    exposition: Option<Exposition>,
    stop: CancellationToken,
) -> anyhow::Result<StoppedProcess> {
    tracing::info!(state_table = %config.store.table, "the state store is starting");
    let ready = ReadyState::default();
    ready.set_exposition(exposition);
    let parts = Parts::default();
    let Some(started) = stop.run_until_cancelled(start(&config, &parts, &ready)).await else {
        tracing::info!("the state store was stopped before it was ready");
        return Ok(StoppedProcess {
            watchdog: Watchdog::start(STOP_TIMEOUT, Parts::default()),
            failed: false,
        });
    };
    let supervisor = started?;
    ready.set(Phase::Ready);
    tracing::info!("the state store is ready");
    let stopped = run_until_stopped(supervisor, parts, &ready, STOP_TIMEOUT, stop).await;
    tracing::info!("the state store has stopped");
    Ok(stopped)
}

/// Runs the start sequence: the database responds, the table and its indexes exist, the listeners are open.
async fn start(config: &StateConfig, parts: &Parts, ready: &ReadyState) -> anyhow::Result<Supervisor> {
    let dsn = &config.store.dsn;
    let documents = pool_settings(config, DOCUMENT_CONNECTIONS, state::PLANNER_PARAMETERS);
    let documents = start::open_pool(dsn, documents).await?;
    let pool = |connections, parameters| {
        PgPool::new(dsn, pool_settings(config, connections, parameters))
            .context("PostgreSQL cannot be used as configured")
    };
    let lists = pool(LIST_CONNECTIONS, state::PLANNER_PARAMETERS)?;
    let queries = pool(QUERY_CONNECTIONS, state::QUERY_PARAMETERS)?;
    let indexes = &config.store.indexes;
    let session = session_settings(state::PLANNER_PARAMETERS);
    let set_up = || PostgresStore::setup(dsn, session, &config.store.table, indexes);
    start::repeat_if_late(start::START_TIMEOUT, set_up)
        .await
        .with_context(|| format!("the table {} at {dsn} cannot be used", config.store.table))?;
    let store = PostgresStore::new(documents, config.store.table.clone()).with_pools(lists, queries);
    let listeners = Listeners {
        store: Arc::new(store.with_max_value_bytes(config.store.max_body_bytes).with_indexes(indexes)),
        settings: settings(config, StateMetrics::new(&opentelemetry::global::meter("notification"))),
        statement_timeout: config.store.statement_timeout,
    };
    let mut supervisor = Supervisor::new(parts.clone());
    if let Some(addr) = &config.metrics {
        let http = Http { addr: addr.clone(), timeouts: listeners.settings.timeouts };
        spawn_probes(&mut supervisor, &http, &STATE_PROXY_METRICS_ADDR, ready).await?;
    }
    if let Some(http) = &config.http {
        listeners.open_tcp(&mut supervisor, http).await?;
    }
    if let Some(socket) = &config.socket {
        listeners.open_unix(&mut supervisor, socket).await?;
    }
    Ok(supervisor)
}

/// Server parameters by name.
type ServerParameters = &'static [(&'static str, &'static str)];

fn pool_settings(config: &StateConfig, max_connections: usize, parameters: ServerParameters) -> PoolSettings {
    let session = session_settings(parameters);
    PoolSettings { max_connections, operation_timeout: config.store.statement_timeout, session }
}

fn session_settings(parameters: ServerParameters) -> SessionSettings {
    SessionSettings { application_name: "notification-state", parameters }
}

fn settings(config: &StateConfig, metrics: StateMetrics) -> ListenerSettings {
    let listeners = usize::from(config.socket.is_some()) + usize::from(config.http.is_some());
    ListenerSettings {
        max_connections: MAX_CONNECTIONS,
        max_body_bytes: config.store.max_body_bytes,
        max_buffered_bytes: (MAX_BUFFERED_BYTES / listeners.max(1)).max(2 * config.store.max_body_bytes),
        probes: &["/healthz", "/readyz"],
        timeouts: Timeouts {
            read_header: READ_HEADER_TIMEOUT,
            request: READ_TIMEOUT.saturating_add(config.store.statement_timeout),
            idle: IDLE_TIMEOUT,
        },
        drain_delay: Duration::ZERO,
        drain_timeout: DRAIN_TIMEOUT,
        refuse,
        observe: Some(Arc::new(move |answered: Answered<'_>| metrics.answered(&answered))),
        tls: None,
        tokens: None,
    }
}

/// The parts that the listeners share.
struct Listeners {
    store: Arc<PostgresStore>,
    settings: ListenerSettings,
    statement_timeout: Duration,
}

impl Listeners {
    async fn open_tcp(&self, supervisor: &mut Supervisor, http: &StateHttp) -> anyhow::Result<()> {
        let tokens = http.tokens_file.as_deref().map(AccessTokens::load).transpose();
        let tokens = tokens.context("the tokens of the state store cannot be used")?;
        let addr = &http.addr;
        let cannot_listen = || format!("could not listen on {addr} (STATE_PROXY_HTTP_ADDR)");
        let listener =
            http_server::bind(addr.host.as_deref(), addr.port).await.with_context(cannot_listen)?;
        let state_addr = listener.local_addr().with_context(cannot_listen)?;
        tracing::info!(state_addr = %state_addr, tokens = tokens.is_some(), "the state store listens on TCP");
        let access = match tokens {
            None => AllowedClients::Everyone,
            Some(tokens) => {
                let followed = tokens.clone();
                supervisor.spawn(Stage::Background, "state tokens", |stop| async move {
                    followed.follow(BTreeSet::new(), stop).await;
                });
                AllowedClients::Tokens(tokens)
            }
        };
        self.serve(supervisor, "state over TCP", listener, access);
        Ok(())
    }

    async fn open_unix(&self, supervisor: &mut Supervisor, socket: &StateSocket) -> anyhow::Result<()> {
        let listener =
            bind_unix(&socket.path, socket.mode).await.context("CONNECTOR_SOCKET cannot be served")?;
        tracing::info!(socket = %socket.path.display(), "the state store listens on a socket");
        self.serve(supervisor, "state over a socket", listener, AllowedClients::Everyone);
        Ok(())
    }

    fn serve(
        &self,
        supervisor: &mut Supervisor,
        name: &'static str,
        listener: impl ConnectionSource,
        access: AllowedClients,
    ) {
        let tokens = match &access {
            AllowedClients::Everyone => None,
            AllowedClients::Tokens(tokens) => Some(tokens.clone()),
        };
        let settings = ListenerSettings { tokens, ..self.settings.clone() };
        let router: Router = router(StateService {
            store: Arc::clone(&self.store),
            access,
            statement_timeout: self.statement_timeout,
        });
        supervisor.spawn(Stage::Api, name, |stop| http_server::serve(listener, router, settings, stop));
    }
}
