//! The cost of a backlog: the rate at which overdue routes are appended, and the slowdown of fresh intents
//! processed at the same time.
//!
//! Each run starts the service with its defaults on a database whose statistics do not include the overdue
//! routes, and begins when the service is ready. The long backlog is compared with short ones, which are the
//! same work for each route. Fresh intents beside the backlog are compared with runs on empty tables, before
//! and after.

use std::time::Instant;

use crate::figure::{Figure, ReportSection};
use crate::growth::{Drain, empty_tables};
use crate::load::ROUTES;
use crate::measure::median;
use crate::rows::{RouteState, Rows};
use crate::testbed::Testbed;
use crate::watch::{
    COARSE_POLL, ends, entries, observer, wait_for_entries, wait_for_intake, wait_until_none_live,
    wait_until_none_live_from,
};
use crate::{Scale, load};

/// The lowest accepted ratio of the rates for overdue routes, and of those for fresh intents beside them.
const BACKLOG_RATE: f64 = 0.8;
const FRESH_RATE: f64 = 0.6;

/// The amounts of one run.
struct BacklogSize {
    intents: u32,
    /// Routes in a short backlog and in the long one.
    short: u32,
    long: u32,
}

/// Measures the rate of overdue routes and that of fresh intents beside them.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let BacklogSize { intents, short, long } = if scale.smoke {
        BacklogSize { intents: 500, short: 1_000, long: 5_000 }
    } else {
        BacklogSize { intents: 20_000, short: 20_000, long: 500_000 }
    };
    let mut empty = vec![empty_tables(testbed, intents).await?];
    let mut shorts = vec![drain(testbed, short).await?];
    let drained = drain(testbed, long).await?;
    shorts.push(drain(testbed, short).await?);
    empty.push(empty_tables(testbed, intents).await?);
    let (fresh, left) = fresh_beside_backlog(testbed, intents, long).await?;
    empty.push(empty_tables(testbed, intents).await?);
    shorts.push(drain(testbed, short).await?);

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
        Figure::shown("due routes not yet published by then", left, "routes"),
        Figure::shown("fresh intents, beside a backlog to without", fresh / alone.value, "x")
            .at_least(FRESH_RATE),
        alone,
    ];
    Ok(ReportSection { title: format!("A backlog of {long} overdue routes"), figures, charts: Vec::new() })
}

/// The rate at which overdue routes are appended when there is no other work.
async fn drain(testbed: &mut Testbed, due: u32) -> anyhow::Result<f64> {
    println!("backlog: {due} due routes");
    let dsn = overdue(testbed, due).await?;
    let mut redis = testbed.redis().await?;
    let service = testbed.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_entries(&mut redis, u64::from(due)).await?;
    let rate = f64::from(due) / started.elapsed().as_secs_f64();
    wait_until_none_live(&observer(testbed, &dsn).await?).await?;
    testbed.stop(service).await;
    Ok(rate)
}

/// The rate at which fresh intents are completed while overdue routes are published as well, and how many
/// overdue routes are not published by then.
async fn fresh_beside_backlog(testbed: &mut Testbed, intents: u32, due: u32) -> anyhow::Result<(f64, f64)> {
    println!("backlog: {intents} intents beside {due} due routes");
    let dsn = overdue(testbed, due).await?;
    let mut redis = testbed.redis().await?;
    load::preload(&mut redis, 0, intents, ROUTES).await?;
    let (first, last) = ends(&mut redis).await?;
    let client = observer(testbed, &dsn).await?;
    let service = testbed.service(&dsn).start().await;
    let started = Instant::now();
    wait_for_intake(&client, &last).await?;
    wait_until_none_live_from(&client, &first, COARSE_POLL).await?;
    let rate = f64::from(intents) / started.elapsed().as_secs_f64();
    let left = (due + intents * ROUTES).saturating_sub(u32::try_from(entries(&mut redis).await?)?);
    testbed.stop(service).await;
    Ok((rate, f64::from(left)))
}

/// A new database with overdue routes that its statistics do not include.
async fn overdue(testbed: &mut Testbed, due: u32) -> anyhow::Result<String> {
    let dsn = testbed.fresh().await?;
    let rows = Rows { records: due / ROUTES, age: "10 minutes", state: RouteState::Due };
    rows.insert_without_statistics(testbed, &dsn).await?;
    Ok(dsn)
}
