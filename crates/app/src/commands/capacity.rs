//! `capacity`: estimates the resources that a load needs. It reads no configuration and contacts nothing.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::Failure;
use super::operators::{Cell, Output, Style, print_rows};
use super::output::{print_json, print_line};
use crate::capacity::{Load, Needs, PLANNED_INTENTS, PLANNED_REDIS_CORES, PLANNED_ROUTES};
use crate::config::duration;

/// The examples of `capacity`.
pub const EXAMPLES: &str = "\
Examples:
  notification capacity --intents-per-second 500 --routes 4 --retention 720h
  notification capacity --intents-per-second 50 --routes 2 --http 100 --receipts 100 --stream-retention 168h
  notification capacity --intents-per-second 2000 --routes 4 --payload-bytes 2000 --replicas 3 --json

Rates are averages over a day; plan processors for the busiest minute. Sizes are those after the load has lasted as long as its retention,
with what autovacuum needs not yet included: docs/capacity.md says where the figures come from, what to add, and how to grow further.";

/// A load.
#[derive(Args, Debug)]
pub struct CapacityArgs {
    /// Intents a second, on average over a day
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    intents_per_second: f64,
    /// Routes of an intent, on average: one for each recipient and channel
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = parse_routes)]
    routes: f64,
    /// Bytes of a payload, on average
    #[arg(long, value_name = "BYTES", default_value_t = 250)]
    payload_bytes: u32,
    /// How long records are kept, as NOTIFICATION_RECORD_RETENTION
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = duration::parse)]
    retention: Duration,
    /// How long entries stay on the streams: NOTIFICATION_INTENTS_STREAM_RETENTION, and until consumers'
    /// streams are trimmed
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse)]
    stream_retention: Duration,
    /// How many of 100 intents come by POST /v1/intents: each has a row of idempotency_keys, an element of a
    /// batch has none
    ///
    /// Processor time is always that of the stream; by HTTP an intent takes more (docs/capacity.md).
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    http: u32,
    /// How long their keys are kept, as NOTIFICATION_IDEMPOTENCY_TTL
    #[arg(long, value_name = "DURATION", default_value = "168h", value_parser = duration::parse)]
    idempotency: Duration,
    /// Routes with a receipt of a consumer, of 100
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    receipts: u32,
    /// Dead letters that operators replay or discard, a day
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    changes_per_day: u32,
    /// How long a row of operator_actions is kept, as NOTIFICATION_OPERATOR_ACTION_RETENTION
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration::parse)]
    action_retention: Duration,
    /// Replicas of the service
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    replicas: u32,
    #[command(flatten)]
    output: Output,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    in_range(text, 0.001, 1_000_000.0)
}

fn parse_routes(text: &str) -> Result<f64, String> {
    in_range(text, 0.0, 100_000.0)
}

fn in_range(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(format!("it is not from {least} to {most}"))
    }
}

impl CapacityArgs {
    fn load(&self) -> Load {
        Load {
            intents_per_second: self.intents_per_second,
            routes: self.routes,
            payload_bytes: self.payload_bytes.into(),
            retention_seconds: self.retention.as_secs_f64(),
            stream_retention_seconds: self.stream_retention.as_secs_f64(),
            http_share: f64::from(self.http) / 100.0,
            idempotency_seconds: self.idempotency.as_secs_f64(),
            receipts_share: f64::from(self.receipts) / 100.0,
            changes_per_day: self.changes_per_day.into(),
            action_retention_seconds: self.action_retention.as_secs_f64(),
            replicas: self.replicas.into(),
        }
    }
}

/// Prints the needs of the load to `out`.
pub fn run(args: &CapacityArgs, out: &mut impl Write) -> Result<(), Failure> {
    let load = args.load();
    let needs = load.needs();
    if args.output.json {
        return Ok(print_json(out, &json!({ "load": load, "needs": needs }))?);
    }
    print_rows(out, Style::PLAIN, &rows(&load, &needs)).context("could not write to standard output")?;
    if needs.is_beyond_one_installation {
        let warning = format!(
            "one installation should be planned for at most {PLANNED_INTENTS} intents/s, {PLANNED_ROUTES} routes/s and {PLANNED_REDIS_CORES} \
             cores of Redis: docs/capacity.md says how to grow past it"
        );
        print_line(out, &format!("\n{warning}"))?;
    }
    Ok(())
}

fn rows(load: &Load, needs: &Needs) -> [[Cell; 3]; 13] {
    let row = |name: &str, value: String, hint: &str| [name.into(), value.into(), hint.into()];
    let trimmed = Duration::from_secs_f64(load.stream_retention_seconds);
    let kept = format!(
        "if entries are trimmed after {}; twice that if Redis forks to save",
        duration::format(trimmed)
    );
    [
        row(
            "PostgreSQL, disk",
            bytes(needs.disk_bytes),
            "tables and indexes; twice that leaves room for autovacuum and growth",
        ),
        row("  records", bytes(needs.records_bytes), ""),
        row("  routes", bytes(needs.routes_bytes), ""),
        row("  idempotency_keys", bytes(needs.idempotency_keys_bytes), ""),
        row("  receipts", bytes(needs.receipts_bytes), ""),
        row("  operator_actions", bytes(needs.operator_actions_bytes), ""),
        row("PostgreSQL, WAL", bytes(needs.wal_bytes_per_day), "a day, at least; for archive and replicas"),
        row(
            "PostgreSQL, processors",
            cores(needs.postgres_cores),
            "busy; docs/capacity.md names the machine",
        ),
        row(
            "PostgreSQL, connections",
            format!("{:.0}", needs.connections),
            "of all replicas, at the default",
        ),
        row("Redis, memory", bytes(needs.redis_bytes), &kept),
        row("Redis, processors", cores(needs.redis_cores), "busy; it has one for its commands"),
        row("replica, memory", bytes(needs.replica_bytes), "each"),
        row("replicas, processors", cores(needs.service_cores), "busy, together"),
    ]
}

/// Formats a number of bytes in decimal units with three digits.
fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (count, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn cores(busy: f64) -> String {
    if busy > 0.0 && busy < 0.01 { "< 0.01".to_owned() } else { format!("{busy:.2}") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::capacity::{BenchmarkRun, Cost, MEASURED, RUN};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: CapacityArgs,
    }

    fn output(arguments: &[&str]) -> Result<String, String> {
        let cli =
            Cli::try_parse_from(["capacity"].iter().chain(arguments)).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        assert!(run(&cli.args, &mut out).is_ok());
        Ok(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn a_load_of_the_issue_is_answered_in_lines_for_people_and_in_json() {
        let arguments = ["--intents-per-second", "500", "--routes", "4", "--retention", "720h"];
        let shown = output(&arguments).expect("it is a load");
        assert!(
            shown.lines().any(|line| line.starts_with("PostgreSQL, WAL ") && line.contains(" GB")),
            "{shown}"
        );
        assert!(
            shown
                .lines()
                .any(|line| line.starts_with("Redis, memory ") && line.contains("trimmed after 24h;")),
            "{shown}"
        );
        assert!(!shown.contains("one installation should"), "{shown}");
        let json = output(&[&arguments[..], &["--json"]].concat()).expect("it is a load");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["load"]["retention_seconds"], 2_592_000.0);
        assert!(json["needs"]["disk_bytes"].as_f64().is_some_and(|bytes| bytes > 1e12), "{json}");
    }

    #[test]
    fn a_load_for_several_installations_says_so() {
        let shown = output(&["--intents-per-second", "20000"]).expect("it is a load");
        assert!(shown.ends_with("docs/capacity.md says how to grow past it\n"), "{shown}");
    }

    #[test]
    fn what_is_no_load_is_refused_by_name() {
        for (arguments, named) in [
            (["--intents-per-second", "NaN"], "it is not from 0.001 to 1000000"),
            (["--intents-per-second", "0"], "it is not from"),
            (["--intents-per-second", "many"], "not a number"),
            (["--routes", "4"], "--intents-per-second"),
        ] {
            let refused = output(&arguments).expect_err("it is no load");
            assert!(refused.contains(named), "{refused}");
        }
        let refused = output(&["--intents-per-second", "1", "--retention", "30d"]).expect_err("no such unit");
        assert!(refused.contains("is not a unit of time"), "{refused}");
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        let shown = [0.0, 999.0, 1_000.0, 12_345.0, 123_456_789.0, 5e15].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "12.3 kB", "123 MB", "5000 TB"]);
        assert_eq!([0.0, 0.001, 1.234].map(cores), ["0.00", "< 0.01", "1.23"]);
    }

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capacity.md");
    const EXAMPLE: [&str; 6] = ["--intents-per-second", "500", "--routes", "4", "--retention", "720h"];

    /// Returns the page with the text between the two markers `name` replaced.
    fn replaced(page: &str, name: &str, content: &str) -> String {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let (before, rest) = page.split_once(&begin).expect("the mark is there");
        let (_, after) = rest.split_once(&end).expect("the mark is there");
        format!("{before}{begin}{content}{end}{after}")
    }

    /// Describes the measured run behind the processor times and rates, and the load planned for one
    /// installation.
    fn run_of_the_page() -> String {
        let BenchmarkRun { date, machine, cores, page, intents_per_second, routes } = RUN;
        let routes_per_second = RUN.routes_per_second();
        format!(
            "Processor times and rates are of one run: {date}, {cores} cores ({machine}) with both servers on them, {page}. It processed {intents_per_second} \
             intents and {routes_per_second} routes\na second, {routes} routes an intent. Plan one installation for half: {PLANNED_INTENTS} intents/s, \
             {PLANNED_ROUTES} routes/s and {PLANNED_REDIS_CORES} cores of Redis.\n"
        )
    }

    #[test]
    fn the_page_shows_what_the_command_prints_and_the_figures_that_it_computes_with() {
        let page = std::fs::read_to_string(PATH).expect("docs/capacity.md is there");
        let shown = output(&EXAMPLE).expect("it is a load");
        let shown: String = shown.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let example = format!("```\n$ notification capacity {}\n{shown}```\n", EXAMPLE.join(" "));
        let costs: String = MEASURED.list().iter().map(Cost::row).collect();
        let costs = format!("| what | cost |\n|---|---|\n{costs}");
        let expected = [("example", example), ("run", run_of_the_page()), ("costs", costs)]
            .iter()
            .fold(page.clone(), |page, (name, content)| replaced(&page, name, content));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(PATH, &expected).expect("docs/capacity.md can be written");
            return;
        }
        assert!(
            page == expected,
            "docs/capacity.md has drifted: UPDATE_DOCS=1 cargo test -p app writes it again"
        );
    }
}
