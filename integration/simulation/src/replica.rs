//! A replica: the real workers, election and relay, on stores at the other end of simulated connections.

use std::sync::Arc;
use std::time::Duration;

use ambient::SeededTokens;
use domain::backoff::BackoffBounds;
use domain::catalog::Catalog;
use domain::outcome::Acceptance;
use domain::policy::Policy;
use domain::ports::{Election, Fence, StoreError, Term, TermEnd};
use domain::route::Channel;
use domain::submission::StoredResponse;
use election::{Leadership, NoNotice, RenewedTerm};
use lock::{LockError, LockManager};
use memory_stores::{
    MemoryCheckpoints, MemoryDatabase, MemoryDirectory, MemoryIntents, MemoryPublishing, Remote,
};
use opentelemetry::global::meter;
use outbox::{Relay, RelayId, RelaySettings};
use tokio_util::sync::CancellationToken;
use workers::{
    CurrentHolds, Health, HoldRelease, Intake, IntakeSettings, Metrics, NextDue, Ports, PublishSettings,
    Receiver, RepublishSettings, Republisher, RoutePublisher, SubmissionIntake, SubmissionQueue, Traces,
    dispatch, submission_queue,
};

use crate::clock::MachineClock;
use crate::dice::Dice;
use crate::network::{Connection, LockGate, Server};
use crate::outbox_storage::RemoteOutbox;
use crate::outbox_streams::OutboxPublisher;
use crate::process::Process;
use crate::world::World;

/// The intents stream.
pub(crate) const STREAM: &str = "notification:intents";

/// The configuration of the service: the defaults, except where a shorter time makes a run shorter.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(5);
pub(crate) const DEDUPE_TTL: Duration = Duration::from_secs(30);
const REPUBLISH_WINDOW: Duration = Duration::from_secs(600);
const READ_BLOCK: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const LOCK_TTL: Duration = Duration::from_secs(30);
const OUTBOX_LEASE: Duration = Duration::from_secs(15);
const OUTBOX_POLL_INTERVAL: Duration = Duration::from_millis(2_500);
const BACKOFF: BackoffBounds = BackoffBounds { min: Duration::from_secs(1), max: Duration::from_secs(20) };
pub(crate) const PUSH_MAX_ATTEMPTS: u32 = 3;
pub(crate) const EMAIL_MAX_ATTEMPTS: u32 = 7;
/// Small batches, so that a burst takes several.
const BATCH_SIZE: usize = 4;

/// The ports of a simulated replica.
pub(crate) struct SimulatedPorts;

impl Ports for SimulatedPorts {
    type Election = LeaderElection;
    type Intents = Remote<MemoryIntents, Connection>;
    type Store = Remote<MemoryDatabase, Connection>;
    type Cache = Remote<MemoryCheckpoints, Connection>;
    type Directory = Remote<MemoryDirectory, Connection>;
    type Leases = Remote<MemoryPublishing, Connection>;
    type Outbound = Remote<MemoryPublishing, Connection>;
    type Clock = Arc<MachineClock>;
    type Jitter = Dice;
    type Tokens = SeededTokens;
}

/// The workers' election, on a leadership.
pub(crate) struct LeaderElection(Leadership<NoNotice>);

/// A term of a leadership.
pub(crate) struct LeaderTerm(RenewedTerm<NoNotice>);

fn store_error(operation: &'static str) -> impl FnOnce(LockError) -> StoreError {
    move |error| StoreError::Unavailable { operation, source: error.into() }
}

impl Election for LeaderElection {
    type Term = LeaderTerm;

    async fn campaign(&self) -> Result<Option<LeaderTerm>, StoreError> {
        let won = self.0.campaign().await.map_err(store_error("campaign"))?;
        Ok(won.map(LeaderTerm))
    }

    async fn leader_change(&self) {
        self.0.leader_change().await;
    }

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        self.0.raise_fence(floor).await.map_err(store_error("raise the fence"))
    }
}

impl Term for LeaderTerm {
    fn fence(&self) -> Fence {
        self.0.fence()
    }

    async fn over(&self) -> TermEnd {
        self.0.lost().await;
        TermEnd::Lost
    }

    async fn step_down(self) {
        self.0.step_down().await;
    }
}

/// A running replica.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) process: Process,
    pub(crate) submissions: SubmissionQueue,
    stop: CancellationToken,
}

impl Replica {
    /// Starts the replica with this number, for the n-th time.
    pub(crate) fn start(world: &World, number: usize, start: u64, clock: &Arc<MachineClock>) -> Self {
        let process = Process::new(format!("r{number}.{start}"));
        let stop = CancellationToken::new();
        let wiring = Wiring { world, process: &process, clock, number: number as u64, start, stop: &stop };
        let submissions = wiring.spawn();
        Self { process, submissions, stop }
    }

    /// Stops the workers in order.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// The parts of a replica while it starts.
struct Wiring<'a> {
    world: &'a World,
    process: &'a Process,
    clock: &'a Arc<MachineClock>,
    number: u64,
    start: u64,
    stop: &'a CancellationToken,
}

impl Wiring<'_> {
    fn connection(&self, server: &Arc<Server>) -> Connection {
        Connection::new(self.process, server, self.world.plan.seed, &self.world.trace)
    }

    fn remote<S>(&self, store: &Arc<S>, server: &Arc<Server>) -> Remote<S, Connection> {
        Remote::over(Arc::clone(store), self.connection(server))
    }

    /// Tokens that no other part of the simulation gets.
    fn tokens(&self, part: u64) -> SeededTokens {
        SeededTokens::new((self.number << 48) | (self.start << 40) | (part << 32))
    }

    fn dice(&self, part: &str) -> Dice {
        Dice::new(self.world.plan.seed, (self.process.name(), part))
    }

    fn election(&self, key: &str, part: u64) -> LeaderElection {
        let gate = Arc::new(LockGate(self.connection(&self.world.postgres.server)));
        let locks = LockManager::in_memory(self.world.postgres.locks.through(gate));
        let locks = locks.with_tokens(Arc::new(self.tokens(part)));
        LeaderElection(Leadership::new(locks, key, self.process.name(), NoNotice))
    }

    fn spawn(&self) -> SubmissionQueue {
        let (world, stop) = (self.world, self.stop);
        let (redis, postgres, directory) = (&world.redis, &world.postgres, &world.directory);
        let metrics = Metrics::new(&meter("simulation"));
        let policy = Arc::new(policy(&world.catalog));
        let (dispatcher, receivers) = dispatch(Channel::ALL);
        let (queue, submitted) = submission_queue(metrics.clone(), Health::new("submissions"));
        let submissions: SubmissionIntake<SimulatedPorts> = SubmissionIntake {
            store: self.remote(&postgres.database, &postgres.server),
            directory: self.remote(&directory.users, &directory.server),
            clock: Arc::clone(self.clock),
            tokens: self.tokens(1),
            policy: Arc::clone(&policy),
            dispatcher: dispatcher.clone(),
            lock_ttl: LOCK_TTL,
            response: stored_response,
            metrics: metrics.clone(),
            traces: Traces::default(),
            health: Health::new("submissions"),
        };
        tokio::spawn(submissions.run(submitted, stop.clone()));
        let intake: Intake<SimulatedPorts> = Intake {
            election: self.election("intake", 2),
            intents: self.remote(&redis.intents, &redis.server),
            store: self.remote(&postgres.database, &postgres.server),
            cache: self.remote(&redis.cache, &redis.server),
            directory: self.remote(&directory.users, &directory.server),
            clock: Arc::clone(self.clock),
            policy,
            dispatcher,
            settings: IntakeSettings {
                stream: STREAM.to_owned(),
                batch_size: BATCH_SIZE,
                block: READ_BLOCK,
                record_retention: Duration::from_secs(30 * 24 * 3_600),
                stream_retention: None,
            },
            metrics: metrics.clone(),
            traces: Traces::default(),
            health: Health::new("intake"),
        };
        tokio::spawn(intake.run(stop.clone()));
        let (next_due, holds) = (Arc::new(NextDue::default()), Arc::new(CurrentHolds::default()));
        for (at, (channel, receiver)) in Channel::ALL.into_iter().zip(receivers).enumerate() {
            let shared = (Arc::clone(&next_due), Arc::clone(&holds));
            self.spawn_publisher(channel, receiver, 3 + at as u64, shared, &metrics);
        }
        let republisher = Republisher {
            election: self.election("republish", 8),
            store: self.remote(&postgres.database, &postgres.server),
            outbound: self.remote(&redis.publishing, &redis.server),
            clock: Arc::clone(self.clock),
            settings: RepublishSettings { window: REPUBLISH_WINDOW, dedupe_ttl: DEDUPE_TTL },
            metrics,
            health: Health::new("republish"),
        };
        tokio::spawn(republisher.run(stop.clone()));
        let release = HoldRelease {
            store: self.remote(&postgres.database, &postgres.server),
            clock: Arc::clone(self.clock),
            health: Health::new("release"),
        };
        tokio::spawn(release.run(stop.clone()));
        self.spawn_relay();
        queue
    }

    fn spawn_publisher(
        &self,
        channel: Channel,
        receiver: Receiver,
        part: u64,
        (next_due, holds): (Arc<NextDue>, Arc<CurrentHolds>),
        metrics: &Metrics,
    ) {
        let (redis, postgres) = (&self.world.redis, &self.world.postgres);
        let publisher: RoutePublisher<SimulatedPorts> = RoutePublisher {
            channel,
            routes: self.remote(&postgres.database, &postgres.server),
            next_due,
            holds,
            leases: self.remote(&redis.publishing, &redis.server),
            outbound: self.remote(&redis.publishing, &redis.server),
            clock: Arc::clone(self.clock),
            jitter: self.dice("jitter"),
            tokens: self.tokens(part),
            settings: PublishSettings {
                batch_size: BATCH_SIZE,
                poll_interval: POLL_INTERVAL,
                lease_ttl: LEASE_TTL,
                dedupe_ttl: DEDUPE_TTL,
                backoff: BACKOFF,
            },
            metrics: metrics.clone(),
            traces: Traces::default(),
            health: Health::new(channel.as_str()),
        };
        tokio::spawn(publisher.run(receiver, self.stop.clone()));
    }

    fn spawn_relay(&self) {
        let (world, redis) = (self.world, &self.world.redis);
        // Cannot fail: the names of processes are letters, digits and dots.
        let relay_id = RelayId::parse(self.process.name()).expect("a name");
        let storage = RemoteOutbox {
            connection: self.connection(&world.postgres.server),
            storage: world.outbox.clone(),
        };
        let publisher = OutboxPublisher::new(
            self.connection(&redis.server),
            &redis.outbox,
            &redis.intents,
            &world.catalog,
            &world.ledger,
        );
        let settings = RelaySettings {
            lease_timeout: OUTBOX_LEASE,
            poll_interval: OUTBOX_POLL_INTERVAL,
            ..RelaySettings::new(relay_id)
        };
        let (clock, dice) = (Arc::clone(self.clock), self.dice("relay"));
        let relay = Relay::new(storage, publisher, (), settings);
        let relay = relay.with_sources(clock, Arc::new(dice), Arc::new(self.tokens(9)));
        let stop = self.stop.clone();
        tokio::spawn(async move { relay.run(stop).await });
    }
}

fn stored_response(acceptance: &Acceptance) -> StoredResponse {
    StoredResponse { status: 202, body: acceptance.record.notification_id.as_str().into() }
}

fn policy(catalog: &Arc<Catalog>) -> Policy {
    Policy {
        catalog: Arc::clone(catalog),
        admin_emails: Default::default(),
        locales: vec!["en".to_owned()],
        push_max_attempts: PUSH_MAX_ATTEMPTS,
        email_max_attempts: EMAIL_MAX_ATTEMPTS,
        idempotency_ttl: Duration::from_secs(7 * 24 * 3_600),
        head_start: LEASE_TTL,
    }
}
