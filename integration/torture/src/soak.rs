//! A long run under a steady load, in which replicas are killed and both stores crash.
//!
//! Producers append intents at a steady rate, and repeat what failed. Consumers read the outbound streams and
//! trim them; retention deletes old records. A replica is killed at each interval, in turn the leader and
//! another one. PostgreSQL and Redis crash twice each. At the end, each intent must have each of its entries
//! once, memory and disk must not have grown, and the audit must find nothing.

mod samples;
mod traffic;

use std::time::Duration;

use harness::world::{World, leads};
use harness::{Postgres, PostgresOptions, Service, ServiceBuilder, TestDatabase};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::samples::Samples;
use self::traffic::Traffic;

/// Replicas. The first one is never killed, so that its memory shows whether it grows.
const REPLICAS: usize = 3;
/// The time for which a crashed store is down, and for which a killed replica is.
const DOWN: Duration = Duration::from_secs(2);
/// The interval of retention passes, and the time that entries stay on the intents stream.
const CLEANUP_INTERVAL: &str = "5s";
const STREAM_RETENTION: &str = "30s";
/// The time within which everything has arrived after the last intent.
const DRAIN_BOUND: Duration = Duration::from_secs(300);
/// The interval at which conditions are checked until then.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time within which an audit ends.
const AUDIT_BOUND: Duration = Duration::from_secs(1_200);
/// The number of samples in a run.
const SAMPLES: u32 = 360;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Intents per second, each with four routes.
    pub rate: u32,
    /// The time for which they are sent.
    pub time: Duration,
    /// The interval at which a replica is killed.
    pub kill_interval: Duration,
    /// The time for which records are kept.
    pub retention: Duration,
}

/// The result of a run.
#[derive(Debug)]
pub struct SoakReport {
    /// The figures, as a table.
    pub table: String,
    /// The promises that were broken. Empty: all is well.
    pub broken: Vec<String>,
}

/// A store that crashes.
#[derive(Clone, Copy, Debug)]
enum Store {
    Postgres,
    Redis,
}

/// A run that is in progress.
struct Run {
    settings: Soak,
    world: World,
    replicas: Vec<Option<Service>>,
    /// The number of kills.
    kills: usize,
}

/// Waits until `holds` returns true, for at most this time. Returns false if it does not.
async fn within(bound: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let ended = timeout(bound, async {
        while !holds().await {
            sleep(POLL_INTERVAL).await;
        }
    });
    ended.await.is_ok()
}

impl Soak {
    /// Runs it.
    pub async fn run(self) -> SoakReport {
        let mut run = Run::new(self).await;
        let traffic = Traffic::start(run.world.redis.port(), self.rate, self.time);
        let mut samples = Samples::new(self.time);
        let started = Instant::now();
        let (mut next_kill, mut next_crash) = (self.kill_interval, 1);
        let crashes = [Store::Postgres, Store::Redis, Store::Postgres, Store::Redis];
        let mut at = Duration::ZERO;
        while at < self.time {
            at += self.time / SAMPLES;
            sleep_until(started + at).await;
            if at >= next_kill {
                next_kill += self.kill_interval;
                run.kill_one().await;
            }
            if at >= self.time * next_crash / 5
                && let Some(store) = crashes.get(next_crash as usize - 1)
            {
                next_crash += 1;
                run.crash(*store).await;
            }
            samples.take(started.elapsed(), &run.world, run.replicas[0].as_ref(), &traffic).await;
        }
        traffic.finish(DRAIN_BOUND).await;
        let mut broken = traffic.broken();
        broken.extend(run.check().await);
        broken.extend(samples.growth());
        let Soak { rate, time, .. } = self;
        let head = format!(
            "{rate} intents/s of four routes for {:.0} minutes; {} replicas were killed, PostgreSQL and Redis \
             crashed twice each; {} intents, {} entries, {} lost, {} repeated.",
            time.as_secs_f64() / 60.0,
            run.kills,
            traffic.sent(),
            traffic.received(),
            traffic.lost(),
            traffic.repeated(),
        );
        SoakReport { table: format!("{head}\n\n{}", samples.table(&traffic)), broken }
    }
}

impl Run {
    async fn new(settings: Soak) -> Self {
        let options = PostgresOptions { durable: true, ..PostgresOptions::default() };
        let postgres = Postgres::start(options).await.expect("a private PostgreSQL starts");
        let database = TestDatabase::on(&postgres).await;
        let world = World::with(database, Some(postgres)).await;
        let mut run = Self { settings, world, replicas: Vec::new(), kills: 0 };
        for _ in 0..REPLICAS {
            run.replicas.push(Some(run.service().start().await));
        }
        run
    }

    /// The settings of the defaults, but for the times of retention.
    fn service(&self) -> ServiceBuilder {
        let retention = format!("{}s", self.settings.retention.as_secs());
        let times = [
            ("NOTIFICATION_RECORD_RETENTION", retention.as_str()),
            ("NOTIFICATION_IDEMPOTENCY_TTL", retention.as_str()),
            ("NOTIFICATION_MALFORMED_INTENT_RETENTION", retention.as_str()),
            ("NOTIFICATION_INTENTS_STREAM_RETENTION", STREAM_RETENTION),
            ("NOTIFICATION_CLEANUP_INTERVAL", CLEANUP_INTERVAL),
            ("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "5s"),
            ("NOTIFICATION_ROUTE_LEASE_TTL", "5s"),
            ("NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT", "2s"),
        ];
        times.into_iter().fold(self.world.service(), |service, (name, value)| service.env(name, value))
    }

    async fn leader(&self) -> Option<usize> {
        for (index, replica) in self.replicas.iter().enumerate() {
            if let Some(replica) = replica
                && leads(replica).await
            {
                return Some(index);
            }
        }
        None
    }

    /// Kills a replica and starts it again: every second time the leader, otherwise another one. The first
    /// replica hands over instead.
    async fn kill_one(&mut self) {
        let mut leader = self.leader().await;
        if leader == Some(0) {
            self.service().arguments(["leader", "--step-down"]).run().await;
            leader = self.leader().await;
        }
        let victim = match leader {
            Some(leader) if leader > 0 && self.kills.is_multiple_of(2) => leader,
            _ => (1..REPLICAS).rfind(|index| leader != Some(*index)).unwrap_or(1),
        };
        if let Some(service) = self.replicas[victim].take() {
            service.kill().await;
            self.kills += 1;
        }
        sleep(DOWN).await;
        self.replicas[victim] = Some(self.service().spawn());
    }

    async fn crash(&mut self, store: Store) {
        match store {
            Store::Postgres => {
                let postgres = self.world.postgres.as_mut().expect("the run has its own");
                postgres.kill().await;
                sleep(DOWN).await;
                postgres.start_again().await.expect("it starts again");
            }
            Store::Redis => {
                self.world.redis.kill().await;
                sleep(DOWN).await;
                self.world.redis.start_again().await.expect("it starts again");
            }
        }
    }

    /// Returns the promises that do not hold although everything has arrived.
    async fn check(&self) -> Vec<String> {
        let is_settled = async || {
            let live = "SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL";
            self.world.number(live).await == 0
        };
        if !within(DRAIN_BOUND, is_settled).await {
            return vec!["routes are still live".to_owned()];
        }
        let audit = self.service().arguments(["audit", "--json"]).run_within(AUDIT_BOUND).await;
        let found = (audit.code != Some(0)).then(|| format!("the audit: {}{}", audit.stdout, audit.stderr));
        found.into_iter().collect()
    }
}
