//! The wiring of the mode `serve`, in the order of its start.
//!
//! On a stop, the API ends first, then intake; then the publishers complete the dispatched routes, and then
//! the rest ends (`supervisor.rs`).

use std::sync::Arc;

use ambient::{RandomJitter, RandomTokens, SystemClock};
use domain::policy::Policy;
use domain::route::Channel;
use election::{Leadership, NoNotice, Notice};
use opentelemetry::metrics::Meter;
use store_postgres::PgStore;
use store_redis::{
    Keyspace, LeaderNotice, RedisCheckpoints, RedisIntentStream, RedisLeases, RedisOutbound, StreamTarget,
};
use tokio_util::sync::CancellationToken;
use workers::metrics::observe_replica;
use workers::{
    CurrentHolds, Dispatcher, Gauges, Health, HoldRelease, Intake, IntakeSettings, Metrics, NextDue, Ports,
    PublishSettings, Receiver, ReplicaHealth, Reporter, RepublishSettings, Republisher, RetentionSettings,
    RetentionWorker, RoutePublisher, StepDownElection, SubmissionIntake, TracedStreams, Traces, dispatch,
    submission_queue,
};

use super::api::{self, ApiParts};
use super::directory::UserDirectory;
use super::election::{LeadershipElection, RedisNotice};
use super::leader::intake_leadership;
use super::relay::ServiceRelay;
use super::{StoppedProcess, run_until_stopped, spawn_probes};
use crate::config::knobs::NOTIFICATION_INTERNAL_HTTP_ADDR;
use crate::config::{Config, OutboundStream, ReplicaId};
use crate::probes::{Phase, ReadyState};
use crate::shutdown::{Parts, Watchdog};
use crate::start::{self, Backends};
use crate::supervisor::{Stage, Supervisor};
use crate::telemetry::Exposition;

/// Runs the service until `stop`, which also ends a start, or until one of its tasks fails. Returns an error
/// if it could not start.
pub async fn serve(
    config: Config,
    replica: ReplicaId,
    exposition: Option<Exposition>,
    stop: CancellationToken,
) -> anyhow::Result<StoppedProcess> {
    tracing::info!(replica = replica.as_str(), "the service is starting");
    let Some(stores) = stop.run_until_cancelled(start::connect(&config)).await else {
        tracing::info!("the service was stopped before it was ready");
        let watchdog = Watchdog::start(config.shutdown_timeout, Parts::default());
        return Ok(StoppedProcess { watchdog, failed: false });
    };
    let stores = stores?;
    let directory = UserDirectory::open(&config, &stores).await?;
    let ready = ReadyState::default();
    ready.add_replica(&replica);
    ready.set_exposition(exposition.clone());
    let parts = Parts::default();
    let mut supervisor = Supervisor::new(parts.clone());
    spawn_probes(&mut supervisor, &config.http, &NOTIFICATION_INTERNAL_HTTP_ADDR, &ready).await?;
    let metrics = Metrics::new(&meter()).with_catalog(&config.audience.catalog, config.api.is_some());
    let api = match &config.api {
        Some(api) => Some(api::prepare(&config, api, &stores, metrics.clone()).await?),
        None => None,
    };
    let workers = ReplicaHealth::default();
    if let Some(relay) = &config.relay {
        ServiceRelay::prepare(relay, &config.redis)?.spawn(&mut supervisor, &ready, &workers);
    }
    WorkerWiring {
        config: &config,
        replica: &replica,
        stores: &stores,
        ready: &ready,
        metrics,
        traces: traces(&config),
        workers,
        exposition,
    }
    .spawn_workers(&mut supervisor, directory, api)?;
    ready.set(Phase::Ready);
    tracing::info!("the service is ready");
    let stopped = run_until_stopped(supervisor, parts, &ready, config.shutdown_timeout, stop).await;
    stores.pool.close();
    tracing::info!("the service has stopped");
    Ok(stopped)
}

fn traces(config: &Config) -> Traces {
    if config.telemetry.traces.is_none() {
        return Traces::default();
    }
    let streams = TracedStreams {
        intents: config.intents.stream.clone(),
        push: config.outbound.gateway.key.clone(),
        email: config.outbound.mail.key.clone(),
    };
    Traces::new(opentelemetry::global::tracer("notification"), streams)
}

fn meter() -> Meter {
    opentelemetry::global::meter("notification")
}

/// The ports of the workers.
struct WorkerPorts;

impl Ports for WorkerPorts {
    type Election = StepDownElection<LeadershipElection<RedisNotice>, PgStore>;
    type Intents = RedisIntentStream;
    type Store = PgStore;
    type Cache = RedisCheckpoints;
    type Directory = UserDirectory;
    type Leases = RedisLeases;
    type Outbound = RedisOutbound;
    type Clock = SystemClock;
    type Jitter = RandomJitter;
    type Tokens = RandomTokens;
}

/// The dependencies of the workers of one replica.
struct WorkerWiring<'a> {
    config: &'a Config,
    replica: &'a ReplicaId,
    stores: &'a Backends,
    ready: &'a ReadyState,
    metrics: Metrics,
    traces: Traces,
    workers: ReplicaHealth,
    exposition: Option<Exposition>,
}

impl WorkerWiring<'_> {
    fn spawn_workers(
        self,
        supervisor: &mut Supervisor,
        directory: UserDirectory,
        api: Option<ApiParts>,
    ) -> anyhow::Result<()> {
        let (dispatcher, [push, email]) = dispatch(Channel::ALL);
        let intents = RedisIntentStream::new(&self.stores.redis, self.config.intents.stream.clone());
        if let Some(api) = api {
            self.spawn_submissions(supervisor, api, dispatcher.clone())?;
        }
        self.spawn_intake(supervisor, intents.clone(), directory, dispatcher);
        let shared = (Arc::new(NextDue::default()), Arc::new(CurrentHolds::default()));
        for (channel, receiver) in [(Channel::Push, push), (Channel::Email, email)] {
            self.spawn_publisher(supervisor, channel, receiver, shared.clone());
        }
        self.spawn_release(supervisor);
        self.spawn_retention(supervisor);
        if !self.config.publish.republish_window.is_zero() {
            self.spawn_republisher(supervisor);
        }
        self.spawn_reporter(supervisor);
        if self.config.telemetry.measures() {
            self.spawn_gauges(supervisor, intents);
        }
        Ok(())
    }

    /// Starts the API, and the worker that accepts submitted intents. The worker has its own client of the
    /// user directory, so that slow lookups of submissions do not delay those of intake, nor the reverse.
    fn spawn_submissions(
        &self,
        supervisor: &mut Supervisor,
        api: ApiParts,
        dispatcher: Dispatcher,
    ) -> anyhow::Result<()> {
        let health = self.add_worker("submissions");
        let (queue, receiver) = submission_queue(self.metrics.clone(), health.clone());
        let submissions: SubmissionIntake<WorkerPorts> = SubmissionIntake {
            store: self.stores.postgres.clone(),
            directory: UserDirectory::new(self.config, self.stores)?,
            clock: SystemClock,
            tokens: RandomTokens,
            policy: Arc::new(policy(self.config)),
            dispatcher,
            lock_ttl: api.lock_ttl(),
            response: ::api::accepted_response,
            metrics: self.metrics.clone(),
            traces: self.traces.clone(),
            health,
        };
        supervisor.spawn(Stage::Intake, "submissions", |stop| async move {
            submissions.run(receiver, stop.clone()).await;
            // The worker also ends when no caller is left, which is as soon as the API has stopped. To the
            // supervisor, an end before the stop of its stage is a failure.
            stop.cancelled().await;
        });
        api.spawn(supervisor, queue);
        Ok(())
    }

    fn spawn_intake(
        &self,
        supervisor: &mut Supervisor,
        intents: RedisIntentStream,
        directory: UserDirectory,
        dispatcher: Dispatcher,
    ) {
        let config = self.config;
        let health = self.add_worker("intake");
        self.ready.add_leader(&health);
        let leadership = intake_leadership(&config.intents.stream);
        let notice = RedisNotice(LeaderNotice::new(&self.stores.redis, &config.intents.stream, &leadership));
        let election = self.election(&leadership, notice);
        let requests = self.stores.postgres.clone();
        let intake: Intake<WorkerPorts> = Intake {
            election: StepDownElection::new(election, requests, self.replica.as_str()),
            intents,
            store: self.stores.postgres.clone(),
            cache: RedisCheckpoints::new(&self.stores.redis),
            directory,
            clock: SystemClock,
            policy: Arc::new(policy(config)),
            dispatcher,
            settings: IntakeSettings {
                stream: config.intents.stream.clone(),
                batch_size: config.intents.batch_size,
                block: config.intents.read_block_timeout,
                record_retention: config.retention.record,
                stream_retention: config.intents.stream_retention,
            },
            metrics: self.metrics.clone(),
            traces: self.traces.clone(),
            health,
        };
        supervisor.spawn(Stage::Intake, "intake", |stop| intake.run(stop));
    }

    fn spawn_publisher(
        &self,
        supervisor: &mut Supervisor,
        channel: Channel,
        receiver: Receiver,
        (next_due, holds): (Arc<NextDue>, Arc<CurrentHolds>),
    ) {
        let config = self.config;
        let publisher: RoutePublisher<WorkerPorts> = RoutePublisher {
            channel,
            routes: self.stores.postgres.clone(),
            next_due,
            holds,
            leases: RedisLeases::new(&self.stores.redis, &self.keyspace()),
            outbound: self.outbound(),
            clock: SystemClock,
            jitter: RandomJitter,
            tokens: RandomTokens,
            settings: PublishSettings {
                batch_size: config.publish.batch_size,
                poll_interval: config.publish.poll_interval,
                lease_ttl: config.routes.lease_ttl,
                dedupe_ttl: config.publish.dedupe_ttl,
                backoff: config.routes.backoff,
            },
            metrics: self.metrics.clone(),
            traces: self.traces.clone(),
            health: self.add_worker(channel.as_str()),
        };
        supervisor.spawn(Stage::Publishing, channel.as_str(), |stop| publisher.run(receiver, stop));
    }

    fn spawn_release(&self, supervisor: &mut Supervisor) {
        let release = HoldRelease {
            store: self.stores.postgres.clone(),
            clock: SystemClock,
            health: self.add_worker("holds"),
        };
        supervisor.spawn(Stage::Background, "holds", |stop| release.run(stop));
    }

    fn spawn_retention(&self, supervisor: &mut Supervisor) {
        let settings = &self.config.retention;
        let retention = RetentionWorker {
            election: self.election_for_passes("retention"),
            store: self.stores.postgres.clone(),
            clock: SystemClock,
            settings: RetentionSettings {
                records: settings.record,
                malformed_intents: settings.malformed_intent,
                operator_actions: settings.operator_action,
                interval: settings.cleanup_interval,
            },
            metrics: self.metrics.clone(),
            health: self.add_worker("retention"),
        };
        supervisor.spawn(Stage::Background, "retention", |stop| retention.run(stop));
    }

    fn spawn_republisher(&self, supervisor: &mut Supervisor) {
        let republisher = Republisher {
            election: self.election_for_passes("republish"),
            store: self.stores.postgres.clone(),
            outbound: self.outbound(),
            clock: SystemClock,
            settings: RepublishSettings {
                window: self.config.publish.republish_window,
                dedupe_ttl: self.config.publish.dedupe_ttl,
            },
            metrics: self.metrics.clone(),
            health: self.add_worker("republish"),
        };
        supervisor.spawn(Stage::Background, "republish", |stop| republisher.run(stop));
    }

    fn spawn_reporter(&self, supervisor: &mut Supervisor) {
        let reporter = Reporter {
            store: self.stores.postgres.clone(),
            clock: SystemClock,
            replica: self.replica.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            workers: self.workers.clone(),
            health: Health::new("reporter"),
        };
        supervisor.spawn(Stage::Background, "reporter", |stop| reporter.run(stop));
    }

    fn spawn_gauges(&self, supervisor: &mut Supervisor, intents: RedisIntentStream) {
        let pool = self.stores.pool.clone();
        observe_replica(&meter(), &self.workers, move || pool.usage());
        let gauges = Gauges {
            store: self.stores.postgres.clone(),
            intents,
            cache: RedisCheckpoints::new(&self.stores.redis),
            clock: SystemClock,
            stream: self.config.intents.stream.clone(),
            record_retention: self.config.retention.record,
            malformed_retention: self.config.retention.malformed_intent,
            metrics: self.metrics.clone(),
            health: self.add_worker("gauges"),
        };
        let is_sent = self.config.telemetry.metrics.is_some();
        let exposition = self.exposition.clone();
        let is_read = move || is_sent || exposition.as_ref().is_some_and(Exposition::is_scraped);
        supervisor.spawn(Stage::Background, "gauges", |stop| gauges.run(is_read, stop));
    }

    /// Creates the health of a worker, which the probes show and the replica reports.
    fn add_worker(&self, name: &'static str) -> Health {
        let health = self.workers.add_worker(name);
        self.ready.add_worker(&health);
        health
    }

    fn election<N: Notice + Clone>(&self, leadership: &str, notice: N) -> LeadershipElection<N> {
        LeadershipElection(Leadership::new(
            self.stores.locks.clone(),
            leadership,
            self.replica.as_str(),
            notice,
        ))
    }

    fn election_for_passes(&self, leadership: &str) -> LeadershipElection<NoNotice> {
        let LeadershipElection(leadership) = self.election(leadership, NoNotice);
        LeadershipElection(leadership.for_passes())
    }

    fn keyspace(&self) -> Keyspace {
        super::keyspace(&self.config.intents.stream, &self.config.outbound, self.config.publish.dedupe_ttl)
    }

    fn outbound(&self) -> RedisOutbound {
        let target =
            |stream: &OutboundStream| StreamTarget { key: stream.key.clone(), max_len: stream.max_len };
        let (gateway, mail) = (&self.config.outbound.gateway, &self.config.outbound.mail);
        RedisOutbound::new(&self.stores.redis, &self.keyspace(), target(gateway), target(mail))
    }
}

fn policy(config: &Config) -> Policy {
    Policy {
        catalog: Arc::clone(&config.audience.catalog),
        admin_emails: config.audience.admin_emails.clone(),
        locales: config.audience.locales.clone(),
        push_max_attempts: config.routes.budgets.push,
        email_max_attempts: config.routes.budgets.email,
        idempotency_ttl: config.intents.idempotency_ttl,
        head_start: config.routes.lease_ttl,
    }
}
