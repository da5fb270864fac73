//! One simulation: the servers, the replicas and the producers, and what happens to them by the plan.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use domain::catalog::Catalog;
use domain::recipient::Lookup;
use domain::route::Channel;
use memory_stores::RowLock;
use outbox::MemoryStorage;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::MachineClock;
use crate::faults::{DirectoryFault, Fault, FaultKind, PostgresFault, RedisFault, ReplicaFault};
use crate::network::Server;
use crate::outbox_streams::PRODUCER;
use crate::plan::Plan;
use crate::replica::Replica;
use crate::stores::{Directory, Ledger, Postgres, PostgresBackup, Redis, RedisBackup};
use crate::trace::Trace;

/// The users that the directory cannot look up for a while.
const UNAVAILABLE_USERS: [&str; 3] = ["u-0", "u-3", "u-5"];

/// A simulation that runs.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) started: Instant,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) redis: Redis,
    pub(crate) postgres: Postgres,
    pub(crate) directory: Directory,
    pub(crate) outbox: MemoryStorage,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) trace: Trace,
    replicas: Mutex<Vec<Slot>>,
}

/// The place of a replica.
#[derive(Debug)]
struct Slot {
    clock: Arc<MachineClock>,
    /// The number of its starts.
    starts: u64,
    running: Option<Arc<Replica>>,
}

/// The catalogue, which takes longer to compile than a simulation to run.
fn catalog() -> Arc<Catalog> {
    static CATALOG: OnceLock<Arc<Catalog>> = OnceLock::new();
    Arc::clone(CATALOG.get_or_init(|| Arc::new(Catalog::built_in())))
}

impl World {
    pub(crate) fn new(plan: Plan, keeps_lines: bool) -> Arc<Self> {
        let started = Instant::now();
        let postgres = Postgres::new(started);
        let slot = |error_ms: &i64| Slot {
            clock: Arc::new(MachineClock::new(started, *error_ms)),
            starts: 0,
            running: None,
        };
        let replicas = Mutex::new(plan.replicas.iter().map(slot).collect());
        Arc::new(Self {
            started,
            catalog: catalog(),
            redis: Redis::new(started),
            outbox: MemoryStorage::new(ambient::Clock::now(&*postgres.clock)),
            postgres,
            directory: Directory::new(),
            ledger: Arc::default(),
            trace: Trace::new(started, keeps_lines),
            replicas,
            plan,
        })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replicas that run.
    pub(crate) fn running(&self) -> Vec<Arc<Replica>> {
        self.slots().iter().filter_map(|slot| slot.running.clone()).collect()
    }

    pub(crate) fn start_all(&self) {
        (0..self.plan.replicas.len()).for_each(|number| self.start(number));
    }

    fn start(&self, number: usize) {
        let (start, clock) = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(number).filter(|slot| slot.running.is_none()) else { return };
            slot.starts += 1;
            (slot.starts, Arc::clone(&slot.clock))
        };
        let replica = Arc::new(Replica::start(self, number, start, &clock));
        self.trace.event(&format!("{} starts", replica.process.name()));
        if let Some(slot) = self.slots().get_mut(number) {
            slot.running = Some(replica);
        }
    }

    fn take(&self, number: usize) -> Option<Arc<Replica>> {
        self.slots().get_mut(number)?.running.take()
    }

    /// Lets a fault happen, and waits until it has ended.
    pub(crate) async fn suffer(self: Arc<Self>, fault: Fault) {
        let copied = fault.kind.lost().map_or(fault.at, |lost| fault.at.saturating_sub(lost));
        sleep_until(self.started + copied).await;
        let backup = fault.kind.lost().map(|_| (self.postgres.backup(), self.redis.backup()));
        sleep_until(self.started + fault.at).await;
        self.trace.event(&format!("{:?}", fault.kind));
        match fault.kind {
            FaultKind::Replica(replica, fault) => self.fail_replica(replica, fault).await,
            FaultKind::Postgres(fault) => {
                self.fail_postgres(fault, backup.map(|(postgres, _)| postgres)).await
            }
            FaultKind::Redis(fault) => self.fail_redis(fault, backup.map(|(_, redis)| redis)).await,
            FaultKind::Directory(fault) => self.fail_directory(fault).await,
        }
        self.trace.event(&format!("over: {:?}", fault.kind));
    }

    async fn fail_replica(&self, number: usize, fault: ReplicaFault) {
        match fault {
            ReplicaFault::Kill { down } => {
                if let Some(killed) = self.take(number) {
                    killed.process.kill();
                    sleep(down).await;
                    self.start(number);
                }
            }
            ReplicaFault::Stop { down } => {
                if let Some(stopped) = self.take(number) {
                    stopped.stop();
                    sleep(down).await;
                    self.start(number);
                }
            }
            ReplicaFault::Pause { time } => {
                let running = self.slots().get(number).and_then(|slot| slot.running.clone());
                if let Some(running) = running {
                    running.process.pause(time);
                }
            }
            ReplicaFault::Clock { by_ms, time } => {
                let clock = self.slots().get(number).map(|slot| Arc::clone(&slot.clock));
                if let Some(clock) = clock {
                    be_wrong(&clock, by_ms, time).await;
                }
            }
        }
    }

    async fn fail_postgres(&self, fault: PostgresFault, backup: Option<PostgresBackup>) {
        let Postgres { server, clock, .. } = &self.postgres;
        match fault {
            PostgresFault::Restart { down } | PostgresFault::Failover { down, .. } => {
                self.restart_postgres(down, backup).await;
            }
            PostgresFault::Hang { time } => hang(server, time).await,
            PostgresFault::Slow { time, by } => slow(server, time, by).await,
            PostgresFault::LosesResponses { time, share } => lose(server, time, share).await,
            PostgresFault::Cancels { time, share } => {
                server.set_cancelled(share);
                sleep(time).await;
                server.set_cancelled(0);
            }
            PostgresFault::Locks { time } => {
                let _locks = self.lock_live_routes();
                sleep(time).await;
            }
            PostgresFault::Clock { by_ms, time } => be_wrong(clock, by_ms, time).await,
        }
    }

    async fn fail_redis(&self, fault: RedisFault, backup: Option<RedisBackup>) {
        let Redis { server, clock, publishing, .. } = &self.redis;
        match fault {
            RedisFault::Restart { down } | RedisFault::Crash { down, .. } => {
                self.restart_redis(down, false, backup).await;
            }
            RedisFault::Failover { down, .. } => self.restart_redis(down, true, backup).await,
            RedisFault::Hang { time } => hang(server, time).await,
            RedisFault::Slow { time, by } => slow(server, time, by).await,
            RedisFault::LosesResponses { time, share } => lose(server, time, share).await,
            RedisFault::Full { time } => {
                publishing.set_full(true);
                sleep(time).await;
                publishing.set_full(false);
            }
            RedisFault::Refuses { channel, time } => {
                publishing.set_refusing(channel, true);
                sleep(time).await;
                publishing.set_refusing(channel, false);
            }
            RedisFault::Clock { by_ms, time } => be_wrong(clock, by_ms, time).await,
        }
    }

    async fn fail_directory(&self, fault: DirectoryFault) {
        let Directory { server, users } = &self.directory;
        match fault {
            DirectoryFault::Down { time } => {
                server.stop();
                sleep(time).await;
                server.start();
            }
            DirectoryFault::LacksUsers { time } => {
                for user in UNAVAILABLE_USERS {
                    users.set(user, Lookup::Unavailable("the shard is down".to_owned()));
                }
                sleep(time).await;
                users.clear();
            }
        }
    }

    fn lock_live_routes(&self) -> Vec<RowLock> {
        let routes = self.postgres.database.routes();
        let live = routes.into_iter().filter(|(_, status)| status.is_live());
        live.map(|(key, _)| self.postgres.database.lock_route(&key)).collect()
    }

    /// Stops PostgreSQL, and starts it again: on the state of `backup`, if it is given.
    async fn restart_postgres(&self, down: Duration, backup: Option<PostgresBackup>) {
        self.postgres.stop();
        if let Some(backup) = backup {
            let lost = self.postgres.restore(&backup);
            self.note_lost_records(&lost);
        }
        sleep(down).await;
        self.postgres.server.start();
    }

    /// Stops Redis, and starts it again: on the state of `backup`, if it is given.
    async fn restart_redis(&self, down: Duration, is_promoted: bool, backup: Option<RedisBackup>) {
        self.redis.stop(is_promoted);
        if let Some(backup) = backup {
            self.restore_redis(&backup);
        }
        sleep(down).await;
        self.redis.server.start();
    }

    /// Excuses the records that PostgreSQL lost if no stream has their intents.
    fn note_lost_records(&self, lost: &[domain::record::IdempotencyKey]) {
        let present = self.redis.intents.ids();
        let mut ledger = self.ledger.state();
        for key in lost {
            let entries = ledger.acknowledged.get(&key.key);
            let is_in_stream = entries.is_some_and(|ids| ids.iter().any(|id| present.contains(id)));
            if !is_in_stream && !ledger.events.contains(&key.key) {
                ledger.excused.insert(key.key.clone());
            }
        }
    }

    /// Restores Redis, and excuses the intents that only Redis had.
    fn restore_redis(&self, backup: &RedisBackup) {
        let lost = self.redis.restore(backup);
        let accepted = self.postgres.database.accepted_keys();
        let present = self.redis.intents.ids();
        let mut ledger = self.ledger.state();
        ledger.excused_entries.extend(lost);
        let state = &mut *ledger;
        for (key, ids) in &state.acknowledged {
            let is_in_stream = ids.iter().any(|id| present.contains(id));
            let is_accepted =
                accepted.keys().any(|accepted| accepted.key == *key && accepted.producer == PRODUCER);
            if !is_in_stream && !is_accepted && !state.events.contains(key) {
                state.excused.insert(key.clone());
            }
        }
    }

    /// The entries of a channel's stream, each by the route that it belongs to.
    pub(crate) fn published(&self, channel: Channel) -> Vec<(String, String)> {
        let entries = self.redis.publishing.entries(channel).into_iter();
        entries
            .map(|(id, fields)| {
                (fields.into_iter().next().map_or_else(String::new, |(_, value)| value), id.to_string())
            })
            .collect()
    }
}

async fn be_wrong(clock: &MachineClock, by_ms: i64, time: Duration) {
    clock.step(by_ms);
    sleep(time).await;
    clock.step(-by_ms);
}

async fn hang(server: &Server, time: Duration) {
    server.set_hanging(true);
    sleep(time).await;
    server.set_hanging(false);
}

async fn slow(server: &Server, time: Duration, by: Duration) {
    server.set_slowness(by);
    sleep(time).await;
    server.set_slowness(Duration::ZERO);
}

async fn lose(server: &Server, time: Duration, share: u64) {
    server.set_lost_responses(share);
    sleep(time).await;
    server.set_lost_responses(0);
}
