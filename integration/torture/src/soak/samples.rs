//! Samples of memory, disk and latency during a soak.

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness::world::World;
use harness::{Service, memory};

use super::traffic::{Latencies, Traffic};

/// The number of rows of the table.
const ROWS: u32 = 12;
/// The highest accepted ratio of the largest value of the last third to that of the second third.
const FLAT: f64 = 1.2;
const MIB: f64 = 1_048_576.0;

/// The figures of a sample, in MiB.
const FIGURES: [&str; 5] =
    ["memory of a replica", "memory of Redis", "disk of Redis", "tables and indexes", "WAL"];

/// A sample.
#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    figures: [f64; 5],
}

/// All samples of a run, and the latencies of each row of the table.
#[derive(Debug)]
pub(crate) struct Samples {
    time: Duration,
    samples: Vec<Sample>,
    latencies: Vec<Latencies>,
}

impl Samples {
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, samples: Vec::new(), latencies: vec![Latencies::default(); ROWS as usize] }
    }

    fn row(&self, at: Duration) -> usize {
        let row = at.as_secs_f64() / self.time.as_secs_f64() * f64::from(ROWS);
        (row as usize).min(ROWS as usize - 1)
    }

    /// Takes a sample at this time of the run.
    pub(crate) async fn take(
        &mut self,
        at: Duration,
        world: &World,
        replica: Option<&Service>,
        traffic: &Traffic,
    ) {
        let row = self.row(at);
        self.latencies[row].add(traffic.take_latencies());
        let resident = |pid: Option<u32>| pid.and_then(memory::resident).unwrap_or_default() as f64;
        let (of_replica, of_redis) = (resident(replica.map(Service::pid)), resident(world.redis.pid()));
        let tables = world.number("SELECT pg_database_size(current_database())").await as f64;
        let wal = world.number("SELECT sum(size)::bigint FROM pg_ls_waldir()").await as f64;
        let figures =
            [of_replica, of_redis, folder(world.redis.folder()), tables, wal].map(|bytes| bytes / MIB);
        self.samples.push(Sample { at, figures });
    }

    /// The figures that grew from the second third to the last.
    pub(crate) fn growth(&self) -> Vec<String> {
        let third = self.time / 3;
        let largest = |figure: usize, from: Duration, to: Duration| {
            let within = self.samples.iter().filter(|sample| (from..to).contains(&sample.at));
            within.map(|sample| sample.figures[figure]).fold(0.0, f64::max)
        };
        let growth = |(figure, name): (usize, &&str)| {
            let (second, last) =
                (largest(figure, third, third * 2), largest(figure, third * 2, Duration::MAX));
            (last > second * FLAT).then(|| format!("{name} grew from {second:.0} MiB to {last:.0} MiB"))
        };
        FIGURES.iter().enumerate().filter_map(growth).collect()
    }

    /// The largest values and the latencies of each twelfth of the run.
    pub(crate) fn table(&self, traffic: &Traffic) -> String {
        let mut latencies = self.latencies.clone();
        if let Some(last) = latencies.last_mut() {
            last.add(traffic.take_latencies());
        }
        let mut table = format!(
            "| until | p50 | p99 | {} |\n|{}\n",
            FIGURES.join(" | "),
            "---|".repeat(3 + FIGURES.len())
        );
        for (row, latencies) in latencies.iter().enumerate() {
            let of_row = self.samples.iter().filter(|sample| self.row(sample.at) == row);
            let largest = of_row.fold([0.0_f64; 5], |largest, sample| {
                std::array::from_fn(|figure| largest[figure].max(sample.figures[figure]))
            });
            let until = self.time * (row as u32 + 1) / ROWS;
            let figures = largest.map(|mib| format!("{mib:.0} MiB")).join(" | ");
            let (p50, p99) = (latencies.at(500), latencies.at(990));
            table.push_str(&format!("| {} | {p50} ms | {p99} ms | {figures} |\n", minutes(until)));
        }
        table
    }
}

/// Minutes and seconds, as `1:40`.
fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// The size of all files of a folder, in bytes.
fn folder(path: &Path) -> f64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder(&entry.path()),
        Ok(metadata) => metadata.len() as f64,
        // It was removed meanwhile.
        Err(_) => 0.0,
    };
    entries.map(size).sum()
}
