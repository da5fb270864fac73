//! `torture`: kills the program at each boundary, and prints each case that breaks a promise.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use torture::{Finished, Table, run, write_into};

/// Kills replicas and relays at each boundary of each protocol, with each class of store fault.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  torture --cases 2000 --write docs/reliability.md\n  torture --case 471")]
struct Arguments {
    /// Runs this many cases.
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// The first case.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Runs this case only.
    #[arg(long, conflicts_with_all = ["cases", "from"])]
    case: Option<u64>,
    /// Begins no case after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Runs this many cases at a time.
    #[arg(long, default_value_t = 12)]
    slots: usize,
    /// Writes the table into this page.
    #[arg(long)]
    write: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let cases = match arguments.case {
        Some(case) => case..case + 1,
        None => arguments.from..arguments.from + arguments.cases,
    };
    let started = Instant::now();
    let until = arguments.minutes.map(|minutes| started + Duration::from_secs(60 * minutes));
    let finished = run(cases, arguments.slots, until, show).await;
    let failed: Vec<&Finished> = finished.iter().filter(|finished| finished.outcome.is_err()).collect();
    let twice = finished.iter().filter(|finished| finished.outcome == Ok(2)).count();
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let summary = format!(
        "{} cases in {minutes:.0} minutes, {twice} of them with a second kill; {} failed",
        finished.len(),
        failed.len()
    );
    println!("{summary}");
    for Finished { case, .. } in &failed {
        println!("replay: cargo run --release -p torture -- --case {}", case.number);
    }
    if let Some(page) = arguments.write
        && let Err(error) =
            write_into(&page, "torture table", &format!("{summary}. {}", Table::of(&finished)))
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(Finished { case, outcome, took }: &Finished) {
    let seconds = took.as_secs_f64();
    match outcome {
        Ok(kills) => println!("held in {seconds:.1} s, {kills} killed: {case}"),
        Err(broken) => println!("FAILED in {seconds:.1} s: {case}: {broken}"),
    }
}
