//! The trace of a simulation: every call, in order. Its hash shows whether two runs are the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The trace of one run. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Trace(Arc<TraceState>);

#[derive(Debug)]
struct TraceState {
    started: Instant,
    /// True if the lines are kept.
    keeps_lines: bool,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    hash: u64,
    lines: Vec<String>,
}

impl Trace {
    pub(crate) fn new(started: Instant, keeps_lines: bool) -> Self {
        Self(Arc::new(TraceState { started, keeps_lines, record: Mutex::default() }))
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a finished call.
    pub(crate) fn call(
        &self,
        process: &str,
        server: &str,
        operation: &str,
        elements: &[String],
        failure: Option<&str>,
    ) {
        let millis = self.0.started.elapsed().as_millis();
        let mut record = self.record();
        let mut hasher = DefaultHasher::new();
        (record.hash, millis, process, operation, elements, failure).hash(&mut hasher);
        record.hash = hasher.finish();
        if self.0.keeps_lines {
            let outcome = failure.map(|failure| format!(": {failure}")).unwrap_or_default();
            let elements = elements.join(" ");
            record
                .lines
                .push(format!("{millis:>7} ms {process} → {server}: {operation} {elements}{outcome}"));
        }
    }

    /// Adds an event that is not a call.
    pub(crate) fn event(&self, text: &str) {
        let millis = self.0.started.elapsed().as_millis();
        let mut record = self.record();
        let mut hasher = DefaultHasher::new();
        (record.hash, millis, text).hash(&mut hasher);
        record.hash = hasher.finish();
        if self.0.keeps_lines {
            record.lines.push(format!("{millis:>7} ms ** {text}"));
        }
    }

    /// The hash of everything so far.
    pub(crate) fn hash(&self) -> u64 {
        self.record().hash
    }

    /// The lines so far, if they are kept.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.record().lines.clone()
    }
}
