//! The servers and processes of one case.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use harness::api_client::{TokensFile, with_api};
use harness::outbox::relay_of;
use harness::world::World;
use harness::{
    Postgres, PostgresOptions, Proxy, Redis, RedisOptions, Service, ServiceBuilder, StandInDirectory,
    TestDatabase, Trigger, wait_for,
};

use crate::boundary::{Boundary, Protocol};
use crate::case::Case;
use crate::clock::Clock;

/// The longest wait for anything in a case.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// The pause before an ended process is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// The addresses of the HTTP APIs that run, by the index of the process.
pub(crate) type Apis = Arc<Mutex<BTreeMap<usize, String>>>;

/// A replica or a relay, which connects through proxies of its own, so that it can be held and cut off alone.
pub(crate) struct Process {
    pub(crate) redis: Proxy,
    pub(crate) postgres: Proxy,
    pub(crate) clock: Clock,
    is_relay: bool,
    service: Option<Service>,
}

/// Everything that a case runs on.
pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) postgres_clock: Clock,
    pub(crate) redis_clock: Clock,
    /// Two replicas and, for the protocol of the relay, a relay.
    pub(crate) processes: Vec<Process>,
    /// The proxies through which clients connect, also after a fail-over.
    pub(crate) redis_for_clients: Proxy,
    pub(crate) postgres_for_clients: Proxy,
    pub(crate) apis: Apis,
    pub(crate) outbox: Option<TestDatabase>,
    /// The process id of an operator's session with an open transaction.
    pub(crate) operator: Option<i32>,
    tokens: TokensFile,
    standby: Option<Postgres>,
    replica: Option<Redis>,
    settings: Vec<(&'static str, &'static str)>,
}

/// A PostgreSQL with its clock, which cases use one after another: a new one takes a second.
struct UsedPostgres {
    postgres: Postgres,
    clock: Clock,
}

static FREE: Mutex<Vec<UsedPostgres>> = Mutex::new(Vec::new());

/// Stops the servers that no case uses.
pub(crate) fn stop_free_servers() {
    FREE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl UsedPostgres {
    async fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(free) = free {
            return free;
        }
        let clock = Clock::new();
        let options = PostgresOptions { environment: clock.environment(), ..PostgresOptions::default() };
        Self { postgres: Postgres::start(options).await.expect("a private PostgreSQL starts"), clock }
    }

    fn give_back(self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

fn redis_options(clock: &Clock) -> RedisOptions {
    RedisOptions { appendonly: true, environment: clock.environment(), ..RedisOptions::default() }
}

impl Site {
    pub(crate) async fn new(case: &Case) -> Self {
        let UsedPostgres { postgres, clock: postgres_clock } = UsedPostgres::take().await;
        let redis_clock = Clock::new();
        let redis = Redis::start(redis_options(&redis_clock)).await.expect("a private Redis starts");
        let database = TestDatabase::on(&postgres).await;
        let outbox = match case.boundary.protocol {
            Protocol::Relay => Some(TestDatabase::empty_on(&postgres).await),
            _ => None,
        };
        let directory = StandInDirectory::start().await.expect("a stand-in directory starts");
        if let Some(database) = &outbox {
            harness::outbox::migrate(database).await;
        }
        let world =
            World { database, redis, sentinels: None, cluster: None, directory, postgres: Some(postgres) };
        let mut site = Self {
            redis_for_clients: Proxy::start(world.redis.port()).await,
            postgres_for_clients: Proxy::start(world.database.port()).await,
            tokens: TokensFile::new(&world),
            world,
            postgres_clock,
            redis_clock,
            processes: Vec::new(),
            apis: Apis::default(),
            outbox,
            operator: None,
            standby: None,
            replica: None,
            settings: case.settings(),
        };
        for index in 0..if site.outbox.is_some() { 3 } else { 2 } {
            let process = Process {
                redis: Proxy::start(site.world.redis.port()).await,
                postgres: Proxy::start(site.world.database.port()).await,
                clock: Clock::new(),
                is_relay: index == 2,
                service: None,
            };
            site.processes.push(process);
        }
        case.fault.prepare(&mut site);
        for index in 0..site.processes.len() {
            site.start(index);
        }
        site.ready().await;
        site
    }

    /// Stops every process, and keeps the PostgreSQL for another case.
    pub(crate) async fn close(mut self) {
        for index in 0..self.processes.len() {
            self.kill(index).await;
        }
        let databases = [Some(&self.world.database), self.outbox.as_ref()]
            .map(|database| database.map(TestDatabase::name));
        let drop = databases.into_iter().flatten().map(|name| format!("DROP DATABASE {name} WITH (FORCE)"));
        let Some(postgres) = self.world.postgres.take() else { return };
        for sql in drop {
            postgres.execute("postgres", &sql).await.expect("it can be dropped");
        }
        self.postgres_clock.set(Duration::ZERO, false);
        UsedPostgres { postgres, clock: self.postgres_clock }.give_back();
    }

    pub(crate) fn postgres_mut(&mut self) -> &mut Postgres {
        self.world.postgres.as_mut().expect("every site has its own")
    }

    fn program(&self, index: usize) -> ServiceBuilder {
        let process = &self.processes[index];
        let (redis, postgres) = (process.redis.port(), process.postgres.port());
        let builder = match &self.outbox {
            Some(database) if process.is_relay => relay_of(database, redis, postgres),
            _ => with_api(self.world.service_via(redis, postgres), &self.tokens),
        };
        let builder = match process.is_relay {
            true => builder,
            false => self.settings.iter().fold(builder, |builder, (name, value)| builder.env(name, *value)),
        };
        let environment = process.clock.environment();
        environment.into_iter().fold(builder, |builder, (name, value)| builder.env(&name, value))
    }

    /// Starts a process.
    pub(crate) fn start(&mut self, index: usize) {
        self.processes[index].service = Some(self.program(index).spawn());
    }

    /// Starts every process that was killed.
    pub(crate) fn start_killed(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].service.is_none() {
                self.start(index);
            }
        }
    }

    /// Waits until every process is ready. One that ends is started again.
    pub(crate) async fn ready(&mut self) {
        for index in 0..self.processes.len() {
            wait_for("a process is ready", BOUND, async || {
                let service = self.processes[index].service.as_mut()?;
                if service.has_ended() {
                    eprintln!("a process ended: {}", service.output().last().cloned().unwrap_or_default());
                    self.start(index);
                    tokio::time::sleep(RESTART_PAUSE).await;
                    return None;
                }
                let ready = ["the service is ready", "the relay is ready"];
                ready.iter().find_map(|message| service.logged(message))
            })
            .await;
            let process = &self.processes[index];
            if let Some(service) = process.service.as_ref().filter(|_| !process.is_relay) {
                self.apis().insert(index, service.api_addr());
            }
        }
    }

    /// Kills a process with SIGKILL.
    pub(crate) async fn kill(&mut self, index: usize) {
        self.apis().remove(&index);
        if let Some(service) = self.processes[index].service.take() {
            service.kill().await;
        }
    }

    fn apis(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, String>> {
        self.apis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica that leads.
    pub(crate) async fn leader(&self) -> usize {
        wait_for("a replica leads", BOUND, async || {
            for (index, process) in self.processes.iter().enumerate() {
                let Some(service) = process.service.as_ref().filter(|_| !process.is_relay) else { continue };
                if service.get("/readyz").await.1["leader"] == true {
                    return Some(index);
                }
            }
            None
        })
        .await
    }

    /// Holds the first request of this kind of any process that takes part in the protocol. Returns, for each
    /// of these processes, its index and the trigger.
    pub(crate) fn arm(&self, boundary: &Boundary) -> Vec<(usize, Trigger)> {
        let is_relay = boundary.protocol == Protocol::Relay;
        let taking_part =
            self.processes.iter().enumerate().filter(|(_, process)| process.is_relay == is_relay);
        taking_part.map(|(index, process)| (index, boundary.arm(&process.redis, &process.postgres))).collect()
    }

    /// Lets every request pass again.
    pub(crate) fn disarm(&self) {
        for process in &self.processes {
            process.redis.disarm();
            process.postgres.disarm();
        }
    }

    /// Starts a server that can take over.
    pub(crate) async fn add_standby(&mut self) {
        let standby = Postgres::start_standby(self.postgres_mut()).await.expect("a standby starts");
        self.standby = Some(standby);
        self.replicated_to_standby().await;
    }

    /// Starts a server that can take over.
    pub(crate) async fn add_replica(&mut self) {
        let replica = Redis::start(redis_options(&self.redis_clock)).await.expect("a replica starts");
        let port = self.world.redis.port().to_string();
        replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await.expect("it responds");
        self.replica = Some(replica);
        self.replicated_to_replica().await;
    }

    /// From now on, the standby or replica misses every write.
    pub(crate) async fn cut_replication(&mut self) {
        if let Some(standby) = &self.standby {
            self.replicated_to_standby().await;
            for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
                standby.execute("postgres", sql).await.expect("it is allowed");
            }
            wait_for("nothing is replicated", BOUND, async || {
                (self.world.number("SELECT count(*) FROM pg_stat_replication").await == 0).then_some(())
            })
            .await;
        }
        if let Some(replica) = &self.replica {
            self.replicated_to_replica().await;
            replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await.expect("it responds");
        }
    }

    pub(crate) async fn replicated_to_standby(&self) {
        wait_for("the standby has all", BOUND, async || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
            (self.world.number(sql).await == 1).then_some(())
        })
        .await;
    }

    pub(crate) async fn replicated_to_replica(&self) {
        let replica = self.replica.as_ref().expect("the case has a replica");
        wait_for("the replica has all", BOUND, async || {
            let of_replica: String = replica.ask(&["INFO", "replication"]).await.ok()?;
            let of_primary: String = self.world.redis.ask(&["INFO", "replication"]).await.ok()?;
            let value = |info: &str, name: &str| {
                info.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
            };
            let is_connected = value(&of_replica, "master_link_status:")? == "up";
            let offsets =
                (value(&of_replica, "slave_repl_offset:")?, value(&of_primary, "master_repl_offset:")?);
            (is_connected && offsets.0 == offsets.1).then_some(())
        })
        .await;
    }

    /// The proxies in front of Redis, and those in front of PostgreSQL.
    fn proxies(&self) -> [Vec<&Proxy>; 2] {
        let redis = self.processes.iter().map(|process| &process.redis).chain([&self.redis_for_clients]);
        let postgres = self.processes.iter().map(|process| &process.postgres);
        [redis.collect(), postgres.chain([&self.postgres_for_clients]).collect()]
    }

    /// Closes the connections of all processes and clients, and refuses new ones.
    pub(crate) fn stop_writing(&self) {
        self.proxies().concat().into_iter().for_each(Proxy::cut);
    }

    /// Lets new connections lead to the servers of the world, and allows them again.
    fn connect_again(&self) {
        let [redis, postgres] = self.proxies();
        redis.iter().for_each(|proxy| proxy.lead_to(self.world.redis.port()));
        postgres.iter().for_each(|proxy| proxy.lead_to(self.world.database.port()));
        [redis, postgres].concat().into_iter().for_each(Proxy::heal);
    }

    /// Kills the primary and promotes the standby, to which every connection leads from then on.
    pub(crate) async fn fail_over_to_standby(&mut self) {
        let mut standby = self.standby.take().expect("the case has a standby");
        std::mem::swap(self.postgres_mut(), &mut standby);
        standby.kill().await;
        let server = self.postgres_mut();
        server.promote().await.expect("it is promoted");
        let port = server.port();
        self.world.database = self.world.database.on_port(port);
        self.outbox = self.outbox.as_ref().map(|database| database.on_port(port));
        self.connect_again();
    }

    /// Kills the primary and promotes the replica, to which every connection leads from then on.
    pub(crate) async fn fail_over_to_replica(&mut self) {
        let mut replica = self.replica.take().expect("the case has a replica");
        std::mem::swap(&mut self.world.redis, &mut replica);
        replica.kill().await;
        self.world.redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await.expect("it responds");
        self.connect_again();
    }

    /// Runs statements one by one as the superuser, and reloads the settings.
    pub(crate) async fn as_superuser(&self, statements: &[&str]) {
        let client = self.world.database.client().await;
        for sql in ["SET default_transaction_read_only = off"]
            .iter()
            .chain(statements)
            .chain(&["SELECT pg_reload_conf()"])
        {
            client.batch_execute(sql).await.expect("it is allowed");
        }
    }
}
