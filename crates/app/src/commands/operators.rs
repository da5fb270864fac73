//! The shared parts of operators' commands: access to the tables by the connection string alone, arguments,
//! and printing.
//!
//! A command opens the tables once, with [`Tables::open`], which reports a database whose tables are missing
//! or older. Only commands about the stream connect to Redis. Every text from outside goes through
//! [`printable`](super::output::printable) before it reaches a terminal.

mod args;
mod clock;
mod listing;
mod terminal;

use std::time::Duration;

use anyhow::Context;
use lock::{LockManager, TableNames};
use pg::{PgPool, PoolSettings, SessionSettings};
use store_postgres::{PgQueries, PgStore};
use store_redis::RedisClient;

pub(crate) use args::{CommandLine, Moment, Output, Paging, TableOutput, TimeRange, parse_text};
pub(crate) use clock::StoreClock;
pub(crate) use listing::Listing;
pub(crate) use terminal::{
    Cell, Column, Progress, StatusLine, Style, Tone, print_members, print_rows, print_section, table,
};

use super::{Failure, Vars, load};
use crate::config::{OperatorConfig, Redis};
use crate::start::{reading_replicas, repeat_if_late};
use crate::wiring::leader::LockLookup;
use crate::{migrations, wiring};

/// The time limit of one statement of a command. It is longer than that of a service, because an operator
/// waits for it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time during which the first statement of a command is repeated, if the database does not respond in
/// time.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
/// The connections of a command for each kind of session.
const CONNECTIONS: usize = 2;

/// The service's tables.
pub(crate) struct Tables {
    pub(crate) config: OperatorConfig,
    /// The queries that read the primary.
    pub(crate) queries: PgQueries,
    /// The same queries, whose lists, searches and counts read from replicas if there are any.
    pub(crate) lists: PgQueries,
}

impl Tables {
    /// Opens the tables, for a command that needs nothing else.
    pub(crate) async fn load(vars: Vars) -> Result<Self, Failure> {
        Self::open(load(vars)?).await
    }

    /// Opens the tables, and creates a client of Redis that connects on first use.
    pub(crate) async fn load_with_redis(vars: Vars) -> Result<(Self, RedisClient), Failure> {
        let (tables, redis) = load(vars)?;
        let client = open_redis(&redis)?;
        Ok((Self::open(tables).await?, client))
    }

    /// Opens the tables of `config`. Checks that they exist, that their migrations are recent enough, and
    /// that they belong to the configured stream.
    pub(crate) async fn open(config: OperatorConfig) -> Result<Self, Failure> {
        let primary = pool(&config, store_postgres::QUERY_SESSION)?;
        let queries = PgQueries::new(primary.clone());
        let settings = settings(store_postgres::QUERY_SESSION);
        let lists = reading_replicas(&queries, primary, &config.postgres, settings)?;
        let tables = Self { config, queries, lists };
        tables.check().await?;
        Ok(tables)
    }

    async fn check(&self) -> Result<(), Failure> {
        let dsn = &self.config.postgres.dsn;
        let version = repeat_if_late(CHECK_TIMEOUT, || self.queries.schema_version()).await;
        let version = self.explained(version)?;
        let needed = migrations::all().last().map_or(0, |migration| migration.version);
        match version {
            None => Err(anyhow::anyhow!(
                "the schema at {dsn} has no tables of the service: check the search_path of \
                 NOTIFICATION_POSTGRES_PRIMARY_DSN, or run `notification migrate` if it is new"
            ))?,
            Some(version) if version < needed => Err(anyhow::anyhow!(
                "the schema at {dsn} has migration {version}, and this program needs {needed}: run \
                 `notification migrate`, or use the program of the version that is running"
            ))?,
            Some(_) => {}
        }
        let configured = &self.config.intents_stream;
        match self.explained(self.queries.intents_stream().await)? {
            Some(served) if served != *configured => Err(Failure::Usage(format!(
                "error: NOTIFICATION_INTENTS_STREAM is {configured}, and the schema at {dsn} serves {served}"
            ))),
            _ => Ok(()),
        }
    }

    /// The store that writes the tables.
    pub(crate) fn store(&self) -> anyhow::Result<PgStore> {
        Ok(PgStore::new(pool(&self.config, store_postgres::SESSION)?))
    }

    /// The lookup of the leader.
    pub(crate) fn leader(&self) -> anyhow::Result<LockLookup> {
        let session =
            SessionSettings { parameters: lock::PLANNER_PARAMETERS, ..store_postgres::QUERY_SESSION };
        let locks = LockManager::new(pool(&self.config, session)?, TableNames::default());
        Ok(LockLookup::new(locks, &self.config.intents_stream))
    }

    /// Adds to an error the address of the tables.
    pub(crate) fn explained<T, E>(&self, result: Result<T, E>) -> anyhow::Result<T>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        result.with_context(|| format!("the tables at {} cannot be used", self.config.postgres.dsn))
    }
}

/// Creates a client of Redis that connects on first use.
pub(crate) fn open_redis(config: &Redis) -> anyhow::Result<RedisClient> {
    RedisClient::new(wiring::redis_settings(config)).context("Redis cannot be used as configured")
}

fn pool(config: &OperatorConfig, session: SessionSettings) -> anyhow::Result<PgPool> {
    PgPool::new(&config.postgres.dsn, settings(session)).context("PostgreSQL cannot be used as configured")
}

fn settings(session: SessionSettings) -> PoolSettings {
    PoolSettings { max_connections: CONNECTIONS, operation_timeout: STATEMENT_TIMEOUT, session }
}
