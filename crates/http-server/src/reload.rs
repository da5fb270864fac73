//! Files that are read again when they change.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two looks at the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// Which one.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It holds what cannot be used.
    #[error("{path}: {}", .problems.join("; "))]
    Invalid {
        /// Which one, or which ones together.
        path: String,
        /// At least one.
        problems: Vec<String>,
    },
}

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, Vec<String>> + Send + Sync>;

/// What is made of some files, and made again when they change. A version of them that cannot be used leaves
/// it as it is.
pub(crate) struct Reloaded<T> {
    paths: Vec<PathBuf>,
    parse: Parse<T>,
    current: watch::Sender<Arc<T>>,
    /// What was read last, good or bad, so that each version is judged and logged once.
    seen: Mutex<Seen>,
}

/// The hash of the files' content, or why they could not be read.
type Seen = Result<[u8; 32], String>;

impl<T: std::fmt::Debug> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reloaded").field(&*self.current.borrow()).finish()
    }
}

impl<T> Reloaded<T> {
    /// Reads and parses the files, which must be right.
    pub(crate) fn load(
        paths: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, Vec<String>> + Send + Sync + 'static,
    ) -> Result<Self, ReloadError> {
        let contents = read_all(&paths)?;
        let value = parse(&contents).map_err(|problems| invalid(&paths, problems))?;
        let seen = Mutex::new(Ok(hash(&contents)));
        Ok(Self { paths, parse: Box::new(parse), current: watch::Sender::new(Arc::new(value)), seen })
    }

    /// What was made of something else and never changes.
    pub(crate) fn fixed(paths: Vec<PathBuf>, value: Result<T, Vec<String>>) -> Result<Self, ReloadError> {
        let value = value.map_err(|problems| invalid(&paths, problems))?;
        let parse = |_: &[Vec<u8>]| Err(Vec::new());
        let seen = Mutex::new(Err(String::new()));
        Ok(Self { paths, parse: Box::new(parse), current: watch::Sender::new(Arc::new(value)), seen })
    }

    /// What the last good version of the files gave.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.borrow())
    }

    /// Looks at the files until `stop`, and calls `changed` after each change.
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

    /// Takes over what was read, if it is new and right. Logs what it did.
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
                tracing::info!(path, "a changed file was loaded");
                true
            }
            Err(error) => {
                let error = ambient::error_chain(&error);
                tracing::warn!(error, "a changed file was refused; what was loaded before stays in force");
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
