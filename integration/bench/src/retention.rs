//! The cost of retention for concurrent traffic.
//!
//! Both kinds of run have the same old rows, and the same intents arrive at the same steady rate. With the
//! default retention, the pass that starts with the service deletes the rows while the intents arrive; the
//! producer continues until the pass is over, so that all of the deletion happens during traffic. In the
//! other run, retention keeps the rows.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::Service;

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::latency::{Percentiles, steady};
use crate::load::{ROUTES, Steady};
use crate::measure::median;
use crate::rows::{RouteState, Rows};
use crate::testbed::Testbed;

/// The highest accepted ratio of p99 during retention to p99 without.
const P99_GROWTH: f64 = 2.0;
/// The longest accepted DELETE, in milliseconds.
const LONGEST_CHUNK_MILLIS: f64 = 500.0;

/// The time limit of a pass, in seconds.
const BOUND: u32 = 180;
const REMOVED: &str = "retention removed old rows";
/// One day more than the default retention.
const AGE: &str = "31 days";
/// A retention that keeps the rows.
const KEEP: &str = "8760h";

/// The amounts of one run.
struct RetentionSize {
    records: u32,
    rate: u32,
    /// The minimum duration of a run.
    seconds: u32,
    /// Several, because p99 varies between runs.
    rounds: usize,
}

impl RetentionSize {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { records: 4_000, rate: 100, seconds: 3, rounds: 1 }
        } else {
            Self { records: 200_000, rate: 500, seconds: 20, rounds: 3 }
        }
    }
}

/// The pass, as the log reports it.
struct LoggedPass {
    time: Duration,
    records: u64,
    longest_chunk_ms: f64,
}

/// Measures alternating runs with and without retention, and compares the medians.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = RetentionSize::of(scale);
    let (mut with, mut without, mut passes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (percentiles, intents, pass) = beside_pass(testbed, &size).await?;
        ensure!(pass.records == u64::from(size.records), "the pass removed only {} records", pass.records);
        with.push(percentiles);
        passes.push(pass);
        without.push(without_pass(testbed, &size, intents).await?);
    }
    let shown = |name: &str, rounds: &[Percentiles], of: fn(&Percentiles) -> f64| {
        Figure::shown(name, median(rounds.iter().map(of)), "ms").of_rounds(rounds.iter().map(of))
    };
    let p99 = shown("no retention, p99", &without, |percentiles| percentiles.p99);
    let p99_beside = shown("beside retention, p99", &with, |percentiles| percentiles.p99);
    let each = with.iter().zip(&without).map(|(with, without)| with.p99 / without.p99);
    let longest_chunk_ms = passes.iter().map(|pass| pass.longest_chunk_ms).fold(0.0, f64::max);
    let times = || passes.iter().map(|pass| pass.time.as_secs_f64());
    let figures = vec![
        shown("no retention, p50", &without, |percentiles| percentiles.p50),
        shown("beside retention, p50", &with, |percentiles| percentiles.p50),
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
         sees it, {} alternating round(s), medians",
        size.records,
        size.records * ROUTES,
        size.rate,
        size.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// Sends intents until the pass is over. Also returns the number of intents.
async fn beside_pass(
    testbed: &mut Testbed,
    size: &RetentionSize,
) -> anyhow::Result<(Percentiles, u32, LoggedPass)> {
    println!("retention: {} old records are deleted beside {} intents/s", size.records, size.rate);
    let dsn = loaded(testbed, size).await?;
    let service = testbed.service(&dsn).env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    let started = Instant::now();
    let mut pass = None;
    let load = Steady { first: 0, routes: ROUTES, rate: size.rate, most: size.rate * BOUND };
    let (percentiles, sent) = steady(testbed, load, |sent| {
        if pass.is_none() && sent % (size.rate / 10).max(1) == 0 {
            pass = logged(&service, started.elapsed());
        }
        pass.is_none() || sent < size.rate * size.seconds
    })
    .await?;
    testbed.stop(service).await;
    let pass = pass.with_context(|| format!("the pass was not over after {BOUND} s"))?;
    Ok((percentiles, sent, pass))
}

async fn without_pass(
    testbed: &mut Testbed,
    size: &RetentionSize,
    intents: u32,
) -> anyhow::Result<Percentiles> {
    println!("retention: {} old records are kept beside {} intents/s", size.records, size.rate);
    let dsn = loaded(testbed, size).await?;
    let service = testbed
        .service(&dsn)
        .env("NOTIFICATION_CLEANUP_INTERVAL", "1s")
        .env("NOTIFICATION_RECORD_RETENTION", KEEP)
        .start()
        .await;
    let (percentiles, _) =
        steady(testbed, Steady { first: 0, routes: ROUTES, rate: size.rate, most: intents }, |_| true)
            .await?;
    ensure!(service.logged(REMOVED).is_none(), "retention deleted rows in the run without retention");
    testbed.stop(service).await;
    Ok(percentiles)
}

async fn loaded(testbed: &mut Testbed, size: &RetentionSize) -> anyhow::Result<String> {
    let dsn = testbed.fresh().await?;
    Rows { records: size.records, age: AGE, state: RouteState::Published }
        .insert_vacuumed(testbed, &dsn)
        .await?;
    Ok(dsn)
}

/// The pass, if it is over.
fn logged(service: &Service, time: Duration) -> Option<LoggedPass> {
    let line = service.logged(REMOVED)?;
    Some(LoggedPass {
        time,
        records: line["records"].as_u64()?,
        longest_chunk_ms: line["longest_chunk_ms"].as_f64()?,
    })
}
