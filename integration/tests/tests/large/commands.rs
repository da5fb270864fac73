//! Programs that tests run, and the locations of these and of this repository.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The folders in which Debian has the administrator's programs, such as `chroot`; not every user has them in
/// `PATH`.
const ADMINISTRATOR: &str = "/usr/sbin:/sbin";

/// The folder of the build: target, or another one.
pub(crate) fn target() -> PathBuf {
    let test = std::env::current_exe().expect("a test has an executable");
    test.ancestors().nth(3).expect("target/<profile>/deps").to_owned()
}

/// `PATH` of this process, with the folders for the administrator.
pub(crate) fn search_path() -> String {
    format!("{}:{ADMINISTRATOR}", std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned()))
}

/// Runs a command to its end and returns its output. Panics with the output if it fails.
pub(crate) fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.env("PATH", search_path()).stdin(Stdio::null()).output().unwrap_or_else(|error| {
            panic!("{command:?}: {error}: scripts/ensure-tools.sh --large installs it")
        });
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// A field of `/proc/<pid>/status`, its words separated by single spaces.
pub(crate) fn status_field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {status}")).split_whitespace().collect::<Vec<_>>().join(" ")
}
