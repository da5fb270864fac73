//! The servers of a simulation and their data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::Clock;
use domain::entry::EntryId;
use domain::record::IdempotencyKey;
use lock::{LocksBackup, MemoryLocks};
use memory_stores::{
    Backup, CheckpointsBackup, IntentsBackup, MemoryCheckpoints, MemoryDatabase, MemoryDirectory,
    MemoryIntents, MemoryPublishing, PublishingBackup,
};
use tokio::time::Instant;

use crate::clock::MachineClock;
use crate::network::Server;
use crate::outbox_streams::{MarkersBackup, OutboxMarkers};

/// The timeouts of calls: those of the default configuration.
const POSTGRES_TIMEOUT: Duration = Duration::from_secs(5);
const REDIS_TIMEOUT: Duration = Duration::from_secs(1);
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(1);

/// The Redis server.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) server: Arc<Server>,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) intents: Arc<MemoryIntents>,
    pub(crate) publishing: Arc<MemoryPublishing>,
    pub(crate) cache: Arc<MemoryCheckpoints>,
    pub(crate) outbox: Arc<OutboxMarkers>,
}

/// The data of Redis at one moment.
#[derive(Clone, Debug)]
pub(crate) struct RedisBackup {
    intents: IntentsBackup,
    publishing: PublishingBackup,
    cache: CheckpointsBackup,
    outbox: MarkersBackup,
}

impl Redis {
    pub(crate) fn new(started: Instant) -> Self {
        let clock = Arc::new(MachineClock::new(started, 0));
        Self {
            server: Arc::new(Server::new("redis", REDIS_TIMEOUT)),
            intents: Arc::new(MemoryIntents::on_server(Arc::clone(&clock))),
            publishing: Arc::new(MemoryPublishing::new(Arc::clone(&clock))),
            cache: Arc::default(),
            outbox: Arc::new(OutboxMarkers::new(Arc::clone(&clock))),
            clock,
        }
    }

    pub(crate) fn backup(&self) -> RedisBackup {
        RedisBackup {
            intents: self.intents.backup(),
            publishing: self.publishing.backup(),
            cache: self.cache.backup(),
            outbox: self.outbox.backup(),
        }
    }

    /// Stops the server. It will be another process when it starts, with another replication history if a
    /// replica `is_promoted`.
    pub(crate) fn stop(&self, is_promoted: bool) {
        self.server.stop();
        self.intents.restart();
        self.outbox.restart();
        match is_promoted {
            true => self.publishing.promote(),
            false => self.publishing.restart(),
        }
    }

    /// Replaces the data by an older state. Returns the ids of the intents that are lost.
    pub(crate) fn restore(&self, backup: &RedisBackup) -> Vec<EntryId> {
        let before = self.intents.ids();
        self.intents.restore(&backup.intents);
        self.publishing.restore(&backup.publishing);
        self.cache.restore(&backup.cache);
        self.outbox.restore(&backup.outbox);
        let kept: BTreeSet<EntryId> = self.intents.ids().into_iter().collect();
        before.into_iter().filter(|id| !kept.contains(id)).collect()
    }
}

/// The PostgreSQL server.
#[derive(Debug)]
pub(crate) struct Postgres {
    pub(crate) server: Arc<Server>,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) database: Arc<MemoryDatabase>,
    pub(crate) locks: MemoryLocks,
}

/// The data of PostgreSQL at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PostgresBackup {
    database: Backup,
    locks: LocksBackup,
}

impl Postgres {
    pub(crate) fn new(started: Instant) -> Self {
        let clock = Arc::new(MachineClock::new(started, 0));
        let database = MemoryDatabase::default();
        database.set_clock(Arc::clone(&clock));
        let clock_of_locks: Arc<dyn Clock> = clock.clone();
        Self {
            server: Arc::new(Server::new("postgres", POSTGRES_TIMEOUT)),
            clock,
            database: Arc::new(database),
            locks: MemoryLocks::new(clock_of_locks),
        }
    }

    /// Stops the server, which ends every transaction and session.
    pub(crate) fn stop(&self) {
        self.server.stop();
        self.database.unlock_routes();
        self.locks.end_sessions();
    }

    pub(crate) fn backup(&self) -> PostgresBackup {
        PostgresBackup { database: self.database.backup(), locks: self.locks.backup() }
    }

    /// Replaces the data by an older state. Returns the keys of the records that are lost.
    pub(crate) fn restore(&self, backup: &PostgresBackup) -> Vec<IdempotencyKey> {
        let before = self.database.accepted_keys();
        self.database.restore(&backup.database);
        self.database.unlock_routes();
        self.locks.restore(&backup.locks);
        let kept = self.database.accepted_keys();
        before.into_keys().filter(|key| !kept.contains_key(key)).collect()
    }
}

/// The user directory.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) server: Arc<Server>,
    pub(crate) users: Arc<MemoryDirectory>,
}

impl Directory {
    pub(crate) fn new() -> Self {
        Self { server: Arc::new(Server::new("directory", DIRECTORY_TIMEOUT)), users: Arc::default() }
    }
}

/// The knowledge of the simulation about intents: what producers were promised, and what servers have lost.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

#[derive(Debug, Default)]
pub(crate) struct LedgerState {
    /// The entries of each key that Redis acknowledged to a producer or to the relay.
    pub(crate) acknowledged: BTreeMap<String, Vec<EntryId>>,
    /// The malformed entries that Redis acknowledged.
    pub(crate) malformed: BTreeSet<EntryId>,
    /// The notification ids that HTTP clients received for their keys.
    pub(crate) responses: BTreeMap<String, BTreeSet<String>>,
    /// The keys of committed outbox events.
    pub(crate) events: BTreeSet<String>,
    /// The routes that operators asked to send again, each with `true` if that was done, `false` if not, and
    /// `None` if the operator does not know.
    pub(crate) resent: BTreeMap<String, Option<bool>>,
    /// Keys and entries that a server lost before another one had them. No service can recover them.
    pub(crate) excused: BTreeSet<String>,
    pub(crate) excused_entries: BTreeSet<EntryId>,
    /// Violations that were seen while the simulation ran.
    pub(crate) violations: Vec<String>,
}

impl Ledger {
    pub(crate) fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
