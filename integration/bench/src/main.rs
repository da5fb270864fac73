//! What the service reaches, beside what the databases allow, in one run on one machine.
//!
//! `make bench` runs it all; `--smoke` runs it small, to prove that it works. Wall rates of a shared machine swing, so
//! rounds of the service and of the ceiling alternate and the medians are compared: the ratio is what counts.

mod ceiling;
mod latency;
mod load;
mod measure;
mod report;
mod throughput;
mod world;

use anyhow::bail;

use crate::world::World;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Intents in the stream when a throughput round begins; each has four routes.
    intents: u32,
    /// Rounds of the service and of the ceiling, in turn.
    rounds: usize,
    /// Seconds of steady load.
    seconds: u32,
    /// Intents in each of them.
    rate: u32,
}

const FULL: Scale = Scale { intents: 40_000, rounds: 3, seconds: 20, rate: 500 };
const SMOKE: Scale = Scale { intents: 2_000, rounds: 1, seconds: 3, rate: 200 };

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let scale = match std::env::args().nth(1).as_deref() {
        None => FULL,
        Some("--smoke") => SMOKE,
        Some(other) => bail!("unknown argument {other:?}; usage: bench [--smoke]"),
    };
    let mut world = World::start().await?;
    let (mut ceiling, mut service) = (Vec::new(), Vec::new());
    for round in 1..=scale.rounds {
        println!("round {round} of {}: the ceiling, then the service", scale.rounds);
        ceiling.push(throughput::ceiling(&mut world, scale).await?);
        service.push(throughput::service(&mut world, scale).await?);
    }
    println!("latency: {} intents/s for {} s", scale.rate, scale.seconds);
    let latency = latency::steady(&mut world, scale).await?;
    report::write(scale, &ceiling, &service, &latency)
}
