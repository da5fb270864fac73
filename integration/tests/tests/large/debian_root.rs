//! A clean Debian root: made once by `debootstrap`, copied for each test, entered by `chroot` in its own
//! mount namespace.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{run, target};

/// Packages beside the minimal ones: those that check the unit, and the certificates that the package
/// recommends.
const INCLUDED: &str = "ca-certificates,systemd";

/// A root that belongs to one test. It is removed when it is dropped.
pub(crate) struct Root {
    folder: tempfile::TempDir,
}

impl Root {
    /// A fresh copy. Its suite is that of this machine, whose C library the binary was linked with.
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "debootstrap and chroot need root");
        let above = target().join("debian-root");
        fs::create_dir_all(&above).expect("a folder under target");
        let original = above.join(format!("{}-{}", suite(), INCLUDED.replace(',', "-")));
        if !original.exists() {
            println!("making {} with debootstrap", original.display());
            let unfinished = original.with_extension("unfinished");
            if let Err(error) = fs::remove_dir_all(&unfinished) {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", unfinished.display());
            }
            // If it is interrupted, its mounts and remains end with the namespace.
            let mut debootstrap = Command::new("unshare");
            debootstrap.args(["--mount", "debootstrap", "--variant=minbase"]);
            debootstrap.args([&format!("--include={INCLUDED}"), &suite()]);
            run(debootstrap.arg(&unfinished));
            fs::rename(&unfinished, &original).expect("the same file system");
        }
        let folder =
            tempfile::Builder::new().prefix("copy-").tempdir_in(&above).expect("a folder under target");
        let copy = folder.path().join("root");
        run(Command::new("cp").arg("--archive").arg(&original).arg(&copy));
        Self { folder }
    }

    /// A path in it, which begins with `/`.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join("root").join(inside.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_else(|error| panic!("{inside}: {error}"))
    }

    pub(crate) fn has(&self, inside: &str) -> bool {
        self.path(inside).symlink_metadata().is_ok()
    }

    /// Copies a file of this machine into it.
    pub(crate) fn copy(&self, from: &Path, inside: &str) {
        let to = self.path(inside);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder in the root");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{} to {inside}: {error}", from.display()));
    }

    /// Runs a command in it as root, with write access. Returns the output.
    pub(crate) fn run(&self, line: &[&str]) -> String {
        let enter = self.enter("rw");
        run(Command::new(&enter[0])
            .args(&enter[1..])
            .args(line)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C"))
    }

    /// The beginning of a command line that enters it, in its own mount namespace; `mode` of its files is
    /// `rw` or `ro`.
    pub(crate) fn enter(&self, mode: &str) -> Vec<String> {
        // A bind mount can be read-only. The arguments after `chroot` are run there.
        const SCRIPT: &str = r#"
            PATH="${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin"; export PATH
            mount --rbind "$1" "$1" && mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev" || exit 1
            for name in null zero urandom random; do touch "$1/dev/$name" && mount --bind "/dev/$name" "$1/dev/$name" || exit 1; done
            mount -o "remount,bind,$2" "$1" || exit 1
            root=$1; shift 2
            exec chroot "$root" "$@""#;
        let root = self.path("/").display().to_string();
        ["unshare", "--mount", "sh", "-c", SCRIPT, "enter", &root, mode].map(str::to_owned).to_vec()
    }
}

/// `VERSION_CODENAME` of this machine.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").expect("a Debian");
    let line = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    line.expect("a suite").to_owned()
}
