//! `simulate`: runs simulations, and prints each that fails with the command that replays it.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use simulation::{Plan, Report, relevant, shrink, simulate};

/// The most lines of a trace that are printed.
const MAX_LINES: usize = 400;

/// Simulates the service under faults that a seed determines.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  simulate --seeds 10000\n  simulate --seed 4711 --trace")]
struct Arguments {
    /// Runs this many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Runs this seed only, twice, and prints whether both runs were the same.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Prints everything that happens.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// The number of threads; 0: one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Stops after the first seed that fails.
    #[arg(long)]
    first: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let failed = match arguments.seed {
        Some(seed) => replay(seed, arguments.trace),
        None => run(&arguments),
    };
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs one seed. Returns true if it failed.
fn replay(seed: u64, trace: bool) -> bool {
    let plan = Plan::of(seed);
    let (report, again) = (simulate(&plan, true), simulate(&plan, true));
    if trace {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    print!("{}", plan.describe());
    println!("{} calls and events", report.trace.len());
    let is_same = report.hash == again.hash;
    if !is_same {
        let differing = report.trace.iter().zip(&again.trace).find(|(one, other)| one != other);
        println!("the two runs differ, first in: {differing:?}");
    }
    if !report.violations.is_empty() {
        explain(&plan, &report);
    }
    !is_same || !report.violations.is_empty()
}

/// Runs many seeds. Returns true if one failed.
fn run(arguments: &Arguments) -> bool {
    let started = Instant::now();
    let (next, stop, failed) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let threads = match arguments.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= arguments.seeds {
                        return;
                    }
                    let seed = arguments.from + at;
                    let report = simulate(&Plan::of(seed), false);
                    if !report.violations.is_empty() {
                        stop.store(arguments.first, Ordering::Relaxed);
                        println!("seed {seed}: {}", report.violations.join("; "));
                        if let Ok(mut failed) = failed.lock() {
                            failed.push(seed);
                        }
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort_unstable();
    let run = next.into_inner().min(arguments.seeds);
    println!("{run} seeds in {:.1} s, {} failed", started.elapsed().as_secs_f64(), failed.len());
    if let Some(seed) = failed.first() {
        let plan = Plan::of(*seed);
        explain(&plan, &simulate(&plan, true));
    }
    !failed.is_empty()
}

/// Prints the violations, a shorter plan that fails too, and the part of its trace that matters.
fn explain(plan: &Plan, report: &Report) {
    println!("\nseed {} violates:", plan.seed);
    report.violations.iter().for_each(|violation| println!("  {violation}"));
    println!("replay: cargo run --release -p simulation -- --seed {}", plan.seed);
    let (shorter, report) = shrink(plan, report);
    println!("\nwhat is left of it and still fails: {}", shorter.describe());
    report.violations.iter().for_each(|violation| println!("  {violation}"));
    let lines = relevant(&report);
    lines.iter().take(MAX_LINES).for_each(|line| println!("{line}"));
}
