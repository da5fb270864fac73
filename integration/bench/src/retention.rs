//! What deleting old rows costs the traffic beside it.
//!
//! The same rows are there both times, and the same intents come at the same steady rate. With the default retention the
//! rows are too old, and the pass that begins when the service starts deletes them while the intents come; the producer
//! goes on until the pass is over, so that it is at work beside all of them. The run without keeps the rows.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::Service;

use crate::Scale;
use crate::figure::{Figure, Section};
use crate::latency::{Spread, steady};
use crate::load::{ROUTES, Steady};
use crate::measure::median;
use crate::rows::Rows;
use crate::world::World;

/// How much slower the slowest hundredth may become.
const P99_GROWTH: f64 = 2.0;
/// The longest that one DELETE may take.
const LONGEST_CHUNK_MILLIS: f64 = 500.0;

/// How long a pass may take, in seconds.
const BOUND: u32 = 180;
const REMOVED: &str = "retention removed old rows";
/// A day more than the default retention.
const AGE: &str = "31 days";
/// A retention for which the rows are too young.
const KEEP: &str = "8760h";

/// How much of everything.
struct Size {
    records: u32,
    rate: u32,
    /// The least that a run lasts.
    seconds: u32,
    /// The slowest hundredth of one run is a matter of luck.
    rounds: usize,
}

impl Size {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { records: 4_000, rate: 100, seconds: 3, rounds: 1 }
        } else {
            Self { records: 200_000, rate: 500, seconds: 20, rounds: 3 }
        }
    }
}

/// What the log says about the pass.
struct Pass {
    time: Duration,
    records: u64,
    longest_chunk_ms: f64,
}

/// Both runs in turn, and the medians.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let size = Size::of(scale);
    let (mut with, mut without, mut passes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (spread, intents, pass) = beside_pass(world, &size).await?;
        ensure!(pass.records == u64::from(size.records), "the pass left some: it removed {}", pass.records);
        with.push(spread);
        passes.push(pass);
        without.push(without_pass(world, &size, intents).await?);
    }
    let shown = |name: &str, rounds: &[Spread], of: fn(&Spread) -> f64| {
        Figure::shown(name, median(rounds.iter().map(of)), "ms").of_rounds(rounds.iter().map(of))
    };
    let p99 = shown("no retention, p99", &without, |spread| spread.p99);
    let p99_beside = shown("beside retention, p99", &with, |spread| spread.p99);
    let each = with.iter().zip(&without).map(|(with, without)| with.p99 / without.p99);
    let longest_chunk_ms = passes.iter().map(|pass| pass.longest_chunk_ms).fold(0.0, f64::max);
    let times = || passes.iter().map(|pass| pass.time.as_secs_f64());
    let figures = vec![
        shown("no retention, p50", &without, |spread| spread.p50),
        shown("beside retention, p50", &with, |spread| spread.p50),
        Figure::shown("p99 beside retention to without", p99_beside.value / p99.value, "x")
            .of_rounds(each)
            .at_most(P99_GROWTH),
        p99,
        p99_beside,
        Figure::shown("longest DELETE of all passes", longest_chunk_ms, "ms").at_most(LONGEST_CHUNK_MILLIS),
        Figure::shown("a pass", median(times()), "s").of_rounds(times()),
    ];
    let title = format!(
        "Retention of {} records with {} routes beside {} intents/s: from XADD to the last of four entries as a blocked reader \
         sees it, {} round(s) in turn, medians",
        size.records,
        size.records * ROUTES,
        size.rate,
        size.rounds
    );
    Ok(Section { title, figures, charts: Vec::new() })
}

/// Intents come until the pass is over. Also gives how many that were.
async fn beside_pass(world: &mut World, size: &Size) -> anyhow::Result<(Spread, u32, Pass)> {
    println!("retention: {} old records go beside {} intents/s", size.records, size.rate);
    let dsn = loaded(world, size).await?;
    let service = world.service(&dsn).env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    let started = Instant::now();
    let mut pass = None;
    let load = Steady { rate: size.rate, most: size.rate * BOUND };
    let (spread, sent) = steady(world, load, |sent| {
        if pass.is_none() && sent % (size.rate / 10).max(1) == 0 {
            pass = logged(&service, started.elapsed());
        }
        pass.is_none() || sent < size.rate * size.seconds
    })
    .await?;
    world.stop(service).await;
    let pass = pass.with_context(|| format!("the pass was not over after {BOUND} s"))?;
    Ok((spread, sent, pass))
}

async fn without_pass(world: &mut World, size: &Size, intents: u32) -> anyhow::Result<Spread> {
    println!("retention: {} old records stay beside {} intents/s", size.records, size.rate);
    let dsn = loaded(world, size).await?;
    let service = world
        .service(&dsn)
        .env("NOTIFICATION_CLEANUP_INTERVAL", "1s")
        .env("NOTIFICATION_RECORD_RETENTION", KEEP)
        .start()
        .await;
    let (spread, _) = steady(world, Steady { rate: size.rate, most: intents }, |_| true).await?;
    ensure!(service.logged(REMOVED).is_none(), "retention was at work in the run without");
    world.stop(service).await;
    Ok(spread)
}

async fn loaded(world: &mut World, size: &Size) -> anyhow::Result<String> {
    let dsn = world.fresh().await?;
    Rows { records: size.records, age: AGE, due: false }.insert_settled(world, &dsn).await?;
    Ok(dsn)
}

/// The pass, once it is over.
fn logged(service: &Service, time: Duration) -> Option<Pass> {
    let line = service.logged(REMOVED)?;
    Some(Pass {
        time,
        records: line["records"].as_u64()?,
        longest_chunk_ms: line["longest_chunk_ms"].as_f64()?,
    })
}
