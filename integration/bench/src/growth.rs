//! The growth of processor time with the database: with full tables, and while an open transaction prevents
//! vacuuming.
//!
//! Every run starts the service with its defaults and begins when the service is ready; election and the
//! first read are included. The processor time of PostgreSQL with its background workers, of Redis and of the
//! service is counted. Empty tables are measured before and after the full ones, and runs with the open
//! transaction alternate with runs without it, so that a machine that becomes slower is not mistaken for a
//! database that does. Medians are compared.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::figure::{Figure, ReportSection};
use crate::load::ROUTES;
use crate::measure::{Cpu, median};
use crate::rows::{RouteState, Rows};
use crate::testbed::{INTENTS, Testbed};
use crate::watch::{POLL, ends, entries, observer, published, wait_for_entries, wait_until_none_live_from};
use crate::{Scale, load};

/// The highest accepted ratio of processor time per intent in full tables, and beside an open transaction.
const FULL_TABLES: f64 = 1.25;
const OPEN_TRANSACTION: f64 = 1.5;
/// Runs beside the open transaction have this many times the intents, so that an effect can show.
const LONG: u32 = 6;

/// The amounts of one run.
struct GrowthSize {
    intents: u32,
    /// Records in the full tables.
    records: u32,
    rounds: usize,
}

impl GrowthSize {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { intents: 500, records: 10_000, rounds: 1 }
        } else {
            Self { intents: 20_000, records: 1_000_000, rounds: 3 }
        }
    }
}

/// One run over intents that are all in the stream when the service starts.
pub(crate) struct Drain {
    intents: u32,
    routes: u32,
    /// The time until the last entry was appended, and until the last route was completed.
    appended: Duration,
    completed: Duration,
    cpu: Cpu,
}

impl Drain {
    pub(crate) fn cpu_per_intent(&self) -> f64 {
        (self.cpu.postgres + self.cpu.redis + self.cpu.own) as f64 / f64::from(self.intents)
    }

    /// Processor time of the whole run.
    pub(crate) fn cpu(&self) -> Cpu {
        self.cpu
    }

    pub(crate) fn routes_per_second(&self) -> f64 {
        f64::from(self.intents * self.routes) / self.appended.as_secs_f64()
    }

    pub(crate) fn intents_per_second(&self) -> f64 {
        f64::from(self.intents) / self.completed.as_secs_f64()
    }
}

/// Measures full tables, then the open transaction.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = GrowthSize::of(scale);
    let mut empty = vec![empty_tables(testbed, size.intents).await?];
    let full = full_tables(testbed, &size).await?;
    while empty.len() < size.rounds {
        empty.push(empty_tables(testbed, size.intents).await?);
    }
    let (mut plain, mut held) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        plain.push(empty_tables(testbed, size.intents * LONG).await?);
        held.push(open_transaction(testbed, size.intents * LONG).await?);
    }
    let full_name = format!("{} records of {ROUTES} published routes", size.records);
    let mut figures = compared(("empty tables", &empty), (&full_name, &full), FULL_TABLES).to_vec();
    let long = |with: &str| format!("{} intents, {with} open transaction", size.intents * LONG);
    figures.extend(compared((&long("no"), &plain), (&long("an"), &held), OPEN_TRANSACTION));
    let title = "Growth: processor time with full tables, and beside an open transaction".to_owned();
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// The processor time of plain runs and of others, and their ratio, which must be at most `bound`.
fn compared(plain: (&str, &[Drain]), other: (&str, &[Drain]), bound: f64) -> [Figure; 3] {
    let cpu = |(name, drains): (&str, &[Drain])| {
        let each = || drains.iter().map(Drain::cpu_per_intent);
        Figure::shown(format!("CPU per intent, {name}"), median(each()), "µs").of_rounds(each())
    };
    let (before, after) = (cpu(plain), cpu(other));
    let times = Figure::shown(format!("{}, to {}", other.0, plain.0), after.value / before.value, "x");
    [before, after, times.at_most(bound)]
}

pub(crate) async fn empty_tables(testbed: &mut Testbed, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents into empty tables");
    let dsn = testbed.fresh().await?;
    drain(testbed, &dsn, 0, intents, ROUTES).await
}

/// Several runs, one after the other, into the same tables.
async fn full_tables(testbed: &mut Testbed, size: &GrowthSize) -> anyhow::Result<Vec<Drain>> {
    println!("growth: {} intents into tables with {} records", size.intents, size.records);
    let dsn = testbed.fresh().await?;
    let rows = Rows { records: size.records, age: "1 day", state: RouteState::Published };
    rows.insert_vacuumed(testbed, &dsn).await?;
    let mut drains = Vec::new();
    for first in (0..).step_by(size.intents as usize).take(size.rounds) {
        drains.push(drain(testbed, &dsn, first, size.intents, ROUTES).await?);
        testbed.checkpoint().await?;
    }
    Ok(drains)
}

/// A snapshot that is older than every row of the run prevents the removal of dead row versions.
async fn open_transaction(testbed: &mut Testbed, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents beside a transaction that stays open");
    let dsn = testbed.fresh().await?;
    let holder = testbed.postgres(&dsn).await?;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM routes")
        .await
        .context("could not open the transaction")?;
    let drain = drain(testbed, &dsn, 0, intents, ROUTES).await?;
    holder.batch_execute("COMMIT").await.context("the transaction did not stay open")?;
    Ok(drain)
}

/// Processes the intents from number `first` on. All of them are in the stream when the service starts.
pub(crate) async fn drain(
    testbed: &mut Testbed,
    dsn: &str,
    first: u32,
    intents: u32,
    routes: u32,
) -> anyhow::Result<Drain> {
    let mut redis = testbed.redis().await?;
    redis::cmd("XTRIM").arg(INTENTS).arg("MAXLEN").arg(0).query_async::<()>(&mut redis).await?;
    load::preload(&mut redis, first, intents, routes).await?;
    let (first_id, _) = ends(&mut redis).await?;
    let client = observer(testbed, dsn).await?;
    let (before, entries_before) = (published(&client).await?, entries(&mut redis).await?);
    let service = testbed.service(dsn).start().await;
    let (started, used) = (Instant::now(), testbed.cpu(service.pid()));
    wait_for_entries(&mut redis, entries_before + u64::from(intents * routes)).await?;
    let appended = started.elapsed();
    wait_until_none_live_from(&client, &first_id, POLL).await?;
    let (completed, cpu) = (started.elapsed(), testbed.cpu(service.pid()).since(used));
    testbed.stop(service).await;
    let done = published(&client).await? - before;
    ensure!(done == i64::from(intents * routes), "{done} routes were published, not {}", intents * routes);
    Ok(Drain { intents, routes, appended, completed, cpu })
}
