//! The faults of stores and clocks, which begin when a boundary is reached and end a while later.

use std::fmt;
use std::time::Duration;

use harness::{Redis, wait_for};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::task::spawn_local;

use crate::site::{BOUND, Site};

/// The delay of each piece of data while a server is slow.
const SLOW: Duration = Duration::from_millis(150);
/// The step of a clock: longer than every lease of the test, shorter than the life of a marker.
const CLOCK_STEP: Duration = Duration::from_secs(30);
/// The difference of clocks of replicas.
const CLOCK_SKEW: Duration = Duration::from_secs(20);

/// A class of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing but the kill.
    None,
    Postgres(PostgresFault),
    Redis(RedisFault),
    /// Both servers are killed.
    BothKilled,
    /// Neither server responds.
    BothSilent,
    /// The clocks of the replicas differ.
    ReplicaClocks,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PostgresFault {
    Restart,
    Killed,
    /// The system kills the processes of sessions, as it does without memory.
    OutOfMemory,
    Silent,
    Slow,
    LostReplies,
    ReadOnly,
    FullDisk,
    /// An operator's transaction locks the table of routes.
    LockedTable,
    FailOver,
    /// A standby without the last commits takes over.
    LostTail,
    ClockAhead,
    ClockBack,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RedisFault {
    Restart,
    Killed,
    Silent,
    Slow,
    LostReplies,
    ReadOnly,
    FullDisk,
    OutOfMemory,
    FailOver,
    /// A replica without the last writes takes over.
    LostTail,
    ClockAhead,
    ClockBack,
}

/// All faults, in the order of their letters.
pub(crate) const FAULTS: [Fault; 29] = {
    use PostgresFault as P;
    use RedisFault as R;
    [
        Fault::None,
        Fault::Postgres(P::Restart),
        Fault::Postgres(P::Killed),
        Fault::Postgres(P::OutOfMemory),
        Fault::Postgres(P::Silent),
        Fault::Postgres(P::Slow),
        Fault::Postgres(P::LostReplies),
        Fault::Postgres(P::ReadOnly),
        Fault::Postgres(P::FullDisk),
        Fault::Postgres(P::LockedTable),
        Fault::Postgres(P::FailOver),
        Fault::Postgres(P::LostTail),
        Fault::Postgres(P::ClockAhead),
        Fault::Postgres(P::ClockBack),
        Fault::Redis(R::Restart),
        Fault::Redis(R::Killed),
        Fault::Redis(R::Silent),
        Fault::Redis(R::Slow),
        Fault::Redis(R::LostReplies),
        Fault::Redis(R::ReadOnly),
        Fault::Redis(R::FullDisk),
        Fault::Redis(R::OutOfMemory),
        Fault::Redis(R::FailOver),
        Fault::Redis(R::LostTail),
        Fault::Redis(R::ClockAhead),
        Fault::Redis(R::ClockBack),
        Fault::BothKilled,
        Fault::BothSilent,
        Fault::ReplicaClocks,
    ]
};

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |name: String| {
            let mut words = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !words.is_empty() {
                    words.push(' ');
                }
                words.extend(letter.to_lowercase());
            }
            words
        };
        match self {
            Self::None => formatter.write_str("no other fault"),
            Self::Postgres(fault) => write!(formatter, "PostgreSQL: {}", words(format!("{fault:?}"))),
            Self::Redis(fault) => write!(formatter, "Redis: {}", words(format!("{fault:?}"))),
            Self::BothKilled => formatter.write_str("both: killed"),
            Self::BothSilent => formatter.write_str("both: silent"),
            Self::ReplicaClocks => formatter.write_str("replicas: clocks differ"),
        }
    }
}

impl Fault {
    /// True if a server that lacks the last writes takes over.
    pub(crate) fn loses_tail(self) -> bool {
        matches!(self, Self::Postgres(PostgresFault::LostTail) | Self::Redis(RedisFault::LostTail))
    }

    /// True if another PostgreSQL takes over.
    pub(crate) fn needs_standby(self) -> bool {
        matches!(self, Self::Postgres(PostgresFault::FailOver | PostgresFault::LostTail))
    }

    /// True if another Redis takes over.
    pub(crate) fn needs_replica(self) -> bool {
        matches!(self, Self::Redis(RedisFault::FailOver | RedisFault::LostTail))
    }

    /// Prepares the processes, before they are started.
    pub(crate) fn prepare(self, site: &mut Site) {
        if self == Self::ReplicaClocks {
            site.processes[0].clock.set(CLOCK_SKEW, false);
            site.processes[1].clock.set(CLOCK_SKEW, true);
        }
    }

    /// Begins the fault.
    pub(crate) async fn begin(self, site: &mut Site) {
        match self {
            Self::None | Self::ReplicaClocks => {}
            Self::Postgres(fault) => fault.begin(site).await,
            Self::Redis(fault) => fault.begin(site).await,
            Self::BothKilled => {
                PostgresFault::Killed.begin(site).await;
                RedisFault::Killed.begin(site).await;
            }
            Self::BothSilent => {
                PostgresFault::Silent.begin(site).await;
                RedisFault::Silent.begin(site).await;
            }
        }
    }

    /// Ends the fault.
    pub(crate) async fn end(self, site: &mut Site) {
        match self {
            Self::None | Self::ReplicaClocks => {}
            Self::Postgres(fault) => fault.end(site).await,
            Self::Redis(fault) => fault.end(site).await,
            Self::BothKilled => {
                RedisFault::Killed.end(site).await;
                PostgresFault::Killed.end(site).await;
            }
            Self::BothSilent => {
                RedisFault::Silent.end(site).await;
                PostgresFault::Silent.end(site).await;
            }
        }
    }
}

impl PostgresFault {
    async fn begin(self, site: &mut Site) {
        let proxies = || site.processes.iter().map(|process| &process.postgres);
        match self {
            Self::Restart => {
                let server = site.postgres_mut();
                server.stop().await;
                server.start_again().await.expect("it starts again");
            }
            Self::Killed => site.postgres_mut().kill().await,
            Self::OutOfMemory => {
                let sql = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'notification%'";
                for row in site.world.database.client().await.query(sql, &[]).await.expect("it responds") {
                    // The session may have ended.
                    kill_process(pid(row.get::<_, i32>(0).unsigned_abs()), Signal::KILL).unwrap_or_default();
                }
            }
            Self::Silent => proxies().for_each(|proxy| proxy.black_hole()),
            Self::Slow => proxies().for_each(|proxy| proxy.delay(SLOW)),
            Self::LostReplies => proxies().for_each(|proxy| proxy.lose_replies()),
            Self::ReadOnly => {
                site.as_superuser(&["ALTER SYSTEM SET default_transaction_read_only = on"]).await;
            }
            Self::FullDisk => limit_files(&site.postgres_mut().pids(), Some(0)),
            Self::LockedTable => {
                let client = site.world.database.client().await;
                let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("it responds").get(0);
                site.operator = Some(pid);
                // It may have to wait for its lock, and others wait behind it.
                spawn_local(async move {
                    let locked =
                        client.batch_execute("BEGIN; LOCK TABLE routes IN SHARE ROW EXCLUSIVE MODE").await;
                    if locked.is_ok() {
                        std::future::pending::<()>().await;
                    }
                });
            }
            Self::FailOver => {
                site.stop_writing();
                site.replicated_to_standby().await;
                site.fail_over_to_standby().await;
            }
            Self::LostTail => {
                site.stop_writing();
                site.fail_over_to_standby().await;
            }
            Self::ClockAhead => site.postgres_clock.set(CLOCK_STEP, false),
            Self::ClockBack => site.postgres_clock.set(CLOCK_STEP, true),
        }
    }

    async fn end(self, site: &mut Site) {
        match self {
            Self::Killed => site.postgres_mut().start_again().await.expect("it starts again"),
            Self::Silent | Self::Slow | Self::LostReplies => {
                site.processes.iter().for_each(|process| process.postgres.heal());
            }
            Self::ReadOnly => site.as_superuser(&["ALTER SYSTEM RESET default_transaction_read_only"]).await,
            Self::FullDisk => {
                let server = site.postgres_mut();
                limit_files(&server.pids(), None);
                // It ends if it could not write its log.
                server.kill().await;
                server.start_again().await.expect("it starts again");
            }
            Self::LockedTable => {
                let pid = site.operator.take().expect("an operator has locked the table");
                site.as_superuser(&[&format!("SELECT pg_terminate_backend({pid})")]).await;
            }
            Self::Restart
            | Self::OutOfMemory
            | Self::FailOver
            | Self::LostTail
            | Self::ClockAhead
            | Self::ClockBack => {}
        }
    }
}

impl RedisFault {
    async fn begin(self, site: &mut Site) {
        let proxies = || site.processes.iter().map(|process| &process.redis);
        match self {
            Self::Restart => {
                site.world.redis.stop().await;
                site.world.redis.start_again().await.expect("it starts again");
            }
            Self::Killed => site.world.redis.kill().await,
            Self::Silent => proxies().for_each(|proxy| proxy.black_hole()),
            Self::Slow => proxies().for_each(|proxy| proxy.delay(SLOW)),
            Self::LostReplies => proxies().for_each(|proxy| proxy.lose_replies()),
            Self::ReadOnly => ask(&site.world.redis, &["REPLICAOF", "127.0.0.1", "1"]).await,
            Self::FullDisk => limit_files(site.world.redis.pid().as_slice(), Some(0)),
            Self::OutOfMemory => ask(&site.world.redis, &["CONFIG", "SET", "maxmemory", "1"]).await,
            Self::FailOver => {
                site.stop_writing();
                site.replicated_to_replica().await;
                site.fail_over_to_replica().await;
            }
            Self::LostTail => {
                site.stop_writing();
                site.fail_over_to_replica().await;
            }
            Self::ClockAhead => site.redis_clock.set(CLOCK_STEP, false),
            Self::ClockBack => site.redis_clock.set(CLOCK_STEP, true),
        }
    }

    async fn end(self, site: &mut Site) {
        match self {
            Self::Killed => site.world.redis.start_again().await.expect("it starts again"),
            Self::Silent | Self::Slow | Self::LostReplies => {
                site.processes.iter().for_each(|process| process.redis.heal());
            }
            Self::ReadOnly => ask(&site.world.redis, &["REPLICAOF", "NO", "ONE"]).await,
            Self::FullDisk => limit_files(site.world.redis.pid().as_slice(), None),
            Self::OutOfMemory => ask(&site.world.redis, &["CONFIG", "SET", "maxmemory", "0"]).await,
            Self::Restart | Self::FailOver | Self::LostTail | Self::ClockAhead | Self::ClockBack => {}
        }
    }
}

async fn ask(server: &Redis, words: &[&str]) {
    wait_for("Redis carries out a command", BOUND, async || server.ask::<()>(words).await.ok()).await;
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.cast_signed()).expect("no process has the id 0")
}

/// Limits the size of files that these processes write, in bytes: each longer write fails, as on a full disk.
fn limit_files(pids: &[u32], bytes: Option<u64>) {
    for id in pids {
        // It may have ended.
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(pid(*id)), Resource::Fsize, limit).map(drop).unwrap_or_default();
    }
}
