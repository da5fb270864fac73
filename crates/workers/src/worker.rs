//! What every loop shares: how long to wait after a failure, and how to speak of it.

use std::error::Error;
use std::time::{Duration, Instant};

use domain::accept::Wait;
use domain::entry::EntryId;
use domain::ports::error_chain;
use tokio_util::sync::CancellationToken;

/// The target of spans that are meant for traces and not for the log.
pub const SPANS: &str = "notification::spans";

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A failure that goes on unchanged is said again this often.
const REMINDER: Duration = Duration::from_secs(60);

/// What goes wrong again and again in one loop: logged when it begins, when it changes and when it is over.
#[derive(Debug)]
pub(crate) struct Trouble {
    name: &'static str,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    what: String,
    /// The stream entry that waits, where it is one.
    entry_id: Option<EntryId>,
    since: Instant,
    said: Instant,
    times: u32,
}

impl Trouble {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, current: None }
    }

    /// Takes note of a failure and returns how long to wait before the next try.
    pub(crate) fn note(&mut self, error: &dyn Error) -> Duration {
        self.note_text(error_chain(error))
    }

    /// As [`Trouble::note`], for what is no error but holds the loop up all the same.
    pub(crate) fn note_text(&mut self, what: String) -> Duration {
        self.hold(None, what)
    }

    /// As [`Trouble::note`], for an entry that must wait.
    pub(crate) fn note_wait(&mut self, wait: &Wait) -> Duration {
        self.hold(Some(wait.entry_id), wait.cause.clone())
    }

    fn hold(&mut self, entry_id: Option<EntryId>, what: String) -> Duration {
        let now = Instant::now();
        let since = self.current.as_ref().map_or(now, |current| current.since);
        let times = self.current.as_ref().map_or(1, |current| current.times.saturating_add(1));
        let unchanged =
            self.current.as_ref().filter(|current| current.what == what && current.entry_id == entry_id);
        let said = match unchanged {
            Some(current) if now.duration_since(current.said) < REMINDER => current.said,
            _ => {
                tracing::warn!(
                    worker = self.name,
                    entry_id = entry_id.map(tracing::field::display),
                    error = what,
                    times,
                    "the worker cannot go on and tries again"
                );
                now
            }
        };
        self.current = Some(Current { what, entry_id, since, said, times });
        (FIRST_PAUSE * 2_u32.saturating_pow(times.min(16) - 1)).min(LONGEST_PAUSE)
    }

    /// Takes note that it works.
    pub(crate) fn clear(&mut self) {
        if let Some(current) = self.current.take() {
            let millis = u64::try_from(current.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(
                worker = self.name,
                times = current.times,
                lasted_ms = millis,
                "the worker goes on"
            );
        }
    }
}

/// Waits; false if the service stops meanwhile.
pub(crate) async fn pause(stop: &CancellationToken, time: Duration) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_over_after_success() {
        let mut trouble = Trouble::new("test");
        let pauses: Vec<u128> = (0..7).map(|_| trouble.note_text("down".into()).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        trouble.clear();
        assert_eq!(trouble.note_text("down".into()), FIRST_PAUSE);
    }
}
