//! The figures, for a person and for a program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use crate::Scale;
use crate::figure::{Figure, Section};
use crate::world::POSTGRES_SETTINGS;

/// The most memory that a service process may have, in megabytes.
const MEMORY_MB: f64 = 100.0;

/// Prints the report and writes it to `target/bench/`.
pub(crate) fn write(scale: Scale, sections: &[Section], peak_memory_mb: f64) -> anyhow::Result<()> {
    let memory = Section {
        title: "Memory: the most that any service process of the run had".to_owned(),
        figures: vec![Figure::at_most("peak memory", peak_memory_mb, "MB", MEMORY_MB)],
    };
    let sections: Vec<&Section> = sections.iter().chain([&memory]).collect();
    let text = text(&sections)?;
    println!("\n{text}");
    let folder = folder()?;
    fs::create_dir_all(&folder).context("could not make the folder of the report")?;
    fs::write(folder.join("report.md"), &text).context("could not write the report")?;
    let data = json!({ "scale": format!("{scale:?}"), "machine": machine(), "sections": data(&sections) });
    fs::write(folder.join("report.json"), format!("{data:#}\n")).context("could not write the report")?;
    println!("written to target/bench/report.md and target/bench/report.json");
    Ok(())
}

fn data(sections: &[&Section]) -> serde_json::Value {
    let figure = |figure: &Figure| {
        let (goal, met) = figure.goal.clone().unzip();
        json!({ "name": figure.name, "value": figure.value, "unit": figure.unit, "goal": goal, "met": met })
    };
    let section = |section: &&Section| {
        let figures: Vec<_> = section.figures.iter().map(figure).collect();
        json!({ "title": section.title, "figures": figures })
    };
    sections.iter().map(section).collect()
}

fn text(sections: &[&Section]) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# Benchmark\n\n{}", machine())?;
    for section in sections {
        writeln!(text, "\n## {}\n\n| figure | value | goal | |\n|---|---|---|---|", section.title)?;
        for Figure { name, value, unit, goal } in &section.figures {
            let digits = if *value < 10.0 { 2 } else { 0 };
            let (goal, met) = match goal {
                None => ("", ""),
                Some((goal, true)) => (goal.as_str(), "met"),
                Some((goal, false)) => (goal.as_str(), "NOT met"),
            };
            writeln!(text, "| {name} | {value:.digits$} {unit} | {goal} | {met} |")?;
        }
    }
    Ok(text)
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
