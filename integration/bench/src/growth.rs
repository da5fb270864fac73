//! What a database costs when it is no longer new: when the tables are full, and when nothing in it can be vacuumed.
//!
//! Every run is the service with its defaults, from its being ready, which includes being elected and the first read.
//! Processor time of PostgreSQL, with its background workers, of Redis and of the service counts. Empty tables are measured
//! before and after the full ones, and the open transaction in turn with none, so that a machine that grows slower is not
//! taken for a database that does; medians are compared.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::figure::{Figure, Section};
use crate::load::ROUTES;
use crate::measure::{Cpu, median};
use crate::rows::Rows;
use crate::watch::{POLL, ends, entries, observer, published, wait_for_entries, wait_until_none_live_from};
use crate::world::{INTENTS, World};
use crate::{Scale, load};

/// What processor time per intent may grow to in full tables, and beside a transaction that stays open.
const FULL_TABLES: f64 = 1.25;
const OPEN_TRANSACTION: f64 = 1.5;
/// The open transaction has this many times the intents to do harm in.
const LONG: u32 = 6;

/// How much of everything.
struct Size {
    intents: u32,
    /// Records in the full tables.
    records: u32,
    rounds: usize,
}

impl Size {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { intents: 500, records: 10_000, rounds: 1 }
        } else {
            Self { intents: 20_000, records: 1_000_000, rounds: 3 }
        }
    }
}

/// One run over intents that all wait in the stream.
pub(crate) struct Drain {
    intents: u32,
    /// Until the last entry was appended, and until the last route was completed.
    appended: Duration,
    completed: Duration,
    cpu: Cpu,
}

impl Drain {
    fn cpu_per_intent(&self) -> f64 {
        (self.cpu.postgres + self.cpu.redis + self.cpu.own) as f64 / f64::from(self.intents)
    }

    pub(crate) fn routes_per_second(&self) -> f64 {
        f64::from(self.intents * ROUTES) / self.appended.as_secs_f64()
    }

    pub(crate) fn intents_per_second(&self) -> f64 {
        f64::from(self.intents) / self.completed.as_secs_f64()
    }
}

/// All of it.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let size = Size::of(scale);
    let mut empty = vec![empty_tables(world, size.intents).await?];
    let full = full_tables(world, &size).await?;
    while empty.len() < size.rounds {
        empty.push(empty_tables(world, size.intents).await?);
    }
    let (mut plain, mut held) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        plain.push(empty_tables(world, size.intents * LONG).await?);
        held.push(open_transaction(world, size.intents * LONG).await?);
    }
    let full_name = format!("{} records of {ROUTES} published routes", size.records);
    let mut figures = compared(("empty tables", &empty), (&full_name, &full), FULL_TABLES).to_vec();
    let long = |with: &str| format!("{} intents, {with} open transaction", size.intents * LONG);
    figures.extend(compared((&long("no"), &plain), (&long("an"), &held), OPEN_TRANSACTION));
    let title = "Growth: what a database that is no longer new costs".to_owned();
    Ok(Section { title, figures, charts: Vec::new() })
}

/// Processor time of plain runs and of others, and how many times as much the others may take.
fn compared(plain: (&str, &[Drain]), other: (&str, &[Drain]), bound: f64) -> [Figure; 3] {
    let cpu = |(name, drains): (&str, &[Drain])| {
        let each = || drains.iter().map(Drain::cpu_per_intent);
        Figure::shown(format!("CPU per intent, {name}"), median(each()), "µs").of_rounds(each())
    };
    let (before, after) = (cpu(plain), cpu(other));
    let times = Figure::shown(format!("{}, to {}", other.0, plain.0), after.value / before.value, "x");
    [before, after, times.at_most(bound)]
}

pub(crate) async fn empty_tables(world: &mut World, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents into empty tables");
    let dsn = world.fresh().await?;
    drain(world, &dsn, 0, intents).await
}

/// Several runs, one after the other, into the same tables.
async fn full_tables(world: &mut World, size: &Size) -> anyhow::Result<Vec<Drain>> {
    println!("growth: {} intents into tables with {} records", size.intents, size.records);
    let dsn = world.fresh().await?;
    let rows = Rows { records: size.records, age: "1 day", due: false };
    rows.insert_settled(world, &dsn).await?;
    let mut drains = Vec::new();
    for first in (0..).step_by(size.intents as usize).take(size.rounds) {
        drains.push(drain(world, &dsn, first, size.intents).await?);
        world.checkpoint().await?;
    }
    Ok(drains)
}

/// A snapshot that is older than every row of the run keeps each dead version of a route where it is.
async fn open_transaction(world: &mut World, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents beside a transaction that stays open");
    let dsn = world.fresh().await?;
    let holder = world.postgres(&dsn).await?;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM routes")
        .await
        .context("could not open the transaction")?;
    let drain = drain(world, &dsn, 0, intents).await?;
    holder.batch_execute("COMMIT").await.context("the transaction did not stay open")?;
    Ok(drain)
}

/// Brings intents from number `first` on through, all of which are in the stream when the service starts.
async fn drain(world: &mut World, dsn: &str, first: u32, intents: u32) -> anyhow::Result<Drain> {
    let mut redis = world.redis().await?;
    redis::cmd("XTRIM").arg(INTENTS).arg("MAXLEN").arg(0).query_async::<()>(&mut redis).await?;
    load::preload(&mut redis, first, intents, ROUTES).await?;
    let (first_id, _) = ends(&mut redis).await?;
    let client = observer(world, dsn).await?;
    let (before, entries_before) = (published(&client).await?, entries(&mut redis).await?);
    let service = world.service(dsn).start().await;
    let (started, used) = (Instant::now(), world.cpu(service.pid()));
    wait_for_entries(&mut redis, entries_before + u64::from(intents * ROUTES)).await?;
    let appended = started.elapsed();
    wait_until_none_live_from(&client, &first_id, POLL).await?;
    let (completed, cpu) = (started.elapsed(), world.cpu(service.pid()).since(used));
    world.stop(service).await;
    let done = published(&client).await? - before;
    ensure!(done == i64::from(intents * ROUTES), "{done} routes were published, not {}", intents * ROUTES);
    Ok(Drain { intents, appended, completed, cpu })
}
