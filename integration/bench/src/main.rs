//! Measures the service beside a baseline, in one run on one machine.
//!
//! `make bench` runs all scenarios. `--smoke` runs them with small amounts to show that the benchmark works,
//! and compares nothing with the goals. `--only NAME` runs one scenario. Rates on a shared machine vary, so
//! rounds of the service and of the baseline alternate, and the ratio of their medians is compared with the
//! goal. Every scenario starts on a new database and an empty Redis, on the same two servers. A missed goal
//! is reported and the run continues. A scenario that fails is reported as well, and the exit code is not 0.
//! The report is rewritten after each scenario.

mod backlog;
mod baseline;
mod capacity;
mod chart;
mod cluster;
mod contender;
mod contender_process;
mod directory;
mod figure;
mod growth;
mod holds;
mod http;
mod idle;
mod latency;
mod lateness;
mod load;
mod locks;
mod measure;
mod naive;
mod outbox;
mod peers;
mod profile;
mod receipts;
mod replicas;
mod report;
mod retention;
mod round;
mod rows;
mod searches;
mod state;
mod testbed;
mod throughput;
mod traces;
mod watch;

use std::panic::AssertUnwindSafe;

use anyhow::anyhow;
use clap::{Parser, ValueEnum};
use futures_util::FutureExt;

use crate::figure::ReportSection;
use crate::report::BenchReport;
use crate::testbed::Testbed;

/// The amounts of a run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// True if the run only has to show that the benchmark works.
    smoke: bool,
    /// Intents in the stream when a throughput round begins; each has four routes unless a scenario says
    /// otherwise.
    intents: u32,
    /// Intents for the naive implementation, which is slow.
    naive_intents: u32,
    /// Alternating rounds of the contenders that are compared.
    rounds: usize,
    /// Rounds of each steady load.
    latency_rounds: usize,
    /// Seconds of each steady load, of each idle measurement and of each lock measurement.
    seconds: u32,
    /// The rates of the steady loads, in intents per second.
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
    Cluster,
    Latency,
    Lateness,
    Replicas,
    Idle,
    Locks,
    Growth,
    Capacity,
    Backlog,
    Retention,
    Holds,
    Http,
    Fairness,
    Directory,
    Receipts,
    Searches,
    Profile,
    Outbox,
    State,
    Traces,
    /// Other queues. Not part of a full run: they have to be installed
    Peers,
}

impl Scenario {
    /// The scenarios of a full run.
    const ALL: [Self; 21] = [
        Self::Throughput,
        Self::Cluster,
        Self::Latency,
        Self::Lateness,
        Self::Replicas,
        Self::Idle,
        Self::Locks,
        Self::Growth,
        Self::Capacity,
        Self::Backlog,
        Self::Retention,
        Self::Holds,
        Self::Http,
        Self::Fairness,
        Self::Directory,
        Self::Receipts,
        Self::Searches,
        Self::Profile,
        Self::Outbox,
        Self::State,
        Self::Traces,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    async fn run(self, testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
        match self {
            Self::Throughput => throughput::run(testbed, scale).await,
            Self::Cluster => cluster::run(testbed, scale).await,
            Self::Latency => latency::run(testbed, scale).await,
            Self::Lateness => lateness::run(testbed).await,
            Self::Replicas => replicas::run(testbed, scale).await,
            Self::Idle => idle::run(testbed, scale).await,
            Self::Locks => locks::run(testbed, scale).await,
            Self::Growth => growth::run(testbed, scale).await,
            Self::Capacity => capacity::run(testbed, scale).await,
            Self::Backlog => backlog::run(testbed, scale).await,
            Self::Retention => retention::run(testbed, scale).await,
            Self::Holds => holds::run(testbed, scale).await,
            Self::Http => http::run(testbed, scale).await,
            Self::Fairness => http::fairness::run(testbed, scale).await,
            Self::Directory => directory::run(testbed, scale).await,
            Self::Receipts => receipts::run(testbed, scale).await,
            Self::Searches => searches::run(testbed, scale).await,
            Self::Profile => profile::run(testbed, scale).await,
            Self::Outbox => outbox::run(testbed, scale).await,
            Self::State => state::run(testbed, scale).await,
            Self::Traces => traces::run(testbed, scale).await,
            Self::Peers => peers::run(testbed, scale).await,
        }
    }
}

/// Measures what the service costs, against a baseline in the same run
#[derive(Parser, Debug)]
#[command(name = "bench", after_help = EXAMPLES)]
struct Options {
    /// Run with small amounts to show that the benchmark works; check no goal
    #[arg(long)]
    smoke: bool,
    /// Run only this scenario; can be repeated
    #[arg(long = "only", value_name = "NAME")]
    scenarios: Vec<Scenario>,
}

const EXAMPLES: &str = "\
Examples:
  bench                      all scenarios except peers, in about half an hour
  bench --smoke              the same with small amounts
  bench --only latency       one scenario";

impl Options {
    /// The name of the report. A report of some scenarios must not replace that of a full run.
    fn report(&self) -> String {
        if self.scenarios.is_empty() {
            return "report".to_owned();
        }
        let names: Vec<String> = self.scenarios.iter().map(|scenario| scenario.name()).collect();
        names.join("-")
    }

    /// The scenarios to run.
    fn scenarios(&self) -> &[Scenario] {
        if self.scenarios.is_empty() { &Scenario::ALL } else { &self.scenarios }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|argument| argument == contender::FLAG).is_some() {
        return contender_process::serve(&arguments.next().unwrap_or_default()).await;
    }
    let options = Options::parse();
    let scale = if options.smoke { SMOKE } else { FULL };
    let mut testbed = Testbed::start().await?;
    let mut report = BenchReport::new(&options, scale, &testbed).await?;
    for scenario in options.scenarios() {
        // The harness panics if a condition that it waits for does not become true in time.
        let run = AssertUnwindSafe(scenario.run(&mut testbed, scale)).catch_unwind().await;
        match run.unwrap_or_else(|panic| Err(anyhow!("{}", panic_message(panic.as_ref())))) {
            Ok(section) => report.add(section),
            Err(error) => report.failed(&scenario.name(), &error),
        }
        report.write(testbed.peak_memory_mb())?;
    }
    report.end()
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_no_error_and_wrong_usage_is_exit_code_2() {
        let exit_code =
            |line: &str| Options::try_parse_from(line.split(' ')).map_err(|error| error.exit_code());
        assert_eq!(exit_code("bench --help").expect_err("usage"), 0);
        for wrong in ["bench --fast", "bench --only", "bench --only everything", "bench throughput"] {
            assert_eq!(exit_code(wrong).expect_err(wrong), 2);
        }
        let options = exit_code("bench --smoke --only latency --only peers").expect("right");
        assert_eq!((options.smoke, options.scenarios()), (true, &[Scenario::Latency, Scenario::Peers][..]));
        assert_eq!(exit_code("bench").expect("right").scenarios(), Scenario::ALL);
    }
}
