//! From a full intents stream to every entry appended and every route completed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::ceiling::Ceiling;
use crate::chart::{Bars, Chart};
use crate::figure::{Figure, Section};
use crate::growth::{drop_database, stop};
use crate::measure::{Cpu, median};
use crate::world::{MAIL, PUSH, World};
use crate::{Scale, load, naive};

/// The goals: percent of the ceiling, multiples of the naive form, microseconds.
const SHARE: f64 = 75.0;
const NAIVE_TIMES: f64 = 10.0;
const OWN_MICROS: f64 = 60.0;
const WHOLE_MICROS: f64 = 300.0;
/// Routes of an intent, of two users and of one.
const ROUTES: [u32; 2] = [load::ROUTES, 2];
/// How long a round may take.
const BOUND: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(10);

/// One round.
#[derive(Clone, Copy, Debug)]
struct Round {
    intents_per_second: f64,
    /// Microseconds for each intent.
    postgres: f64,
    redis: f64,
    own: f64,
}

impl Round {
    fn of(intents: u32, time: Duration, cpu: Cpu) -> Self {
        let each = |micros: u64| micros as f64 / f64::from(intents);
        Self {
            intents_per_second: f64::from(intents) / time.as_secs_f64(),
            postgres: each(cpu.postgres),
            redis: each(cpu.redis),
            own: each(cpu.own),
        }
    }

    /// The medians of several, each figure for itself.
    fn median(rounds: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(rounds.iter().map(value));
        Self {
            intents_per_second: of(|round| round.intents_per_second),
            postgres: of(|round| round.postgres),
            redis: of(|round| round.redis),
            own: of(|round| round.own),
        }
    }

    fn whole(&self) -> f64 {
        self.postgres + self.redis + self.own
    }
}

/// Ceiling and service in turn, with four routes and with two, then the naive form.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut figures = Vec::new();
    let mut bars = Vec::new();
    let mut of_service = None;
    for routes in ROUTES {
        let (ceiling, service) = in_turn(world, scale, routes).await?;
        for (name, round) in [("ceiling", ceiling), ("service", service)] {
            let name = format!("{name}, {routes} routes");
            // The goals of processor time are those of four routes.
            report(&mut figures, &name, &round, name == "service, 4 routes");
            bars.push((name, round));
        }
        let share = service.intents_per_second / ceiling.intents_per_second * 100.0;
        let name = format!("service, {routes} routes: share of the ceiling");
        figures.push(Figure::at_least(name, share, "%", SHARE));
        of_service = of_service.or(Some(service));
    }
    println!("throughput: the naive form");
    let naive = naive(world, scale).await?;
    report(&mut figures, "naive, 4 routes", &naive, false);
    let service = of_service.context("nothing was measured")?;
    let times = service.intents_per_second / naive.intents_per_second;
    figures.push(Figure::at_least("service, 4 routes: multiple of the naive form", times, "x", NAIVE_TIMES));
    bars.push(("naive, 4 routes".to_owned(), naive));
    let title = format!(
        "Throughput: {} intents waiting in the stream, {} for the naive form; {} round(s) in turn, medians",
        scale.intents, scale.naive_intents, scale.rounds
    );
    Ok(Section { title, figures, charts: charts(&bars) })
}

fn report(figures: &mut Vec<Figure>, name: &str, round: &Round, judged: bool) {
    let name = |what: &str| format!("{name}: {what}");
    figures.push(Figure::shown(name("throughput"), round.intents_per_second, "intents/s"));
    figures.push(Figure::shown(name("CPU of PostgreSQL"), round.postgres, "µs/intent"));
    figures.push(Figure::shown(name("CPU of Redis"), round.redis, "µs/intent"));
    if judged {
        figures.push(Figure::at_most(name("own CPU"), round.own, "µs/intent", OWN_MICROS));
        figures.push(Figure::at_most(name("CPU in all"), round.whole(), "µs/intent", WHOLE_MICROS));
    } else {
        figures.push(Figure::shown(name("own CPU"), round.own, "µs/intent"));
        figures.push(Figure::shown(name("CPU in all"), round.whole(), "µs/intent"));
    }
}

fn charts(rounds: &[(String, Round)]) -> Vec<Chart> {
    let bars = |of: fn(&Round) -> Vec<f64>| {
        rounds.iter().map(|(name, round)| (name.clone(), of(round))).collect::<Vec<_>>()
    };
    vec![
        Chart::Bars(Bars {
            file: "throughput",
            title: "Throughput",
            unit: "intents/s",
            parts: &["intents/s"],
            bars: bars(|round| vec![round.intents_per_second]),
        }),
        Chart::Bars(Bars {
            file: "cpu",
            title: "Processor time",
            unit: "µs/intent",
            parts: &["PostgreSQL", "Redis", "own"],
            // The naive form takes so much that nothing could be seen of the others.
            bars: bars(|round| vec![round.postgres, round.redis, round.own])
                .into_iter()
                .filter(|(name, _)| !name.starts_with("naive"))
                .collect(),
        }),
    ]
}

/// The medians of ceiling and service.
async fn in_turn(world: &mut World, scale: Scale, routes: u32) -> anyhow::Result<(Round, Round)> {
    let (mut ceilings, mut services) = (Vec::new(), Vec::new());
    for round in 1..=scale.rounds {
        println!(
            "throughput, {routes} routes, round {round} of {}: the ceiling, then the service",
            scale.rounds
        );
        ceilings.push(ceiling(world, scale.intents, routes).await?);
        let (time, used) = service(world, scale.intents, routes).await?;
        services.push(Round::of(scale.intents, time, used));
    }
    Ok((Round::median(&ceilings), Round::median(&services)))
}

/// One round of the service: its time and what it used.
pub(crate) async fn service(world: &mut World, intents: u32, routes: u32) -> anyhow::Result<(Duration, Cpu)> {
    let dsn = world.fresh().await?;
    load::preload_of(&mut world.redis().await?, intents, routes).await?;
    let done = drive(world, &dsn, intents, routes).await?;
    drop_database(world, &dsn).await?;
    Ok(done)
}

/// The service over a stream that is full: from its being ready, which includes being elected and the first read, to the
/// last completion.
pub(crate) async fn drive(
    world: &mut World,
    dsn: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<(Duration, Cpu)> {
    let mut redis = world.redis().await?;
    let client = world.postgres(dsn).await?;
    let service = world.service(dsn).start().await;
    let (started, before) = (Instant::now(), cpu(world, service.pid()));
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_until_none_live(&client).await?;
    let (time, used) = (started.elapsed(), cpu(world, service.pid()).since(before));
    // Counting reads every row, and is no part of what is measured; nor is it of the ceiling.
    confirm(&client, intents, routes).await?;
    stop(world, service).await;
    Ok((time, used))
}

/// The ceiling: from its first read to its last completion.
async fn ceiling(world: &mut World, intents: u32, routes: u32) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload_of(&mut redis, intents, routes).await?;
    let ceiling = Ceiling::connect(world, &dsn).await?;
    let own = std::process::id();
    let (started, before) = (Instant::now(), cpu(world, own));
    ceiling.run(intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, own).since(before));
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_for_completions(world, &dsn, intents, routes).await?;
    drop_database(world, &dsn).await?;
    Ok(Round::of(intents, time, used))
}

/// The naive form: from its first read to its last completion.
async fn naive(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    let intents = scale.naive_intents;
    load::preload(&mut redis, intents).await?;
    let own = std::process::id();
    let (started, before) = (Instant::now(), cpu(world, own));
    naive::run(world, &dsn, intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, own).since(before));
    wait_for_entries(&mut redis, u64::from(intents * load::ROUTES)).await?;
    wait_for_completions(world, &dsn, intents, load::ROUTES).await?;
    drop_database(world, &dsn).await?;
    Ok(Round::of(intents, time, used))
}

pub(crate) fn cpu(world: &World, own: u32) -> Cpu {
    Cpu::now(world.postgres.pid(), world.redis.pid(), own)
}

/// The lengths of the streams cost next to nothing to ask for.
pub(crate) async fn entries(redis: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let (push, mail): (u64, u64) =
        redis::pipe().cmd("XLEN").arg(PUSH).cmd("XLEN").arg(MAIL).query_async(redis).await?;
    Ok(push + mail)
}

/// Waits for that many entries and ends the run if there are more.
pub(crate) async fn wait_for_entries(redis: &mut MultiplexedConnection, expected: u64) -> anyhow::Result<()> {
    let there = at_least(redis, expected).await?;
    ensure!(there == expected, "{there} entries, not {expected}: something was appended twice");
    Ok(())
}

/// Waits for that many entries; how many there are then.
pub(crate) async fn at_least(redis: &mut MultiplexedConnection, expected: u64) -> anyhow::Result<u64> {
    let started = Instant::now();
    loop {
        let there = entries(redis).await?;
        if there >= expected {
            return Ok(there);
        }
        ensure!(started.elapsed() < BOUND, "{there} of {expected} entries after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) async fn wait_for_completions(
    world: &World,
    dsn: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<()> {
    let client = world.postgres(dsn).await?;
    wait_until_none_live(&client).await?;
    confirm(&client, intents, routes).await
}

pub(crate) async fn wait_until_none_live(client: &Client) -> anyhow::Result<()> {
    let started = Instant::now();
    // An index-only look: the partial index holds what is not completed.
    let live = "SELECT EXISTS (SELECT FROM routes WHERE next_attempt_at IS NOT NULL)";
    while client.query_one(live, &[]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// That every intent has its record and every route is published.
async fn confirm(client: &Client, intents: u32, routes: u32) -> anyhow::Result<()> {
    let row = client.query_one(
        "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM routes WHERE status = 'published')",
        &[],
    );
    let row = row.await.context("could not count")?;
    let (found, published) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
    ensure!(
        found == i64::from(intents) && published == found * i64::from(routes),
        "{found} records and {published} published routes"
    );
    Ok(())
}
