//! The cost of held routes for concurrent traffic: a million that are kept, and the same while they are
//! released.
//!
//! Every run has the same old rows, and the same intents arrive at the same steady rate. In one kind of run
//! the old routes are published; in the other a hold keeps them, and is then released while as many intents
//! arrive again. The released routes must go out in the order in which they were due.

use std::time::Instant;

use anyhow::{Context, ensure};
use redis::streams::StreamRangeReply;

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::latency::{Percentiles, observed, steady};
use crate::load::{ROUTES, Steady};
use crate::measure::median;
use crate::rows::{OLD_REQUEST, RouteState, Rows};
use crate::testbed::{PUSH, Testbed};

/// The highest accepted ratio of p99 beside held routes to p99 without.
const P99_GROWTH: f64 = 1.2;
/// The most places by which a released route may be ahead of one that was due before it: four chunks of a
/// release, which several publishers may have at the same time.
const MAX_OUT_OF_ORDER: i64 = 2_000;
/// More than the interval at which a replica looks for released holds.
const LOOK_SECONDS: u32 = 8;
/// Entries that are read from a stream at a time.
const PAGE: usize = 10_000;

/// The amounts of one run.
struct HoldsSize {
    records: u32,
    rate: u32,
    seconds: u32,
    rounds: usize,
}

impl HoldsSize {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { records: 2_000, rate: 100, seconds: 2, rounds: 1 }
        } else {
            Self { records: 250_000, rate: 500, seconds: 20, rounds: 3 }
        }
    }

    fn held(&self) -> u32 {
        self.records * ROUTES
    }

    fn load(&self) -> Steady {
        Steady { first: 0, routes: ROUTES, rate: self.rate, most: self.rate * self.seconds }
    }
}

/// The results of one run with held routes.
struct HeldRun {
    beside_held: Percentiles,
    beside_release: Percentiles,
    /// The rate at which held routes become due while intents arrive.
    routes_per_second: f64,
}

/// Measures alternating runs with and without held routes, and compares the medians.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = HoldsSize::of(scale);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=size.rounds {
        println!("holds: {} held routes, round {round} of {}", size.held(), size.rounds);
        without.push(without_hold(testbed, &size).await?);
        with.push(with_hold(testbed, &size).await?);
    }
    let p99 = |name: &str, values: Vec<f64>| {
        Figure::shown(name, median(values.iter().copied()), "ms").of_rounds(values)
    };
    let alone = p99("without held routes, p99", without.iter().map(|round| round.p99).collect());
    let held = p99("beside held routes, p99", with.iter().map(|round| round.beside_held.p99).collect());
    let released =
        p99("beside the release, p99", with.iter().map(|round| round.beside_release.p99).collect());
    let each = with.iter().zip(&without).map(|(with, without)| with.beside_held.p99 / without.p99);
    let rates = || with.iter().map(|round| round.routes_per_second);
    let figures = vec![
        Figure::shown("p99 beside held routes to without", held.value / alone.value, "x")
            .of_rounds(each)
            .at_most(P99_GROWTH),
        alone,
        held,
        released,
        Figure::shown("held routes released beside intents", median(rates()), "routes/s").of_rounds(rates()),
    ];
    let title = format!(
        "{} held routes beside {} intents/s: from XADD to the last of four entries as a blocked reader sees it, {} alternating \
         round(s), medians",
        size.held(),
        size.rate,
        size.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

async fn without_hold(testbed: &mut Testbed, size: &HoldsSize) -> anyhow::Result<Percentiles> {
    let dsn = loaded(testbed, size, RouteState::Published).await?;
    let service = testbed.service(&dsn).start().await;
    let (percentiles, _) = steady(testbed, size.load(), |_| true).await?;
    testbed.stop(service).await;
    Ok(percentiles)
}

async fn with_hold(testbed: &mut Testbed, size: &HoldsSize) -> anyhow::Result<HeldRun> {
    let dsn = loaded(testbed, size, RouteState::Held).await?;
    let service = testbed.service(&dsn).start().await;
    let (beside_held, sent) = steady(testbed, size.load(), |_| true).await?;

    testbed
        .postgres(&dsn)
        .await?
        .execute("UPDATE holds SET released_at = now()", &[])
        .await
        .context("could not release")?;
    let released = Instant::now();
    let load = Steady { first: sent, most: size.rate * (size.seconds + LOOK_SECONDS), ..size.load() };
    let sending = load.send(testbed.redis().await?, |_| true);
    let (beside_release, _) = observed(testbed, ROUTES, sending).await?;
    let left = testbed.postgres(&dsn).await?.query_one("SELECT count(*) FROM held_routes", &[]).await?;
    let routes = i64::from(size.held()) - left.get::<_, i64>(0);
    ensure!(routes > 0, "no route was released");
    let routes_per_second = routes as f64 / released.elapsed().as_secs_f64();
    check_order(testbed).await?;
    testbed.stop(service).await;
    Ok(HeldRun { beside_held, beside_release, routes_per_second })
}

async fn loaded(testbed: &mut Testbed, size: &HoldsSize, state: RouteState) -> anyhow::Result<String> {
    let dsn = testbed.fresh().await?;
    Rows { records: size.records, age: "1 hour", state }.insert_vacuumed(testbed, &dsn).await?;
    Ok(dsn)
}

/// Reads the push entries of held routes, whose ids rise with the time at which they were due, and compares
/// their order with it.
async fn check_order(testbed: &Testbed) -> anyhow::Result<()> {
    let mut redis = testbed.redis().await?;
    let (mut ids, mut after): (Vec<i64>, String) = (Vec::new(), "-".to_owned());
    loop {
        let mut command = redis::cmd("XRANGE");
        command.arg(PUSH).arg(&after).arg("+").arg("COUNT").arg(PAGE);
        let page: StreamRangeReply = command.query_async(&mut redis).await?;
        let Some(last) = page.ids.last() else { break };
        after = format!("({}", last.id);
        for entry in &page.ids {
            let id: String = entry.get("notification_id").context("an entry without its id")?;
            let request: Option<String> = entry.get("request_id");
            if request.is_some_and(|request| request.starts_with(OLD_REQUEST)) {
                ids.push(id.trim_end_matches("-0").parse()?);
            }
        }
    }
    ensure!(!ids.is_empty(), "no entry of a held route");
    // Two routes of each record are pushed.
    let first = ids.iter().min().copied().unwrap_or_default();
    let ahead = |(place, id): (usize, &i64)| (2 * (id - first) - place as i64).abs();
    let most = ids.iter().enumerate().map(ahead).max().unwrap_or_default();
    ensure!(most <= MAX_OUT_OF_ORDER, "a released route is {most} places from where it was due");
    Ok(())
}
