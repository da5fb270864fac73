//! From a full intents stream to every entry appended and every route completed.

use std::time::{Duration, Instant};

use anyhow::Context;

use crate::figure::{Figure, Section};
use crate::measure::Cpu;
use crate::party::Party;
use crate::round::{Round, Rounds, Unit, costs, rates};
use crate::watch::{confirm, wait_for_completions, wait_for_entries, wait_until_none_live};
use crate::world::World;
use crate::{Scale, load};

/// The goals: the share of the ceiling, multiples of the naive form, microseconds for an intent of four routes.
const SHARE: f64 = 0.75;
const NAIVE_TIMES: f64 = 10.0;
const OWN_MICROS: f64 = 60.0;
const WHOLE_MICROS: f64 = 300.0;
/// Routes of an intent, of two users and of one.
const ROUTES: [u32; 2] = [load::ROUTES, 2];

/// Ceiling and service in turn, with four routes and with two, then the naive form.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut figures = Vec::new();
    let mut parties = Vec::new();
    for routes in ROUTES {
        let (ceiling, service) = in_turn(world, scale, routes).await?;
        figures.push(ceiling.speed("throughput"));
        figures.extend(ceiling.cpu());
        figures.push(service.speed("throughput"));
        let cpu = service.cpu();
        if routes == load::ROUTES {
            let [postgres, redis, own, whole] = cpu;
            let [_, _, ceiling_own, ceiling_whole] = ceiling.cpu();
            figures.extend([
                postgres,
                redis,
                own.at_most_or_near(OWN_MICROS, ceiling_own.value),
                whole.at_most_or_near(WHOLE_MICROS, ceiling_whole.value),
            ]);
        } else {
            figures.extend(cpu);
        }
        let name = format!("service, {routes} routes: part of the ceiling");
        figures.push(service.times(name, &ceiling).at_least(SHARE));
        parties.extend([ceiling, service]);
    }
    println!("throughput: the naive form");
    let mut naive = Rounds::new("naive, 4 routes", Unit::Intent);
    naive.push(own_party(world, "naive", scale.naive_intents, load::ROUTES).await?);
    figures.push(naive.speed("throughput"));
    figures.extend(naive.cpu());
    let service = parties.get(1).context("nothing was measured")?;
    let times = service.rate() / naive.rate();
    let name = "service, 4 routes: multiple of the naive form";
    figures.push(Figure::shown(name, times, "x").at_least(NAIVE_TIMES));
    // Beside the naive form's processor time nothing could be seen of the others.
    let charts = vec![
        rates("throughput", "Throughput", parties.iter().chain([&naive])),
        costs("cpu", "Processor time", &parties),
    ];
    let title = format!(
        "Throughput: intents of {} routes in all waiting in the stream, {} intents for the naive form; {} round(s) in turn, medians",
        scale.intents * load::ROUTES,
        scale.naive_intents,
        scale.rounds
    );
    Ok(Section { title, figures, charts })
}

/// Ceiling and service.
async fn in_turn(world: &mut World, scale: Scale, routes: u32) -> anyhow::Result<(Rounds, Rounds)> {
    // As many routes in all, however many an intent has, so that a start weighs the same.
    let intents = scale.intents * load::ROUTES / routes;
    let rounds = |name: &str| Rounds::new(format!("{name}, {routes} routes"), Unit::Intent);
    let (mut ceiling, mut of_service) = (rounds("ceiling"), rounds("service"));
    for round in 1..=scale.rounds {
        println!(
            "throughput, {routes} routes, round {round} of {}: the ceiling, then the service",
            scale.rounds
        );
        ceiling.push(own_party(world, "ceiling", intents, routes).await?);
        let (time, used) = service(world, intents, routes).await?;
        of_service.push(Round::of(intents, time, used));
    }
    Ok((ceiling, of_service))
}

/// One round of the service: its time and what it used.
pub(crate) async fn service(world: &mut World, intents: u32, routes: u32) -> anyhow::Result<(Duration, Cpu)> {
    let dsn = world.fresh().await?;
    load::preload(&mut world.redis().await?, 0, intents, routes).await?;
    drive(world, &dsn, intents, routes).await
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
    let (started, before) = (Instant::now(), world.cpu(service.pid()));
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_until_none_live(&client).await?;
    let (time, used) = (started.elapsed(), world.cpu(service.pid()).since(before));
    // Counting reads every row, and is no part of what is measured; nor is it of the ceiling.
    confirm(&client, intents, routes).await?;
    world.stop(service).await;
    Ok((time, used))
}

/// The ceiling or the naive form: from its first read to its last completion.
async fn own_party(world: &mut World, name: &str, intents: u32, routes: u32) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, 0, intents, routes).await?;
    let mut party = Party::own(world, name, &dsn, intents).await?;
    let (time, used) = party.step(world, "run", "done").await?;
    party.end().await?;
    wait_for_entries(&mut redis, u64::from(intents * routes)).await?;
    wait_for_completions(world, &dsn, intents, routes).await?;
    Ok(Round::of(intents, time, used))
}
