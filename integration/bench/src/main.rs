//! What the service reaches, beside what the databases allow, in one run on one machine.
//!
//! `make bench` runs it all; `--smoke` runs it small, to prove that it works, and judges nothing by it. Wall rates of a
//! shared machine swing, so rounds of the service and of the ceiling alternate and the medians are compared: the ratio
//! is what counts. Every scenario begins on a new database and an empty Redis, on the same two servers.

mod ceiling;
mod figure;
mod growth;
mod idle;
mod latency;
mod load;
mod locks;
mod measure;
mod naive;
mod replicas;
mod report;
mod retention;
mod throughput;
mod world;

use anyhow::bail;

use crate::figure::Section;
use crate::world::World;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Intents in the stream when a throughput round begins; each has four routes.
    intents: u32,
    /// Intents for the naive form, which is slow.
    naive_intents: u32,
    /// Rounds of the service and of the ceiling, in turn.
    rounds: usize,
    /// Seconds of steady load, of idling, of locking.
    seconds: u32,
    /// Intents a second, one steady load after the other.
    rates: &'static [u32],
}

const FULL: Scale =
    Scale { intents: 40_000, naive_intents: 2_000, rounds: 3, seconds: 20, rates: &[125, 500, 1_000, 3_000] };
const SMOKE: Scale = Scale { intents: 2_000, naive_intents: 200, rounds: 1, seconds: 3, rates: &[125, 500] };

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let scale = match std::env::args().nth(1).as_deref() {
        None => FULL,
        Some("--smoke") => SMOKE,
        Some(other) => bail!("unknown argument {other:?}; usage: bench [--smoke]"),
    };
    let mut world = World::start().await?;
    let mut sections: Vec<Section> = Vec::new();
    let (section, alone) = throughput::run(&mut world, scale).await?;
    sections.push(section);
    sections.push(latency::run(&mut world, scale).await?);
    sections.push(replicas::run(&mut world, scale, alone).await?);
    sections.push(idle::run(&mut world, scale).await?);
    sections.push(locks::run(&mut world, scale).await?);
    println!("growth: full tables, a backlog, a transaction held open");
    let figures = growth::run(&mut world, scale).await?;
    sections
        .push(Section { title: "Growth: what a database that is no longer new costs".to_owned(), figures });
    println!("retention beside a steady load");
    let figures = retention::run(&mut world, scale).await?;
    sections.push(Section { title: "Retention beside a steady load".to_owned(), figures });
    report::write(scale, &sections, world.peak_memory_mb())
}
