//! Wall clocks of servers and replicas that can be set while they run.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

/// The library that a process with such a clock preloads.
const SOURCE: &str = include_str!("clock.c");

/// The folder of the compiled library.
static LIBRARY: Mutex<Option<TempDir>> = Mutex::new(None);

/// Removes the compiled library, once no process uses it.
pub(crate) fn remove_library() {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// A folder that servers can read, which run as another user than root.
fn readable_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

fn library() -> PathBuf {
    let mut folder = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder.get_or_insert_with(|| {
        let folder = readable_folder();
        let source = folder.path().join("clock.c");
        fs::write(&source, SOURCE).expect("the folder is ours");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(folder.path().join("clock.so")).arg(source);
        assert!(compiler.status().expect("there is a C compiler").success(), "clock.c compiles");
        folder
    });
    folder.path().join("clock.so")
}

/// The clock of one process and its children.
#[derive(Debug)]
pub(crate) struct Clock {
    folder: TempDir,
    file: File,
}

impl Clock {
    /// A clock that is right.
    pub(crate) fn new() -> Self {
        let folder = readable_folder();
        let file = File::create(folder.path().join("ahead")).expect("the folder is ours");
        let clock = Self { folder, file };
        clock.set(Duration::ZERO, false);
        clock
    }

    /// The environment of a process with this clock.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.display().to_string();
        vec![
            ("LD_PRELOAD".to_owned(), text(library())),
            ("TORTURE_CLOCK".to_owned(), text(self.folder.path().join("ahead"))),
        ]
    }

    /// Sets it this far ahead of the machine's clock, or back.
    pub(crate) fn set(&self, by: Duration, back: bool) {
        let by = i64::try_from(by.as_nanos()).expect("less than a century");
        let by = if back { -by } else { by };
        self.file.write_all_at(&by.to_ne_bytes(), 0).expect("the file is ours");
    }
}
