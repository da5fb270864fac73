//! Whether the database answers, in the log: a line when it stops and one when it is back, whatever the number of requests.

use std::sync::atomic::{AtomicBool, Ordering};

use pg::PgError;
use tokio::time::error::Elapsed;

use crate::StateError;

/// What the last request saw.
#[derive(Debug, Default)]
pub(super) struct Availability {
    unavailable: AtomicBool,
}

impl Availability {
    /// Takes note of what became of a request.
    pub(super) fn note<T>(&self, outcome: &Result<Result<T, StateError>, Elapsed>) {
        match outcome {
            Err(_) => self.failed("no answer in time".to_owned()),
            Ok(Err(error @ StateError::Postgres(PgError::Unavailable { .. }))) => {
                self.failed(ambient::error_chain(error));
            }
            Ok(Err(error @ (StateError::NoRights(_) | StateError::Corrupt { .. }))) => {
                tracing::error!(error = ambient::error_chain(error), "the table of documents cannot be used");
            }
            Ok(Err(_)) => {}
            Ok(Ok(_)) => self.answered(),
        }
    }

    fn failed(&self, error: String) {
        if !self.unavailable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error,
                "PostgreSQL is unavailable; requests are answered with 503 until it is back"
            );
        }
    }

    fn answered(&self) {
        // The load keeps the line in the cache of every processor while nothing changes.
        if self.unavailable.load(Ordering::Relaxed) && self.unavailable.swap(false, Ordering::Relaxed) {
            tracing::info!("PostgreSQL is available again");
        }
    }
}
