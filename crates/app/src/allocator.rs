//! Limits how much freed memory the allocator keeps.
//!
//! The C library's allocator returns a large block to the system when it is freed. But after freeing one such
//! block, it raises its threshold and keeps blocks of that size in an arena for each thread. A few entries of
//! 16 MiB then permanently cost that much memory for each processor. A fixed threshold prevents that, but the
//! allocator reads it from the environment before `main` runs. So the service executes itself again with two
//! variables, in the same process.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The size from which blocks are returned to the system when they are freed, in bytes. Larger than most
/// batches need.
const VARIABLE: &str = "MALLOC_MMAP_THRESHOLD_";
const RETURNED_BYTES: &str = "1048576";
/// The free memory that an arena keeps at its end, in bytes. The next batch needs it again.
const KEPT_VARIABLE: &str = "MALLOC_TRIM_THRESHOLD_";
const KEPT_BYTES: &str = "4194304";

/// Executes this program again with these variables, unless the first is set, by this function or by an
/// operator. If that fails, the service runs with more memory.
pub fn return_large_blocks() {
    if !cfg!(target_env = "gnu") || std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // `exec` returns only if it fails.
    drop(again.args(arguments).env(VARIABLE, RETURNED_BYTES).env(KEPT_VARIABLE, KEPT_BYTES).exec());
}
