//! The cost of many connections: transactions of PostgreSQL, and memory of the service.
//!
//! PostgreSQL counts its transactions, and, in this run only, its statements. Publishing completes each chunk
//! of routes with one statement, which is a transaction by itself; those are excluded. Everything else
//! counts, including the start of the service. A server process reports its counts when it ends, at the
//! latest, so the service is stopped before they are read.

use anyhow::Context;
use tokio_postgres::Client;

use super::client::ROUTES;
use super::generator::RequestLoad;
use super::{ApiService, Generator};
use crate::figure::Figure;
use crate::measure::{peak_memory_mb, present_memory_mb};
use crate::testbed::{ROLE, Testbed};
use crate::watch::{wait_for_completions, wait_for_entries};

/// The most transactions per intent.
const TRANSACTIONS: f64 = 0.1;
/// The most added memory.
const MEMORY_MB: f64 = 60.0;
const BODY_BYTES: usize = 1_024;

/// The counts of PostgreSQL.
struct PostgresCounts {
    acceptances: i64,
    completions: i64,
}

/// Sends intents with bodies of 1 KiB over `connections` connections.
pub(super) async fn run(
    testbed: &mut Testbed,
    connections: u32,
    intents: u32,
) -> anyhow::Result<Vec<Figure>> {
    println!("http: {intents} intents with bodies of 1 KiB over {connections} connections, counted");
    let dsn = testbed.fresh().await?;
    let superuser = testbed.superuser(&dsn).await?;
    let count = format!(
        "CREATE EXTENSION pg_stat_statements SCHEMA public; ALTER DATABASE \"{}\" SET pg_stat_statements.track = 'top'",
        Testbed::database_of(&dsn)
    );
    superuser.batch_execute(&count).await.context("PostgreSQL does not count statements")?;
    let transactions = transactions(&superuser).await?;
    let api = ApiService::start(testbed, &dsn).await?;
    let mut generator = Generator::start(testbed, &dsn).await?;
    let memory = present_memory_mb(api.service.pid());
    let load = RequestLoad { connections, first: 0, intents, batch: 0, body_bytes: BODY_BYTES };
    generator.prepare(&api, load).await?;
    generator.send(intents, 0).await?;
    wait_for_entries(&mut testbed.redis().await?, u64::from(intents * ROUTES)).await?;
    let added = peak_memory_mb(api.service.pid()) - memory;
    generator.end().await?;
    // The service completes its published routes before it ends.
    api.stop(testbed).await;
    let transactions = self::transactions(&superuser).await? - transactions;
    let counted = counted(&superuser).await?;
    wait_for_completions(testbed, &dsn, intents, ROUTES).await?;

    let each = |count: i64| count as f64 / f64::from(intents);
    let of_a_group = |count: i64| f64::from(intents) / count.max(1) as f64;
    let name = |what: &str| format!("{connections} connections, bodies of 1 KiB: {what}");
    let own = each(transactions - counted.completions);
    Ok(vec![
        Figure::shown(name("transactions, but for those of publishing"), own, "per intent")
            .at_most(TRANSACTIONS),
        Figure::shown(name("transactions of publishing"), each(counted.completions), "per intent"),
        Figure::shown(
            name("intents of an accepting transaction"),
            of_a_group(counted.acceptances),
            "intents",
        ),
        Figure::shown(name("memory before"), memory, "MB"),
        Figure::shown(name("memory added, at its peak"), added, "MB").at_most(MEMORY_MB),
    ])
}

/// The number of transactions committed in the database so far.
async fn transactions(superuser: &Client) -> anyhow::Result<i64> {
    let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    Ok(superuser.query_one(sql, &[]).await.context("PostgreSQL has not counted transactions")?.get(0))
}

/// The statements of the service so far.
async fn counted(superuser: &Client) -> anyhow::Result<PostgresCounts> {
    let sql = "SELECT
        coalesce(sum(calls) FILTER (WHERE query LIKE 'INSERT INTO \"records\"%'), 0)::bigint,
        coalesce(sum(calls) FILTER (WHERE query LIKE 'UPDATE \"routes\"%'), 0)::bigint
        FROM pg_stat_statements JOIN pg_roles ON pg_roles.oid = userid WHERE rolname = $1";
    let row = superuser.query_one(sql, &[&ROLE]).await.context("PostgreSQL has not counted statements")?;
    Ok(PostgresCounts { acceptances: row.get(0), completions: row.get(1) })
}
