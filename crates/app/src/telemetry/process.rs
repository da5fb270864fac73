//! Metrics of the process itself: memory and processor time, from `/proc`. They are absent on other systems.

use std::fs::read_to_string;

use opentelemetry::metrics::Meter;
use workers::metrics::Instruments;

/// The unit of times in `/proc/self/stat`, which is the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reports the memory and the processor time of this process whenever the metrics are read.
pub(super) fn observe(meter: &Meter) {
    let make = Instruments::new(meter);
    make.observed_gauge("process.memory.usage", "By", "Resident memory of the process", |gauge| {
        let bytes = read_to_string("/proc/self/status").ok().and_then(|status| resident_bytes(&status));
        bytes.into_iter().for_each(|bytes| gauge.observe(bytes, &[]));
    });
    make.observed_time("process.cpu.time", "Processor time of the process", |counter| {
        let seconds = read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_seconds(&stat));
        seconds.into_iter().for_each(|seconds| counter.observe(seconds, &[]));
    });
}

/// The resident memory in the text of `/proc/self/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The time in user and kernel mode in the text of `/proc/self/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the program, in parentheses, may contain spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(f64::from(ticks()?.saturating_add(ticks()?)) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_read_from_what_linux_writes() {
        let status = "Name:\tnotification\nVmHWM:\t   30000 kB\nVmRSS:\t   20480 kB\n";
        assert_eq!(resident_bytes(status), Some(20 << 20));
        let stat = "7 (a ) name) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!((resident_bytes(""), cpu_seconds("")), (None, None));
        #[cfg(target_os = "linux")]
        {
            let read = |name: &str| read_to_string(format!("/proc/self/{name}")).expect("Linux has it");
            assert!(resident_bytes(&read("status")).is_some_and(|bytes| bytes > 1 << 20));
            assert!(cpu_seconds(&read("stat")).is_some());
        }
    }
}
