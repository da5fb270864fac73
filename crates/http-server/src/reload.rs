//! Files that are reloaded when they change.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The interval at which the files are checked.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// An error in a file, or in reading it.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Cause.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{path}: {}", .problems.join("; "))]
    Invalid {
        /// Path of the file, or of the files that belong together.
        path: String,
        /// Faults, at least one.
        problems: Vec<String>,
    },
}

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, Vec<String>> + Send + Sync>;

/// A value parsed from some files, and parsed again when they change. If the new version is invalid, the
/// previous value is kept.
pub(crate) struct Reloaded<T> {
    paths: Vec<PathBuf>,
    parse: Parse<T>,
    current: watch::Sender<Arc<T>>,
    /// The last version that was read, valid or not, so that each version is checked and logged once.
    seen: Mutex<ContentHash>,
}

/// The hash of the files' content, or the error of reading them.
type ContentHash = Result<[u8; 32], String>;

impl<T: std::fmt::Debug> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reloaded").field(&*self.current.borrow()).finish()
    }
}

impl<T> Reloaded<T> {
    /// Reads and parses the files, which must be valid.
    pub(crate) fn load(
        paths: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, Vec<String>> + Send + Sync + 'static,
    ) -> Result<Self, ReloadError> {
        let contents = read_all(&paths)?;
        let value = parse(&contents).map_err(|problems| invalid(&paths, problems))?;
        let seen = Mutex::new(Ok(hash(&contents)));
        Ok(Self { paths, parse: Box::new(parse), current: watch::Sender::new(Arc::new(value)), seen })
    }

    /// Wraps a value from another source, which never changes.
    pub(crate) fn fixed(paths: Vec<PathBuf>, value: Result<T, Vec<String>>) -> Result<Self, ReloadError> {
        let value = value.map_err(|problems| invalid(&paths, problems))?;
        let parse = |_: &[Vec<u8>]| Err(Vec::new());
        let seen = Mutex::new(Err(String::new()));
        Ok(Self { paths, parse: Box::new(parse), current: watch::Sender::new(Arc::new(value)), seen })
    }

    /// The value of the last valid version of the files.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.borrow())
    }

    /// Checks the files until `stop`, and calls `changed` after each change.
    pub(crate) async fn follow(&self, stop: CancellationToken, changed: impl Fn()) {
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_INTERVAL)).await.is_some() {
            let paths = self.paths.clone();
            // Cannot fail: reading does not panic.
            let Ok(read) = tokio::task::spawn_blocking(move || read_all(&paths)).await else { continue };
            if self.take(read) {
                changed();
            }
        }
    }

    /// Replaces the value if the read version is new and valid, and logs the result. Returns true if it did.
    fn take(&self, read: Result<Vec<Vec<u8>>, ReloadError>) -> bool {
        let seen = read.as_ref().map(|contents| hash(contents)).map_err(|error| ambient::error_chain(error));
        if std::mem::replace(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner), seen.clone())
            == seen
        {
            return false;
        }
        let path = joined(&self.paths);
        match read
            .and_then(|contents| (self.parse)(&contents).map_err(|problems| invalid(&self.paths, problems)))
        {
            Ok(value) => {
                self.current.send_replace(Arc::new(value));
                tracing::info!(path, "reloaded a changed file");
                true
            }
            Err(error) => {
                let error = ambient::error_chain(&error);
                tracing::warn!(error, "reload failed; keeping the previous file");
                false
            }
        }
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, ReloadError> {
    let read = |path: &PathBuf| {
        let mut bytes = Vec::new();
        let outcome = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        let too_large = bytes.len() as u64 > MAX_FILE_BYTES;
        let outcome = if too_large { Err(io::Error::other("it is larger than 1 MiB")) } else { outcome };
        match outcome {
            Ok(_) => Ok(bytes),
            Err(source) => Err(ReloadError::Unreadable { path: path.display().to_string(), source }),
        }
    };
    paths.iter().map(read).collect()
}

fn hash(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for content in contents {
        hash.update((content.len() as u64).to_be_bytes());
        hash.update(content);
    }
    hash.finalize().into()
}

fn joined(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn invalid(paths: &[PathBuf], problems: Vec<String>) -> ReloadError {
    ReloadError::Invalid { path: joined(paths), problems }
}
