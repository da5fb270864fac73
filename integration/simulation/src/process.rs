//! The life of a process: it runs, is paused for a time, or is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The life of a process. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<ProcessState>);

#[derive(Debug)]
struct ProcessState {
    name: String,
    killed: AtomicBool,
    paused_until: Mutex<Instant>,
}

impl Process {
    pub(crate) fn new(name: String) -> Self {
        let paused_until = Mutex::new(Instant::now());
        Self(Arc::new(ProcessState { name, killed: AtomicBool::new(false), paused_until }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn kill(&self) {
        self.0.killed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::SeqCst)
    }

    pub(crate) fn pause(&self, time: Duration) {
        let mut until = self.paused_until();
        *until = (*until).max(Instant::now() + time);
    }

    /// Waits until the process runs; for ever if it was killed.
    pub(crate) async fn runs(&self) {
        loop {
            if self.is_killed() {
                std::future::pending::<()>().await;
            }
            let until = *self.paused_until();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn paused_until(&self) -> MutexGuard<'_, Instant> {
        self.0.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
