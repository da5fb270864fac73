//! What the kernel knows: processor time and memory of processes.

use std::fs;

/// Linux counts processor time in these.
const TICK_MICROS: u64 = 10_000;

/// Processor time of each party so far, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) postgres: u64,
    pub(crate) redis: u64,
    pub(crate) own: u64,
}

impl Cpu {
    /// Of a PostgreSQL and a Redis with their children, living and dead, and whoever does the work. Redis, too, has
    /// children: one that writes its log anew, which grows large enough for that within a run.
    pub(crate) fn now(postgres: Option<u32>, redis: Option<u32>, own: u32) -> Self {
        let tree = |pid: u32| with_dead_children(pid) + children(pid).into_iter().map(of).sum::<u64>();
        Self { postgres: postgres.map_or(0, tree), redis: redis.map_or(0, tree), own: of(own) }
    }

    /// Of two steps together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            postgres: self.postgres + other.postgres,
            redis: self.redis + other.redis,
            own: self.own + other.own,
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            postgres: self.postgres.saturating_sub(earlier.postgres),
            redis: self.redis.saturating_sub(earlier.redis),
            own: self.own.saturating_sub(earlier.own),
        }
    }
}

/// The fields of a process's `stat` behind its name, which may hold anything.
fn stat(pid: u32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

fn field(stat: &[u64], number: usize) -> u64 {
    // proc(5) counts from 1, and the first two fields are cut off.
    stat.get(number - 3).copied().unwrap_or(0)
}

fn of(pid: u32) -> u64 {
    let stat = stat(pid);
    (field(&stat, 14) + field(&stat, 15)) * TICK_MICROS
}

fn with_dead_children(pid: u32) -> u64 {
    let stat = stat(pid);
    (14..=17).map(|number| field(&stat, number)).sum::<u64>() * TICK_MICROS
}

fn children(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child| field(&stat(*child), 4) == u64::from(pid))
        .collect()
}

/// What `status` calls a kB is this many bytes.
const STATUS_UNIT: f64 = 1_024.0;

/// The most memory that the process ever had, in megabytes of a million bytes.
pub(crate) fn peak_memory_mb(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) * STATUS_UNIT / 1e6
}

/// The value below which `fraction` of the sorted values lie.
pub(crate) fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    let place = ((sorted.len() as f64 * fraction).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(place - 1).copied().unwrap_or(0.0)
}

/// The middle one.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}
