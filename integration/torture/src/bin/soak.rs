//! `soak`: a long run under load with kills of replicas and crashes of stores.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use torture::{Soak, write_into};

/// Sends intents at a steady rate while replicas are killed, stores crash and retention runs.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  soak --minutes 60 --rate 2000 --write docs/reliability.md")]
struct Arguments {
    /// Sends intents for this many minutes.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Intents per second, each with four routes.
    #[arg(long, default_value_t = 2_000)]
    rate: u32,
    /// Writes the figures into this page.
    #[arg(long)]
    write: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let soak = Soak {
        rate: arguments.rate,
        time: Duration::from_secs(60 * arguments.minutes),
        kill_interval: Duration::from_secs(60),
        retention: Duration::from_secs(180),
    };
    let report = soak.run().await;
    println!("{}", report.table);
    report.broken.iter().for_each(|broken| println!("broken: {broken}"));
    if let Some(page) = arguments.write
        && let Err(error) = write_into(&page, "soak table", &report.table)
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
