//! What the commands of operators share: the tables, reached by the connection string alone; arguments; and
//! how they print.
//!
//! A command opens the tables once, with [`Tables::open`], which says what is wrong with a database that
//! lacks them or has older ones. Redis is asked only by those that ask about the stream. Every text that
//! comes from outside goes through [`printable`](super::output::printable) before a terminal gets it.

mod args;
mod clock;
mod terminal;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::catalog::Catalog;
use lock::{LockManager, TableNames};
use pg::{PgPool, PoolSettings, SessionSettings};
use store_postgres::{PgQueries, PgStore};
use store_redis::RedisClient;

pub(crate) use args::{CommandLine, Moment, Output, Paging, TimeRange, parse_text};
pub(crate) use clock::StoreClock;
pub(crate) use terminal::{
    Cell, Progress, Style, Tone, draws_on_stderr, heading, print_cells, print_members, print_page,
    print_table,
};

use super::{Failure, Vars, print_warnings};
use crate::config::{Loaded, OperatorConfig, OperatorStreamConfig, Redis};
use crate::start::repeat_if_late;
use crate::wiring::leader::LockLookup;
use crate::{migrations, wiring};

/// How long one statement of a command may take: more than one of a service, because an operator waits for
/// it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the first statement of a command is repeated, if the database does not respond in time.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
/// The connections of a command for each kind of session.
const CONNECTIONS: usize = 2;

/// The service's tables.
pub(crate) struct Tables {
    pub(crate) config: OperatorConfig,
    /// To read.
    pub(crate) queries: PgQueries,
}

impl Tables {
    /// Opens the tables that these variables name, for a command that needs nothing else.
    pub(crate) async fn load(vars: Vars) -> Result<Self, Failure> {
        let Loaded { config, warnings, .. } = OperatorConfig::load(vars)?;
        print_warnings(&warnings);
        Self::open(config).await
    }

    /// The same, and a client of Redis that connects when it is used first.
    pub(crate) async fn load_with_redis(vars: Vars) -> Result<(Self, RedisClient), Failure> {
        let Loaded { config, warnings, .. } = OperatorStreamConfig::load(vars)?;
        print_warnings(&warnings);
        let client = open_redis(&config.redis)?;
        Ok((Self::open(config.tables).await?, client))
    }

    /// The same, and the catalogue.
    pub(crate) async fn load_with_catalog(vars: Vars) -> Result<(Self, RedisClient, Arc<Catalog>), Failure> {
        let Loaded { config: (config, catalog), warnings, .. } =
            OperatorStreamConfig::load_with_catalog(vars)?;
        print_warnings(&warnings);
        let client = open_redis(&config.redis)?;
        Ok((Self::open(config.tables).await?, client, catalog))
    }

    /// Opens the tables of `config`, once it is known that they are there and are as this program needs them.
    pub(crate) async fn open(config: OperatorConfig) -> Result<Self, Failure> {
        let queries = PgQueries::new(pool(&config, store_postgres::QUERY_SESSION)?);
        let tables = Self { config, queries };
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

    /// The tables to write.
    pub(crate) fn store(&self) -> anyhow::Result<PgStore> {
        Ok(PgStore::new(pool(&self.config, store_postgres::SESSION)?))
    }

    /// Who leads.
    pub(crate) fn leader(&self) -> anyhow::Result<LockLookup> {
        let session =
            SessionSettings { parameters: lock::PLANNER_PARAMETERS, ..store_postgres::QUERY_SESSION };
        let locks = LockManager::new(pool(&self.config, session)?, TableNames::default());
        Ok(LockLookup::new(locks, &self.config.intents_stream))
    }

    /// The same, with where it failed.
    pub(crate) fn explained<T, E>(&self, result: Result<T, E>) -> anyhow::Result<T>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        result.with_context(|| format!("the tables at {} cannot be used", self.config.postgres.dsn))
    }
}

/// A client of Redis that connects when it is used first.
pub(crate) fn open_redis(config: &Redis) -> anyhow::Result<RedisClient> {
    RedisClient::new(wiring::redis_settings(config)).context("Redis cannot be used as configured")
}

fn pool(config: &OperatorConfig, session: SessionSettings) -> anyhow::Result<PgPool> {
    let settings =
        PoolSettings { max_connections: CONNECTIONS, operation_timeout: STATEMENT_TIMEOUT, session };
    PgPool::new(&config.postgres.dsn, settings).context("PostgreSQL cannot be used as configured")
}
