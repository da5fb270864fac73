//! The loop of a relay: one pass after the other, with pauses while nothing is due or something is unavailable.

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Jitter, RandomJitter, RandomTokens, SystemClock, Tokens, error_chain};
use pg::Dsn;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::background;
use super::marks::Marks;
use super::pass::{Outage, Pass, Work};
use super::wake::{self, Source, Wake};
use super::{Observer, RelaySettings, RelayState, RelayStatus};
use crate::{ChannelName, Publisher, Storage};

/// Before the first try after an outage; it doubles.
const OUTAGE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Before any try after an outage.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Between two tries of marks that could not be made.
pub(super) const MARK_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long marks are tried after the stop.
const MAX_FLUSH_TIME: Duration = Duration::from_secs(20);

/// Carries events from a storage to a publisher.
pub struct Relay<S, P, O> {
    pub(super) storage: S,
    pub(super) publisher: P,
    pub(super) observer: O,
    pub(super) settings: RelaySettings,
    status: RelayStatus,
    source: Option<Source>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) jitter: Arc<dyn Jitter>,
    pub(super) tokens: Arc<dyn Tokens>,
}

impl<S: Storage, P: Publisher, O: Observer> Relay<S, P, O> {
    /// A relay with the system's clock and randomness, which polls.
    pub fn new(storage: S, publisher: P, observer: O, settings: RelaySettings) -> Self {
        Self {
            storage,
            publisher,
            observer,
            settings,
            status: RelayStatus::default(),
            source: None,
            clock: Arc::new(SystemClock),
            jitter: Arc::new(RandomJitter),
            tokens: Arc::new(RandomTokens),
        }
    }

    /// It is also woken by announcements on `channel`, and polls less often while it listens. `dsn` must lead to the server
    /// itself: a pooler in transaction mode passes no announcements on.
    #[must_use]
    pub fn listening(self, dsn: Dsn, channel: ChannelName) -> Self {
        Self { source: Some(Source { dsn, channel }), ..self }
    }

    /// The same with other sources of time and randomness.
    #[must_use]
    pub fn with_sources(
        self,
        clock: Arc<dyn Clock>,
        jitter: Arc<dyn Jitter>,
        tokens: Arc<dyn Tokens>,
    ) -> Self {
        Self { clock, jitter, tokens, ..self }
    }

    /// What it does now; it changes while the relay runs.
    pub fn status(&self) -> RelayStatus {
        self.status.clone()
    }

    /// Works until `stop`. Then the chunk that is being published ends, what was not published is released, and all marks are
    /// made before it returns, as far as the storage answers within 20 s.
    pub async fn run(&self, stop: CancellationToken) {
        let wake = Wake::default();
        self.observer.state(&self.status.state());
        let listening = async {
            if let Some(source) = &self.source {
                wake::listen(source, &wake, &stop).await;
            }
        };
        tokio::join!(
            self.process(&wake, &stop),
            background::reap(&self.storage, &self.settings, &*self.jitter, &stop),
            background::sample(&self.storage, &self.settings, &self.observer, &stop),
            listening,
        );
    }

    async fn process(&self, wake: &Wake, stop: &CancellationToken) {
        let mut work = Work::new(Instant::now(), self.settings.batch_size);
        let mut outage_pause = OUTAGE_PAUSE_MIN;
        while !stop.is_cancelled() {
            let outcome = self.pass(&mut work, stop).await;
            match outcome {
                Ok(Pass::Busy) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                }
                Ok(Pass::Idle { due_in }) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                    let time = self.idle_time(&work, wake, due_in);
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = wake.announced() => work.looks_first = false,
                        () = tokio::time::sleep(time) => work.looks_first = true,
                    }
                }
                Err(outage) => {
                    self.paused(&outage);
                    // Cancelled, the loop ends.
                    let _: Option<()> = stop.run_until_cancelled(tokio::time::sleep(outage_pause)).await;
                    outage_pause = (outage_pause * 2).min(OUTAGE_PAUSE_MAX);
                }
            }
        }
        work.release_ahead();
        self.flush(&mut work.marks).await;
    }

    fn idle_time(&self, work: &Work, wake: &Wake, due_in: Option<Duration>) -> Duration {
        let longest = wake.poll_interval(self.settings.poll_interval);
        let time = match due_in {
            None => longest,
            // What is due waits for something else, of which no announcement tells.
            Some(Duration::ZERO) => self.settings.poll_interval,
            Some(due_in) => longest.min(due_in),
        };
        let time = work.comparison.as_ref().map_or(time, |comparison| time.min(comparison.continues_in()));
        if work.marks.is_empty() { time } else { time.min(MARK_RETRY_INTERVAL) }
    }

    /// Makes the marks that are left when the relay stops.
    async fn flush(&self, marks: &mut Marks) {
        let begun = Instant::now();
        while !marks.is_empty() && begun.elapsed() < MAX_FLUSH_TIME {
            if let Err(error) = marks.flush(&self.storage, &self.observer).await {
                self.paused(&error.into());
            }
            if !marks.is_empty() {
                tokio::time::sleep(MARK_RETRY_INTERVAL).await;
            }
        }
    }

    fn running(&self) {
        if self.status.set(RelayState::Running) {
            tracing::info!(relay = self.settings.relay_id.as_str(), "outbox relay runs again");
            self.observer.state(&RelayState::Running);
        }
    }

    fn paused(&self, outage: &Outage) {
        let error = error_chain(outage);
        let state = RelayState::Paused { waiting_for: error.clone() };
        let was_running = self.status.state() == RelayState::Running;
        if self.status.set(state.clone()) && was_running {
            tracing::warn!(
                relay = self.settings.relay_id.as_str(),
                error,
                "outbox relay paused; it claims nothing until this is available again"
            );
            self.observer.state(&state);
        }
    }
}
