//! The configured user directory.

use std::time::Duration;

use anyhow::Context;
use domain::ports::{self, Lookup};
use state::{PostgresStore, TableName};
use user_directory::{HttpUserDirectory, StateDirectorySettings, StateUserDirectory, UserDirectorySettings};

use crate::config::{self, Config};
use crate::start::Backends;

/// The maximum number of concurrent lookups over HTTP.
const DIRECTORY_MAX_CONCURRENT_LOOKUPS: usize = 32;
/// The maximum number of concurrent statements that read users. Each uses a connection of the service's pool.
const DIRECTORY_MAX_CONCURRENT_READS: usize = 2;
/// The maximum number of cached users.
const DIRECTORY_CACHE_ENTRIES: usize = 10_000;
/// The time for which a user is cached.
const DIRECTORY_CACHE_TTL: Duration = Duration::from_secs(5);

/// The user directory, of either kind.
pub(super) enum UserDirectory {
    Http(Box<HttpUserDirectory>),
    State(StateUserDirectory<PostgresStore>),
}

impl UserDirectory {
    /// Creates the directory like [`UserDirectory::new`], and checks that its table can be read.
    pub(super) async fn open(config: &Config, stores: &Backends) -> anyhow::Result<Self> {
        let directory = Self::new(config, stores)?;
        if let Self::State(users) = &directory {
            let dsn = &config.postgres.dsn;
            users
                .check()
                .await
                .with_context(|| format!("the users in the table kv at {dsn} cannot be read"))?;
        }
        Ok(directory)
    }

    /// Creates the configured directory, with a cache of its own.
    pub(super) fn new(config: &Config, stores: &Backends) -> anyhow::Result<Self> {
        match &config.user_directory {
            config::UserDirectory::Http { base_url, timeout } => {
                let directory = HttpUserDirectory::new(UserDirectorySettings {
                    base_url: base_url.clone(),
                    timeout: *timeout,
                    concurrency: DIRECTORY_MAX_CONCURRENT_LOOKUPS,
                    cache_ttl: DIRECTORY_CACHE_TTL,
                    cache_entries: DIRECTORY_CACHE_ENTRIES,
                });
                directory
                    .map(|directory| Self::Http(Box::new(directory)))
                    .context("the user directory cannot be used as configured")
            }
            config::UserDirectory::State => {
                let store = PostgresStore::new(stores.pool.clone(), TableName::default());
                let settings = StateDirectorySettings {
                    concurrency: DIRECTORY_MAX_CONCURRENT_READS,
                    cache_ttl: DIRECTORY_CACHE_TTL,
                    cache_entries: DIRECTORY_CACHE_ENTRIES,
                };
                Ok(Self::State(StateUserDirectory::new(store, settings)))
            }
        }
    }
}

impl ports::UserDirectory for UserDirectory {
    fn users_per_call(&self) -> usize {
        match self {
            Self::Http(directory) => directory.users_per_call(),
            Self::State(directory) => directory.users_per_call(),
        }
    }

    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        match self {
            Self::Http(directory) => directory.recall(user_ids),
            Self::State(directory) => directory.recall(user_ids),
        }
    }

    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        match self {
            Self::Http(directory) => directory.look_up(user_ids).await,
            Self::State(directory) => directory.look_up(user_ids).await,
        }
    }
}
