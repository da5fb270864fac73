//! Two and three replicas on one machine: what they cost each other.

use std::time::{Duration, Instant};

use harness::{Service, wait_for};

use crate::figure::{Figure, Section};
use crate::growth::{drop_database, stop};
use crate::measure::median;
use crate::world::World;
use crate::{Scale, load, throughput};

/// By number of replicas: what they must reach together, in percent of one.
const GOALS: [(usize, f64); 2] = [(2, 95.0), (3, 90.0)];
/// Below which share of the leases asked for those must stay that another replica held.
const LOST_LEASES: f64 = 5.0;

/// How long a start may take, and what is logged at its end.
const START_BOUND: Duration = Duration::from_secs(60);
const READY: &str = "the service is ready";

/// One number of replicas draining a full stream.
#[derive(Clone, Copy)]
struct Round {
    intents_per_second: f64,
    leases_asked: u64,
    leases_held_by_others: u64,
    /// Entries beyond one for each route.
    duplicates: u64,
}

/// One, two and three replicas in turn.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut rounds: [Vec<Round>; 3] = Default::default();
    for round in 1..=scale.rounds {
        println!("replicas, round {round} of {}: one, two, three", scale.rounds);
        for (of_number, replicas) in rounds.iter_mut().zip(1..) {
            of_number.push(drain(world, scale.intents, replicas).await?);
        }
    }
    let rate = |rounds: &[Round]| median(rounds.iter().map(|round| round.intents_per_second));
    let alone = rate(&rounds[0]);
    let mut figures = vec![Figure::shown("1 replica: throughput", alone, "intents/s")];
    for (replicas, goal) in GOALS {
        let rounds = &rounds[replicas - 1];
        let name = |what: &str| format!("{replicas} replicas: {what}");
        figures.push(Figure::shown(name("throughput together"), rate(rounds), "intents/s"));
        let share = rate(rounds) / alone * 100.0;
        figures.push(Figure::at_least(name("share of one replica's"), share, "%", goal));
        figures.push(leases(name("leases held by another"), rounds));
        let duplicates = rounds.iter().map(|round| round.duplicates).sum::<u64>() as f64;
        figures.push(Figure::at_most(name("entries appended twice"), duplicates, "entries", 0.0));
    }
    let title = format!(
        "Replicas: {} intents waiting in the stream; {} round(s) in turn, medians",
        scale.intents, scale.rounds
    );
    Ok(Section { title, figures, charts: Vec::new() })
}

/// Of all rounds and replicas.
fn leases(name: String, rounds: &[Round]) -> Figure {
    let asked = rounds.iter().map(|round| round.leases_asked).sum::<u64>();
    let held = rounds.iter().map(|round| round.leases_held_by_others).sum::<u64>();
    let share = held as f64 / asked.max(1) as f64 * 100.0;
    let goal = format!("under {LOST_LEASES} % of {asked}");
    // Where none was counted, nothing was shown.
    Figure { goal: Some((goal, asked > 0 && share < LOST_LEASES)), ..Figure::shown(name, share, "%") }
}

/// From the first replica's being ready, which includes the start of the others, to the last completion.
async fn drain(world: &mut World, intents: u32, replicas: usize) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, intents).await?;
    let services: Vec<Service> = (0..replicas).map(|_| world.service(&dsn).spawn()).collect();
    let ready = || services.iter().filter(|service| service.logged(READY).is_some()).count();
    wait_for("a replica is ready", START_BOUND, async || (ready() > 0).then_some(())).await;
    let started = Instant::now();
    wait_for("every replica is ready", START_BOUND, async || (ready() == replicas).then_some(())).await;
    let routes = u64::from(intents * load::ROUTES);
    throughput::at_least(&mut redis, routes).await?;
    throughput::wait_for_completions(world, &dsn, intents, load::ROUTES).await?;
    let time = started.elapsed().as_secs_f64();
    let (mut asked, mut held) = (0, 0);
    for service in services {
        let (_, ready) = service.get("/readyz").await;
        for channel in ["push", "email"] {
            let leases = &ready[channel]["leases"];
            asked += leases["asked"].as_u64().unwrap_or(0);
            held += leases["held_by_others"].as_u64().unwrap_or(0);
        }
        stop(world, service).await;
    }
    // Whatever a slow replica still had in hand has been appended by now.
    let duplicates = throughput::entries(&mut redis).await? - routes;
    drop_database(world, &dsn).await?;
    Ok(Round {
        intents_per_second: f64::from(intents) / time,
        leases_asked: asked,
        leases_held_by_others: held,
        duplicates,
    })
}
