//! The figures, for a person and for a program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use crate::Scale;
use crate::latency::{Latency, Spread};
use crate::measure::median;
use crate::throughput::Round;
use crate::world::POSTGRES_SETTINGS;

/// What must be reached: share of the ceiling, milliseconds, megabytes.
const SHARE: f64 = 0.40;
const P99_MILLIS: f64 = 100.0;
const MEMORY_MB: f64 = 150.0;

/// Prints the report and writes it to `target/bench/`.
pub(crate) fn write(
    scale: Scale,
    ceiling: &[Round],
    service: &[Round],
    latency: &Latency,
) -> anyhow::Result<()> {
    let share = of(service, |round| round.intents_per_second) / of(ceiling, |round| round.intents_per_second);
    let memory = service.iter().map(|round| round.memory_mb).fold(latency.memory_mb, f64::max);
    let text = text(scale, ceiling, service, latency, share, memory)?;
    println!("\n{text}");
    let folder = folder()?;
    fs::create_dir_all(&folder).context("could not make the folder of the report")?;
    let data = json!({
        "scale": format!("{scale:?}"),
        "share_of_ceiling": share,
        "ceiling": ceiling.iter().map(|round| format!("{round:?}")).collect::<Vec<_>>(),
        "service": service.iter().map(|round| format!("{round:?}")).collect::<Vec<_>>(),
        "latency_ms": { "whole": format!("{:?}", latency.whole), "publish": format!("{:?}", latency.publish) },
        "peak_memory_mb": memory,
    });
    fs::write(folder.join("report.md"), &text).context("could not write the report")?;
    fs::write(folder.join("report.json"), format!("{data:#}\n")).context("could not write the report")?;
    println!("written to target/bench/report.md and target/bench/report.json");
    Ok(())
}

fn of(rounds: &[Round], value: fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(value))
}

fn text(
    scale: Scale,
    ceiling: &[Round],
    service: &[Round],
    latency: &Latency,
    share: f64,
    memory: f64,
) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# Benchmark\n")?;
    writeln!(text, "{}\n", machine())?;
    writeln!(
        text,
        "{} intents of 4 routes, {} round(s) each, in turn; medians.\n",
        scale.intents, scale.rounds
    )?;
    writeln!(text, "| | intents/s | routes/s | CPU µs/intent: PostgreSQL | Redis | own | all |")?;
    writeln!(text, "|---|---|---|---|---|---|---|")?;
    for (name, rounds) in [("ceiling", ceiling), ("service", service)] {
        let rate = of(rounds, |round| round.intents_per_second);
        let (postgres, redis, own) =
            (of(rounds, |r| r.postgres), of(rounds, |r| r.redis), of(rounds, |r| r.own));
        let all = postgres + redis + own;
        writeln!(
            text,
            "| {name} | {rate:.0} | {:.0} | {postgres:.0} | {redis:.0} | {own:.0} | {all:.0} |",
            rate * 4.0
        )?;
    }
    writeln!(
        text,
        "\n| at {} intents/s for {} s, in ms | p50 | p90 | p99 | max |",
        scale.rate, scale.seconds
    )?;
    writeln!(text, "|---|---|---|---|---|")?;
    spread(&mut text, "XADD of the intent to its entry, as seen by a blocked reader", latency.whole)?;
    spread(&mut text, "acceptance to append (whole ms)", latency.publish)?;
    writeln!(text, "\n| goal | reached | |\n|---|---|---|")?;
    goal(
        &mut text,
        &format!("at least {:.0} % of the ceiling", SHARE * 100.0),
        &format!("{:.0} %", share * 100.0),
        share >= SHARE,
    )?;
    let p99 = latency.publish.p99;
    goal(
        &mut text,
        &format!("acceptance to append, p99 under {P99_MILLIS} ms"),
        &format!("{p99:.0} ms"),
        p99 < P99_MILLIS,
    )?;
    goal(
        &mut text,
        &format!("peak memory under {MEMORY_MB} MB"),
        &format!("{memory:.0} MB"),
        memory < MEMORY_MB,
    )?;
    Ok(text)
}

fn spread(text: &mut String, name: &str, spread: Spread) -> std::fmt::Result {
    let Spread { p50, p90, p99, max } = spread;
    writeln!(text, "| {name} | {p50:.1} | {p90:.1} | {p99:.1} | {max:.1} |")
}

fn goal(text: &mut String, name: &str, reached: &str, met: bool) -> std::fmt::Result {
    writeln!(text, "| {name} | {reached} | {} |", if met { "met" } else { "NOT met" })
}

/// What the figures were taken on, and how to take them again.
fn machine() -> String {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.map_or_else(
            |_| "unknown".to_owned(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = file("/proc/meminfo").lines().next().unwrap_or_default().replace("MemTotal:", "");
    let settings = POSTGRES_SETTINGS.map(|(name, value)| format!("{name}={value}")).join(", ");
    format!(
        "{cores} cores, {} memory, Linux {}. {}; {}; {}. PostgreSQL: defaults (fsync, synchronous_commit on) and {settings}. \
         Redis: appendonly, fsync every second. Again: `make bench`.",
        memory.trim(),
        file("/proc/sys/kernel/osrelease").trim(),
        said("postgres", "--version"),
        said("redis-server", "--version").split(" sha").next().unwrap_or_default(),
        said("rustc", "--version"),
    )
}

/// Beside the binary's own profile folder.
fn folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("could not find the target folder")?;
    let target = program.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), Path::to_path_buf);
    Ok(target.join("bench"))
}
