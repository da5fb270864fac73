//! What the service reaches, beside what the databases allow, in one run on one machine.
//!
//! `make bench` runs it all; `--smoke` runs it small, to prove that it works, and judges nothing by it; `--only NAME` runs
//! one scenario. Wall rates of a shared machine swing, so rounds of the service and of the ceiling alternate and the
//! medians are compared: the ratio is what counts. Every scenario begins on a new database and an empty Redis, on the same
//! two servers. A goal that is missed is reported and ends nothing; a scenario that fails is, too, and makes the run fail.
//! The report is written anew after each.

mod backlog;
mod ceiling;
mod chart;
mod figure;
mod growth;
mod idle;
mod latency;
mod lateness;
mod load;
mod locks;
mod measure;
mod naive;
mod party;
mod peers;
mod profile;
mod replicas;
mod report;
mod retention;
mod round;
mod rows;
mod throughput;
mod watch;
mod world;

use std::panic::AssertUnwindSafe;

use anyhow::anyhow;
use clap::{Parser, ValueEnum};
use futures_util::FutureExt;

use crate::figure::Section;
use crate::report::Report;
use crate::world::World;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Whether the run only has to prove that it works.
    smoke: bool,
    /// Intents in the stream when a throughput round begins; each has four routes, unless it is said otherwise.
    intents: u32,
    /// Intents for the naive form, which is slow.
    naive_intents: u32,
    /// Rounds of those that are compared, in turn.
    rounds: usize,
    /// Rounds of each steady load.
    latency_rounds: usize,
    /// Seconds of steady load, of idling, of locking.
    seconds: u32,
    /// Intents a second, one steady load after the other.
    rates: &'static [u32],
}

const FULL: Scale = Scale {
    smoke: false,
    intents: 40_000,
    naive_intents: 2_000,
    rounds: 5,
    latency_rounds: 3,
    seconds: 12,
    rates: &[125, 500, 1_000, 3_000],
};
const SMOKE: Scale = Scale {
    smoke: true,
    intents: 1_000,
    naive_intents: 200,
    rounds: 1,
    latency_rounds: 1,
    seconds: 2,
    rates: &[125, 500],
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Scenario {
    Throughput,
    Latency,
    Lateness,
    Replicas,
    Idle,
    Locks,
    Growth,
    Backlog,
    Retention,
    Profile,
    /// Other queues. Not part of a whole run: they have to be installed
    Peers,
}

impl Scenario {
    /// Those of a whole run.
    const ALL: [Self; 10] = [
        Self::Throughput,
        Self::Latency,
        Self::Lateness,
        Self::Replicas,
        Self::Idle,
        Self::Locks,
        Self::Growth,
        Self::Backlog,
        Self::Retention,
        Self::Profile,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    async fn run(self, world: &mut World, scale: Scale) -> anyhow::Result<Section> {
        match self {
            Self::Throughput => throughput::run(world, scale).await,
            Self::Latency => latency::run(world, scale).await,
            Self::Lateness => lateness::run(world).await,
            Self::Replicas => replicas::run(world, scale).await,
            Self::Idle => idle::run(world, scale).await,
            Self::Locks => locks::run(world, scale).await,
            Self::Growth => growth::run(world, scale).await,
            Self::Backlog => backlog::run(world, scale).await,
            Self::Retention => retention::run(world, scale).await,
            Self::Profile => profile::run(world, scale).await,
            Self::Peers => peers::run(world, scale).await,
        }
    }
}

/// Measures what the service costs, against a baseline in the same run
#[derive(Parser, Debug)]
#[command(name = "bench", after_help = EXAMPLES)]
struct Order {
    /// Run small, to prove that it works; judge nothing by it
    #[arg(long)]
    smoke: bool,
    /// Run this scenario and no other; may be given several times
    #[arg(long = "only", value_name = "NAME")]
    scenarios: Vec<Scenario>,
}

const EXAMPLES: &str = "\
Examples:
  bench                      all scenarios but peers, for some minutes
  bench --smoke              the same, small
  bench --only latency       one scenario";

impl Order {
    /// What the report is called: that of some scenarios must not take the place of a whole one.
    fn report(&self) -> String {
        if self.scenarios.is_empty() {
            return "report".to_owned();
        }
        let names: Vec<String> = self.scenarios.iter().map(|scenario| scenario.name()).collect();
        names.join("-")
    }

    /// What is run.
    fn scenarios(&self) -> &[Scenario] {
        if self.scenarios.is_empty() { &Scenario::ALL } else { &self.scenarios }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|argument| argument == party::FLAG).is_some() {
        return party::serve(&arguments.next().unwrap_or_default()).await;
    }
    let order = Order::parse();
    let scale = if order.smoke { SMOKE } else { FULL };
    let mut world = World::start().await?;
    let mut report = Report::new(&order, scale, &world).await?;
    for scenario in order.scenarios() {
        // The harness says by a panic that something it waited for did not come.
        let run = AssertUnwindSafe(scenario.run(&mut world, scale)).catch_unwind().await;
        match run.unwrap_or_else(|panic| Err(anyhow!("{}", said(panic.as_ref())))) {
            Ok(section) => report.add(section),
            Err(error) => report.failed(&scenario.name(), &error),
        }
        report.write(world.peak_memory_mb())?;
    }
    report.end()
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_no_error_and_wrong_usage_is_exit_code_2() {
        let exit_code =
            |line: &str| Order::try_parse_from(line.split(' ')).map_err(|error| error.exit_code());
        assert_eq!(exit_code("bench --help").expect_err("usage"), 0);
        for wrong in ["bench --fast", "bench --only", "bench --only everything", "bench throughput"] {
            assert_eq!(exit_code(wrong).expect_err(wrong), 2);
        }
        let order = exit_code("bench --smoke --only latency --only peers").expect("right");
        assert_eq!((order.smoke, order.scenarios()), (true, &[Scenario::Latency, Scenario::Peers][..]));
        assert_eq!(exit_code("bench").expect("right").scenarios(), Scenario::ALL);
    }
}
