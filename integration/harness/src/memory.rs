//! The memory of processes, from `/proc`: Linux only.

use std::fs;

/// The resident memory of a process, in bytes; `None` once it has ended.
pub fn resident(pid: u32) -> Option<u64> {
    bytes(pid, "VmRSS:")
}

/// The peak of the resident memory of a process, in bytes; `None` once it has ended.
pub fn peak(pid: u32) -> Option<u64> {
    bytes(pid, "VmHWM:")
}

fn bytes(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}
