//! Throughput: from a stream with all intents to the last completion.

use std::time::{Duration, Instant};

use anyhow::Context;
use harness::ServiceBuilder;

use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::measure::Cpu;
use crate::round::{BenchRound, Rounds, Unit, costs, rates};
use crate::testbed::Testbed;
use crate::watch::{confirm, wait_for_completions, wait_for_entries, wait_until_none_live};
use crate::{Scale, load};

/// The goals: the lowest ratios to the baseline and to the naive implementation; the most processor time of
/// the service itself and in total for an intent of four routes, in microseconds.
const BASELINE_RATIO: f64 = 0.75;
const NAIVE_RATIO: f64 = 10.0;
const OWN_MICROS: f64 = 60.0;
const TOTAL_MICROS: f64 = 300.0;
/// Routes of an intent with two users, and with one.
const ROUTES: [u32; 2] = [load::ROUTES, 2];

/// Measures baseline and service in alternating rounds, with four routes and with two, then the naive
/// implementation.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let mut figures = Vec::new();
    let mut contenders = Vec::new();
    for routes in ROUTES {
        let (baseline, service) = alternate(testbed, scale, routes).await?;
        figures.push(baseline.speed("throughput"));
        figures.extend(baseline.cpu());
        figures.push(service.speed("throughput"));
        let cpu = service.cpu();
        if routes == load::ROUTES {
            let [postgres, redis, own, whole] = cpu;
            let [_, _, baseline_own, baseline_whole] = baseline.cpu();
            figures.extend([
                postgres,
                redis,
                own.at_most_or_near(OWN_MICROS, baseline_own.value),
                whole.at_most_or_near(TOTAL_MICROS, baseline_whole.value),
            ]);
        } else {
            figures.extend(cpu);
        }
        let name = format!("service, {routes} routes: ratio to the baseline");
        figures.push(service.times(name, &baseline).at_least(BASELINE_RATIO));
        contenders.extend([baseline, service]);
    }
    println!("throughput: the naive implementation");
    let mut naive = Rounds::new("naive, 4 routes", Unit::Intent);
    naive.push(run_contender(testbed, "naive", scale.naive_intents, load::ROUTES).await?);
    figures.push(naive.speed("throughput"));
    figures.extend(naive.cpu());
    let service = contenders.get(1).context("nothing was measured")?;
    let times = service.rate() / naive.rate();
    let name = "service, 4 routes: multiple of the naive implementation";
    figures.push(Figure::shown(name, times, "x").at_least(NAIVE_RATIO));
    // The processor time of the naive implementation is not charted: it would dwarf the others.
    let charts = vec![
        rates("throughput", "Throughput", contenders.iter().chain([&naive])),
        costs("cpu", "Processor time", &contenders),
    ];
    let title = format!(
        "Throughput: intents with {} routes in total in the stream, {} intents for the naive implementation; {} alternating round(s), medians",
        scale.intents * load::ROUTES,
        scale.naive_intents,
        scale.rounds
    );
    Ok(ReportSection { title, figures, charts })
}

/// Runs alternating rounds of the baseline and of the service.
async fn alternate(testbed: &mut Testbed, scale: Scale, routes: u32) -> anyhow::Result<(Rounds, Rounds)> {
    // The total number of routes is always the same, so that a start has the same weight.
    let intents = scale.intents * load::ROUTES / routes;
    let rounds = |name: &str| Rounds::new(format!("{name}, {routes} routes"), Unit::Intent);
    let (mut baseline, mut of_service) = (rounds("baseline"), rounds("service"));
    for round in 1..=scale.rounds {
        println!(
            "throughput, {routes} routes, round {round} of {}: the baseline, then the service",
            scale.rounds
        );
        baseline.push(run_contender(testbed, "baseline", intents, routes).await?);
        let (time, used) = service(testbed, intents, routes).await?;
        of_service.push(BenchRound::of(intents, time, used));
    }
    Ok((baseline, of_service))
}

/// One round of the service: its duration and the processor time used.
pub(crate) async fn service(
    testbed: &mut Testbed,
    intents: u32,
    routes: u32,
) -> anyhow::Result<(Duration, Cpu)> {
    let dsn = testbed.fresh().await?;
    load::preload(&mut testbed.redis().await?, 0, intents, routes).await?;
    drive(testbed, &dsn, intents, routes).await
}

/// Runs the service over a stream that contains all intents, and measures from when it is ready to the last
/// completion. Election and the first read are included.
pub(crate) async fn drive(
    testbed: &mut Testbed,
    dsn: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<(Duration, Cpu)> {
    let service = testbed.service(dsn);
    drive_service(testbed, service, dsn, intents, routes).await
}

/// As [`drive`], with another configuration of the service.
pub(crate) async fn drive_service(
    testbed: &mut Testbed,
    service: ServiceBuilder,
    dsn: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<(Duration, Cpu)> {
    let mut redis = testbed.redis().await?;
    let client = testbed.postgres(dsn).await?;
    let service = service.start().await;
    let (started, before) = (Instant::now(), testbed.cpu(service.pid()));
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_until_none_live(&client).await?;
    let (time, used) = (started.elapsed(), testbed.cpu(service.pid()).since(before));
    // Counting reads every row, so it is not measured, here or for the baseline.
    confirm(&client, intents, routes).await?;
    testbed.stop(service).await;
    Ok((time, used))
}

/// One round of the baseline or of the naive implementation, from its first read to its last completion.
async fn run_contender(
    testbed: &mut Testbed,
    name: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<BenchRound> {
    let dsn = testbed.fresh().await?;
    let mut redis = testbed.redis().await?;
    load::preload(&mut redis, 0, intents, routes).await?;
    let mut contender = Contender::own(testbed, name, &dsn, intents).await?;
    let (time, used) = contender.step(testbed, "run", "done").await?;
    contender.end().await?;
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_for_completions(testbed, &dsn, intents, routes).await?;
    Ok(BenchRound::of(intents, time, used))
}
