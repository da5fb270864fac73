//! Logs the database's availability: when it stops responding, once a minute meanwhile, and when it is back,
//! whatever the number of requests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ambient::{Episode, Recovery};
use pg::PgError;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use crate::StateError;

/// The interval in which the log has at most one line about all connections being in use.
const BUSY_INTERVAL: Duration = Duration::from_secs(60);

/// The right that a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    Read,
    Write,
}

/// The state of the database according to the last requests.
#[derive(Debug, Default)]
pub(super) struct Availability {
    outage: Episode,
    read_only: Episode,
    busy: Mutex<Option<Instant>>,
}

impl Availability {
    /// Records the outcome of a request.
    pub(super) fn note<T>(&self, need: Need, outcome: &Result<Result<T, StateError>, Elapsed>) {
        match outcome {
            Err(_) => self.failed("no answer in time".to_owned()),
            Ok(Err(error @ StateError::Postgres(PgError::Unavailable { .. }))) => {
                self.failed(ambient::error_chain(error));
            }
            Ok(Err(error @ (StateError::NoRights(_) | StateError::Corrupt { .. }))) => {
                tracing::error!(error = ambient::error_chain(error), "the table of documents cannot be used");
            }
            Ok(Err(StateError::ReadOnly)) => {
                self.answered();
                self.refused_write();
            }
            Ok(Err(error @ StateError::Busy(_))) => self.was_busy(error),
            Ok(Err(_)) => {}
            Ok(Ok(_)) => {
                self.answered();
                if need == Need::Write {
                    self.wrote();
                }
            }
        }
    }

    fn failed(&self, error: String) {
        let failure = self.outage.failed(Instant::now().into_std(), ());
        if failure.is_logged {
            tracing::warn!(
                error,
                times = failure.times,
                "PostgreSQL is unavailable; requests are answered with 503 until it is back"
            );
        }
    }

    fn answered(&self) {
        if let Some(Recovery { times, lasted_ms }) = self.outage.recovered(Instant::now().into_std()) {
            tracing::info!(times, lasted_ms, "PostgreSQL recovered");
        }
    }

    fn refused_write(&self) {
        let failure = self.read_only.failed(Instant::now().into_std(), ());
        if failure.is_logged {
            let times = failure.times;
            tracing::warn!(times, "PostgreSQL is read-only; writes get 503 until it accepts them again");
        }
    }

    fn wrote(&self) {
        if let Some(Recovery { times, lasted_ms }) = self.read_only.recovered(Instant::now().into_std()) {
            tracing::info!(times, lasted_ms, "writes to PostgreSQL recovered");
        }
    }

    fn was_busy(&self, error: &StateError) {
        let mut last = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() > BUSY_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(
                error = ambient::error_chain(error),
                "all connections to PostgreSQL are in use; requests that wait too long are answered with 503"
            );
        }
    }
}
