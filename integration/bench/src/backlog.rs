//! What a backlog costs: how fast overdue routes are appended, and what fresh intents lose beside them.
//!
//! Two runs, each of the service with its defaults, from its being ready, on a database whose planner knows nothing of
//! the overdue routes. They are held against runs on empty tables before and after them.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio_postgres::Client;

use crate::figure::{Figure, Section};
use crate::growth::{
    BOUND, POLL, ROUTES, Rows, checkpoint, drop_database, empty_tables, ends, has_live, insert, is_smoke,
    observer, published, stop,
};
use crate::measure::median;
use crate::throughput::{entries, wait_for_entries};
use crate::world::World;
use crate::{Scale, load};

/// What must be left of the rate for overdue routes, and of the rate for fresh intents beside them.
const BACKLOG_RATE: f64 = 0.8;
const FRESH_RATE: f64 = 0.6;
/// Between two looks that may have to read every fresh route.
const COARSE_POLL: Duration = Duration::from_millis(50);

/// Both.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let (intents, due) = if is_smoke(scale) { (1_000, 5_000) } else { (20_000, 500_000) };
    let mut empty = vec![empty_tables(world, intents).await?];
    let drained = drain(world, due).await?;
    empty.push(empty_tables(world, intents).await?);
    let (fresh, left) = fresh_beside_backlog(world, intents, due).await?;
    empty.push(empty_tables(world, intents).await?);

    let routes = median(empty.iter().map(|run| run.routes_per_second()));
    let alone = median(empty.iter().map(|run| run.intents_per_second()));
    let figures = vec![
        Figure::shown("routes appended, empty tables, from intent to entry", routes, "routes/s"),
        Figure::shown(format!("{due} due routes appended, statistics stale"), drained, "routes/s"),
        Figure::at_least("rate of the backlog to intent-to-entry", drained / routes, "x", BACKLOG_RATE),
        Figure::shown("fresh intents completed, empty tables", alone, "intents/s"),
        Figure::shown(format!("fresh intents completed beside {due} due routes"), fresh, "intents/s"),
        Figure::shown("due routes still left by then", left, "routes"),
        Figure::at_least(
            "rate of fresh intents, beside a backlog to without",
            fresh / alone,
            "x",
            FRESH_RATE,
        ),
    ];
    Ok(Section { title: format!("A backlog of {due} overdue routes"), figures, charts: Vec::new() })
}

/// How many overdue routes a second are appended when there is nothing else to do.
async fn drain(world: &mut World, due: u32) -> anyhow::Result<f64> {
    println!("growth: {due} due routes");
    let dsn = overdue(world, due).await?;
    let mut redis = world.redis().await?;
    let service = world.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_entries(&mut redis, u64::from(due)).await?;
    let rate = f64::from(due) / started.elapsed().as_secs_f64();
    wait_for_published(&world.postgres(&dsn).await?, due).await?;
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    Ok(rate)
}

/// How many fresh intents a second are completed while overdue routes are, too; and how many of these were left then.
async fn fresh_beside_backlog(world: &mut World, intents: u32, due: u32) -> anyhow::Result<(f64, f64)> {
    println!("growth: {} intents beside {} due routes", intents, due);
    let dsn = overdue(world, due).await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, intents).await?;
    let (first, last) = ends(&mut redis).await?;
    let client = observer(world, &dsn).await?;
    let service = world.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_intake(&client, &last).await?;
    while has_live(&client, &first).await? {
        ensure!(started.elapsed() < BOUND, "fresh routes are not completed after {BOUND:?}");
        tokio::time::sleep(COARSE_POLL).await;
    }
    let rate = f64::from(intents) / started.elapsed().as_secs_f64();
    let left = (due + intents * ROUTES).saturating_sub(u32::try_from(entries(&mut redis).await?)?);
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    Ok((rate, f64::from(left)))
}

/// A new database with overdue routes of which the planner knows nothing.
async fn overdue(world: &mut World, due: u32) -> anyhow::Result<String> {
    let dsn = world.fresh().await?;
    let client = world.postgres(&dsn).await?;
    client
        .batch_execute(
            "ALTER TABLE records SET (autovacuum_enabled = off); ALTER TABLE routes SET (autovacuum_enabled = off);
             ANALYZE records; ANALYZE routes",
        )
        .await
        .context("could not keep the statistics stale")?;
    insert(world, &dsn, &Rows { records: due / ROUTES, age: "10 minutes", due: true }).await?;
    checkpoint(world, &dsn).await?;
    Ok(dsn)
}

async fn wait_for_intake(client: &Client, last: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    let passed = "SELECT EXISTS (SELECT FROM intake WHERE last_entry_id = $1)";
    while !client.query_one(passed, &[&last]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "intents are not accepted after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The backlog is complete when its last entry is: completions are a chunk behind.
async fn wait_for_published(client: &Client, routes: u32) -> anyhow::Result<()> {
    let started = Instant::now();
    while published(client).await? < i64::from(routes) {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(COARSE_POLL).await;
    }
    Ok(())
}
