//! The cost of an idle replica.
//!
//! Both servers count commands and statements individually, including those of a pipeline.

use std::time::{Duration, Instant};

use anyhow::Context;
use harness::{Service, wait_for};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::load::{self, ROUTES};
use crate::measure::Cpu;
use crate::testbed::{ROLE, Testbed};
use crate::watch::{wait_for_completions, wait_for_entries};

/// The bounds for each replica: commands and statements per second, per cent of a core.
const COMMANDS: f64 = 2.0;
const STATEMENTS: f64 = 1.0;
/// The bound for each of two: the one that does not lead checks the leader's session every 900 ms.
const STATEMENTS_OF_TWO: f64 = 1.5;
const CPU_PERCENT: f64 = 1.0;
/// The statements of these checks in a second.
const CHECKS: u64 = 2;
/// Intents that are processed before the measurement.
const INTENTS: u32 = 10;
/// The time within which a replica must start and become idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Measures a replica that has processed all intents, then the same with a second replica, which is not the
/// leader.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let dsn = testbed.fresh().await?;
    let superuser = counting(testbed, &dsn).await?;
    let mut redis = testbed.redis().await?;
    let mut services = vec![testbed.service(&dsn).start().await];
    load::preload(&mut redis, 0, INTENTS, ROUTES).await?;
    wait_for_entries(&mut redis, u64::from(INTENTS * ROUTES)).await?;
    wait_for_completions(testbed, &dsn, INTENTS, ROUTES).await?;
    let saved = "SELECT count(*) FROM outbound_streams WHERE last_generated_id <> '0-0'";
    wait_for("the last ids of the outbound streams are saved", IDLE_TIMEOUT, async || {
        (superuser.query_one(saved, &[]).await.ok()?.get::<_, i64>(0) == 2).then_some(())
    })
    .await;
    become_idle(&superuser, 0).await;
    let mut figures = of_idling(testbed, &superuser, &services, scale.seconds, STATEMENTS).await?.to_vec();
    services.push(testbed.service(&dsn).start().await);
    become_idle(&superuser, CHECKS).await;
    figures.extend(of_idling(testbed, &superuser, &services, scale.seconds, STATEMENTS_OF_TWO).await?);
    for service in services {
        testbed.stop(service).await;
    }
    let title = format!("Idle: replicas with nothing to do for {} s, for each of them", scale.seconds);
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// Waits until the work after a start or a publication is finished: in a second, no more than this number of
/// statements is executed.
async fn become_idle(superuser: &Client, statements: u64) {
    wait_for("the replicas are idle", IDLE_TIMEOUT, async || {
        let before = statements_so_far(superuser).await.ok()?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        (statements_so_far(superuser).await.ok()? <= before + statements).then_some(())
    })
    .await;
}

/// Makes PostgreSQL count the statements of a scenario's database. Returns a superuser's client of it.
pub(crate) async fn counting(testbed: &Testbed, dsn: &str) -> anyhow::Result<Client> {
    let superuser = testbed.superuser(dsn).await?;
    let database = Testbed::database_of(dsn);
    let count = format!(
        "CREATE EXTENSION pg_stat_statements SCHEMA public; ALTER DATABASE \"{database}\" SET pg_stat_statements.track = 'top'"
    );
    superuser.batch_execute(&count).await.context("PostgreSQL does not count statements")?;
    Ok(superuser)
}

/// The cost of each of several idle processes.
pub(crate) struct Idled {
    /// Commands of Redis per second, including those in scripts.
    pub(crate) commands: f64,
    /// Statements of PostgreSQL per second.
    pub(crate) statements: f64,
    /// Processor time in per cent of a core.
    pub(crate) cpu_percent: f64,
}

impl Idled {
    /// Counts for `seconds` seconds.
    pub(crate) async fn measure(
        testbed: &Testbed,
        superuser: &Client,
        services: &[&Service],
        seconds: u32,
    ) -> anyhow::Result<Self> {
        let mut redis = testbed.redis().await?;
        let used = || services.iter().map(|service| Cpu::now(None, None, service.pid()).own).sum::<u64>();
        let (commands, statements) =
            (commands_so_far(&mut redis).await?, statements_so_far(superuser).await?);
        let (started, before) = (Instant::now(), used());
        // A rate is measured over a period; there is no event to wait for.
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        let replica_seconds = started.elapsed().as_secs_f64() * services.len() as f64;
        let cpu = used() - before;
        let rate = |count: u64| count as f64 / replica_seconds;
        Ok(Self {
            commands: rate(commands_so_far(&mut redis).await? - commands),
            statements: rate(statements_so_far(superuser).await? - statements),
            cpu_percent: rate(cpu) / 10_000.0,
        })
    }
}

async fn of_idling(
    testbed: &Testbed,
    superuser: &Client,
    services: &[Service],
    seconds: u32,
    statements: f64,
) -> anyhow::Result<[Figure; 3]> {
    println!("idle: {} replica(s) for {seconds} s", services.len());
    let idled = Idled::measure(testbed, superuser, &services.iter().collect::<Vec<_>>(), seconds).await?;
    let name = |what: &str| format!("{} replica(s): {what}", services.len());
    Ok([
        Figure::shown(name("Redis commands, those in scripts included"), idled.commands, "per second")
            .under(COMMANDS),
        Figure::shown(name("SQL statements"), idled.statements, "per second").under(statements),
        Figure::shown(name("CPU of the service"), idled.cpu_percent, "% of a core").under(CPU_PERCENT),
    ])
}

/// The number of statements that the service has executed, including BEGIN and COMMIT.
async fn statements_so_far(superuser: &Client) -> anyhow::Result<u64> {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
        JOIN pg_roles ON pg_roles.oid = userid WHERE rolname = $1";
    let row = superuser.query_one(sql, &[&ROLE]).await.context("PostgreSQL has not counted")?;
    Ok(row.get::<_, i64>(0).unsigned_abs())
}

/// The number of commands that Redis has executed, except INFO.
async fn commands_so_far(redis: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(redis).await?;
    let mut commands = 0;
    for line in info.lines() {
        let Some((name, counts)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
            continue;
        };
        if name == "info" {
            continue;
        }
        let calls = counts.split(',').find_map(|count| count.strip_prefix("calls="));
        commands += calls.context("a command without a number of calls")?.parse::<u64>()?;
    }
    Ok(commands)
}
