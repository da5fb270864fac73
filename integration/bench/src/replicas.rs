//! Two and three replicas on one machine: what they cost each other.

use std::time::Instant;

use crate::figure::{Figure, Section};
use crate::world::World;
use crate::{Scale, load, throughput};

/// By number of replicas: what they must reach together, in percent of one.
const GOALS: [(usize, f64); 2] = [(2, 95.0), (3, 90.0)];
/// The most leases that may be lost to another replica, in percent of those asked for.
const LOST_LEASES: f64 = 5.0;

/// Each number of replicas drains a full stream; `alone` is what one reached in this run, in intents a second.
pub(crate) async fn run(world: &mut World, scale: Scale, alone: f64) -> anyhow::Result<Section> {
    let mut figures = Vec::new();
    for (replicas, goal) in GOALS {
        println!("{replicas} replicas");
        let dsn = world.fresh().await?;
        let mut redis = world.redis().await?;
        let mut services = Vec::new();
        for _ in 0..replicas {
            services.push(world.service(&dsn).start().await);
        }
        let started = Instant::now();
        load::preload(&mut redis, scale.intents).await?;
        throughput::wait_for_entries(&mut redis, u64::from(scale.intents) * 4).await?;
        throughput::wait_for_completions(world, &dsn, scale.intents).await?;
        let rate = f64::from(scale.intents) / started.elapsed().as_secs_f64();
        let (mut asked, mut held) = (0, 0);
        for service in &services {
            let (_, ready) = service.get("/readyz").await;
            for channel in ["push", "email"] {
                asked += ready[channel]["leases"]["asked"].as_u64().unwrap_or(0);
                held += ready[channel]["leases"]["held_by_others"].as_u64().unwrap_or(0);
            }
            world.saw_memory(service.pid());
        }
        let name = |what: &str| format!("{replicas} replicas: {what}");
        figures.push(Figure::shown(name("throughput, the producer beside them"), rate, "intents/s"));
        figures.push(Figure::at_least(
            name("together, as a share of one alone"),
            rate / alone * 100.0,
            "%",
            goal,
        ));
        let lost = held as f64 / (asked as f64).max(1.0) * 100.0;
        figures.push(Figure::at_most(name("leases lost to another"), lost, "%", LOST_LEASES));
        // More entries than routes would have ended the run.
        figures.push(Figure::at_most(name("entries appended twice"), 0.0, "", 0.0));
    }
    let title = format!("Replicas: {} intents sent while they run", scale.intents);
    Ok(Section { title, figures })
}
