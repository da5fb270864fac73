//! What a backlog costs: how fast overdue routes are appended, and what fresh intents lose beside them.
//!
//! Two kinds of run, each of the service with its defaults, from its being ready, on a database whose planner knows nothing
//! of the overdue routes. The long backlog is held against short ones, which are the same work; the fresh intents against
//! runs on empty tables; before and after.

use std::time::Instant;

use crate::figure::{Figure, Section};
use crate::growth::{Drain, empty_tables};
use crate::load::ROUTES;
use crate::measure::median;
use crate::rows::Rows;
use crate::watch::{
    COARSE_POLL, ends, entries, observer, wait_for_entries, wait_for_intake, wait_until_none_live,
    wait_until_none_live_from,
};
use crate::world::World;
use crate::{Scale, load};

/// What must be left of the rate for overdue routes, and of the rate for fresh intents beside them.
const BACKLOG_RATE: f64 = 0.8;
const FRESH_RATE: f64 = 0.6;

/// How much of everything.
struct Size {
    intents: u32,
    /// Routes of a short backlog and of the long one.
    short: u32,
    long: u32,
}

/// Both.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let Size { intents, short, long } = if scale.smoke {
        Size { intents: 500, short: 1_000, long: 5_000 }
    } else {
        Size { intents: 20_000, short: 20_000, long: 500_000 }
    };
    let mut empty = vec![empty_tables(world, intents).await?];
    let mut shorts = vec![drain(world, short).await?];
    let drained = drain(world, long).await?;
    shorts.push(drain(world, short).await?);
    empty.push(empty_tables(world, intents).await?);
    let (fresh, left) = fresh_beside_backlog(world, intents, long).await?;
    empty.push(empty_tables(world, intents).await?);
    shorts.push(drain(world, short).await?);

    let of_empty = |name: String, unit: &'static str, of: fn(&Drain) -> f64| {
        Figure::shown(name, median(empty.iter().map(of)), unit).of_rounds(empty.iter().map(of))
    };
    let usual =
        Figure::shown(format!("{short} due routes appended"), median(shorts.iter().copied()), "routes/s")
            .of_rounds(shorts.iter().copied());
    let normal =
        of_empty("routes appended, from intent to entry".to_owned(), "routes/s", Drain::routes_per_second);
    let alone =
        of_empty(format!("{intents} fresh intents completed"), "intents/s", Drain::intents_per_second);
    let figures = vec![
        Figure::shown(format!("{long} due routes appended, statistics stale"), drained, "routes/s"),
        Figure::shown(format!("{long} due routes to {short}"), drained / usual.value, "x")
            .at_least(BACKLOG_RATE),
        Figure::shown(format!("{long} due routes to intent-to-entry"), drained / normal.value, "x")
            .at_least(BACKLOG_RATE),
        usual,
        normal,
        Figure::shown(
            format!("{intents} fresh intents completed beside {long} due routes"),
            fresh,
            "intents/s",
        ),
        Figure::shown("due routes still left by then", left, "routes"),
        Figure::shown("fresh intents, beside a backlog to without", fresh / alone.value, "x")
            .at_least(FRESH_RATE),
        alone,
    ];
    Ok(Section { title: format!("A backlog of {long} overdue routes"), figures, charts: Vec::new() })
}

/// How many overdue routes a second are appended when there is nothing else to do.
async fn drain(world: &mut World, due: u32) -> anyhow::Result<f64> {
    println!("backlog: {due} due routes");
    let dsn = overdue(world, due).await?;
    let mut redis = world.redis().await?;
    let service = world.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_entries(&mut redis, u64::from(due)).await?;
    let rate = f64::from(due) / started.elapsed().as_secs_f64();
    wait_until_none_live(&observer(world, &dsn).await?).await?;
    world.stop(service).await;
    Ok(rate)
}

/// How many fresh intents a second are completed while overdue routes are, too; and how many of these were left then.
async fn fresh_beside_backlog(world: &mut World, intents: u32, due: u32) -> anyhow::Result<(f64, f64)> {
    println!("backlog: {intents} intents beside {due} due routes");
    let dsn = overdue(world, due).await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, 0, intents, ROUTES).await?;
    let (first, last) = ends(&mut redis).await?;
    let client = observer(world, &dsn).await?;
    let service = world.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_intake(&client, &last).await?;
    wait_until_none_live_from(&client, &first, COARSE_POLL).await?;
    let rate = f64::from(intents) / started.elapsed().as_secs_f64();
    let left = (due + intents * ROUTES).saturating_sub(u32::try_from(entries(&mut redis).await?)?);
    world.stop(service).await;
    Ok((rate, f64::from(left)))
}

/// A new database with overdue routes of which the planner knows nothing.
async fn overdue(world: &mut World, due: u32) -> anyhow::Result<String> {
    let dsn = world.fresh().await?;
    let rows = Rows { records: due / ROUTES, age: "10 minutes", due: true };
    rows.insert_unnoticed(world, &dsn).await?;
    Ok(dsn)
}
