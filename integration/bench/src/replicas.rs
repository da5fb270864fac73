//! Two and three replicas on one machine, compared with one.
//!
//! Two kinds of load. Intents in the stream are accepted by one replica, which dispatches their routes to its
//! own publishers; the other replicas must not slow it down. Overdue routes are found by every replica in the
//! same list, so the replicas compete for them.

use std::time::{Duration, Instant};

use harness::{Service, wait_for};

use crate::figure::{Figure, ReportSection};
use crate::load::ROUTES;
use crate::measure::median;
use crate::rows::{RouteState, Rows};
use crate::testbed::Testbed;
use crate::watch::{at_least, entries, observer, wait_until_none_live};
use crate::{Scale, load};

/// The lowest accepted ratio of the common rate to that of one replica, for each number of replicas.
const GOALS: [(usize, f64); 2] = [(2, 0.95), (3, 0.9)];
/// The highest accepted share of requested leases that another replica held, in per cent.
const HELD_LEASES: f64 = 5.0;

/// The time limit of a start, and the message that ends it.
const START_BOUND: Duration = Duration::from_secs(60);
const READY: &str = "the service is ready";

/// The result of one run with a number of replicas.
#[derive(Clone, Copy)]
struct ReplicasRound {
    routes_per_second: f64,
    leases_requested: u64,
    leases_held: u64,
    /// Entries beyond one for each route.
    duplicates: u64,
}

/// The work that is ready when the replicas start.
#[derive(Clone, Copy)]
enum ReadyWork {
    Intents(u32),
    /// Overdue routes, as a number of records with four routes each.
    Overdue(u32),
}

/// Measures one, two and three replicas in alternating rounds, with each kind of load.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let mut figures = Vec::new();
    let records = if scale.smoke { 500 } else { 50_000 };
    for (name, load) in
        [("intents", ReadyWork::Intents(scale.intents)), ("overdue routes", ReadyWork::Overdue(records))]
    {
        let mut rounds: [Vec<ReplicasRound>; 3] = Default::default();
        for round in 1..=scale.rounds {
            println!("replicas, {name}, round {round} of {}: one, two, three", scale.rounds);
            for (of_number, replicas) in rounds.iter_mut().zip(1..) {
                of_number.push(load.process(testbed, replicas).await?);
            }
        }
        figures.extend(compared(name, &rounds));
    }
    let title = format!(
        "Replicas: {} intents waiting in the stream, and {} overdue routes; {} alternating round(s), medians",
        scale.intents,
        records * ROUTES,
        scale.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

fn compared(load: &str, rounds: &[Vec<ReplicasRound>; 3]) -> Vec<Figure> {
    let each =
        |rounds: &[ReplicasRound]| rounds.iter().map(|round| round.routes_per_second).collect::<Vec<_>>();
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
        let share = Figure::shown(name("ratio to one replica"), together.value / alone.value, "x");
        let sum = |of: fn(&ReplicasRound) -> u64| of_number.iter().map(of).sum::<u64>();
        let (requested, held) = (sum(|round| round.leases_requested), sum(|round| round.leases_held));
        let held = Figure::shown(
            name(&format!("leases held by others, of {requested}")),
            // Without a request there is no share, and the goal is missed.
            if requested == 0 { f64::NAN } else { held as f64 / requested as f64 * 100.0 },
            "%",
        );
        let duplicates = sum(|round| round.duplicates) as f64;
        figures.extend([
            together,
            share.of_rounds(ratios).at_least(goal),
            held.under(HELD_LEASES),
            Figure::shown(name("entries appended twice"), duplicates, "entries").at_most(0.0),
        ]);
    }
    figures
}

impl ReadyWork {
    async fn prepare(self, testbed: &mut Testbed) -> anyhow::Result<(String, u32)> {
        let dsn = testbed.fresh().await?;
        let records = match self {
            Self::Intents(intents) => {
                load::preload(&mut testbed.redis().await?, 0, intents, ROUTES).await?;
                intents
            }
            Self::Overdue(records) => {
                Rows { records, age: "10 minutes", state: RouteState::Due }
                    .insert_without_statistics(testbed, &dsn)
                    .await?;
                records
            }
        };
        Ok((dsn, records * ROUTES))
    }

    /// Measures from when the first replica is ready to the last completion. The start of the others is
    /// included.
    async fn process(self, testbed: &mut Testbed, replicas: usize) -> anyhow::Result<ReplicasRound> {
        let (dsn, routes) = self.prepare(testbed).await?;
        let (mut redis, client) = (testbed.redis().await?, observer(testbed, &dsn).await?);
        let services: Vec<Service> = (0..replicas).map(|_| testbed.service(&dsn).spawn()).collect();
        let ready = || services.iter().filter(|service| service.logged(READY).is_some()).count();
        wait_for("a replica is ready", START_BOUND, async || (ready() > 0).then_some(())).await;
        let started = Instant::now();
        wait_for("every replica is ready", START_BOUND, async || (ready() == replicas).then_some(())).await;
        at_least(&mut redis, u64::from(routes)).await?;
        wait_until_none_live(&client).await?;
        let time = started.elapsed().as_secs_f64();
        let (mut requested, mut held) = (0, 0);
        for service in services {
            let (_, ready) = service.get("/readyz").await;
            for channel in ["push", "email"] {
                let leases = &ready[channel]["leases"];
                requested += leases["asked"].as_u64().unwrap_or(0);
                held += leases["held_by_others"].as_u64().unwrap_or(0);
            }
            testbed.stop(service).await;
        }
        // All replicas have stopped, so no further entry can be appended.
        let duplicates = entries(&mut redis).await? - u64::from(routes);
        Ok(ReplicasRound {
            routes_per_second: f64::from(routes) / time,
            leases_requested: requested,
            leases_held: held,
            duplicates,
        })
    }
}
