//! Processor time and memory of processes, from `/proc`.

use std::fs;

use harness::memory;

/// The unit of processor time in `/proc`, in microseconds.
const TICK_MICROS: u64 = 10_000;

/// Processor time so far, in microseconds, of both servers and of the process under test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) postgres: u64,
    pub(crate) redis: u64,
    pub(crate) own: u64,
}

impl Cpu {
    /// Processor time of PostgreSQL and of Redis, each with its running and its ended child processes, and of
    /// the process under test. Redis has a child process while it rewrites its append-only file.
    pub(crate) fn now(postgres: Option<u32>, redis: Option<u32>, own: u32) -> Self {
        let tree = |pid: u32| with_dead_children(pid) + children(pid).into_iter().map(of).sum::<u64>();
        Self { postgres: postgres.map_or(0, tree), redis: redis.map_or(0, tree), own: of(own) }
    }

    /// The sum of two steps.
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

/// The fields of a process's `stat` after its name, which may contain any character.
fn stat(pid: u32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
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

/// The peak memory of the process, in megabytes of a million bytes.
pub(crate) fn peak_memory_mb(pid: u32) -> f64 {
    megabytes(memory::peak(pid))
}

/// The current memory of the process, in megabytes of a million bytes.
pub(crate) fn present_memory_mb(pid: u32) -> f64 {
    megabytes(memory::resident(pid))
}

/// An ended process has none.
fn megabytes(bytes: Option<u64>) -> f64 {
    bytes.unwrap_or_default() as f64 / 1e6
}

/// The value below which `fraction` of the sorted values lie.
pub(crate) fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = ((sorted.len() as f64 * fraction).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// The median: of an even number of values, the lower of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}
