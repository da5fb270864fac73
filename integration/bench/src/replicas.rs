//! Two and three replicas on one machine: what they cost each other.
//!
//! Two kinds of load. Intents that wait in the stream are accepted by one replica, which hands their routes to its own
//! publishers: the others must not be in its way. Overdue routes are found by every replica in the same list: there they
//! meet.

use std::time::{Duration, Instant};

use harness::{Service, wait_for};

use crate::figure::{Figure, Section};
use crate::load::ROUTES;
use crate::measure::median;
use crate::rows::Rows;
use crate::watch::{at_least, entries, observer, wait_until_none_live};
use crate::world::World;
use crate::{Scale, load};

/// By number of replicas: which part of one replica's rate they must reach together.
const GOALS: [(usize, f64); 2] = [(2, 0.95), (3, 0.9)];
/// Below which share of the leases asked for those must stay that another replica held or took, in percent.
const LOST_LEASES: f64 = 5.0;

/// How long a start may take, and what is logged at its end.
const START_BOUND: Duration = Duration::from_secs(60);
const READY: &str = "the service is ready";

/// One number of replicas bringing everything through.
#[derive(Clone, Copy)]
struct Round {
    routes_per_second: f64,
    leases_asked: u64,
    leases_lost: u64,
    /// Entries beyond one for each route.
    duplicates: u64,
}

/// What there is to do when the replicas start.
#[derive(Clone, Copy)]
enum Load {
    Intents(u32),
    /// In records of four routes.
    Overdue(u32),
}

/// One, two and three replicas in turn, on each kind of load.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut figures = Vec::new();
    let records = if scale.smoke { 500 } else { 50_000 };
    for (name, load) in
        [("intents", Load::Intents(scale.intents)), ("overdue routes", Load::Overdue(records))]
    {
        let mut rounds: [Vec<Round>; 3] = Default::default();
        for round in 1..=scale.rounds {
            println!("replicas, {name}, round {round} of {}: one, two, three", scale.rounds);
            for (of_number, replicas) in rounds.iter_mut().zip(1..) {
                of_number.push(load.bring_through(world, replicas).await?);
            }
        }
        figures.extend(compared(name, &rounds));
    }
    let title = format!(
        "Replicas: {} intents waiting in the stream, and {} overdue routes; {} round(s) in turn, medians",
        scale.intents,
        records * ROUTES,
        scale.rounds
    );
    Ok(Section { title, figures, charts: Vec::new() })
}

fn compared(load: &str, rounds: &[Vec<Round>; 3]) -> Vec<Figure> {
    let each = |rounds: &[Round]| rounds.iter().map(|round| round.routes_per_second).collect::<Vec<_>>();
    let speed = |replicas: usize| {
        let each = each(&rounds[replicas - 1]);
        let name = format!("{load}, {replicas} replica(s)");
        Figure::shown(name, median(each.iter().copied()), "routes/s").of_rounds(each)
    };
    let alone = speed(1);
    let mut figures = vec![alone.clone()];
    for (replicas, goal) in GOALS {
        let (of_number, together) = (&rounds[replicas - 1], speed(replicas));
        let name = |what: &str| format!("{load}, {replicas} replicas: {what}");
        let ratios =
            each(of_number).into_iter().zip(each(&rounds[0])).map(|(together, alone)| together / alone);
        let share = Figure::shown(name("part of one replica's"), together.value / alone.value, "x");
        let sum = |of: fn(&Round) -> u64| of_number.iter().map(of).sum::<u64>();
        let (asked, lost) = (sum(|round| round.leases_asked), sum(|round| round.leases_lost));
        let lost = Figure::shown(
            name(&format!("leases lost, of {asked}")),
            // Where none was asked for, nothing was shown.
            if asked == 0 { f64::NAN } else { lost as f64 / asked as f64 * 100.0 },
            "%",
        );
        let duplicates = sum(|round| round.duplicates) as f64;
        figures.extend([
            together,
            share.of_rounds(ratios).at_least(goal),
            lost.under(LOST_LEASES),
            Figure::shown(name("entries appended twice"), duplicates, "entries").at_most(0.0),
        ]);
    }
    figures
}

impl Load {
    async fn prepare(self, world: &mut World) -> anyhow::Result<(String, u32)> {
        let dsn = world.fresh().await?;
        let records = match self {
            Self::Intents(intents) => {
                load::preload(&mut world.redis().await?, 0, intents, ROUTES).await?;
                intents
            }
            Self::Overdue(records) => {
                Rows { records, age: "10 minutes", due: true }.insert_unnoticed(world, &dsn).await?;
                records
            }
        };
        Ok((dsn, records * ROUTES))
    }

    /// From the first replica's being ready, which includes the start of the others, to the last completion.
    async fn bring_through(self, world: &mut World, replicas: usize) -> anyhow::Result<Round> {
        let (dsn, routes) = self.prepare(world).await?;
        let (mut redis, client) = (world.redis().await?, observer(world, &dsn).await?);
        let services: Vec<Service> = (0..replicas).map(|_| world.service(&dsn).spawn()).collect();
        let ready = || services.iter().filter(|service| service.logged(READY).is_some()).count();
        wait_for("a replica is ready", START_BOUND, async || (ready() > 0).then_some(())).await;
        let started = Instant::now();
        wait_for("every replica is ready", START_BOUND, async || (ready() == replicas).then_some(())).await;
        at_least(&mut redis, u64::from(routes)).await?;
        wait_until_none_live(&client).await?;
        let time = started.elapsed().as_secs_f64();
        let (mut asked, mut lost) = (0, 0);
        for service in services {
            let (_, ready) = service.get("/readyz").await;
            for channel in ["push", "email"] {
                let leases = &ready[channel]["leases"];
                asked += leases["asked"].as_u64().unwrap_or(0);
                lost += leases["held_by_others"].as_u64().unwrap_or(0);
            }
            world.stop(service).await;
        }
        // Whatever a slow replica still had in hand has been appended by now.
        let duplicates = entries(&mut redis).await? - u64::from(routes);
        Ok(Round {
            routes_per_second: f64::from(routes) / time,
            leases_asked: asked,
            leases_lost: lost,
            duplicates,
        })
    }
}
