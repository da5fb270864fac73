//! The figures, for a person and for a program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use crate::figure::{Figure, Section};
use crate::world::POSTGRES_SETTINGS;
use crate::{Order, Scale};

/// The most memory that a service process may have, in megabytes.
const MEMORY_MB: f64 = 100.0;

/// Prints the report and writes it, with its charts, to `target/bench/`, or `target/bench/smoke/`.
pub(crate) fn write(
    scale: Scale,
    order: &Order,
    mut sections: Vec<Section>,
    peak_memory_mb: f64,
    failed: &[String],
) -> anyhow::Result<()> {
    // Not every scenario starts a service.
    if peak_memory_mb > 0.0 {
        let figure = Figure::shown("peak memory (VmHWM)", peak_memory_mb, "MB");
        let goal = Some((format!("under {MEMORY_MB} MB"), peak_memory_mb < MEMORY_MB));
        sections.push(Section {
            title: "Memory: the most that any service process of the run had".to_owned(),
            figures: vec![Figure { goal, ..figure }],
            charts: Vec::new(),
        });
    }
    let smoke = order.smoke;
    let text = text(smoke, &sections, failed)?;
    println!("\n{text}");
    let folder = if smoke { folder()?.join("smoke") } else { folder()? };
    fs::create_dir_all(&folder).context("could not make the folder of the report")?;
    let name = order.report();
    fs::write(folder.join(format!("{name}.md")), &text).context("could not write the report")?;
    let data = json!({
        "scale": format!("{scale:?}"),
        "smoke": smoke,
        "machine": machine(),
        "failed": failed,
        "sections": data(smoke, &sections),
    });
    fs::write(folder.join(format!("{name}.json")), format!("{data:#}\n"))
        .context("could not write the report")?;
    for chart in sections.iter().flat_map(|section| &section.charts) {
        let path = folder.join(format!("{}.svg", chart.file()));
        fs::write(path, chart.svg()?).context("could not write a chart")?;
    }
    println!("written to {}: {name}.md, {name}.json and the charts", folder.display());
    Ok(())
}

fn data(smoke: bool, sections: &[Section]) -> serde_json::Value {
    let figure = |figure: &Figure| {
        let (goal, met) = figure.goal.clone().filter(|_| !smoke).unzip();
        json!({ "name": figure.name, "value": figure.value, "unit": figure.unit, "goal": goal, "met": met })
    };
    let section = |section: &Section| {
        let figures: Vec<_> = section.figures.iter().map(figure).collect();
        json!({ "title": section.title, "figures": figures })
    };
    sections.iter().map(section).collect()
}

fn text(smoke: bool, sections: &[Section], failed: &[String]) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# Benchmark\n\n{}", machine())?;
    if smoke {
        writeln!(text, "\nA smoke run: it shows that the benchmark works. Its figures judge nothing.")?;
    }
    for name in failed {
        writeln!(text, "\n**{name}: FAILED, and was not measured.**")?;
    }
    for Section { title, figures, charts } in sections {
        writeln!(text, "\n## {title}\n\n| figure | value | goal | |\n|---|---|---|---|")?;
        for Figure { name, value, unit, goal } in figures {
            let digits = if *value < 10.0 { 2 } else { 0 };
            // A smoke run judges nothing.
            let (goal, met) = match goal.as_ref().filter(|_| !smoke) {
                None => ("", ""),
                Some((goal, true)) => (goal.as_str(), "met"),
                Some((goal, false)) => (goal.as_str(), "NOT met"),
            };
            writeln!(text, "| {name} | {value:.digits$} {unit} | {goal} | {met} |")?;
        }
        for chart in charts {
            writeln!(text, "\n![{}]({}.svg)", chart.title(), chart.file())?;
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
         Redis: appendonly, fsync every second. Run as `{}`; all of it: `make bench`.",
        memory.trim(),
        file("/proc/sys/kernel/osrelease").trim(),
        said("postgres", "--version"),
        said("redis-server", "--version").split(" sha").next().unwrap_or_default(),
        said("rustc", "--version"),
        std::iter::once("bench".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" "),
    )
}

/// Beside the binary's own profile folder.
fn folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("could not find the target folder")?;
    let target = program.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), Path::to_path_buf);
    Ok(target.join("bench"))
}
