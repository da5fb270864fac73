//! The report, as Markdown and as JSON.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::json;

use crate::figure::{Figure, ReportSection};
use crate::testbed::Testbed;
use crate::{Options, Scale};

/// The highest accepted peak memory of a service process, in megabytes.
const MEMORY_MB: f64 = 100.0;

/// The results so far. They are written to `target/bench/`, or to `target/bench/smoke/`.
pub(crate) struct BenchReport {
    smoke: bool,
    scale: Scale,
    folder: PathBuf,
    /// The name of its files, without their extensions.
    name: String,
    /// The build, the machine, the servers and the command.
    conditions: String,
    sections: Vec<ReportSection>,
    /// Scenarios that could not be measured, and the reasons.
    failed: Vec<(String, String)>,
}

impl BenchReport {
    pub(crate) async fn new(options: &Options, scale: Scale, testbed: &Testbed) -> anyhow::Result<Self> {
        let folder = if options.smoke { folder()?.join("smoke") } else { folder()? };
        fs::create_dir_all(&folder).context("could not create the folder of the report")?;
        let conditions = format!("{}\n\n{}\n\n{}", build(), machine(), testbed.servers().await?);
        let (smoke, name) = (options.smoke, options.report());
        Ok(Self { smoke, scale, folder, name, conditions, sections: Vec::new(), failed: Vec::new() })
    }

    pub(crate) fn add(&mut self, section: ReportSection) {
        self.sections.push(section);
    }

    pub(crate) fn failed(&mut self, scenario: &str, error: &anyhow::Error) {
        eprintln!("{scenario}: {error:#}");
        self.failed.push((scenario.to_owned(), format!("{error:#}")));
    }

    /// Writes the results so far, with their charts.
    pub(crate) fn write(&self, peak_memory_mb: f64) -> anyhow::Result<()> {
        let mut sections = self.sections.clone();
        // Not every scenario starts a service.
        if peak_memory_mb > 0.0 {
            let figure = Figure::shown("peak memory (VmHWM)", peak_memory_mb, "MB").under(MEMORY_MB);
            sections.push(ReportSection {
                title: "Memory: the peak of any service process of the run".to_owned(),
                figures: vec![figure],
                charts: Vec::new(),
            });
        }
        let data = json!({
            "scale": format!("{:?}", self.scale),
            "smoke": self.smoke,
            "conditions": self.conditions,
            "failed": self.failed,
            "sections": self.data(&sections),
        });
        let save = |file: String, text: &str| {
            fs::write(self.folder.join(&file), text).with_context(|| format!("could not write {file}"))
        };
        save(format!("{}.md", self.name), &self.text(&sections)?)?;
        save(format!("{}.json", self.name), &format!("{data:#}\n"))?;
        for chart in sections.iter().flat_map(|section| &section.charts) {
            save(self.chart(chart.file()), &chart.svg()?)?;
        }
        Ok(())
    }

    /// Prints the report.
    ///
    /// # Errors
    ///
    /// A scenario failed.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let file = self.folder.join(format!("{}.md", self.name));
        println!("\n{}", fs::read_to_string(&file).context("could not read the report")?);
        println!("written to {}, with charts and a .json", file.display());
        let failed: Vec<&str> = self.failed.iter().map(|(name, _)| name.as_str()).collect();
        ensure!(failed.is_empty(), "could not be measured: {}", failed.join(", "));
        Ok(())
    }

    /// The file of a chart. Charts of some scenarios must not replace those of a full run.
    fn chart(&self, file: &str) -> String {
        format!("{}-{file}.svg", self.name)
    }

    fn data(&self, sections: &[ReportSection]) -> serde_json::Value {
        let figure = |figure: &Figure| {
            let (goal, met) = figure.goal.clone().filter(|_| !self.smoke).unzip();
            let (least, most) = figure.range.unzip();
            json!({ "name": figure.name, "value": figure.value, "least": least, "most": most, "unit": figure.unit,
                "goal": goal, "met": met })
        };
        let section = |section: &ReportSection| {
            let figures: Vec<_> = section.figures.iter().map(figure).collect();
            json!({ "title": section.title, "figures": figures })
        };
        sections.iter().map(section).collect()
    }

    fn text(&self, sections: &[ReportSection]) -> anyhow::Result<String> {
        let mut text = String::new();
        writeln!(text, "# Benchmark\n\n{}", self.conditions)?;
        if self.smoke {
            writeln!(
                text,
                "\nA smoke run: it only shows that the benchmark works. Its figures are not comparable."
            )?;
        }
        for (name, error) in &self.failed {
            writeln!(text, "\n**{name}: FAILED, and was not measured: {error}**")?;
        }
        for ReportSection { title, figures, charts } in sections {
            writeln!(text, "\n## {title}\n\n| figure | value | of rounds | goal | |\n|---|---|---|---|---|")?;
            for Figure { name, value, unit, range, goal } in figures {
                let number = |value: f64| format!("{value:.*}", if value < 10.0 { 2 } else { 0 });
                let range = range
                    .map_or(String::new(), |(least, most)| format!("{} to {}", number(least), number(most)));
                // A smoke run is not compared with the goals.
                let (goal, met) = match goal.as_ref().filter(|_| !self.smoke) {
                    None => ("", ""),
                    Some((goal, true)) => (goal.as_str(), "met"),
                    Some((goal, false)) => (goal.as_str(), "NOT met"),
                };
                writeln!(text, "| {name} | {} {unit} | {range} | {goal} | {met} |", number(*value))?;
            }
            for chart in charts {
                writeln!(text, "\n![{}]({})", chart.title(), self.chart(chart.file()))?;
            }
        }
        Ok(text)
    }
}

/// The first line that a program prints; `None` if the program is missing or fails.
fn line_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

/// The commit, the build, the date and the command.
fn build() -> String {
    let unknown = || "unknown".to_owned();
    let commit = line_of("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown);
    let changed = if line_of("git", &["status", "--porcelain"]).is_some() { " with changes" } else { "" };
    let date = line_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_else(unknown);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let call: Vec<String> = std::iter::once("bench".to_owned()).chain(std::env::args().skip(1)).collect();
    format!(
        "Commit {commit}{changed}, a {profile} build by {}, {date}. Command: `{}`; `make bench` runs all scenarios.",
        line_of("rustc", &["--version"]).unwrap_or_else(unknown),
        call.join(" "),
    )
}

fn machine() -> String {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    format!(
        "{} cores ({}), {} memory, Linux {}.",
        std::thread::available_parallelism().map_or(0, usize::from),
        value(&file("/proc/cpuinfo"), "model name"),
        value(&file("/proc/meminfo"), "MemTotal"),
        file("/proc/sys/kernel/osrelease").trim(),
    )
}

/// The folder of the reports, beside the folder of the binary's build profile.
fn folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("could not find the target folder")?;
    let target = program.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), Path::to_path_buf);
    Ok(target.join("bench"))
}
