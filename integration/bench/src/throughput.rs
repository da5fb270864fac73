//! From a full intents stream to every entry appended and every route completed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;

use crate::figure::{Figure, Section};
use crate::measure::{Cpu, median};
use crate::world::{MAIL, PUSH, World};
use crate::{Scale, ceiling, load, naive};

/// The goals: percent of the ceiling, multiples of the naive form, microseconds.
const SHARE: f64 = 75.0;
const NAIVE_TIMES: f64 = 10.0;
const OWN_MICROS: f64 = 60.0;
const WHOLE_MICROS: f64 = 300.0;
/// How long a round may take.
const BOUND: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(10);

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) intents_per_second: f64,
    /// Microseconds for each intent.
    pub(crate) postgres: f64,
    pub(crate) redis: f64,
    pub(crate) own: f64,
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
}

/// Ceiling and service in turn, then the naive form. Gives the service's rate, too, for others to be held against.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<(Section, f64)> {
    let (mut ceilings, mut services) = (Vec::new(), Vec::new());
    for round in 1..=scale.rounds {
        println!("throughput, round {round} of {}: the ceiling, then the service", scale.rounds);
        ceilings.push(ceiling(world, scale).await?);
        services.push(service(world, scale).await?);
    }
    println!("throughput: the naive form");
    let naive = naive(world, scale).await?;
    let rate = |rounds: &[Round]| median(rounds.iter().map(|round| round.intents_per_second));
    let (ceiling_rate, service_rate) = (rate(&ceilings), rate(&services));
    let mut figures = Vec::new();
    for (name, rounds) in [("ceiling", &ceilings), ("service", &services), ("naive", &vec![naive])] {
        figures.push(Figure::shown(format!("{name}: throughput"), rate(rounds), "intents/s"));
        for (party, cpu) in [
            ("PostgreSQL", median(rounds.iter().map(|round| round.postgres))),
            ("Redis", median(rounds.iter().map(|round| round.redis))),
        ] {
            figures.push(Figure::shown(format!("{name}: CPU of {party}"), cpu, "µs/intent"));
        }
        let own = median(rounds.iter().map(|round| round.own));
        let whole = median(rounds.iter().map(|round| round.own + round.postgres + round.redis));
        if name == "service" {
            figures.push(Figure::at_most("service: own CPU", own, "µs/intent", OWN_MICROS));
            figures.push(Figure::at_most("service: CPU in all", whole, "µs/intent", WHOLE_MICROS));
        } else {
            figures.push(Figure::shown(format!("{name}: own CPU"), own, "µs/intent"));
            figures.push(Figure::shown(format!("{name}: CPU in all"), whole, "µs/intent"));
        }
    }
    let share = service_rate / ceiling_rate * 100.0;
    figures.push(Figure::at_least("service, as a share of the ceiling", share, "%", SHARE));
    let times = service_rate / naive.intents_per_second;
    figures.push(Figure::at_least("service, as a multiple of the naive form", times, "x", NAIVE_TIMES));
    let title =
        format!("Throughput: {} intents of 4 routes, {} round(s), medians", scale.intents, scale.rounds);
    Ok((Section { title, figures }, service_rate))
}

/// The service: from its being ready, which includes being elected and the first read, to the last completion.
async fn service(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, scale.intents).await?;
    let service = world.service(&dsn).start().await;
    let (started, before) = (Instant::now(), cpu(world, service.pid()));
    wait_for_entries(&mut redis, u64::from(scale.intents) * 4).await?;
    wait_for_completions(world, &dsn, scale.intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, service.pid()).since(before));
    world.saw_memory(service.pid());
    Ok(Round::of(scale.intents, time, used))
}

/// The ceiling: from its first read to its last completion.
async fn ceiling(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, scale.intents).await?;
    let own = std::process::id();
    let (started, before) = (Instant::now(), cpu(world, own));
    ceiling::run(world, &dsn, scale.intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, own).since(before));
    wait_for_entries(&mut redis, u64::from(scale.intents) * 4).await?;
    wait_for_completions(world, &dsn, scale.intents).await?;
    Ok(Round::of(scale.intents, time, used))
}

/// The naive form: from its first read to its last completion.
async fn naive(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, scale.naive_intents).await?;
    let own = std::process::id();
    let (started, before) = (Instant::now(), cpu(world, own));
    naive::run(world, &dsn, scale.naive_intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, own).since(before));
    wait_for_entries(&mut redis, u64::from(scale.naive_intents) * 4).await?;
    wait_for_completions(world, &dsn, scale.naive_intents).await?;
    Ok(Round::of(scale.naive_intents, time, used))
}

pub(crate) fn cpu(world: &World, own: u32) -> Cpu {
    Cpu::now(world.postgres.pid(), world.redis.pid(), own)
}

/// The lengths of the streams cost next to nothing to ask for.
pub(crate) async fn wait_for_entries(redis: &mut MultiplexedConnection, entries: u64) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let (push, mail): (u64, u64) =
            redis::pipe().cmd("XLEN").arg(PUSH).cmd("XLEN").arg(MAIL).query_async(redis).await?;
        if push + mail >= entries {
            ensure!(
                push + mail == entries,
                "{} entries, not {entries}: something was appended twice",
                push + mail
            );
            return Ok(());
        }
        ensure!(started.elapsed() < BOUND, "{} of {entries} entries after {BOUND:?}", push + mail);
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) async fn wait_for_completions(world: &World, dsn: &str, intents: u32) -> anyhow::Result<()> {
    let client = world.postgres(dsn).await?;
    let started = Instant::now();
    // An index-only look: the partial index holds what is not completed.
    let live = "SELECT EXISTS (SELECT FROM routes WHERE next_attempt_at IS NOT NULL)";
    while client.query_one(live, &[]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    let row = client.query_one(
        "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM routes WHERE status = 'published')",
        &[],
    );
    let row = row.await.context("could not count")?;
    let (records, routes) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
    ensure!(
        records == i64::from(intents) && routes == records * 4,
        "{records} records and {routes} published routes"
    );
    Ok(())
}
